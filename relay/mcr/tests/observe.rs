//! What can be seen of a running daemon, with the tools that people see it with: a terminal, tshark,
//! Prometheus, a browser. A tool that is missing skips its test and says so.

#![expect(clippy::unwrap_used, reason = "tests")]

mod agree;
mod alerts;
pub(crate) mod browser;
mod events;
mod health;
mod healthy;
mod history;
mod latency;
mod leaving;
mod log;
mod losses;
mod metrics;
mod neighbours;
mod page;
mod page_neighbours;
mod page_watched;
pub(crate) mod pictures;
mod prometheus;
mod rates;
mod scale;
mod silent;
mod tap;
mod top;

pub(crate) use top::Screen;
