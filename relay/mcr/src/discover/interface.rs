//! The interfaces that the listener can use.

use std::collections::BTreeMap;

use rtnetlink::packet_route::link::{InfoData, InfoVlan, LinkAttribute, LinkInfo, LinkMessage};
use rules::{near, wildcard};
use tokio::runtime::Builder;

use crate::failure::{Failure, OrFail, Status, unavailable};

/// An interface of this network namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// Its alternative names.
    alternatives: Vec<String>,
    /// Up and with carrier.
    pub(crate) up: bool,
    /// The interfaces of its VLANs.
    vlans: BTreeMap<u16, String>,
}

impl Interface {
    /// The name of a VLAN's interface, or the customary one if there is none.
    pub(crate) fn vlan_name(&self, vlan: u16) -> String {
        let existing = self.vlans.get(&vlan).cloned();
        existing.unwrap_or_else(|| format!("{}.{vlan}", self.name))
    }

    fn matches(&self, pattern: &str) -> bool {
        let is_alternative = || self.alternatives.iter().any(|name| name == pattern);
        wildcard::matches(pattern, &self.name) || is_alternative()
    }

    /// Whether a VLAN has an interface.
    pub(crate) fn has_vlan(&self, vlan: u16) -> bool {
        self.vlans.contains_key(&vlan)
    }
}

/// Lists the interfaces that match `patterns`; without patterns those that are up.
pub(crate) fn interfaces(patterns: &[String]) -> Result<Vec<Interface>, Failure> {
    let all = read()?;
    for pattern in patterns {
        if !all.iter().any(|link| link.matches(pattern)) {
            let names: Vec<&str> = all.iter().map(|link| link.name.as_str()).collect();
            let hint = near::hint(pattern, names.iter().copied());
            let message = format!("no interface {pattern} (have: {}{hint})", names.join(", "));
            return Err(unavailable(message));
        }
    }
    let is_selected = |link: &Interface| match patterns {
        [] => link.up,
        patterns => patterns.iter().any(|pattern| link.matches(pattern)),
    };
    Ok(all.into_iter().filter(is_selected).collect())
}

/// Those of the interfaces whose packets the kernel path takes at XDP, unseen by packet sockets.
pub(crate) fn at_xdp(interfaces: &[Interface]) -> Vec<String> {
    let is_taken = |link: &host::Link| {
        let index = link.interface.index.0;
        let program = link.xdp().map(bpf::attached::program);
        program.is_some_and(|program| program.is_ok_and(|program| program.relays_at_xdp()))
            && interfaces.iter().any(|interface| interface.index == index)
    };
    let links = links().unwrap_or_default().into_iter().filter(is_taken);
    links.map(|link| link.interface.name).collect()
}

fn links() -> Result<Vec<host::Link>, Failure> {
    const READING: &str = "cannot read the interfaces";
    let built = Builder::new_current_thread().enable_all().build();
    let runtime = built.or_fail(READING, Status::Unavailable)?;
    let read = runtime.block_on(async { host::read_links(&host::connect()?).await });
    read.or_fail(READING, Status::Unavailable)
}

fn read() -> Result<Vec<Interface>, Failure> {
    let links = links()?;
    let mut vlans: BTreeMap<u32, BTreeMap<u16, String>> = BTreeMap::new();
    for link in &links {
        if let Some((parent, vlan)) = vlan_of(&link.message) {
            let name = link.interface.name.clone();
            vlans.entry(parent).or_default().insert(vlan, name);
        }
    }
    let interface = |link: host::Link| Interface {
        index: link.interface.index.0,
        vlans: vlans.remove(&link.interface.index.0).unwrap_or_default(),
        name: link.interface.name,
        alternatives: link.interface.alternatives,
        up: link.interface.up,
    };
    Ok(links.into_iter().map(interface).collect())
}

/// The parent interface and the VLAN number of a VLAN's interface.
fn vlan_of(message: &LinkMessage) -> Option<(u32, u16)> {
    let (mut parent, mut vlan) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Link(index) => parent = Some(*index),
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    if let LinkInfo::Data(InfoData::Vlan(data)) = info {
                        vlan = data.iter().find_map(|attribute| match attribute {
                            InfoVlan::Id(id) => Some(*id),
                            _ => None,
                        });
                    }
                }
            }
            _ => {}
        }
    }
    Some((parent?, vlan?))
}
