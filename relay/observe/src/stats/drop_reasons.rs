//! The reasons for which rules can drop packets as configured. Their metrics are exposed at 0 before they
//! occur, so that the first drops are growth and not a new series.
//!
//! Not every reason for every rule: the page of ten thousand rules would be too long.

use std::collections::BTreeMap;

use compile::table::{DownReason, Path, Ttl};
use dataplane::counters::DropReason;
use rules::net::Prefix;
use rules::rule::{OutputSpec, Rule};
use rules::ruleset::RuleSet;

use crate::view::{RuleState, View};

/// Reasons for which a rule and each of its outputs can drop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PossibleDrops {
    /// The rule itself.
    pub rule: Reasons,
    /// Each of its outputs.
    pub outputs: Vec<Reasons>,
}

/// A set of reasons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reasons(u32);

impl Reasons {
    /// A set of these reasons.
    #[cfg(test)]
    pub fn of(reasons: &[DropReason]) -> Self {
        let none = Self::default();
        reasons.iter().fold(none, |all, reason| all.with(*reason))
    }

    const fn with(self, reason: DropReason) -> Self {
        Self(self.0 | 1 << reason as u32)
    }

    const fn with_if(self, can: bool, reason: DropReason) -> Self {
        if can { self.with(reason) } else { self }
    }

    /// Their names.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let all = DropReason::ALL.into_iter();
        let own = all.filter(move |reason| self.0 & 1 << *reason as u32 != 0);
        own.map(DropReason::as_str)
    }
}

/// Computes the possible drop reasons of each rule.
#[derive(Debug)]
pub(super) struct Reckoning {
    groups: Groups,
    has_budget: bool,
}

impl Reckoning {
    pub(super) fn of(view: &View) -> Self {
        Self {
            groups: Groups::of(&view.rules),
            has_budget: view.settings.budget.is_some(),
        }
    }

    /// The possible reasons of one rule.
    pub(super) fn of_rule(&self, rule: &Rule, state: &RuleState) -> PossibleDrops {
        let of_rule = Reasons::default()
            .with(DropReason::Malformed)
            .with(DropReason::OwnSource)
            .with_if(rule.limit.is_some(), DropReason::RateLimited)
            .with_if(self.groups.are_shared(rule), DropReason::FragmentUnknown)
            .with_if(
                state.rule.placement.path == Path::Userspace,
                DropReason::BufferExhausted,
            )
            .with_if(
                rule.failover.is_some() || rule.share.is_some(),
                DropReason::Standby,
            )
            .with_if(
                rule.merge.is_some() || rule.reflect.is_some(),
                DropReason::Duplicate,
            )
            .with_if(rule.merge.is_some(), DropReason::Late)
            .with_if(rule.merge.is_some(), DropReason::Stray)
            .with_if(rule.merge.is_some(), DropReason::StreamsExceeded);
        let specs = rule.outputs.iter().zip(&state.rule.outputs);
        let outputs = specs.map(|(spec, view)| {
            let down = view.down.as_ref().map(|down| down.reason);
            of_output(spec, down, self.has_budget)
        });
        PossibleDrops {
            rule: of_rule,
            outputs: outputs.collect(),
        }
    }
}

/// A working output drops for reasons of its device; the reason of one that is down is known before its
/// first packet arrives.
fn of_output(spec: &OutputSpec, down: Option<DownReason>, has_budget: bool) -> Reasons {
    let is_counted = has_budget && !spec.to.is_multicast();
    let can = Reasons::default()
        .with(DropReason::TooBig)
        .with(DropReason::EgressFull)
        .with(DropReason::EgressError)
        .with_if(spec.ttl == Ttl::Decrement, DropReason::TtlExpired)
        .with_if(spec.limit.is_some(), DropReason::RateLimited)
        .with_if(is_counted, DropReason::OverBudget)
        .with_if(spec.demand.is_some(), DropReason::NotWanted);
    match down {
        None => can,
        Some(DownReason::InterfaceMissing) => can.with(DropReason::InterfaceMissing),
        Some(DownReason::InterfaceDown) => can.with(DropReason::InterfaceDown),
        Some(DownReason::NoAddress) => can.with(DropReason::NoAddress),
        Some(DownReason::NoRoute) => can.with(DropReason::NoRoute),
        Some(DownReason::NoNeighbour) => can.with(DropReason::NoNeighbour),
        Some(DownReason::IpsecPolicy) => can.with(DropReason::IpsecPolicy),
        // This applies to some of its groups only, so the output is not down for it.
        Some(DownReason::NotWanted) => can,
    }
}

