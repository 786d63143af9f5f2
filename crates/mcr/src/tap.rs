//! What `mcr tap` is made of: where to look, and the file that is written.

mod pcapng;
mod point;

pub(crate) use pcapng::{Pcapng, Written};
pub(crate) use point::{Point, points};
