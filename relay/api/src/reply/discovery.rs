//! The multicast that arrives on a host, as `mcr discover` shows it.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Everything that was received.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Discovery {
    /// How long it was listened.
    pub seconds: f64,
    /// Where.
    pub interfaces: Vec<DiscoveredInterface>,
    /// Whether `rule` is known: whether a daemon was asked.
    pub rules_known: bool,
    /// What came.
    pub streams: Vec<DiscoveredStream>,
    /// Packets of further streams, of which too many came.
    pub not_listed: u64,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiscoveredInterface {
    /// Its name.
    pub name: String,
    /// Packets that came too fast.
    pub missed: u64,
}

/// A stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiscoveredStream {
    /// The interface that it arrives at, or leaves by.
    pub interface: String,
    /// The VLAN that it is tagged for, if the host has no interface of that VLAN.
    pub vlan: Option<u16>,
    /// Who sends it.
    #[schema(value_type = String)]
    pub source: IpAddr,
    /// Whom it is for.
    #[schema(value_type = String)]
    pub group: IpAddr,
    /// The UDP port that it is for.
    pub port: u16,
    /// Packets that were received.
    pub packets: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Packets in a second.
    pub packets_per_second: f64,
    /// Bits of payload in a second.
    pub bits_per_second: f64,
    /// The TTL or hop limit of the last packet.
    pub ttl: u8,
    /// What it carries: `rtp`, `rtp/mpeg-ts`, `mpeg-ts` or `other`.
    pub content: String,
    /// Whether this host has joined it there.
    pub joined: bool,
    /// A program of this host sends it by the interface, where it does not come in.
    pub sent_here: bool,
    /// The rule that takes it.
    pub rule: Option<String>,
    /// The input of a rule that would take it.
    pub input: String,
    /// The command that relays it, but for where to.
    pub add: String,
}
