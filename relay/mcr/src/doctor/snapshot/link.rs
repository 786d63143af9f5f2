//! A link with what the checks need beyond what rules need.

use host::bridge::Bridge;
use rtnetlink::packet_route::link::LinkFlags;

/// A link.
#[derive(Clone, Debug, Default)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// Further names that it has.
    pub(crate) alternatives: Vec<String>,
    /// `veth`, `bridge`, …; empty for hardware.
    pub(crate) kind: String,
    /// Administratively up, with carrier or without.
    pub(crate) up: bool,
    pub(crate) mtu: u32,
    /// The bridge, bond or VRF above it.
    pub(crate) master: Option<u32>,
    /// The interface below it, if that is in this namespace.
    pub(crate) lower: Option<u32>,
    pub(crate) bridge: Option<Bridge>,
    /// An XDP program is attached; its number.
    pub(crate) xdp: Option<u32>,
    /// A clsact or ingress qdisc is attached.
    pub(crate) clsact: bool,
}

impl Link {
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.name == name || self.alternatives.iter().any(|other| other == name)
    }
}

impl From<&host::Link> for Link {
    fn from(read: &host::Link) -> Self {
        let header = &read.message.header;
        Self {
            index: header.index,
            name: read.interface.name.clone(),
            alternatives: read.interface.alternatives.clone(),
            kind: read.kind().map_or_else(String::new, ToString::to_string),
            up: header.flags.contains(LinkFlags::Up),
            mtu: read.interface.mtu,
            master: read.controller(),
            lower: read.lower(),
            bridge: Bridge::of(&read.message),
            xdp: read.xdp(),
            clsact: false,
        }
    }
}
