//! The memberships that rules need, computed without I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use compile::{InputView, Join, RuleView};
use rules::net::Prefix;
use sys::membership::Membership;

/// The wanted memberships. A group that some rule wants from any source is joined for any source, whatever
/// sources others name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// The number of joins that want each.
    counts: BTreeMap<Membership, isize>,
}

/// A change of the wanted memberships.
#[derive(Clone, Debug, Default)]
pub(crate) struct WantedDiff {
    counts: BTreeMap<Membership, isize>,
    pub(crate) join: BTreeSet<Membership>,
    pub(crate) leave: BTreeSet<Membership>,
}

impl Wanted {
    /// The memberships to join.
    pub(crate) fn memberships(&self) -> BTreeSet<Membership> {
        let wanted = self.counts.keys();
        wanted.filter(|m| self.joins(m)).copied().collect()
    }

    /// Returns whether a wanted membership is joined itself, and not covered by one for any source.
    fn joins(&self, wanted: &Membership) -> bool {
        wanted.source.is_none() || !self.counts.contains_key(&of_any(wanted))
    }

    /// The change when joins are removed and others added. Only the groups they name are read.
    pub(crate) fn diff<'a>(
        &self,
        removed: impl IntoIterator<Item = &'a Join>,
        added: impl IntoIterator<Item = &'a Join>,
    ) -> WantedDiff {
        let mut diff = WantedDiff::default();
        for membership in removed.into_iter().flat_map(of_join) {
            *diff.counts.entry(membership).or_default() -= 1;
        }
        for membership in added.into_iter().flat_map(of_join) {
            *diff.counts.entry(membership).or_default() += 1;
        }
        diff.counts.retain(|_, count| *count != 0);
        let groups: BTreeSet<Membership> = diff.counts.keys().map(of_any).collect();
        for any in groups {
            let all = any..=Membership {
                source: Some(Ipv6Addr::from_bits(u128::MAX).into()),
                ..any
            };
            let mut counts: BTreeMap<Membership, isize> = BTreeMap::new();
            for (membership, count) in self
                .counts
                .range(all.clone())
                .chain(diff.counts.range(all.clone()))
            {
                *counts.entry(*membership).or_default() += count;
            }
            counts.retain(|_, count| *count > 0);
            let before: BTreeSet<Membership> = self
                .counts
                .range(all)
                .map(|(membership, _)| *membership)
                .filter(|membership| self.joins(membership))
                .collect();
            let from_any = counts.contains_key(&any);
            let after: BTreeSet<Membership> = counts
                .into_keys()
                .filter(|membership| membership.source.is_none() || !from_any)
                .collect();
            diff.join.extend(after.difference(&before));
            diff.leave.extend(before.difference(&after));
        }
        diff
    }

    /// Applies a change.
    pub(crate) fn apply(&mut self, diff: WantedDiff) {
        let is_large = diff.counts.len() > self.counts.len();
        for (membership, change) in diff.counts {
            let count = self.counts.entry(membership).or_default();
            *count += change;
            if *count <= 0 {
                self.counts.remove(&membership);
            }
        }
        if is_large {
            // Rebuilt from a sorted list, the map's nodes are full.
            self.counts = std::mem::take(&mut self.counts).into_iter().collect();
        }
    }
}

/// The joins that rules need.
pub(crate) fn of_rules(rules: &[Arc<RuleView>]) -> impl Iterator<Item = &Join> {
    rules.iter().flat_map(|rule| of_inputs(&rule.inputs))
}

/// The joins that inputs need.
pub(crate) fn of_inputs(inputs: &[InputView]) -> impl Iterator<Item = &Join> {
    inputs.iter().flat_map(|input| &input.joins)
}

/// The memberships of a join: one for each group of its range and each source.
pub(crate) fn of_join(join: &Join) -> impl Iterator<Item = Membership> + '_ {
    let sources: Vec<Option<IpAddr>> = if join.sources.is_empty() {
        vec![None]
    } else {
        join.sources.iter().copied().map(Some).collect()
    };
    groups(join.groups).flat_map(move |group| {
        let membership = move |source| Membership {
            interface: join.interface.0,
            group,
            source,
        };
        sources.clone().into_iter().map(membership)
    })
}

