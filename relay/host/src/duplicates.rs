//! Addresses of this host that somebody else on the link has too. For IPv4 the link is asked and listened
//! to; for IPv6 the kernel has asked already.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use compile::host::Host;
use rules::net::{Ifindex, Mac};
use sys::arp_socket::ArpSocket;

/// The flag of an address that somebody else has (linux/if_addr.h, `IFA_F_DADFAILED`).
const DAD_FAILED: u32 = 0x08;

/// An address, the interface that has it, and who else has it where that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// The interface's name.
    pub interface: String,
    /// The address.
    pub address: IpAddr,
    /// Of IPv4, who else.
    pub other: Option<Mac>,
}

impl Duplicate {
    /// What is wrong.
    #[must_use]
    pub fn told(&self) -> String {
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

    /// What to do about it.
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

/// Asks and listens.
#[derive(Debug)]
pub struct Duplicates(ArpSocket);

impl Duplicates {
    /// Begins to listen; `None` where that is not permitted.
    #[must_use]
    pub fn open() -> Option<Self> {
        ArpSocket::open().ok().map(Self)
    }

    /// Asks for each IPv4 address of these interfaces.
    pub fn ask(&self, host: &Host, links: &BTreeSet<Ifindex>) {
        for link in links.iter().filter_map(|link| host.interfaces.get(link)) {
            let Some(Mac(mac)) = link.mac.filter(|_| link.up && link.name != "lo") else {
                continue;
            };
            for address in &link.addresses {
                if let IpAddr::V4(address) = address {
                    // Where it cannot be sent nobody answers.
                    let _ = self.0.probe(link.index.0, mac, *address);
                }
            }
        }
    }

    /// Those that were heard of since, and those of IPv6 that the kernel knows; each once.
    #[must_use]
    pub fn known(&self, host: &Host, links: &BTreeSet<Ifindex>) -> Vec<Duplicate> {
        let own: BTreeSet<Mac> = host
            .interfaces
            .values()
            .filter_map(|link| link.mac)
            .collect();
        let mut known: Vec<Duplicate> = Vec::new();
        while let Some(claim) = self.0.next() {
            let (index, mac, address) = (
                Ifindex(claim.interface),
                Mac(claim.mac),
                claim.address.into(),
            );
            let link = host
                .interfaces
                .get(&index)
                .filter(|_| links.contains(&index));
            let Some(link) = link.filter(|link| link.addresses.contains(&address)) else {
                continue;
            };
            let is_new = !known.iter().any(|one| one.address == address);
            if is_new && !own.contains(&mac) {
                let (interface, other) = (link.name.clone(), Some(mac));
                known.push(Duplicate {
                    interface,
                    address,
                    other,
                });
            }
        }
        let failed = std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
        known.extend(failed.lines().filter_map(dad_failed));
        known
    }
}

/// A line of `/proc/net/if_inet6`: address, index, prefix, scope, flags, name.
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
