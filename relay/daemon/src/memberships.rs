//! The memberships that the rules need: computed without I/O, then joined and left to match.

mod joined;
mod wanted;

pub(crate) use joined::Joined;
pub(crate) use wanted::{Wanted, WantedDiff, of_inputs, of_join, of_rules};
