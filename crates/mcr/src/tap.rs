//! What `mcr tap` is made of: where to look, who looks and follows the rule, what is wanted, and the file
//! that is written.

mod eye;
mod filter;
mod follow;
mod headers;
mod pcapng;
mod point;

pub(crate) use eye::Eye;
pub(crate) use filter::Filter;
pub(crate) use follow::{Follower, Seen};
pub(crate) use pcapng::{Pcapng, Written};
pub(crate) use point::{Points, points};
