//! What the kernel says is joined on each interface of the calling thread's network namespace, by
//! whomever: `/proc/net/igmp` and `igmp6`, for sources `mcfilter` and `mcfilter6`.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::SplitAsciiWhitespace;

use super::Membership;

/// The memberships of all interfaces.
#[derive(Debug, Default)]
pub(super) struct Listed(HashSet<Membership>);

impl Listed {
    /// Reads as many of the lists as the memberships asked for need.
    pub(super) fn read<'a>(asked: impl Iterator<Item = &'a Membership>) -> io::Result<Self> {
        let (mut groups, mut sources) = ([false; 2], [false; 2]);
        for membership in asked {
            let family = usize::from(membership.group.is_ipv6());
            groups[family] |= membership.source.is_none();
            sources[family] |= membership.source.is_some();
        }
        Self::of(groups, sources)
    }

    /// Reads the lists of groups and those of sources, each for IPv4 and for IPv6.
    pub(super) fn of(groups: [bool; 2], sources: [bool; 2]) -> io::Result<Self> {
        let mut listed = Self::default();
        let mut read = |wanted: bool, file: &str, parse: fn(&str, &mut Self)| {
            if wanted {
                parse(
                    &fs::read_to_string(format!("/proc/thread-self/net/{file}"))?,
                    &mut listed,
                );
            }
            io::Result::Ok(())
        };
        read(groups[0], "igmp", igmp)?;
        read(groups[1], "igmp6", igmp6)?;
        read(sources[0], "mcfilter", mcfilter)?;
        read(sources[1], "mcfilter6", mcfilter6)?;
        Ok(listed)
    }

    /// All that is in the lists.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Membership> {
        self.0.iter()
    }

    /// Says whether some socket's membership is in the lists.
    pub(super) fn has(&self, membership: &Membership) -> bool {
        self.0.contains(membership)
    }
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

/// Number and name of the interface, group, source, how many sockets include it
/// (`igmp_mcf_seq_show`).
fn mcfilter(text: &str, listed: &mut Listed) {
    let lines = text.lines().filter_map(|line| filter(line, address4));
    listed.0.extend(lines);
}

fn mcfilter6(text: &str, listed: &mut Listed) {
    let lines = text.lines().filter_map(|line| filter(line, address6));
    listed.0.extend(lines);
}

fn filter(line: &str, address: fn(&str) -> Option<IpAddr>) -> Option<Membership> {
    let mut words: SplitAsciiWhitespace<'_> = line.split_ascii_whitespace();
    let interface = words.next()?.parse().ok()?;
    let group = address(words.nth(1)?)?;
    let source = Some(address(words.next()?)?);
    let included: u64 = words.next()?.parse().ok()?;
    (included > 0).then_some(Membership {
        interface,
        group,
        source,
    })
}

fn address4(word: &str) -> Option<IpAddr> {
    let bits = u32::from_str_radix(word.strip_prefix("0x")?, 16).ok()?;
    Some(Ipv4Addr::from_bits(bits).into())
}

fn address6(word: &str) -> Option<IpAddr> {
    let bits = u128::from_str_radix(word, 16).ok()?;
    Some(Ipv6Addr::from_bits(bits).into())
}