/// How many rules name each group.
#[derive(Debug)]
struct Groups(BTreeMap<Prefix, usize>);

impl Groups {
    fn of(rules: &RuleSet) -> Self {
        let mut named: BTreeMap<Prefix, usize> = BTreeMap::new();
        for rule in rules.iter() {
            let mut groups: Vec<Prefix> = rule.inputs.iter().map(|i| i.destination).collect();
            groups.sort_unstable();
            groups.dedup();
            for group in groups {
                *named.entry(group).or_default() += 1;
            }
        }
        Self(named)
    }

    /// Whether a fragment to one of the rule's groups can belong to another rule: a range may hold any
    /// rule's groups.
    fn are_shared(&self, rule: &Rule) -> bool {
        rule.inputs.iter().any(|input| {
            let group = input.destination;
            !group.is_host() || self.0.get(&group).is_some_and(|rules| *rules > 1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> RuleSet {
        let file = config::ConfigFile {
            name: "mcr.toml".to_owned(),
            text: format!("version = 1\n{text}"),
        };
        let policy = rules::ruleset::Policy::default();
        config::Config::load(&[file], policy).unwrap().rules
    }

    fn names(reasons: Reasons) -> Vec<&'static str> {
        reasons.names().collect()
    }

    #[test]
    fn the_options_of_outputs_decide_their_drop_reasons() {
        for (output, down, has_budget, more) in [
            ("239.10.1.1%eth1:6001", None, true, &[][..]),
            ("239.10.1.1%eth1:6001,ttl=dec", None, true, &["ttl_expired"]),
            (
                "239.10.1.1%eth1:6001,limit=5pps",
                None,
                true,
                &["rate_limited"],
            ),
            ("10.9.9.9:7000", None, true, &["over_budget"]),
            ("10.9.9.9:7000", None, false, &[]),
            (
                "10.9.9.9:7000",
                Some(DownReason::NoRoute),
                false,
                &["no_route"],
            ),
        ] {
            let spec: OutputSpec = output.parse().unwrap();
            let mut have = names(of_output(&spec, down, has_budget));
            for always in ["too_big", "egress_full", "egress_error"] {
                let at = have.iter().position(|name| *name == always);
                have.remove(at.unwrap());
            }
            assert_eq!(have, more, "{output}");
        }
    }

    #[test]
    fn fragments_are_unassigned_if_several_rules_may_take_them() {
        let rules = rules(
            r#"
            rule = [
              { name = "a", input = "239.1.1.1%eth0:5001", outputs = ["239.9.9.1%eth1:1"] },
              { name = "b", input = "239.1.1.1%eth0:5002", outputs = ["239.9.9.2%eth1:1"] },
              { name = "c", input = "239.1.1.3%eth0:5001", outputs = ["239.9.9.3%eth1:1"] },
              { name = "d", inputs = ["239.1.1.4%eth0:5001", "239.1.1.4%eth0:5002"],
                outputs = ["239.9.9.4%eth1:1"] },
              { name = "e", input = "239.2.1.0/24%eth0:5001", outputs = ["239.9.8.0/24%eth1:1"] },
            ]"#,
        );
        let groups = Groups::of(&rules);
        let several: Vec<&str> = rules
            .iter()
            .filter(|rule| groups.are_shared(rule))
            .map(|rule| rule.name.as_str())
            .collect();
        assert_eq!(several, ["a", "b", "e"]);
    }
}
