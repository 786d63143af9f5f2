//! IGMP and MLD (RFC 3376, RFC 3810 and the versions before): the messages in packets, and a multicast
//! router's part on one link.
//!
//! Pure: no I/O, no clock and no unsafe. Who has the sockets tells the time and what was received.

pub mod codec;
pub mod group;
pub mod router;
pub mod timers;
