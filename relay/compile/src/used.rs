//! How often rules with a share set a source; those count as this host's own addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use rules::rule::{Rule, SourceChoice};

/// The sources that a rule's outputs set, if it has a share.
pub(super) fn shared_sources(rule: &Rule) -> impl Iterator<Item = IpAddr> {
    let is_shared = rule.enabled && rule.share.is_some();
    let outputs = rule.outputs.iter().filter(move |_| is_shared);
    outputs.filter_map(|output| match output.source {
        SourceChoice::Address(address) => Some(address),
        SourceChoice::Auto | SourceChoice::Keep => None,
    })
}

/// Notes in `then` how often each of `used` is used, which was as in `before` so far.
pub(super) fn count<K: Copy + Ord>(
    then: &mut BTreeMap<K, usize>,
    before: &BTreeMap<K, usize>,
    used: impl Iterator<Item = K>,
    change: isize,
) {
    for key in used {
        let before = before.get(&key).copied().unwrap_or_default();
        let count = then.entry(key).or_insert(before);
        *count = count.saturating_add_signed(change);
    }
}

/// Says whether the same is used as before.
pub(super) fn is_same_use<K: Ord>(before: &BTreeMap<K, usize>, then: &BTreeMap<K, usize>) -> bool {
    then.iter()
        .all(|(key, count)| before.contains_key(key) == (*count > 0))
}

/// What is used then.
pub(super) fn in_use<'a, K: Ord>(
    before: &'a BTreeMap<K, usize>,
    then: &'a BTreeMap<K, usize>,
) -> impl Iterator<Item = &'a K> {
    let kept = before.keys().filter(|key| !then.contains_key(*key));
    let used = then.iter().filter(|(_, count)| **count > 0);
    kept.chain(used.map(|(key, _)| key))
}
