//! Which rules feed themselves, and which only seem to.

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
        failover: None,
        merge: None,
        reflect: None,
        share: None,
        health: None,
        enabled: true,
        comment: None,
        labels: Default::default(),
    }
}

fn problems(rules: &[Rule]) -> Vec<String> {
    let set = RuleSet::unchecked(rules.iter().cloned().map(Arc::new));
    let problems = find(&set, &set.slots().collect::<Vec<_>>());
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

/// Wherever a copy to an address of this host is routed, it gets there.
#[test]
fn an_output_to_an_address_that_is_an_input_is_a_way_back() {
    for (input, output) in [
        ("10.0.0.2%eth0:7000", "10.0.0.2:7000"),
        ("10.0.0.2%eth0:7000-7009", "10.0.0.2%eth1:7005"),
        ("[2001:db8::2%eth0]:7000", "[2001:db8::2]:7000"),
        ("unicast%lo:7000", "127.0.0.1:7000"),
    ] {
        assert_eq!(problems(&[rule("a", input, &[output])]).len(), 1, "{input}");
    }
    let there = rule("there", "239.1.1.1%eth0:1", &["10.0.0.2:7000"]);
    let back = rule("back", "10.0.0.2%eth1:7000", &["239.1.1.1%eth0:1"]);
    let feeds = problems(&[there.clone(), back]);
    assert!(
        feeds[0].contains("\"there\" -> 10.0.0.2:7000 -> \"back\""),
        "{feeds:?}"
    );
    let other = rule("other", "10.0.0.2%eth1:7001", &["239.1.1.1%eth0:1"]);
    assert_eq!(problems(&[there, other]), [""; 0]);
    let out = rule("out", "unicast%eth0:7000", &["10.0.0.9%eth0:7000"]);
    assert_eq!(problems(&[out]), [""; 0]);
}

#[test]
fn permits_relaying_a_group_in_every_direction() {
    let mdns = |interface: &str| format!("224.0.0.251%{interface}:5353");
    let all = ["eth0", "eth1", "eth2"];
    let mesh: Vec<Rule> = all
        .iter()
        .map(|from| {
            let others = all.iter().filter(|to| *to != from).map(|to| mdns(to));
            let outputs: Vec<String> = others.collect();
            let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
            rule(from, &mdns(from), &outputs)
        })
        .collect();
    assert_eq!(problems(&mesh), [""; 0]);
    let one_way: Vec<Rule> = (0..3)
        .map(|n| rule(all[n], &mdns(all[n]), &[&mdns(all[(n + 1) % 3])]))
        .collect();
    assert_eq!(problems(&one_way), [""; 0]);
    // One rule that returns packets by their own interface, or to another group, is enough.
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
    let feeds = problems(&rules);
    assert_eq!(feeds.len(), 1);
    assert!(feeds[0].contains("239.1.1.2%eth2:1"), "{feeds:?}");
}

#[test]
fn reports_each_of_two_circles_once() {
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

fn endpoint() -> impl Strategy<Value = String> {
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
        ends in proptest::collection::vec((endpoint(), endpoint()), 1..8)
    ) {
        let rules: Vec<Rule> = ends
            .iter()
            .enumerate()
            .map(|(n, (input, output))| rule(&format!("r{n}"), input, &[output]))
            .collect();
        prop_assert_eq!(!problems(&rules).is_empty(), has_circle(&rules));
    }
}

fn reflecting(name: &str, group: &str, interfaces: &[&str]) -> Rule {
    let at = |link: &&str| format!("{group}%{link}:5353");
    let mut rule = rule(name, &at(&interfaces[0]), &[]);
    rule.inputs = interfaces.iter().map(|i| at(i).parse().unwrap()).collect();
    rule.outputs = interfaces.iter().map(|i| at(i).parse().unwrap()).collect();
    rule.reflect = Some(crate::reflect::Reflect::default());
    rule
}

#[test]
fn what_reflects_is_no_circle_by_itself_but_part_of_one() {
    let mirror = reflecting("mirror", "239.1.1.1", &["eth0", "eth1", "eth2"]);
    assert_eq!(problems(std::slice::from_ref(&mirror)), [] as [&str; 0]);
    // What it sends by eth1 is relayed from there and returns to eth0, from another sender.
    let away = |interface: &str| {
        let input = format!("10.0.0.5@239.1.1.1%{interface}:5353");
        rule("away", &input, &["239.2.2.2%eth3:5353"])
    };
    let back = "239.1.1.1%eth0:5353,source=10.0.0.9";
    let back = rule("back", "239.2.2.2%eth3:5353", &[back]);
    let feeds = problems(&[mirror.clone(), away("eth1"), back.clone()]);
    assert_eq!(feeds.len(), 1, "{feeds:?}");
    assert!(feeds[0].contains("feeds a loop: "), "{feeds:?}");
    // What arrives by eth0 does not leave by eth0.
    assert_eq!(problems(&[mirror, away("eth0"), back]), [] as [&str; 0]);
}

#[test]
fn broadcasts_may_go_both_ways_between_two_networks() {
    let rules = |there: &str, back: &str, at: &str, home: &str| {
        problems(&[rule("there", there, &[at]), rule("back", back, &[home])])
    };
    let (a, b) = ("10.1.0.255%eth0:9302", "10.2.0.255%eth1:9302");
    assert_eq!(rules(a, b, b, a), [""; 0]);
    let (c, d) = ("10.1.0.127%eth0:9302", "10.2.3.255%eth1:9302");
    assert_eq!(rules(c, d, d, c), [""; 0]);
    // Hosts, another port on the way, one interface.
    let (e, f) = ("10.1.0.1%eth0:9302", "10.2.0.1%eth1:9302");
    assert_eq!(rules(e, f, f, e).len(), 1);
    let g = "10.2.0.255%eth0:9302";
    assert_eq!(rules(a, g, g, a).len(), 1);
}
