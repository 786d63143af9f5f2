//! The control API: its socket, its routes, and the service behind them. It changes nothing itself:
//! read-only requests are answered here, changes are passed to the supervisor.

mod acknowledged;
pub(crate) mod api_error;
mod body;
mod body_quota;
pub(crate) mod capture;
mod changing;
mod connections;
mod document;
mod earlier;
mod enabled;
mod event_stream;
mod explain;
mod fleet;
mod history;
pub(crate) mod host_name;
mod listening;
#[cfg(feature = "rehearsal")]
pub(crate) mod rehearsal;
pub(crate) mod remote;
pub(crate) mod response_cache;
mod routes;
mod selection;
pub(crate) mod server;
pub(crate) mod service;
pub(crate) mod socket;
mod status;
pub(crate) mod unsaved;
mod web;
mod writing;
