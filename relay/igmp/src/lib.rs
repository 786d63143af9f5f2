//! IGMP and MLD (RFC 3376, RFC 3810 and earlier versions): the messages in packets, and a multicast
//! router's part on one link.
//!
//! No I/O and no unsafe. The owner of the sockets passes the time and the received messages to the router.

pub mod codec;
pub mod group;
pub mod listeners;
pub mod router;
pub mod timers;
