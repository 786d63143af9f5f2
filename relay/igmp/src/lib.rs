//! IGMP and MLD (RFC 3376, RFC 3810 and the versions before): the messages in packets, and a multicast
//! router's part on one link.
//!
//! No I/O and no unsafe. Who has the sockets tells the router the time and what was received.

pub mod codec;
pub mod group;
pub mod listeners;
pub mod router;
pub mod timers;
