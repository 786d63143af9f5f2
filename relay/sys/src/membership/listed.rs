//! The groups joined on each interface of the calling thread's network namespace, by any process:
//! `/proc/net/igmp` and `igmp6`. Groups only: the lists of their sources, `mcfilter` and `mcfilter6`, omit an
//! interface whose first group has none (`igmp_mcf_get_first`).

use std::collections::HashSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};

use super::{ALL, Membership};

/// The groups of all interfaces, each as its membership from any source.
#[derive(Debug, Default)]
pub struct Listed(HashSet<Membership>);

impl Listed {
    /// Reads the lists of the requested families.
    pub(super) fn read(ipv4: bool, ipv6: bool) -> io::Result<Self> {
        let mut listed = Self::default();
        if ipv4 {
            igmp(&text("igmp")?, &mut listed);
        }
        if ipv6 {
            igmp6(&text("igmp6")?, &mut listed);
        }
        Ok(listed)
    }

    /// All that is in the lists.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Membership> {
        self.0.iter()
    }

    /// Returns whether the group of a membership is in the lists.
    pub(super) fn has(&self, membership: &Membership) -> bool {
        // No list contains it.
        membership.group == ALL
            || self.0.contains(&Membership {
                source: None,
                ..*membership
            })
    }
}

fn text(file: &str) -> io::Result<String> {
    fs::read_to_string(format!("/proc/thread-self/net/{file}"))
}

/// The version of IGMP on each interface, by name: `V1`, `V2`, `V3`.
pub fn igmp_versions() -> Vec<(String, String)> {
    versions(&text("igmp").unwrap_or_default())
}

/// Lines of groups begin with a blank.
pub(super) fn versions(text: &str) -> Vec<(String, String)> {
    let lines = text
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
    let version = |line: &str| {
        let (device, rest) = line.split_once(':')?;
        let name = device.split_whitespace().nth(1)?;
        Some((name.to_owned(), rest.split_whitespace().nth(1)?.to_owned()))
    };
    lines.filter_map(version).collect()
}

/// A line of an interface, its number first, then indented ones of its groups, each as the kernel's
/// number (`igmp_mc_seq_show`).
fn igmp(text: &str, listed: &mut Listed) {
    let mut interface = None;
    for line in text.lines() {
        let Some(first) = line.split_ascii_whitespace().next() else {
            continue;
        };
        if !line.starts_with(char::is_whitespace) {
            interface = first.parse().ok();
        } else if let (Some(interface), Ok(group)) = (interface, u32::from_str_radix(first, 16)) {
            listed.0.insert(Membership {
                interface,
                group: IpAddr::from(group.to_ne_bytes()),
                source: None,
            });
        }
    }
}

/// Number and name of the interface, group (`igmp6_mc_seq_show`).
fn igmp6(text: &str, listed: &mut Listed) {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let interface = words.next()?.parse().ok()?;
        Some(Membership {
            interface,
            group: address6(words.nth(1)?)?,
            source: None,
        })
    };
    listed.0.extend(text.lines().filter_map(line));
}

fn address6(word: &str) -> Option<IpAddr> {
    let bits = u128::from_str_radix(word, 16).ok()?;
    Some(Ipv6Addr::from_bits(bits).into())
}
