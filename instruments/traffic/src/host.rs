//! This host's interfaces and addresses, as the traffic tools need them.

use std::io;
use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::LinkAddr;

/// Types (linux/if_arp.h) of interfaces whose frames have an Ethernet header: Ethernet, loopback.
const ETHERNET: [u16; 2] = [1, 772];

/// One interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interface {
    /// Kernel index.
    pub(crate) index: u32,
    /// Ethernet address, if it has one.
    pub(crate) mac: Option<[u8; 6]>,
    /// Addresses in the kernel's order.
    pub(crate) addresses: Vec<IpAddr>,
}

impl Interface {
    /// The first address of the same family as `peer`.
    pub(crate) fn address_for(&self, peer: IpAddr) -> Option<IpAddr> {
        let mut addresses = self.addresses.iter().copied();
        addresses.find(|address| address.is_ipv4() == peer.is_ipv4())
    }
}

/// Looks an interface up by name; `None` if there is none.
pub(crate) fn interface(name: &str) -> io::Result<Option<Interface>> {
    let Ok(index) = if_nametoindex(name) else {
        return Ok(None);
    };
    let mut interface = Interface {
        index,
        ..Interface::default()
    };
    for entry in getifaddrs()?.filter(|entry| entry.interface_name == name) {
        let Some(address) = entry.address else {
            continue;
        };
        interface.addresses.extend(ip(&address));
        // A tunnel's link address is that of its end, and no frame begins with it.
        let link = address
            .as_link_addr()
            .filter(|link| ETHERNET.contains(&link.hatype()));
        interface.mac = interface.mac.or(link.and_then(LinkAddr::addr));
    }
    Ok(Some(interface))
}

/// The names of all interfaces, for messages.
pub(crate) fn names() -> String {
    let Ok(interfaces) = nix::net::if_::if_nameindex() else {
        return "none that can be listed".to_owned();
    };
    let names = interfaces
        .iter()
        .map(|interface| interface.name().to_string_lossy());
    names.collect::<Vec<_>>().join(", ")
}

/// Returns whether `address` is one of this host's.
pub(crate) fn is_local(address: IpAddr) -> io::Result<bool> {
    let address_of = |entry: nix::ifaddrs::InterfaceAddress| entry.address.as_ref().and_then(ip);
    Ok(getifaddrs()?
        .filter_map(address_of)
        .any(|own| own == address)
        || address.is_loopback())
}

fn ip(address: &nix::sys::socket::SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| address.ip().into());
    v4.or_else(|| address.as_sockaddr_in6().map(|address| address.ip().into()))
}
