//! Rules, the forwarding table compiled from them, and where each route runs.
//!
//! Everything here is a pure function of its arguments: no I/O, no clock, no unsafe.
//!
//! ```text
//! text ──> document ──> rule ──> ruleset ──┐
//! (TOML, JSON, notation)   (valid, no loops) ├─ compile ──> table ──> diff ──> paths
//!                          host, placement ──┘
//! ```
//!
//! Operators' texts become [`document`]s, documents become [`rule`]s, rules become a [`ruleset`],
//! which cannot exist unless it makes sense. [`compile`] takes it and a [`host::Host`] snapshot to
//! the [`table`] that both paths execute, and [`diff::TableDiff`] is all that goes down to them.
//!
//! ```
//! use model::compile::compile;
//! use model::config::{Config, ConfigFile};
//! use model::host::Host;
//! use model::placement::{PathChoice, Support};
//! use model::ruleset::Policy;
//!
//! let file = ConfigFile {
//!     name: "mcr.toml".to_owned(),
//!     text: r#"
//!         version = 1
//!         [[rule]]
//!         name = "cam1"
//!         input = "239.1.1.1%eth0:5001"
//!         outputs = ["239.10.1.1%eth1:6001,ttl=16"]
//!     "#
//!     .to_owned(),
//! };
//! let config = Config::load(&[file], Policy::default())?;
//! let support = Support {
//!     kernel: Ok(()),
//!     userspace: Ok(()),
//! };
//! let choices = config.settings.path_choices(PathChoice::Auto);
//! // On a host without interfaces the rule waits for its own.
//! let compiled = compile(&config.rules, &Host::default(), &support, &choices);
//! assert!(compiled.table.routes.is_empty());
//! assert_eq!(
//!     compiled.rules.values().next().unwrap().troubles()[0],
//!     "rule \"cam1\": input 239.1.1.1%eth0:5001: no interface eth0 (there is none but lo); waits for it"
//! );
//! # Ok::<(), model::config::ConfigErrors>(())
//! ```

pub mod budget;
pub mod compile;
pub mod config;
pub mod demand;
pub mod diff;
pub mod document;
pub mod duration;
pub mod endpoint;
pub mod failover;
pub mod health;
pub mod host;
pub mod host_name;
pub mod ipsec;
mod joins;
pub mod limit;
mod loops;
pub mod merge;
pub mod net;
pub mod overlap;
pub mod placement;
pub mod printable;
pub mod problem;
pub mod reflect;
pub mod roles;
pub mod rule;
pub mod ruleset;
pub mod setting;
pub mod shared_map;
pub mod table;
pub mod wildcard;

#[cfg(test)]
mod samples;
