//! Groups that any program of this host has joined, as the kernel lists them for the network namespace of
//! the calling thread.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;

pub(crate) type Group = (u32, IpAddr);

/// The memberships of all interfaces.
#[derive(Debug, Default)]
pub(crate) struct Joined {
    /// How many sockets are members of each group.
    members: BTreeMap<Group, u64>,
    /// How many of them want each source.
    sources: BTreeMap<Group, BTreeMap<IpAddr, u64>>,
}

impl Joined {
    /// Reads them; a list that cannot be read counts as empty.
    pub(crate) fn read() -> Self {
        let read = |table: &str| {
            let file = format!("/proc/thread-self/net/{table}");
            fs::read_to_string(file).unwrap_or_default()
        };
        let mut joined = Self::default();
        joined.add_igmp(&read("igmp"));
        joined.add_igmp6(&read("igmp6"));
        joined.add_sources(&read("mcfilter"));
        joined.add_sources(&read("mcfilter6"));
        joined
    }

    /// The groups, each with its interface.
    pub(crate) fn groups(&self) -> impl Iterator<Item = Group> {
        self.members.keys().copied()
    }

    /// Whether packets of that source to that group are requested on an interface. If the first group of
    /// an interface has no sources, the kernel lists none at all (`igmp_mcf_get_first`), and any source
    /// counts as requested.
    pub(crate) fn hears(&self, interface: u32, group: IpAddr, source: IpAddr) -> bool {
        let Some(members) = self.members.get(&(interface, group)) else {
            return false;
        };
        let Some(sources) = self.sources.get(&(interface, group)) else {
            return true;
        };
        // If there are more members than source lists, one of them takes any source.
        sources.contains_key(&source) || *members > sources.values().sum::<u64>()
    }

    /// Parses a line for each interface, followed by one for each of its groups.
    fn add_igmp(&mut self, table: &str) {
        let mut interface = None;
        for line in table.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            match (line.starts_with(char::is_whitespace), words.as_slice()) {
                (false, [index, ..]) => interface = index.parse().ok(),
                (true, [group, users, ..]) => {
                    // The address in memory order, printed as a number.
                    let bits = u32::from_str_radix(group, 16).ok();
                    let group = bits.map(|bits| IpAddr::from(bits.to_ne_bytes()));
                    self.add(interface, group, users);
                }
                _ => {}
            }
        }
    }

    fn add_igmp6(&mut self, table: &str) {
        for line in table.lines() {
            if let [index, _, group, users, ..] = *words(line) {
                self.add(index.parse().ok(), address(group), users);
            }
        }
    }

    fn add(&mut self, interface: Option<u32>, group: Option<IpAddr>, users: &str) {
        let users: Option<u64> = users.parse().ok();
        if let (Some(interface), Some(group), Some(users)) = (interface, group, users) {
            self.members.insert((interface, group), users);
        }
    }

    fn add_sources(&mut self, table: &str) {
        for line in table.lines() {
            let [index, _, group, source, including, ..] = *words(line) else {
                continue;
            };
            let including: u64 = including.parse().unwrap_or_default();
            let parsed = (index.parse().ok(), address(group), address(source));
            if let (Some(index), Some(group), Some(source)) = parsed
                && including > 0
            {
                let sources = self.sources.entry((index, group)).or_default();
                sources.insert(source, including);
            }
        }
    }
}

fn words(line: &str) -> Box<[&str]> {
    line.split_whitespace().collect()
}

/// Parses an address written as one hexadecimal number: IPv4 with `0x`, IPv6 without.
fn address(text: &str) -> Option<IpAddr> {
    if let Some(digits) = text.strip_prefix("0x") {
        return u32::from_str_radix(digits, 16)
            .ok()
            .map(|bits| IpAddr::V4(bits.into()));
    }
    let bits = u128::from_str_radix(text, 16).ok()?;
    (text.len() == 32).then(|| IpAddr::V6(bits.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_read_with_the_sources_they_want() {
        let mut joined = Joined::default();
        let lowest_first = u32::from_ne_bytes([239, 1, 1, 1]);
        let specific = u32::from_ne_bytes([232, 1, 1, 1]);
        joined.add_igmp(&format!(
            "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
             3\tveth1     :     3      V3\n\
             \t\t\t\t{lowest_first:08X}     1 0:00000000\t\t0\n\
             \t\t\t\t{specific:08X}     2 0:00000000\t\t0\n"
        ));
        joined
            .add_igmp6("4    veth2           ff0e0000000000000000000000000001     1 00000004 0\n");
        joined.add_sources(
            "Idx Device        MCA        SRC    INC    EXC\n  \
             3  veth1 0xe8010101 0x0a000005      1      0\n  \
             3  veth1 0xe8010101 0x0a000006      1      0\n",
        );
        let wants = |interface, group: &str, source: &str| {
            joined.hears(interface, group.parse().unwrap(), source.parse().unwrap())
        };
        assert!(wants(3, "239.1.1.1", "10.0.0.9"));
        assert!(!wants(4, "239.1.1.1", "10.0.0.9"));
        assert!(wants(3, "232.1.1.1", "10.0.0.5") && wants(3, "232.1.1.1", "10.0.0.6"));
        assert!(!wants(3, "232.1.1.1", "10.0.0.9"));
        assert!(wants(4, "ff0e::1", "fd00::1"));
        assert!(!wants(4, "ff0e::2", "fd00::1"));
    }
}
