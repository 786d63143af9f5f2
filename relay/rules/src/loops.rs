//! Loops of rules: an output that arrives at an input of its own rule, directly or through others.
//!
//! Finds only what the configuration can show: an output and an input on the same interface, or an
//! output to an address that is an input of this host, which gets there whatever the interface. Rules
//! that carry the same groups and ports between interfaces in every direction, as mDNS and SSDP need,
//! are no loop, because no interface gets back what it sent; a rule that reflects does so by itself.
//! Broadcasts of different networks count as the same here. `own_source` and `ttl=dec` catch loops
//! through the network beyond at run time; `ttl=dec` permits no loop here.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use crate::endpoint::Endpoint;
use crate::net::LOOPBACK;
use crate::problem::{Circle, Feed, Part, Problem, What};
use crate::rule::{OutputSpec, Rule, SourceChoice};
use crate::ruleset::index::InputPlace;
use crate::ruleset::place::Place;
use crate::ruleset::set::RuleSet;
use crate::wildcard;

/// One output that arrives at an input.
#[derive(Clone, Copy)]
struct Edge {
    output: usize,
    to: InputPlace,
}

/// Finds the outputs that feed their own rule, and of circles of several rules one each. Only what
/// the packets of the rules at `starts` get to is looked at.
pub(crate) fn find(rules: &RuleSet, starts: &[Place]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut walk = Walk::new(rules);
    for from in starts {
        let mut reported = None;
        let feeds_itself = rules[*from].reflect.is_none();
        let edges = walk.edges(*from);
        for edge in edges.iter().filter(|e| feeds_itself && e.to.rule == *from) {
            if reported.replace(edge.output) != Some(edge.output) {
                let input = rules[*from].inputs[edge.to.input].to_string();
                problems.push(problem(rules, *from, edge.output, What::FeedsItself(input)));
            }
        }
    }
    for start in starts {
        for input in 0..rules[*start].inputs.len() {
            let rule = *start;
            walk.from(InputPlace { rule, input });
        }
    }
    for circle in walk.circles() {
        let Some((from, edge)) = circle.first().copied() else {
            continue;
        };
        let feeds = circle.iter().map(|(from, edge)| feed(rules, *from, *edge));
        let what = What::Loop(Circle(feeds.collect()));
        problems.push(problem(rules, from, edge.output, what));
    }
    problems
}

fn edges(rules: &RuleSet, rule: &Rule) -> Arc<[Edge]> {
    let mut edges = Vec::new();
    let outputs = rule.outputs.iter().filter(|_| rule.enabled).enumerate();
    for (output, spec) in outputs {
        for to in rules.index().reached_by(&spec.to) {
            let input = &rules[to.rule].inputs[to.input];
            if may_be_sender(spec, input) && !stays_beside(&spec.to, input) {
                edges.push(Edge { output, to });
            }
        }
    }
    edges.into()
}

/// Broadcasts stay on the link that they leave by.
fn stays_beside(output: &Endpoint, input: &Endpoint) -> bool {
    let ends = output.interface.as_deref().zip(input.interface.as_deref());
    output.is_broadcast() && ends.is_some_and(|(to, at)| !wildcard::matches(at, to))
}

/// A copy with a fixed source address does not reach an input that listens to others only.
fn may_be_sender(output: &OutputSpec, input: &Endpoint) -> bool {
    match output.source {
        SourceChoice::Address(address) => input.listens_to(address),
        SourceChoice::Auto | SourceChoice::Keep => true,
    }
}

/// Says whether what comes by `input` leaves by `output` as it came, through another interface. On
/// the loopback everything that is sent comes back.
fn crosses(input: &Endpoint, output: &Endpoint) -> bool {
    let (Some(from), Some(to)) = (&input.interface, &output.interface) else {
        return false;
    };
    let is_same = input.destination == output.destination;
    (is_same || may_be_broadcast(input) && may_be_broadcast(output))
        && input.ports == output.ports
        && !wildcard::matches(from, to)
        && from != LOOPBACK
        && to != LOOPBACK
}

/// Says whether an address may be where a network's broadcasts go: its last bits are ones. No interface
/// hears those that it sends.
const fn may_be_broadcast(endpoint: &Endpoint) -> bool {
    match endpoint.destination.address {
        IpAddr::V4(address) => !address.is_multicast() && address.to_bits() & 3 == 3,
        IpAddr::V6(_) => false,
    }
}

/// A walk along the ways of packets, depth first. An input is a place on the way; the edges of its
/// rule lead on. Every circle lies within one strongly connected component (Tarjan, 1972).
struct Walk<'a> {
    rules: &'a RuleSet,
    edges: HashMap<Place, Arc<[Edge]>>,
    visits: BTreeMap<InputPlace, Visit>,
    /// Places that are in no component yet.
    open: Vec<InputPlace>,
}

/// A place that the walk has come to.
struct Visit {
    order: usize,
    /// The earliest open place that can be got to from here, as far as is known.
    earliest: usize,
    component: Option<usize>,
}

impl<'a> Walk<'a> {
    fn new(rules: &'a RuleSet) -> Self {
        Self {
            rules,
            edges: HashMap::new(),
            visits: BTreeMap::new(),
            open: Vec::new(),
        }
    }

    fn edges(&mut self, rule: Place) -> Arc<[Edge]> {
        let rules = self.rules;
        let known = self.edges.entry(rule);
        Arc::clone(known.or_insert_with(|| edges(rules, &rules[rule])))
    }

