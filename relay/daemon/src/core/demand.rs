//! The rules with outputs on demand, and the steps when listeners change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use compile::host::Host;
use rules::demand::{Groups, Listening};
use rules::net::Ifindex;
use rules::rule::Rule;
use rules::ruleset::{RuleChanges, RuleSet, Slot};
use sys::membership::Membership;

use super::{Core, Recompiled, Step};
use crate::demand::{Link, Links};
use crate::memberships::{of_inputs, of_join};

/// The rules that forward and have outputs on demand.
#[derive(Clone, Debug, Default)]
pub(super) struct Demanding(BTreeMap<Slot, Arc<Rule>>);

impl Demanding {
    /// Updates the rules of `old` to those of `new`. Only rules that differ are read.
    pub(super) fn follow(&mut self, old: &RuleSet, new: &RuleSet) {
        let RuleChanges { removed, added } = RuleChanges::between(old, new);
        for (position, _) in removed {
            self.0.remove(&position);
        }
        let is_demanding = |(_, rule): &(Slot, Arc<Rule>)| rule.enabled && rule.has_demand();
        self.0.extend(added.into_iter().filter(is_demanding));
    }

    /// The rules that send one of `groups` on one of the interfaces.
    fn concerned(&self, host: &Host, groups: &BTreeMap<Ifindex, BTreeSet<IpAddr>>) -> RuleChanges {
        let of_name = |index: &Ifindex| host.interfaces.get(index).map(|link| link.name.as_str());
        let groups: BTreeMap<&str, &BTreeSet<IpAddr>> = groups
            .iter()
            .filter_map(|(index, groups)| Some((of_name(index)?, groups)))
            .collect();
        let is_concerned = |rule: &Rule| {
            let mut demanded = rule.outputs.iter().filter(|output| output.demand.is_some());
            demanded.any(|output| {
                let range = output.to.destination;
                let name = output.to.interface.as_deref().unwrap_or_default();
                let groups = groups.get(name);
                groups.is_some_and(|groups| {
                    groups.range(range.address..=range.last()).next().is_some()
                })
            })
        };
        let rules = self.0.iter().filter(|(_, rule)| is_concerned(rule));
        let concerned: Vec<_> = rules
            .map(|(position, rule)| (*position, Arc::clone(rule)))
            .collect();
        RuleChanges {
            removed: concerned.clone(),
            added: concerned,
        }
    }
}

impl Core {
    /// Sets what hosts listen to; the next step compiles all rules with it.
    pub(crate) fn set_listening(&mut self, listening: Listening) {
        self.listening = Arc::new(listening);
        self.stale = true;
    }

    /// The step after a change in what hosts listen to.
    pub(crate) fn step_listening(&self, listening: Arc<Listening>) -> Step {
        let changed = difference(&self.listening, &listening);
        let changes = self.demanding.concerned(&self.host, &changed);
        // The matches of a wildcard depend on all rules.
        let recompiled = if self.stale || self.rules.has_wildcards() {
            Recompiled::All(RuleChanges::of_all(&self.rules, &self.rules))
        } else {
            Recompiled::Some(changes)
        };
        let running = (self.rules.clone(), self.settings.clone());
        self.step_over(
            running,
            (self.host.clone(), listening),
            recompiled,
            &BTreeSet::new(),
        )
    }

    /// The memberships that a step leaves and that linger, with how long.
    pub(crate) fn lingering(&self, step: &Step) -> BTreeMap<Membership, Duration> {
        let Some(leaves) = step.leaves() else {
            return BTreeMap::new();
        };
        let mut lingering = BTreeMap::new();
        for (position, rule) in &step.recompiled.changes().removed {
            let demands = rule.outputs.iter().filter_map(|output| output.demand);
            let longest = demands.map(|demand| demand.linger_s).max().unwrap_or(0);
            let view = self.views().get(position).filter(|_| longest > 0);
            let joins = view.iter().flat_map(|view| of_inputs(&view.inputs));
            for membership in joins.flat_map(of_join).filter(|join| leaves.contains(join)) {
                let time: &mut Duration = lingering.entry(membership).or_default();
                *time = (*time).max(Duration::from_secs(longest.into()));
            }
        }
        lingering
    }

    /// Returns whether a running rule lets the membership linger: a removed or disabled rule does not.
    pub(crate) fn lets_linger(&self, held: &Membership) -> bool {
        let link = self.host.interfaces.get(&Ifindex(held.interface));
        let has_linger = |rule: &&Arc<Rule>| {
            let mut demands = rule.outputs.iter().filter_map(|output| output.demand);
            demands.any(|demand| demand.linger_s > 0)
        };
        let rules = self.demanding.0.values().filter(has_linger);
        rules.flat_map(|rule| &rule.inputs).any(|input| {
            let name = input.interface.as_deref().unwrap_or_default();
            input.destination.contains(held.group) && link.is_some_and(|link| link.is_named(name))
        })
    }

    /// Returns whether rules, settings and host stay the same: such steps follow listeners, many times a second.
    pub(crate) fn only_listening_differs(&self, step: &Step) -> bool {
        Arc::ptr_eq(&step.rules, &self.rules)
            && Arc::ptr_eq(&step.settings, &self.settings)
            && Arc::ptr_eq(&step.host, &self.host)
    }

    /// The interfaces that outputs on demand lead to.
    pub(crate) fn demanded_links(&self) -> Links {
        let mut links = Links::default();
        let outputs = self.demanding.0.values().flat_map(|rule| &rule.outputs);
        for output in outputs {
            let (Some(demand), Some(name)) = (output.demand, &output.to.interface) else {
                continue;
            };
            let Some(interface) = self.host.by_name(name) else {
                continue;
            };
            let link = links
                .0
                .entry(interface.index)
                .or_insert_with(|| Link::of(interface));
            let listeners = output.listeners.as_deref();
            link.add(output.to.destination, demand.querier, listeners);
        }
        links
    }
}

/// The groups whose listeners or source filters differ, by interface.
fn difference(old: &Listening, new: &Listening) -> BTreeMap<Ifindex, BTreeSet<IpAddr>> {
    let none = Groups::new();
    let links: BTreeSet<Ifindex> = old.0.keys().chain(new.0.keys()).copied().collect();
    let differing = links.into_iter().filter_map(|link| {
        let (old, new) = (old.0.get(&link), new.0.get(&link));
        if old.zip(new).is_some_and(|(old, new)| Arc::ptr_eq(old, new)) {
            return None;
        }
        let old = old.map_or(&none, AsRef::as_ref);
        let new = new.map_or(&none, AsRef::as_ref);
        let removed = old
            .iter()
            .filter(|(group, filter)| new.get(*group) != Some(*filter));
        let added = new
            .iter()
            .filter(|(group, filter)| old.get(*group) != Some(*filter));
        let groups = removed.chain(added).map(|(group, _)| *group);
        Some((link, groups.collect()))
    });
    differing.collect()
}
