//! Loops of rules: an output that arrives at an input of its own rule, directly or through others.
//!
//! Detects only what the configuration can show: an output and an input on the same interface, or an
//! output to an address that is an input of this host, which it reaches whatever the interface. Rules
//! that carry the same groups and ports between interfaces in every direction, as mDNS and SSDP need,
//! are not a loop, because no interface gets back what it sent; a rule that reflects does so by itself.
//! Broadcasts of different networks count as the same here. At run time `own_source` and `ttl=dec` catch
//! loops through the network beyond; `ttl=dec` does not permit a loop here.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use crate::endpoint::Endpoint;
use crate::net::LOOPBACK;
use crate::problem::{Circle, Feed, Part, Problem, What};
use crate::rule::{OutputSpec, Rule, SourceChoice};
use crate::ruleset::index::InputId;
use crate::ruleset::set::RuleSet;
use crate::ruleset::slot::Slot;
use crate::wildcard;

/// One output that arrives at an input.
#[derive(Clone, Copy)]
struct Edge {
    output: usize,
    to: InputId,
}

/// Finds the outputs that feed their own rule, and one output of each circle of several rules. Only
/// what packets of the rules at `starts` can reach is examined.
pub(crate) fn find(rules: &RuleSet, starts: &[Slot]) -> Vec<Problem> {
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
            walk.from(InputId { rule, input });
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
            if may_be_sender(spec, input) && !stays_on_other_link(&spec.to, input) {
                edges.push(Edge { output, to });
            }
        }
    }
    edges.into()
}

/// Whether a broadcast cannot reach the input, because it stays on the link that it leaves by.
fn stays_on_other_link(output: &Endpoint, input: &Endpoint) -> bool {
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

/// Returns whether what arrives at `input` leaves by `output` unchanged, through another interface. On
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

/// Returns whether an address may be a network's broadcast address: its last bits are ones. An
/// interface does not receive the broadcasts that it sends.
const fn may_be_broadcast(endpoint: &Endpoint) -> bool {
    match endpoint.destination.address {
        IpAddr::V4(address) => !address.is_multicast() && address.to_bits() & 3 == 3,
        IpAddr::V6(_) => false,
    }
}

/// A depth-first walk along the paths of packets. The nodes are inputs, and their edges those of their
/// rule. Every circle lies within one strongly connected component (Tarjan, 1972).
struct Walk<'a> {
    rules: &'a RuleSet,
    edges: HashMap<Slot, Arc<[Edge]>>,
    visits: BTreeMap<InputId, Visit>,
    /// Nodes that are in no component yet.
    open: Vec<InputId>,
}

/// A node that the walk has reached.
struct Visit {
    order: usize,
    /// The earliest open node that is reachable from here, as far as the walk has seen.
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

    fn edges(&mut self, rule: Slot) -> Arc<[Edge]> {
        let rules = self.rules;
        let cached = self.edges.entry(rule);
        Arc::clone(cached.or_insert_with(|| edges(rules, &rules[rule])))
    }

    /// Returns whether packets that arrive at `from` take the edge. An interface of a rule that reflects
    /// does not receive what the rule sends by it.
    fn leads(&self, from: InputId, edge: Edge) -> bool {
        let rule = &self.rules[from.rule];
        let is_own = edge.to.rule == from.rule;
        rule.leads(from.input, edge.output) && !(is_own && rule.reflect.is_some())
    }

    /// Finds the components of everything reachable from `start`.
    fn from(&mut self, start: InputId) {
        if self.visits.contains_key(&start) {
            return;
        }
        self.visit(start);
        // The nodes being walked, each with the number of its edges already taken.
        let mut walk = vec![(start, 0)];
        while let Some((node, taken)) = walk.last_mut() {
            let (node, edge) = (*node, *taken);
            *taken += 1;
            let Some(edge) = self.edges(node.rule).get(edge).copied() else {
                walk.pop();
                let earliest = self.finish(node);
                if let Some((before, _)) = walk.last() {
                    self.record_reachable(*before, earliest);
                }
                continue;
            };
            if !self.leads(node, edge) {
                continue;
            }
            match self.visits.get(&edge.to) {
                None => {
                    self.visit(edge.to);
                    walk.push((edge.to, 0));
                }
                Some(visit) if visit.component.is_none() => {
                    let order = visit.order;
                    self.record_reachable(node, order);
                }
                Some(_) => {}
            }
        }
    }

