//! Several relays as one: who forwards which rules, and one set of rules for all of them.
//!
//! [`member`] decides and does no I/O; what it decides on are the [`keys`] of etcd and this host's
//! clock. A relay forwards a share only before a deadline that confirmed beats move; a successor takes
//! over by a transaction that makes every later beat of the old one fail. [`relay`] carries out what
//! the member decides: it speaks to etcd, to the other relays and to the daemon.

pub mod error;
pub mod host;
pub mod keys;
pub mod member;
pub mod peers;
pub mod placement;
pub mod record;
pub mod relay;
pub mod rules;
pub mod store;
