//! The parts of `mcr tap`: capture points and their sockets, the filter, the thread that follows the rule,
//! and the file writer.

mod capture_point;
mod capture_socket;
mod filter;
mod follow;
mod headers;
mod pcapng;

pub(crate) use capture_point::{CapturePoints, query_points};
pub(crate) use capture_socket::CaptureSocket;
pub(crate) use filter::Filter;
pub(crate) use follow::{RuleState, follow};
pub(crate) use pcapng::{Captured, Pcapng, whole_blocks};
