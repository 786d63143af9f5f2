//! Others that take what rules take, without the daemon seeing them: packet sockets that receive after MCR's
//! hook, and devices above an input's interface in other network namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use rules::net::Mac;
use rules::rule::{LocalDelivery, Rule};

use super::finding::{Finding, Severity};
use super::snapshot::{Link, Snapshot};

const REMEDY: &str = "a rule with local = \"yes\" passes its packets on to it";

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = BTreeMap::new();
    for (rule, input, link) in snapshot.inputs() {
        if !rule.enabled || rule.local == LocalDelivery::Yes {
            continue;
        }
        for capture in &snapshot.captures {
            let is_on_link = capture.interface.is_none_or(|index| index == link.index);
            if is_on_link && capture.ipv4 == input.is_ipv4() {
                let family = if capture.ipv4 { "IPv4" } else { "IPv6" };
                let evidence = format!(
                    "{} has a packet socket for {family}, which comes behind MCR's program, on either \
                     path, and does not see what is relayed",
                    capture.owner
                );
                let key = (link.name.as_str(), evidence);
                findings.entry(key).or_insert(Severity::Note);
            }
        }
        let group = input.destination;
        if group.address.is_multicast()
            && group.is_host()
            && let Some(evidence) =
                other_namespace(snapshot, rule, link, Mac::of_group(group.address))
        {
            findings.insert((link.name.as_str(), evidence), Severity::Harms);
        }
    }
    let findings = findings
        .into_iter()
        .map(|((name, evidence), severity)| Finding::new(severity, name, evidence).remedy(REMEDY));
    findings.collect()
}

/// Evidence that more devices use a group's address than this namespace accounts for. A device that hands its
/// addresses on, to one below it or to its hardware, counts as a user of each itself (`__hw_addr_sync_one`): as
/// many as are left over at every address are such.
fn other_namespace(snapshot: &Snapshot, rule: &Rule, link: &Link, group: Mac) -> Option<String> {
    let users_of = |group| snapshot.group_users.get(&(link.index, group)).copied();
    let accounted_of = |group| {
        let of_link = joined(snapshot, link.index, group).count();
        (of_link + uppers(snapshot, link, group)) as u64
    };
    let own = snapshot.joined.iter().filter(|(on, _)| *on == link.index);
    let groups = own.map(|(_, address)| Mac::of_group(*address));
    let left_over = groups.filter_map(|group| users_of(group)?.checked_sub(accounted_of(group)));
    let itself = left_over.min().unwrap_or(0);
    let (users, accounted) = (users_of(group)?, accounted_of(group) + itself);
    (users > accounted).then(|| {
        format!(
            "something else takes {group} there ({users} users in /proc/net/dev_mcast, {accounted} of them \
             known), such as a macvlan or MACsec that was moved to another namespace: it hears nothing \
             of what rule {:?} relays",
            rule.name
        )
    })
}

/// What is joined on a link of the groups with one address.
fn joined(snapshot: &Snapshot, link: u32, group: Mac) -> impl Iterator<Item = &(u32, IpAddr)> {
    let joined = snapshot.joined.iter();
    joined.filter(move |(on, address)| {
        *on == link && Mac::of_group(*address) == group && !stays_inside(*address)
    })
}

/// Whether no device takes part in a group: of IPv6 one that does not leave its interface (`igmp6_group_added`).
fn stays_inside(group: IpAddr) -> bool {
    matches!(group, IpAddr::V6(group) if group.segments()[0] & 0xf < 2)
}

/// How many devices above a link use a group's address there: each counts once (`dev_mc_sync`).
fn uppers(snapshot: &Snapshot, link: &Link, group: Mac) -> usize {
    let uses = |upper: &&Link| {
        let mut all = with_uppers(snapshot, upper).into_iter();
        upper.lower == Some(link.index)
            && all.any(|index| joined(snapshot, index, group).next().is_some())
    };
    snapshot.links.iter().filter(uses).count()
}

/// A link and all links above it.
fn with_uppers(snapshot: &Snapshot, link: &Link) -> BTreeSet<u32> {
    let mut indexes = BTreeSet::from([link.index]);
    loop {
        let before = indexes.len();
        for upper in &snapshot.links {
            if upper.lower.is_some_and(|lower| indexes.contains(&lower)) {
                indexes.insert(upper.index);
            }
        }
        if indexes.len() == before {
            return indexes;
        }
    }
}
