//! Who else takes what rules take, where the daemon does not see it: packet sockets that come behind MCR's
//! hook, and devices upon an input's interface in other network namespaces.

use std::collections::{BTreeMap, BTreeSet};

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
            let is_there = capture.interface.is_none_or(|index| index == link.index);
            if is_there && capture.ipv4 == input.is_ipv4() {
                let family = if capture.ipv4 { "IPv4" } else { "IPv6" };
                let evidence = format!(
                    "{} has a packet socket for {family}, which comes behind MCR's program, on either \
                     path, and does not see what is relayed",
                    capture.owner
                );
                let place = (link.name.as_str(), evidence);
                findings.entry(place).or_insert(Severity::Note);
            }
        }
        let group = input.destination;
        let others = group.address.is_multicast() && group.is_host();
        if others
            && let Some(evidence) = elsewhere(snapshot, rule, link, Mac::of_group(group.address))
        {
            let place = (link.name.as_str(), evidence);
            findings.insert(place, Severity::Harms);
        }
    }
    let findings = findings
        .into_iter()
        .map(|((name, evidence), severity)| Finding::new(severity, name, evidence).remedy(REMEDY));
    findings.collect()
}

/// Says that more devices take a group's address than there are groups of it in this namespace: each device
/// upon an interface counts once there (`dev_mc_sync`), wherever it is itself.
fn elsewhere(snapshot: &Snapshot, rule: &Rule, link: &Link, group: Mac) -> Option<String> {
    let users = *snapshot.group_users.get(&(link.index, group))?;
    let groups = |index: u32| {
        let joined = snapshot.joined.iter();
        let there = joined.filter(|(on, it)| *on == index && Mac::of_group(*it) == group);
        there.count() as u64
    };
    let upon = snapshot
        .links
        .iter()
        .filter(|upper| upper.lower == Some(link.index));
    let upon = upon.filter(|upper| {
        above(snapshot, upper)
            .into_iter()
            .any(|index| groups(index) > 0)
    });
    let known = groups(link.index) + upon.count() as u64;
    (users > known).then(|| {
        format!(
            "something else takes {group} there ({users} users in /proc/net/dev_mcast, {known} of them \
             known), such as a macvlan or MACsec that was moved to another namespace: it hears nothing \
             of what rule {:?} relays",
            rule.name
        )
    })
}

/// A link and all that stand upon it.
fn above(snapshot: &Snapshot, link: &Link) -> BTreeSet<u32> {
    let mut found = BTreeSet::from([link.index]);
    loop {
        let more = snapshot.links.iter();
        let more = more.filter(|upper| upper.lower.is_some_and(|lower| found.contains(&lower)));
        let more: Vec<u32> = more.map(|upper| upper.index).collect();
        let before = found.len();
        found.extend(more);
        if found.len() == before {
            return found;
        }
    }
}
