//! What a set refuses, how it changes, and how two sets differ.

mod changes;

use proptest::prelude::*;

use super::index::InputIndex;
use super::*;

fn document(json: &str) -> RuleDocument {
    serde_json::from_str(json).unwrap()
}

fn rule(name: &str, input: &str, output: &str) -> Rule {
    document(&format!(
        r#"{{"name": "{name}", "input": "{input}", "outputs": ["{output}"]}}"#
    ))
    .to_rule(0)
    .unwrap()
}

fn numbered(n: usize) -> Rule {
    let input = format!("239.1.1.{n}%eth0:5001");
    rule(&format!("r{n}"), &input, &format!("239.2.1.{n}%eth1:5001"))
}

fn set(numbers: &[usize]) -> RuleSet {
    RuleSet::new(
        numbers.iter().copied().map(numbered).collect(),
        Policy::default(),
    )
    .unwrap()
}

fn names(set: &RuleSet) -> Vec<&str> {
    set.names().collect()
}

fn problems(rules: &[(&str, &str)]) -> Vec<String> {
    let named = rules.iter().zip('a'..);
    let rules = named.map(|((input, output), name)| rule(&name.to_string(), input, output));
    match RuleSet::new(rules.collect(), Policy::default()) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.0.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn a_disabled_rule_is_in_nobodys_way_until_it_is_enabled() {
    let disabled = |rule: Rule| Rule {
        enabled: false,
        ..rule
    };
    let one = rule("a", "239.1.1.1%eth*:5001", "239.1.1.2%eth1:5001");
    let same = rule("b", "239.1.1.1%eth*:5001", "239.1.1.3%eth1:5001");
    let back = rule("c", "239.1.1.2%eth1:5001", "239.1.1.1%eth0:5001");
    let others = vec![same.clone(), back.clone()];
    let all = [vec![disabled(one.clone())], others].concat();
    let set = RuleSet::new(all, Policy::default()).unwrap();
    let none = [disabled(one.clone()), disabled(same), disabled(back)];
    let none = RuleSet::new(none.to_vec(), Policy::default()).unwrap();
    assert!(set.has_wildcards() && !none.has_wildcards());
    assert_eq!(none.memberships(std::iter::empty(), 0), 0);
    let enabled = set.changed(&["a".to_owned()], vec![one], Policy::default());
    let Err(ChangeError::Invalid(problems)) = enabled else {
        panic!("{enabled:?}");
    };
    let text = problems.to_string();
    assert!(text.contains("\"b\"") && text.contains("loop"), "{text}");
}

#[test]
fn says_what_is_wrong_with_one_rule_and_what_to_do() {
    let input = "239.1.1.1%eth0:5001";
    let output = "239.10.1.1%eth1:6001";
    for (input, output, expected) in [
        (
            "239.1.1.1:5001",
            output,
            "input 239.1.1.1:5001: names no interface; write 239.1.1.1%IFACE:5001",
        ),
        (
            "10.1.1.0/24%eth0:5001",
            output,
            "input 10.1.1.0/24%eth0:5001: 10.1.1.0/24 is no range of multicast groups; name a group or a range within 224.0.0.0/4 or ff00::/8, one address of this host, or unicast for all of the interface",
        ),
        (
            "unicast:5001",
            output,
            "input unicast:5001: names no interface; write unicast%IFACE:5001",
        ),
        (
            input,
            "unicast%eth1:5001",
            "output unicast%eth1:5001: unicast is no address to send to; give a multicast group or a host's address",
        ),
        (
            "unicast%eth0:7000-7255",
            "239.1.0.0/16%eth1:6001",
            "output 239.1.0.0/16%eth1:6001: the range of groups 239.1.0.0/16 does not fit input unicast%eth0:7000-7255; make it a /24, a group for each port, or one single group",
        ),
        (
            "unicast%eth0:7000-7002",
            "239.1.1.0/24%eth1:6001",
            "output 239.1.1.0/24%eth1:6001: the range of groups 239.1.1.0/24 does not fit input unicast%eth0:7000-7002; 3 ports fit no range; give 2, 4, 8 … ports, or one single group",
        ),
        (
            "239.1.1.0/24%eth0:5000",
            "10.9.9.9:7000-7009",
            "output 10.9.9.9:7000-7009: the range of 10 ports 7000-7009 does not fit input 239.1.1.0/24%eth0:5000; give 256 ports as well, as in 7000-7255, or one single port",
        ),
        (
            "224.0.0.5%eth0:5001",
            output,
            "input 224.0.0.5%eth0:5001: 224.0.0.5 is link-local, where routing protocols and discovery live, and is not relayed by default; --allow-link-local, or allow_link_local = true in the file, permits it",
        ),
        (
            input,
            "239.10.1.1:6001",
            "output 239.10.1.1:6001: names no interface; write 239.10.1.1%IFACE:6001",
        ),
        (
            input,
            "239.10.1.1%eth*:6001",
            "output 239.10.1.1%eth*:6001: an output needs one interface, and eth* may stand for several; name each in an output",
        ),
        (
            input,
            "10.9.9.0/24:7000",
            "output 10.9.9.0/24:7000: 10.9.9.0/24 is a range of unicast addresses; name one address, and one output for each",
        ),
        (
            input,
            "255.255.255.255:7000",
            "output 255.255.255.255:7000: names no interface; write 255.255.255.255%IFACE:7000",
        ),
        (
            input,
            "[ff3e::1%eth1]:6001",
            "output [ff3e::1%eth1]:6001: is IPv6 and input 239.1.1.1%eth0:5001 is IPv4; a rule stays within one family",
        ),
        (
            "[ff3e::1%eth0]:1",
            "[fe80::1]:1",
            "output [fe80::1]:1: names no interface; write [fe80::1%IFACE]:1",
        ),
        (
            input,
            "239.10.1.0/24%eth1:6001",
            "output 239.10.1.0/24%eth1:6001: the range of groups 239.10.1.0/24 does not fit input 239.1.1.1%eth0:5001; that is one group, so write one",
        ),
        (
            input,
            "239.10.1.1%eth1:6001-6010",
            "output 239.10.1.1%eth1:6001-6010: the range of 10 ports 6001-6010 does not fit input 239.1.1.1%eth0:5001; that has one port, so write one, as in 6001",
        ),
        (
            "239.1.1.1%eth0:1-100",
            "239.10.1.1%eth1:65530-65534",
            "output 239.10.1.1%eth1:65530-65534: the range of 5 ports 65530-65534 does not fit input 239.1.1.1%eth0:1-100; give 100 ports as well, as in 65436-65535, or one single port",
        ),
    ] {
        assert_eq!(
            problems(&[(input, output)]),
            [format!("rule \"a\": {expected}")]
        );
    }
}

#[test]
fn accepts_single_values_and_equal_ranges_behind_ranges() {
    for (input, output) in [
        ("239.1.1.0/24%eth0:5001-5010", "239.10.1.1%eth1:6001"),
        (
            "239.1.1.0/24%eth0:5001-5010",
            "239.10.1.0/24%eth1:6001-6010",
        ),
        ("239.1.1.0/24%eth0:5001-5010", "10.9.9.9:7001-7010"),
        ("239.1.1.1%eth0:5001", "10.9.9.9:7000"),
        ("10.0.0.5@232.1.1.1%eth*:5001", "239.10.1.1%veth1:6001"),
        ("[2001:db8::5@ff3e::1%eth0]:5001", "[fe80::1%eth1]:1"),
    ] {
        assert_eq!(problems(&[(input, output)]), [""; 0], "{input} {output}");
    }
}

#[test]
fn refuses_two_rules_for_the_same_packets() {
    let two = |a, b| problems(&[(a, "239.10.1.1%eth9:1"), (b, "239.10.1.2%eth9:1")]);
    let input = "239.1.1.1%eth0:5001";
    assert_eq!(
        two(input, input),
        [
            "rule \"b\": input 239.1.1.1%eth0:5001: is an input of rule \"a\" already; a stream belongs to one rule, which may have many outputs"
        ]
    );
    for other in [
        "10.0.0.6,10.0.0.5@232.1.1.1%eth0:1",
        "10.0.0.5@232.1.1.1%eth0:1",
    ] {
        assert_eq!(two("10.0.0.5@232.1.1.1%eth0:1", other).len(), 1, "{other}");
    }
    let ranges = two("239.1.1.1%eth0:5001-5010", "239.1.1.1%eth0:5005-5014");
    assert!(ranges[0].contains("overlaps with input 239.1.1.1%eth0:5001-5010 of rule \"a\""));
    assert_eq!(
        two("239.1.1.1%eth*:5001", "239.1.1.1%e*:5001"),
        [
            "rule \"b\": input 239.1.1.1%e*:5001: overlaps with input 239.1.1.1%eth*:5001 of rule \"a\", and neither is the more specific one; make the ranges the same, separate, or of different sizes"
        ]
    );
}

#[test]
fn lets_the_more_specific_of_two_inputs_win() {
    let input = "239.1.1.1%eth0:5001";
    for other in [
        "10.0.0.5@239.1.1.1%eth0:5001",
        "239.1.1.0/24%eth0:5001",
        "239.1.1.1%eth0:5001-5002",
        "239.1.1.1%eth*:5001",
        "239.1.1.1%eth1:5001",
        "239.1.1.2%eth0:5001",
        "239.1.1.1%eth0:5002",
    ] {
        let rules = [(input, "239.10.1.1%x:1"), (other, "239.10.1.1%x:1")];
        assert_eq!(problems(&rules), [""; 0], "{other}");
    }
}

#[test]
fn reports_everything_at_once_in_the_order_of_the_rules() {
    let documents = [
        document(r#"{"name": "a", "input": "239.1.1.1:1", "outputs": []}"#),
        document(r#"{"name": "b", "input": "239.1.1.1%eth0", "outputs": ["10.9.9.9:7000"]}"#),
        document(r#"{"name": "a", "input": "239.1.1.2%eth0:1", "outputs": ["10.9.9.9:0"]}"#),
        document(r#"{"name": "a", "inputs": [], "outputs": ["10.9.9.9:7000", "10.9.9.9:7000"]}"#),
    ];
    let problems = RuleSet::from_documents(&documents, Policy::default()).unwrap_err();
    let texts: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "rule \"a\": has no output; give one, as in outputs = [\"239.10.1.1%eth1:6001\"]",
            "rule \"a\": input 239.1.1.1:1: names no interface; write 239.1.1.1%IFACE:1",
            "rule \"b\": input 239.1.1.1%eth0: has no port; write 239.1.1.1%eth0:PORT, as in 239.1.1.1%eth0:5001",
            "rule \"a\": output 10.9.9.9:0: port 0 cannot be used; give 1 to 65535",
            "rule \"a\": has no input; give one, as in input = \"239.1.1.1%eth0:5001\"",
            "rule \"a\": the name is taken by an earlier rule; give each rule its own",
            "rule \"a\": output 10.9.9.9:7000: is there twice; leave one out, or give each its own source= or sport=",
        ]
    );
    let positions: Vec<usize> = problems.0.iter().map(|problem| problem.position).collect();
    assert_eq!(positions, [0, 0, 1, 2, 3, 3, 3]);
}

#[test]
fn ports_become_groups_and_groups_become_ports() {
    for (input, output) in [
        ("unicast%eth0:7000-7255", "239.1.1.0/24%eth1:5000"),
        ("10.0.0.2%eth0:7000-7255", "239.1.1.0/24%eth1:5000-5255"),
        ("239.1.1.0/24%eth0:5000", "10.9.9.9:7000-7255"),
        ("[unicast%eth0]:7000-7001", "[ff3e::2:0/127%eth1]:5000"),
    ] {
        let set = RuleSet::new(vec![rule("a", input, output)], Policy::default());
        assert!(set.is_ok(), "{input} {output}: {set:?}");
    }
}

#[test]
fn an_address_of_this_host_belongs_to_one_rule() {
    let of = |a: &str, b: &str| {
        let output = |input: &str| {
            if input.contains('[') {
                "[ff3e::9%eth1]:6001"
            } else {
                "239.10.1.1%eth1:6001"
            }
        };
        let rules = vec![rule("a", a, output(a)), rule("b", b, output(b))];
        RuleSet::new(rules, Policy::default()).map_err(|problems| problems.to_string())
    };
    let error = of("unicast%eth0:7000", "10.0.0.2%eth0:7000").unwrap_err();
    assert_eq!(
        error,
        "rule \"b\": input 10.0.0.2%eth0:7000: takes the same packets as input unicast%eth0:7000 of \
         rule \"a\": unicast stands for every address of the interface; name an address in both, or \
         leave one out"
    );
    for (a, b) in [
        ("10.0.0.2%eth0:7000", "unicast%eth0:7000"),
        ("10.0.0.2%eth0:7000", "10.0.0.2%eth0:7000"),
        ("unicast%eth0:7000", "unicast%eth0:7000"),
        ("[unicast%eth0]:7000", "[2001:db8::3%eth0]:7000"),
        ("10.9.9.0/24@unicast%eth0:1", "10.9.9.0/24@unicast%eth0:1"),
    ] {
        assert!(of(a, b).is_err(), "{a} {b}");
    }
    for (a, b) in [
        // A broadcast address is not a host's; the length of a network is known only to the host.
        ("unicast%eth0:7000", "10.0.0.255%eth0:7000"),
        ("unicast%eth0:7000", "255.255.255.255%eth0:7000"),
        ("unicast%eth0:7000", "10.0.0.2%eth0:7001"),
        ("unicast%eth0:7000", "10.0.0.2%eth1:7000"),
        ("unicast%eth0:7000", "[unicast%eth0]:7000"),
        ("unicast%eth0:7000", "10.9.9.0/24@unicast%eth0:7000"),
        (
            "10.9.0.0/16@unicast%eth0:7000",
            "10.9.9.0/24@10.0.0.2%eth0:7000",
        ),
        ("unicast%eth0:7000", "239.1.1.1%eth0:7000"),
    ] {
        assert!(of(a, b).is_ok(), "{a} {b}");
    }
}

#[test]
fn permits_link_local_inputs_when_allowed() {
    let rule = rule("a", "224.0.0.251%eth0:5353", "224.0.0.251%eth1:5353");
    let policy = Policy {
        allow_link_local: Some(true),
    };
    assert!(RuleSet::new(vec![rule], policy).is_ok());
}

#[test]
fn checks_ten_thousand_rules_in_well_under_a_second() {
    let numbered = (0..10_000).map(|n| {
        let input = format!("239.1.1.1%eth0:{}", n + 1);
        rule(
            &format!("r{n}"),
            &input,
            &format!("239.2.1.1%eth1:{}", n + 1),
        )
    });
    let rules: Vec<Rule> = numbered.collect();
    let start = crate::samples::time_on_processor();
    RuleSet::new(rules, Policy::default()).unwrap();
    // Comparing each with each would take minutes.
    assert!((crate::samples::time_on_processor() - start).as_secs() < 5);
}
