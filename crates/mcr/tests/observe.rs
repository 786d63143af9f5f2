//! What can be seen of a running daemon, with the tools that people see it with: a terminal, tshark,
//! Prometheus, a browser. A tool that is missing skips its test and says so.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "observe/agree.rs"]
mod agree;
#[path = "observe/bed.rs"]
mod bed;
#[path = "observe/browser.rs"]
mod browser;
#[path = "observe/events.rs"]
mod events;
#[path = "observe/health.rs"]
mod health;
#[path = "observe/latency.rs"]
mod latency;
#[path = "observe/log.rs"]
mod log;
#[path = "observe/metrics.rs"]
mod metrics;
#[path = "observe/page.rs"]
mod page;
#[path = "observe/pictures.rs"]
mod pictures;
#[path = "observe/prometheus.rs"]
mod prometheus;
#[path = "observe/rates.rs"]
mod rates;
#[path = "observe/tap.rs"]
mod tap;
#[path = "observe/top.rs"]
mod top;
