//! Addresses of this host that another host on the link has too. For IPv4 the link is probed; for IPv6 the
//! kernel has probed already.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use compile::host::Host;
use rules::net::{Ifindex, Mac};
use sys::arp_socket::ArpSocket;

/// The flag of an address that another host has (linux/if_addr.h, `IFA_F_DADFAILED`).
const DAD_FAILED: u32 = 0x08;

/// An address, the interface that has it, and who else has it if that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// The interface's name.
    pub interface: String,
    /// The address.
    pub address: IpAddr,
    /// Who else has it; known for IPv4 only.
    pub other: Option<Mac>,
}

impl Duplicate {
    /// Describes the conflict.
    #[must_use]
    pub fn describe(&self) -> String {
        let other = match self.other {
            Some(mac) => format!("{mac} answers for it on the same link"),
            None => {
                "another host on the link has it, and the kernel does not use it here".to_owned()
            }
        };
        format!(
            "this host's address {} is somebody else's too: {other}. Replies, joins and copies from it go \
             astray, and packets of the other count as the relay's own",
            self.address
        )
    }

    /// The remedy.
    #[must_use]
    pub fn remedy(&self) -> String {
        let Self {
            interface, address, ..
        } = self;
        format!(
            "give one of the two another address: ip address del {address} dev {interface} here"
        )
    }
}

/// Probes for duplicates and listens for answers.
#[derive(Debug)]
pub struct Duplicates(ArpSocket);

impl Duplicates {
    /// Begins to listen; `None` if that is not permitted.
    #[must_use]
    pub fn open() -> Option<Self> {
        ArpSocket::open().ok().map(Self)
    }

    /// Probes each IPv4 address of these interfaces.
    pub fn ask(&self, host: &Host, links: &BTreeSet<Ifindex>) {
        for link in links.iter().filter_map(|link| host.interfaces.get(link)) {
            let Some(Mac(mac)) = link.mac.filter(|_| link.up && link.name != "lo") else {
                continue;
            };
            for address in &link.addresses {
                if let IpAddr::V4(address) = address {
                    // A probe that cannot be sent gets no answer.
                    let _ = self.0.probe(link.index.0, mac, *address);
                }
            }
        }
    }

    /// The duplicates that have answered since, and those of IPv6 that the kernel lists; each once.
    #[must_use]
    pub fn known(&self, host: &Host, links: &BTreeSet<Ifindex>) -> Vec<Duplicate> {
        let own: BTreeSet<Mac> = host
            .interfaces
            .values()
            .filter_map(|link| link.mac)
            .collect();
        let mut duplicates: Vec<Duplicate> = Vec::new();
        while let Some(claim) = self.0.next() {
            let (index, mac) = (Ifindex(claim.interface), Mac(claim.mac));
            let address = claim.address.into();
            let Some(link) = host.interfaces.get(&index) else {
                continue;
            };
            let is_ours = links.contains(&index) && link.addresses.contains(&address);
            let is_new = !duplicates.iter().any(|one| one.address == address);
            if is_ours && is_new && !own.contains(&mac) {
                duplicates.push(Duplicate {
                    interface: link.name.clone(),
                    address,
                    other: Some(mac),
                });
            }
        }
        let failed = std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
        duplicates.extend(failed.lines().filter_map(dad_failed));
        duplicates
    }
}

/// Parses a line of `/proc/net/if_inet6`: address, index, prefix, scope, flags, name.
fn dad_failed(line: &str) -> Option<Duplicate> {
    let mut words = line.split_whitespace();
    let address = Ipv6Addr::from_bits(u128::from_str_radix(words.next()?, 16).ok()?);
    let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
    (flags & DAD_FAILED != 0).then_some(Duplicate {
        interface: words.next()?.to_owned(),
        address: address.into(),
        other: None,
    })
}
