//! Rules: what operators write, parsed into a form that cannot be malformed, and checked alone and
//! together.
//!
//! Texts become [`document`]s, documents become [`rule`]s, rules become a [`ruleset`], which exists only
//! if it is valid. The keys of rules and of the configuration are rows of [`setting`].
//! Pure: no I/O, no clock, no unsafe.

pub mod demand;
pub mod document;
pub mod duration;
pub mod endpoint;
pub mod failover;
pub mod health;
pub mod host_name;
pub mod joins;
pub mod limit;
mod loops;
pub mod merge;
pub mod mixed;
pub mod named;
pub mod near;
pub mod net;
pub mod owner;
pub mod path;
pub mod payload;
pub mod printable;
pub mod problem;
pub mod reflect;
pub mod roles;
pub mod rule;
pub mod ruleset;
#[cfg(any(test, feature = "test-support"))]
pub mod samples;
pub mod setting;
pub mod shared_map;
pub mod wildcard;
