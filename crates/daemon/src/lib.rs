//! Supervisor, control API server, links and neighbours, memberships.

pub mod keeper;
