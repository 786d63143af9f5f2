//! What the checks want to know of a link beyond what rules need.

use host::bridge::Bridge;
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo};

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
    /// The interface that it stands upon, where that is in this namespace.
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
        let mut link = Self {
            index: header.index,
            name: read.interface.name.clone(),
            alternatives: read.interface.alternatives.clone(),
            mtu: read.interface.mtu,
            up: header.flags.contains(LinkFlags::Up),
            xdp: read.xdp(),
            bridge: Bridge::of(&read.message),
            ..Self::default()
        };
        let mut is_elsewhere = false;
        for attribute in &read.message.attributes {
            match attribute {
                LinkAttribute::Controller(master) => link.master = Some(*master),
                LinkAttribute::Link(lower) => link.lower = Some(*lower),
                // What its number names is in another namespace.
                LinkAttribute::LinkNetNsId(_) => is_elsewhere = true,
                LinkAttribute::LinkInfo(infos) => {
                    infos.iter().for_each(|info| note(&mut link, info));
                }
                _ => {}
            }
        }
        link.lower = link.lower.filter(|_| !is_elsewhere);
        link
    }
}

fn note(link: &mut Link, info: &LinkInfo) {
    match info {
        LinkInfo::Kind(InfoKind::Other(kind)) => link.kind.clone_from(kind),
        LinkInfo::Kind(kind) => link.kind = kind.to_string(),
        _ => {}
    }
}
