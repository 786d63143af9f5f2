//! Several relays as one: one set of rules for all of them, and which relay forwards which of them.
//!
//! [`member`] decides without I/O, from the [`keys`] of etcd and this host's clock. A relay forwards a
//! share only before a deadline that confirmed beats move; a successor takes over by a transaction that
//! makes every later beat of the old holder fail. [`relay`] carries out the member's decisions: it talks
//! to etcd, to the other relays and to the daemon.

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
