//! The memberships the rules need: computed without I/O, then held equal to what is joined.

mod joined;
mod wanted;

pub(crate) use joined::Joined;
pub(crate) use wanted::{Wanted, WantedDiff, of_inputs, of_join, of_rules};
