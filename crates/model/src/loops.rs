//! Circles of rules: an output that arrives at an input of its own rule, directly or through
//! others.
//!
//! Only what the configuration can show is found: an output and an input on the same interface.
//! Loops through the network beyond are caught by `own_source` and `ttl=dec` at run time; `ttl=dec`
//! is no licence for a circle here.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::problem::{Circle, Feed, Part, Problem, What};
use crate::rule::{OutputSpec, Rule, SourceChoice};
use crate::ruleset::place::Place;
use crate::ruleset::set::RuleSet;

/// One output that arrives at an input.
#[derive(Clone, Copy)]
struct Edge {
    output: usize,
    to: Place,
    input: usize,
}

/// Finds the outputs that feed their own rule, and of circles of several rules one each. Only what
/// the packets of the rules at `starts` get to is looked at.
pub(crate) fn find(rules: &RuleSet, starts: &[Place]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut walk = Walk::new(rules);
    for from in starts {
        let mut reported = None;
        for edge in walk.edges(*from).iter().filter(|edge| edge.to == *from) {
            if reported.replace(edge.output) != Some(edge.output) {
                let input = rules[*from].inputs[edge.input].to_string();
                problems.push(problem(rules, *from, edge.output, What::FeedsItself(input)));
            }
        }
    }
    for circle in walk.circles(starts) {
        let Some((from, edge)) = circle.first().copied() else {
            continue;
        };
        let feeds = circle.iter().map(|(from, edge)| feed(rules, *from, *edge));
        let what = What::Loop(Circle(feeds.collect()));
        problems.push(problem(rules, from, edge.output, what));
    }
    problems
}

fn edges(rules: &RuleSet, rule: &Rule) -> Vec<Edge> {
    let mut edges = Vec::new();
    for (output, spec) in rule.outputs.iter().enumerate() {
        for place in rules.index().reached_by(&spec.to) {
            if may_be_sender(spec, &rules[place.rule].inputs[place.input].sources) {
                edges.push(Edge {
                    output,
                    to: place.rule,
                    input: place.input,
                });
            }
        }
    }
    edges
}

/// A copy with a fixed source address does not reach an input that listens to others only.
fn may_be_sender(output: &OutputSpec, sources: &[IpAddr]) -> bool {
    match output.source {
        SourceChoice::Address(address) => sources.is_empty() || sources.contains(&address),
        SourceChoice::Auto | SourceChoice::Keep => true,
    }
}

/// A walk through the rules along their edges, depth first.
struct Walk<'a> {
    rules: &'a RuleSet,
    nodes: HashMap<Place, Node>,
}

/// A rule that the walk has come to.
struct Node {
    edges: Vec<Edge>,
    /// Where it is in the walk, as long as it is there.
    depth: Option<usize>,
    /// Whether everything behind it was walked.
    is_done: bool,
    /// Whether it is in a circle that was reported.
    is_reported: bool,
}

impl<'a> Walk<'a> {
    fn new(rules: &'a RuleSet) -> Self {
        Self {
            rules,
            nodes: HashMap::new(),
        }
    }

    fn node(&mut self, place: Place) -> &mut Node {
        let rules = self.rules;
        self.nodes.entry(place).or_insert_with(|| Node {
            edges: edges(rules, &rules[place]),
            depth: None,
            is_done: false,
            is_reported: false,
        })
    }

    fn edges(&mut self, place: Place) -> &[Edge] {
        &self.node(place).edges
    }

    /// An edge back into the walk closes a circle. Circles whose rules were all in an earlier one
    /// are left out, so that one mistake is reported once.
    fn circles(&mut self, starts: &[Place]) -> Vec<Vec<(Place, Edge)>> {
        let mut circles = Vec::new();
        for start in starts {
            if self.node(*start).is_done {
                continue;
            }
            // The rules being walked, each with the number of its edges that were taken.
            let mut walk = vec![(*start, 0)];
            self.node(*start).depth = Some(0);
            while let Some((rule, taken)) = walk.last_mut() {
                let rule = *rule;
                let Some(edge) = self.edges(rule).get(*taken).copied() else {
                    let node = self.node(rule);
                    (node.is_done, node.depth) = (true, None);
                    walk.pop();
                    continue;
                };
                *taken += 1;
                let next_depth = walk.len();
                let next = self.node(edge.to);
                if edge.to == rule || next.is_done {
                    continue;
                }
                let Some(back_to) = next.depth else {
                    next.depth = Some(next_depth);
                    walk.push((edge.to, 0));
                    continue;
                };
                let members = &walk[back_to..];
                if !members.iter().all(|(rule, _)| self.node(*rule).is_reported) {
                    for (rule, _) in members {
                        self.node(*rule).is_reported = true;
                    }
                    circles.push(self.circle(members));
                }
            }
        }
        circles
    }

    /// Makes the circle of the walked rules, beginning with the first of the configuration.
    fn circle(&mut self, members: &[(Place, usize)]) -> Vec<(Place, Edge)> {
        let step = |(rule, taken): &(Place, usize)| (*rule, self.edges(*rule)[taken - 1]);
        let mut circle: Vec<(Place, Edge)> = members.iter().map(step).collect();
        let first = (0..circle.len()).min_by_key(|place| circle[*place].0);
        circle.rotate_left(first.unwrap_or_default());
        circle
    }
}

fn feed(rules: &RuleSet, from: Place, edge: Edge) -> Feed {
    Feed {
        from: rules[from].name.clone(),
        output: edge.output,
        output_text: rules[from].outputs[edge.output].to.to_string(),
        to: rules[edge.to].name.clone(),
        input_text: rules[edge.to].inputs[edge.input].to_string(),
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

    /// Follows every path of at most as many steps as there are rules.
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
        (0..rules.len()).any(|i| reach[i][i])
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
