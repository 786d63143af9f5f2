//! Measuring over real wires: a generator and a verifier, each beside the network under test, that
//! agree on trials over a connection of their own.
//!
//! The verifier counts at the endpoints that its own command line names and nothing else; anyone who
//! reaches it can make it count there and read its host's description. It takes no names, files or
//! addresses from the connection.

pub mod channel;
pub mod drops;
pub mod host;
pub mod message;
pub mod remote;
mod session;
pub mod trial;
pub mod verifier;