fn groups(range: Prefix) -> impl Iterator<Item = IpAddr> {
    let count = 1_u128.checked_shl(range.host_bits().into()).unwrap_or(0);
    (0..count).map(move |offset| match range.address {
        IpAddr::V4(base) => Ipv4Addr::from_bits(base.to_bits() | offset as u32).into(),
        IpAddr::V6(base) => Ipv6Addr::from_bits(base.to_bits() | offset).into(),
    })
}

pub(super) fn of_any(membership: &Membership) -> Membership {
    Membership {
        source: None,
        ..*membership
    }
}

#[cfg(test)]
mod tests {
    use compile::placement::Placement;
    use compile::table::Path;
    use proptest::prelude::*;
    use rules::net::Ifindex;

    use super::*;

    fn join(groups: &str, sources: &[&str]) -> Join {
        let (address, length) = groups.split_once('/').unwrap_or((groups, "32"));
        Join {
            interface: Ifindex(2),
            groups: Prefix::new(address.parse().unwrap(), length.parse().unwrap()),
            sources: sources.iter().map(|s| s.parse().unwrap()).collect(),
        }
    }

    fn rule(joins: Vec<Join>) -> Arc<RuleView> {
        let input = InputView {
            addresses: Vec::new(),
            at: String::new(),
            interfaces: Vec::new(),
            joins,
            pending: None,
            unjoined: None,
            shared: Vec::new(),
        };
        Arc::new(RuleView {
            only_at_tc: None,
            enabled: true,
            name: "a".to_owned(),
            placement: Placement {
                path: Path::Kernel,
                serves: true,
                reason: "".into(),
            },
            inputs: vec![input],
            outputs: Vec::new(),
            divided: Vec::new(),
        })
    }

    fn shown(joins: Vec<Join>) -> Vec<String> {
        let shown = |m: &Membership| match m.source {
            None => m.group.to_string(),
            Some(source) => format!("{source}@{}", m.group),
        };
        let wanted = of(&[rule(joins)]);
        wanted.memberships().iter().map(shown).collect()
    }

    #[test]
    fn wants_each_group_of_a_range_and_each_source() {
        assert_eq!(
            shown(vec![join("239.1.1.0/30", &[])]),
            ["239.1.1.0", "239.1.1.1", "239.1.1.2", "239.1.1.3"]
        );
        assert_eq!(
            shown(vec![join("232.1.1.1", &["10.0.0.5", "10.0.0.6"])]),
            ["10.0.0.5@232.1.1.1", "10.0.0.6@232.1.1.1"]
        );
    }

    #[test]
    fn wants_any_source_where_some_rule_does() {
        assert_eq!(
            shown(vec![
                join("232.1.1.1", &["10.0.0.5"]),
                join("232.1.1.1", &[]),
                join("232.1.1.2", &["10.0.0.5"]),
            ]),
            ["232.1.1.1", "10.0.0.5@232.1.1.2"]
        );
    }

    /// The memberships that rules want.
    fn of(rules: &[Arc<RuleView>]) -> Wanted {
        let mut wanted = Wanted::default();
        wanted.apply(wanted.diff([], of_rules(rules)));
        wanted
    }

    /// Rules of few groups and sources, so that they overlap.
    fn few() -> impl Strategy<Value = Vec<Arc<RuleView>>> {
        let sources = proptest::sample::subsequence(vec!["10.0.0.5", "10.0.0.6"], 0..=2);
        let joins = (0_u8..3, sources)
            .prop_map(|(group, sources)| join(&format!("232.1.1.{group}"), &sources));
        let rules = proptest::collection::vec(joins, 0..3).prop_map(rule);
        proptest::collection::vec(rules, 0..4)
    }

    proptest! {
        #[test]
        fn a_change_equals_a_full_computation(stay in few(), removed in few(), added in few()) {
            let all = |a: &[Arc<RuleView>], b: &[Arc<RuleView>]| of(&[a, b].concat());
            let mut wanted = all(&stay, &removed);
            let expected = all(&stay, &added);
            let diff = wanted.diff(of_rules(&removed), of_rules(&added));
            prop_assert!(diff.join.is_disjoint(&wanted.memberships()));
            prop_assert!(diff.leave.is_subset(&wanted.memberships()));
            wanted.apply(diff);
            prop_assert_eq!(&wanted.counts, &expected.counts);
            prop_assert_eq!(wanted.memberships(), expected.memberships());
        }
    }
}