    fn visit(&mut self, node: InputId) {
        let order = self.visits.len();
        let visit = Visit {
            order,
            earliest: order,
            component: None,
        };
        self.visits.insert(node, visit);
        self.open.push(node);
    }

    fn record_reachable(&mut self, node: InputId, order: usize) {
        if let Some(visit) = self.visits.get_mut(&node) {
            visit.earliest = visit.earliest.min(order);
        }
    }

    /// Closes the component of a node if all nodes behind it lead back to it and none leads to an
    /// earlier one; returns the earliest node that is reachable.
    fn finish(&mut self, node: InputId) -> usize {
        let Some(&Visit {
            order, earliest, ..
        }) = self.visits.get(&node)
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
            if member == node {
                break;
            }
        }
        usize::MAX
    }

    fn component(&self, node: InputId) -> Option<usize> {
        self.visits.get(&node)?.component
    }

    /// The circles through each edge that does more than cross. Circles whose rules were all in earlier
    /// ones are omitted, so that one mistake is reported once.
    fn circles(&mut self) -> Vec<Vec<(Slot, Edge)>> {
        let mut circles = Vec::new();
        let mut reported = BTreeSet::new();
        let nodes: Vec<InputId> = self.visits.keys().copied().collect();
        for from in nodes {
            let rules = self.rules;
            let rule = &rules[from.rule];
            for edge in self.edges(from.rule).iter().copied() {
                let is_within = self.component(from) == self.component(edge.to);
                let is_own = edge.to.rule == from.rule;
                let (input, output) = (&rule.inputs[from.input], &rule.outputs[edge.output].to);
                let is_reported = reported.contains(&from.rule) && reported.contains(&edge.to.rule);
                let is_step = is_within && self.leads(from, edge);
                if is_own || !is_step || is_reported || crosses(input, output) {
                    continue;
                }
                let mut circle = vec![(from.rule, edge)];
                circle.extend(self.shortest_path(edge.to, from));
                reported.extend(circle.iter().map(|(rule, _)| *rule));
                // It begins with the first rule of the configuration.
                let first = (0..circle.len()).min_by_key(|step| circle[*step].0);
                circle.rotate_left(first.unwrap_or_default());
                circles.push(circle);
            }
        }
        circles
    }

    /// The shortest path between two nodes of a component.
    fn shortest_path(&mut self, from: InputId, to: InputId) -> Vec<(Slot, Edge)> {
        let within = self.component(to);
        let mut reached_from: BTreeMap<InputId, (InputId, Edge)> = BTreeMap::new();
        let mut next = VecDeque::from([from]);
        while let Some(node) = next.pop_front().filter(|node| *node != to) {
            for edge in self.edges(node.rule).iter().copied() {
                let is_within = self.component(edge.to) == within && self.leads(node, edge);
                if is_within && !reached_from.contains_key(&edge.to) {
                    reached_from.insert(edge.to, (node, edge));
                    next.push_back(edge.to);
                }
            }
        }
        let mut path = Vec::new();
        let mut node = to;
        while node != from {
            let Some((before, edge)) = reached_from.get(&node) else {
                break;
            };
            path.push((before.rule, *edge));
            node = *before;
        }
        path.reverse();
        path
    }
}

fn feed(rules: &RuleSet, from: Slot, edge: Edge) -> Feed {
    Feed {
        from: rules[from].name.clone(),
        output: edge.output,
        output_text: rules[from].outputs[edge.output].target(),
        to: rules[edge.to.rule].name.clone(),
        input_text: rules[edge.to.rule].inputs[edge.to.input].to_string(),
    }
}

fn problem(rules: &RuleSet, from: Slot, output: usize, what: What) -> Problem {
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
