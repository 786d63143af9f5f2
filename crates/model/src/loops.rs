//! Circles of rules: an output that arrives at an input of its own rule, directly or through
//! others.
//!
//! Only what the configuration can show is found: an output and an input on the same interface.
//! A circle whose rules all carry the same groups and ports from one interface to another is none:
//! it relays them between these interfaces in every direction, as mDNS and SSDP want it, and no
//! interface hears what it sends itself. Loops through the network beyond are caught by `own_source`
//! and `ttl=dec` at run time; `ttl=dec` is no licence for a circle here.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use crate::endpoint::Endpoint;
use crate::host::LOOPBACK;
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
        for edge in walk.edges(*from).iter().filter(|e| e.to.rule == *from) {
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
            if may_be_sender(spec, &rules[to.rule].inputs[to.input].sources) {
                edges.push(Edge { output, to });
            }
        }
    }
    edges.into()
}

/// A copy with a fixed source address does not reach an input that listens to others only.
fn may_be_sender(output: &OutputSpec, sources: &[IpAddr]) -> bool {
    match output.source {
        SourceChoice::Address(address) => sources.is_empty() || sources.contains(&address),
        SourceChoice::Auto | SourceChoice::Keep => true,
    }
}

/// Says whether what comes by `input` leaves by `output` as it came, through another interface. On
/// the loopback everything that is sent comes back.
fn crosses(input: &Endpoint, output: &Endpoint) -> bool {
    let (Some(from), Some(to)) = (&input.interface, &output.interface) else {
        return false;
    };
    input.destination == output.destination
        && input.ports == output.ports
        && !wildcard::matches(from, to)
        && from != LOOPBACK
        && to != LOOPBACK
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
                if is_own || !is_within || is_known || crosses(input, output) {
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
                if self.component(edge.to) == within && !came_by.contains_key(&edge.to) {
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
        output_text: rules[from].outputs[edge.output].to.to_string(),
        to: rules[edge.to.rule].name.clone(),
        input_text: rules[edge.to.rule].inputs[edge.to.input].to_string(),
    }
}

fn problem(rules: &RuleSet, from: Place, output: usize, what: What) -> Problem {
    Problem {
        position: rules.position(from),
        rule: rules[from].name.clone(),
        part: Part::Output(output),
        text: rules[from].outputs[output].to.to_string(),
        what,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::sync::Arc;

    use super::*;

    fn rule(name: &str, input: &str, outputs: &[&str]) -> Rule {
        Rule {
            name: name.to_owned(),
            inputs: vec![input.parse().unwrap()],
            outputs: outputs.iter().map(|text| text.parse().unwrap()).collect(),
            path: None,
            local: Default::default(),
            limit: None,
            health: None,
            enabled: true,
            comment: None,
            labels: Default::default(),
        }
    }

    fn problems(rules: &[Rule]) -> Vec<String> {
        let set = RuleSet::unchecked(rules.iter().cloned().map(Arc::new));
        let problems = find(&set, &set.places().collect::<Vec<_>>());
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn refuses_an_output_equal_to_its_input() {
        let rules = [rule(
            "a",
            "239.1.1.1%eth0:5001",
            &["239.1.1.1%eth0:5001,ttl=dec"],
        )];
        assert_eq!(
            problems(&rules),
            [
                "rule \"a\": output 239.1.1.1%eth0:5001: feeds the rule's own input \
              239.1.1.1%eth0:5001, so packets would go round for ever; change the group, the \
              port or the interface"
            ]
        );
    }

    #[test]
    fn names_every_rule_of_a_circle() {
        let rules = [
            rule("x", "239.9.9.9%eth0:1", &["239.1.1.1%eth0:5001"]),
            rule(
                "a",
                "239.1.1.1%eth0:5001",
                &["10.0.0.9:9", "239.1.1.2%eth1:5001"],
            ),
            rule("b", "239.1.1.2%eth1:5001", &["239.1.1.3%eth0:5001"]),
            rule("c", "239.1.1.3%eth0:5001", &["239.1.1.1%eth0:5001"]),
        ];
        assert_eq!(
            problems(&rules),
            [
                "rule \"a\": output 239.1.1.2%eth1:5001: feeds a loop: \"a\" -> \
              239.1.1.2%eth1:5001 -> \"b\" -> 239.1.1.3%eth0:5001 -> \"c\" -> \
              239.1.1.1%eth0:5001 -> \"a\", so packets would go round for ever; change a \
              group, a port or an interface on the way"
            ]
        );
    }

    #[test]
    fn finds_loops_through_ranges_and_wildcards() {
        for (input, output) in [
            ("239.1.1.0/24%eth0:5001", "239.1.1.7%eth0:5001"),
            ("239.1.1.7%eth0:5001-5003", "239.1.1.0/24%eth0:5002"),
            ("239.1.1.7%eth*:5001", "239.1.1.7%eth1:5001"),
            (
                "10.0.0.5@232.1.1.1%eth0:1",
                "232.1.1.1%eth0:1,source=10.0.0.5",
            ),
            ("10.0.0.5@232.1.1.1%eth0:1", "232.1.1.1%eth0:1,source=keep"),
            ("[ff3e::/32%eth0]:1", "[ff3e:0:1::/48%eth0]:1"),
        ] {
            assert_eq!(
                problems(&[rule("a", input, &[output])]).len(),
                1,
                "{input} {output}"
            );
        }
    }

    #[test]
    fn permits_what_does_not_come_back() {
        for (input, output) in [
            ("239.1.1.1%eth0:5001", "239.1.1.1%eth1:5001"),
            ("239.1.1.1%eth0:5001", "239.1.1.2%eth0:5001"),
            ("239.1.1.1%eth0:5001", "239.1.1.1%eth0:5002"),
            ("239.1.1.1%eth*:5001", "239.1.1.1%veth1:5001"),
            (
                "10.0.0.5@232.1.1.1%eth0:1",
                "232.1.1.1%eth0:1,source=10.0.0.6",
            ),
            ("239.1.1.1%eth0:5001", "10.9.9.9%eth0:5001"),
        ] {
            assert_eq!(
                problems(&[rule("a", input, &[output])]),
                [""; 0],
                "{input} {output}"
            );
        }
        let chain = [
            rule("a", "239.1.1.1%eth0:1", &["239.1.1.2%eth0:1"]),
            rule("b", "239.1.1.2%eth0:1", &["239.1.1.3%eth0:1"]),
        ];
        assert_eq!(problems(&chain), [""; 0]);
    }

    #[test]
    fn permits_relaying_a_group_in_every_direction() {
        let mdns = |interface: &str| format!("224.0.0.251%{interface}:5353");
        let all = ["eth0", "eth1", "eth2"];
        let mesh: Vec<Rule> = all
            .iter()
            .map(|from| {
                let others = all.iter().filter(|to| *to != from);
                let others: Vec<String> = others.map(|to| mdns(to)).collect();
                let others: Vec<&str> = others.iter().map(String::as_str).collect();
                rule(from, &mdns(from), &others)
            })
            .collect();
        assert_eq!(problems(&mesh), [""; 0]);
        let one_way: Vec<Rule> = (0..3)
            .map(|n| rule(all[n], &mdns(all[n]), &[&mdns(all[(n + 1) % 3])]))
            .collect();
        assert_eq!(problems(&one_way), [""; 0]);
        // One that hands packets back where they came from, or as another group's, is enough.
        let back = rule("back", &mdns("eth1"), &["224.0.0.251%eth1:5353"]);
        assert_eq!(problems(&[mesh[0].clone(), back]).len(), 1);
        let there = rule("there", "239.1.1.1%eth0:1", &["239.1.1.2%eth1:1"]);
        let back = rule("back", "239.1.1.2%eth1:1", &["239.1.1.1%eth0:1"]);
        assert_eq!(problems(&[there, back]).len(), 1);
        let there = rule("there", "239.1.1.1%eth0:1", &["239.1.1.1%lo:1"]);
        let back = rule("back", "239.1.1.1%lo:1", &["239.1.1.1%eth0:1"]);
        assert_eq!(problems(&[there, back]).len(), 1);
    }

    #[test]
    fn finds_a_circle_that_shares_its_rules_with_a_permitted_pair() {
        let rules = [
            rule("a", "239.1.1.1%eth0:1", &["239.1.1.1%eth1:1"]),
            rule(
                "b",
                "239.1.1.1%eth1:1",
                &["239.1.1.1%eth0:1", "239.1.1.2%eth2:1"],
            ),
            rule("c", "239.1.1.2%eth2:1", &["239.1.1.1%eth0:1"]),
        ];
        assert_eq!(problems(&rules[..2]).len(), 0);
        let found = problems(&rules);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("239.1.1.2%eth2:1"), "{found:?}");
    }

    #[test]
    fn tells_two_circles_apart_and_each_once() {
        let group = |n: usize| format!("239.1.1.{n}%eth0:1");
        let pair = |a: usize, b: usize, name: &str| rule(name, &group(a), &[&group(b)]);
        let rules = [
            pair(1, 2, "a"),
            pair(2, 1, "b"),
            pair(3, 4, "c"),
            pair(4, 3, "d"),
        ];
        assert_eq!(problems(&rules).len(), 2);
    }

    #[test]
    fn walks_ten_thousand_rules_in_a_row_without_recursion() {
        let group = |n: usize| format!("239.1.{}.{}%eth0:1", n / 250, n % 250);
        let rules: Vec<Rule> = (0..10_000)
            .map(|n| rule(&format!("r{n}"), &group(n), &[&group((n + 1) % 10_000)]))
            .collect();
        assert_eq!(problems(&rules).len(), 1);
        assert_eq!(problems(&rules[1..]).len(), 0);
    }

    /// Follows every path of at most as many steps as there are rules, each of one input and output.
    fn has_circle(rules: &[Rule]) -> bool {
        let feeds = |a: &Rule, b: &Rule| {
            let mut pairs = a
                .outputs
                .iter()
                .flat_map(|o| b.inputs.iter().map(move |i| (o, i)));
            pairs.any(|(o, i)| {
                o.to.interface == i.interface
                    && o.to.destination.overlaps(i.destination)
                    && o.to.ports.overlaps(i.ports)
            })
        };
        let mut reach: Vec<Vec<bool>> = rules
            .iter()
            .map(|a| rules.iter().map(|b| feeds(a, b)).collect())
            .collect();
        for k in 0..rules.len() {
            for i in 0..rules.len() {
                for j in 0..rules.len() {
                    reach[i][j] |= reach[i][k] && reach[k][j];
                }
            }
        }
        let returns = |i: usize| {
            let (input, output) = (&rules[i].inputs[0], &rules[i].outputs[0].to);
            input.interface == output.interface
                || input.destination != output.destination
                || input.ports != output.ports
        };
        (0..rules.len()).any(|i| reach[i][i] && returns(i))
    }

    fn place() -> impl Strategy<Value = String> {
        (0_u8..8, 29_u8..=32, 0_u8..2, 1_u16..4, 0_u16..2).prop_map(
            |(group, length, interface, port, more)| {
                let groups = crate::net::Prefix::new([239, 0, 0, group].into(), length);
                format!("{groups}%eth{interface}:{port}-{}", port + more)
            },
        )
    }

    proptest! {
        #[test]
        fn agrees_with_following_every_path(
            places in proptest::collection::vec((place(), place()), 1..8)
        ) {
            let rules: Vec<Rule> = places
                .iter()
                .enumerate()
                .map(|(n, (input, output))| rule(&format!("r{n}"), input, &[output]))
                .collect();
            prop_assert_eq!(!problems(&rules).is_empty(), has_circle(&rules));
        }
    }
}
