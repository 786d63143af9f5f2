//! Others that take what rules take, without the daemon seeing them: packet sockets that receive after MCR's
//! hook, and devices above an input's interface in other network namespaces.

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

/// Evidence that more devices use a group's address than this namespace accounts for: each device above an
/// interface counts once there (`dev_mc_sync`), in whichever namespace it is itself.
fn other_namespace(snapshot: &Snapshot, rule: &Rule, link: &Link, group: Mac) -> Option<String> {
    let users = *snapshot.group_users.get(&(link.index, group))?;
    let groups = |index: u32| {
        let joined = snapshot.joined.iter();
        let same = joined.filter(|(on, joined)| *on == index && Mac::of_group(*joined) == group);
        same.count() as u64
    };
    let uppers = snapshot.links.iter().filter(|upper| {
        let has_joined = || {
            with_uppers(snapshot, upper)
                .into_iter()
                .any(|index| groups(index) > 0)
        };
        upper.lower == Some(link.index) && has_joined()
    });
    let accounted = groups(link.index) + uppers.count() as u64;
    (users > accounted).then(|| {
        format!(
            "something else takes {group} there ({users} users in /proc/net/dev_mcast, {accounted} of them \
             known), such as a macvlan or MACsec that was moved to another namespace: it hears nothing \
             of what rule {:?} relays",
            rule.name
        )
    })
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
