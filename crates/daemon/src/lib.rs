//! Supervisor, control API server, links and neighbours, memberships.

pub mod keeper;
mod metrics;
mod question;
mod server;
