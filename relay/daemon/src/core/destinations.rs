//! The unicast destinations that rules name, whose next hops have to be resolved.

use std::collections::BTreeMap;

use compile::host::NextHopQuery;
use compile::next_hop_queries;
use rules::ruleset::{RuleChanges, RuleSet};

/// The destinations with the number of rules that name each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Destinations(BTreeMap<NextHopQuery, usize>);

impl Destinations {
    /// Updates the destinations of `old` to those of `new`. Only rules that differ are read.
    pub(super) fn follow(&mut self, old: &RuleSet, new: &RuleSet) {
        let RuleChanges { removed, added } = RuleChanges::between(old, new);
        for (_, rule) in &added {
            for query in next_hop_queries([&**rule]) {
                *self.0.entry(query).or_default() += 1;
            }
        }
        for (_, rule) in &removed {
            for query in next_hop_queries([&**rule]) {
                let count = self.0.entry(query.clone()).or_default();
                *count -= 1;
                if *count == 0 {
                    self.0.remove(&query);
                }
            }
        }
    }

    /// The destinations of `new`, given that these are those of `old`.
    pub(super) fn after(&self, old: &RuleSet, new: &RuleSet) -> Self {
        let mut after = self.clone();
        after.follow(old, new);
        after
    }

    pub(super) fn queries(&self) -> Vec<NextHopQuery> {
        self.0.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rules::document::RuleDocument;
    use rules::ruleset::Policy;

    use super::*;

    fn set(rules: &[(u8, u8)]) -> RuleSet {
        let rule = |(name, host): &(u8, u8)| RuleDocument {
            name: format!("rule{name}"),
            inputs: vec![format!("239.1.1.{name}%eth0:5001")],
            outputs: vec![
                format!("10.0.0.{host}:7000").as_str().into(),
                format!("10.0.0.{host}:7001").as_str().into(),
                "239.10.1.1%eth1:6001".into(),
            ],
            ..RuleDocument::default()
        };
        let documents: Vec<RuleDocument> = rules.iter().map(rule).collect();
        RuleSet::from_documents(&documents, Policy::default()).unwrap()
    }

    /// Rules by their numbers, each with one of few destinations.
    fn rules() -> impl Strategy<Value = Vec<(u8, u8)>> {
        let rules = proptest::collection::btree_map(1_u8..8, 1_u8..4, 0..6);
        rules.prop_map(|rules| rules.into_iter().collect())
    }

    proptest! {
        #[test]
        fn a_change_equals_a_full_computation(
            old in rules(),
            removed in proptest::collection::vec(1_u8..8, 0..4),
            added in rules(),
        ) {
            let old = set(&old);
            let names = removed.iter().map(|name| format!("rule{name}"));
            let remove: Vec<String> = names.filter(|name| old.get(name).is_some()).collect();
            let added = set(&added);
            let add = added.iter().filter(|r| old.get(&r.name).is_none() || remove.contains(&r.name));
            let new = old.changed(&remove, add.cloned().collect(), Policy::default()).unwrap();
            let none = (Destinations::default(), RuleSet::default());
            let before = none.0.after(&none.1, &old);
            prop_assert_eq!(before.after(&old, &new), none.0.after(&none.1, &new));
            let all: Vec<NextHopQuery> = next_hop_queries(&new).into_iter().collect();
            prop_assert_eq!(before.after(&old, &new).queries(), all);
        }
    }
}
