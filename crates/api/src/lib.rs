//! Requests and replies of the control API, its OpenAPI document, and a client.

pub mod client;
pub mod counter;
pub mod query;
pub mod reply;
pub mod request;
