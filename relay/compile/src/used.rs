//! Counts how often rules with a share set a source; such sources are this host's own addresses, too.

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

/// Changes the count of each of `used` by `change`, in `updates`, which starts from the counts of `before`.
pub(super) fn count<K: Copy + Ord>(
    updates: &mut BTreeMap<K, usize>,
    before: &BTreeMap<K, usize>,
    used: impl Iterator<Item = K>,
    change: isize,
) {
    for key in used {
        let old = before.get(&key).copied().unwrap_or_default();
        let count = updates.entry(key).or_insert(old);
        *count = count.saturating_add_signed(change);
    }
}

/// Returns whether the same keys are used as before.
pub(super) fn is_same_use<K: Ord>(
    before: &BTreeMap<K, usize>,
    updates: &BTreeMap<K, usize>,
) -> bool {
    updates
        .iter()
        .all(|(key, count)| before.contains_key(key) == (*count > 0))
}

/// The keys used after the updates.
pub(super) fn in_use<'a, K: Ord>(
    before: &'a BTreeMap<K, usize>,
    updates: &'a BTreeMap<K, usize>,
) -> impl Iterator<Item = &'a K> {
    let unchanged = before.keys().filter(|key| !updates.contains_key(*key));
    let used = updates.iter().filter(|(_, count)| **count > 0);
    unchanged.chain(used.map(|(key, _)| key))
}