    /// Says whether packets that come by `from` take the edge. No interface of a rule that reflects
    /// hears what the rule sends by it.
    fn leads(&self, from: InputPlace, edge: Edge) -> bool {
        let rule = &self.rules[from.rule];
        let is_own = edge.to.rule == from.rule;
        rule.leads(from.input, edge.output) && !(is_own && rule.reflect.is_some())
    }

    /// Finds the components of everything that can be got to from `start`.
    fn from(&mut self, start: InputPlace) {
        if self.visits.contains_key(&start) {
            return;
        }
        self.visit(start);
        // The places being walked, each with the number of its edges that were taken.
        let mut walk = vec![(start, 0)];
        while let Some((place, taken)) = walk.last_mut() {
            let (place, edge) = (*place, *taken);
            *taken += 1;
            let Some(edge) = self.edges(place.rule).get(edge).copied() else {
                walk.pop();
                let earliest = self.finish(place);
                if let Some((before, _)) = walk.last() {
                    self.can_get_to(*before, earliest);
                }
                continue;
            };
            if !self.leads(place, edge) {
                continue;
            }
            match self.visits.get(&edge.to) {
                None => {
                    self.visit(edge.to);
                    walk.push((edge.to, 0));
                }
                Some(visit) if visit.component.is_none() => {
                    let order = visit.order;
                    self.can_get_to(place, order);
                }
                Some(_) => {}
            }
        }
    }

    fn visit(&mut self, place: InputPlace) {
        let order = self.visits.len();
        let visit = Visit {
            order,
            earliest: order,
            component: None,
        };
        self.visits.insert(place, visit);
        self.open.push(place);
    }

    fn can_get_to(&mut self, place: InputPlace, order: usize) {
        if let Some(visit) = self.visits.get_mut(&place) {
            visit.earliest = visit.earliest.min(order);
        }
    }

    /// Closes the component of a place that everything behind leads back to, and no further; hands
    /// back the earliest place that can be got to.
    fn finish(&mut self, place: InputPlace) -> usize {
        let Some(&Visit {
            order, earliest, ..
        }) = self.visits.get(&place)
        else {
            return usize::MAX;
        };
        if earliest < order {
            return earliest;
        }
        while let Some(member) = self.open.pop() {
            if let Some(visit) = self.visits.get_mut(&member) {
                visit.component = Some(order);
            }
            if member == place {
                break;
            }
        }
        usize::MAX
    }

    fn component(&self, place: InputPlace) -> Option<usize> {
        self.visits.get(&place)?.component
    }

    /// The circles, through each step that does more than cross. Those whose rules were all in earlier
    /// ones are left out, so that one mistake is reported once.
    fn circles(&mut self) -> Vec<Vec<(Place, Edge)>> {
        let mut circles = Vec::new();
        let mut reported = BTreeSet::new();
        let places: Vec<InputPlace> = self.visits.keys().copied().collect();
        for from in places {
            let rules = self.rules;
            let rule = &rules[from.rule];
            for edge in self.edges(from.rule).iter().copied() {
                let is_within = self.component(from) == self.component(edge.to);
                let is_own = edge.to.rule == from.rule;
                let (input, output) = (&rule.inputs[from.input], &rule.outputs[edge.output].to);
                let is_known = reported.contains(&from.rule) && reported.contains(&edge.to.rule);
                let is_way = is_within && self.leads(from, edge);
                if is_own || !is_way || is_known || crosses(input, output) {
                    continue;
                }
                let mut circle = vec![(from.rule, edge)];
                circle.extend(self.way(edge.to, from));
                reported.extend(circle.iter().map(|(rule, _)| *rule));
                // It begins with the first rule of the configuration.
                let first = (0..circle.len()).min_by_key(|place| circle[*place].0);
                circle.rotate_left(first.unwrap_or_default());
                circles.push(circle);
            }
        }
        circles
    }

    /// The shortest way between two places of a component.
    fn way(&mut self, from: InputPlace, to: InputPlace) -> Vec<(Place, Edge)> {
        let within = self.component(to);
        let mut came_by: BTreeMap<InputPlace, (InputPlace, Edge)> = BTreeMap::new();
        let mut next = VecDeque::from([from]);
        while let Some(place) = next.pop_front().filter(|place| *place != to) {
            for edge in self.edges(place.rule).iter().copied() {
                let is_within = self.component(edge.to) == within && self.leads(place, edge);
                if is_within && !came_by.contains_key(&edge.to) {
                    came_by.insert(edge.to, (place, edge));
                    next.push_back(edge.to);
                }
            }
        }
        let mut way = Vec::new();
        let mut place = to;
        while place != from {
            let Some((before, edge)) = came_by.get(&place) else {
                break;
            };
            way.push((before.rule, *edge));
            place = *before;
        }
        way.reverse();
        way
    }
}

fn feed(rules: &RuleSet, from: Place, edge: Edge) -> Feed {
    Feed {
        from: rules[from].name.clone(),
        output: edge.output,
        output_text: rules[from].outputs[edge.output].target(),
        to: rules[edge.to.rule].name.clone(),
        input_text: rules[edge.to.rule].inputs[edge.to.input].to_string(),
    }
}

fn problem(rules: &RuleSet, from: Place, output: usize, what: What) -> Problem {
    Problem {
        position: rules.position(from),
        rule: rules[from].name.clone(),
        part: Part::Output(output),
        text: rules[from].outputs[output].target(),
        what,
    }
}

#[cfg(test)]
mod tests;
