//! A client of etcd's v3 API: transactions, ranges, watches and status over gRPC, no more.
//!
//! It is careful about the outcome of writes: [`Error::Unavailable`] and [`Error::Refused`] mean that a
//! write was surely not applied, [`Error::Unknown`] that it may have been. A transaction that was sent
//! is never sent again. There are no leases, and no pings: etcd closes connections that ping more often
//! than every five seconds, so requests have deadlines and watches request progress notifications
//! instead.

mod client;
mod config;
mod connect_error;
mod connection;
mod error;
mod error_class;
mod grpc;
mod messages;
mod operation;
mod pool;
mod range;
mod refusal;
mod tls;
mod token;
mod watch;

pub use crate::client::{Client, Status};
pub use crate::config::{Config, ConfigError, Endpoint, Secret, Tls};
pub use crate::error::Error;
pub use crate::messages::KeyValue;
pub use crate::operation::{Compare, Is, Op, OpReply, Txn, TxnReply};
pub use crate::range::{KeyRange, RangeOptions, RangeReply};
pub use crate::watch::{Event, Watch, WatchBatch, WatchTarget};
