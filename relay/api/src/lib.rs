//! Requests and replies of the control API, its OpenAPI document, and a client.

pub mod client;
pub mod query;
pub mod reply;
pub mod request;

pub use counters::{counter, counters};
