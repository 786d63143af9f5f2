//! Rules compiled for hosts of several kinds.

mod inputs;
mod on_demand;
mod outputs;
mod own;
mod reflect;

use proptest::prelude::*;
use rules::document::RuleDocument;
use rules::host_name::HostName;
use rules::net::{Mac, Ports, Prefix};
use rules::ruleset::Policy;

use super::*;
use crate::diff::TableDiff;
use crate::host::{Destination, Interface, Named, NextHop};
use crate::placement::PathChoice;
use crate::table::{DownReason, Egress, LinkHeader, OutputState, OwnAddresses, Path};

fn link(index: u32, name: &str, address: &str) -> Interface {
    Interface {
        index: Ifindex(index),
        name: name.to_owned(),
        up: true,
        mtu: 1500,
        mac: Some(Mac([2, 0, 0, 0, 0, index as u8])),
        addresses: address.split(' ').filter_map(|a| a.parse().ok()).collect(),
        ..Interface::default()
    }
}

fn host(links: &[Interface]) -> Host {
    Host {
        interfaces: links
            .iter()
            .map(|link| (link.index, link.clone()))
            .collect(),
        next_hops: BTreeMap::new(),
        ..Host::default()
    }
}

fn usual() -> Host {
    host(&[
        link(1, "lo", "127.0.0.1"),
        link(2, "eth0", "10.0.0.1"),
        link(3, "eth1", "10.0.1.1 10.0.1.2 fe80::1 2001:db8::1"),
    ])
}

fn nobody() -> Listening {
    Listening::default()
}

fn support() -> Support {
    Support {
        kernel: Ok(()),
        userspace: Ok(()),
    }
}

/// The view of the first rule.
fn first(compiled: &Compiled) -> &RuleView {
    compiled.rules.values().next().unwrap()
}

fn rules(rules: &[(&str, &[&str], &[&str])]) -> RuleSet {
    let documents = rules.iter().map(|(name, inputs, outputs)| RuleDocument {
        name: (*name).to_owned(),
        inputs: inputs.iter().map(ToString::to_string).collect(),
        outputs: outputs.iter().map(|text| (*text).into()).collect(),
        ..Default::default()
    });
    RuleSet::from_documents(&documents.collect::<Vec<_>>(), Policy::default()).unwrap()
}

fn one(input: &str, output: &str, host: &Host) -> Compiled {
    let rules = rules(&[("a", &[input], &[output])]);
    compile(&rules, host, &support(), &PathChoices::default())
}

fn egress(compiled: &Compiled) -> &Egress {
    let route = compiled.table.routes.values().next().unwrap();
    match &route.outputs[0].state {
        OutputState::Up(egress) => egress,
        OutputState::Down(reason) => panic!("{reason:?}"),
    }
}

fn down(compiled: &Compiled) -> (DownReason, String) {
    let down = first(compiled).outputs[0].down.clone().unwrap();
    let route = compiled.table.routes.values().next().unwrap();
    assert_eq!(route.outputs[0].state, OutputState::Down(down.reason));
    (down.reason, down.text)
}

const INPUT: &str = "239.1.1.1%eth0:5001";

const OUTPUT: &str = "239.10.1.1%eth1:6001";

const INPUT6: &str = "[ff1e::1%eth0]:5001";

#[test]
fn a_disabled_rule_has_no_routes_and_no_joins() {
    let enabled = rules(&[("a", &["239.1.1.1%eth0:5001"], &["10.0.1.9:7000"])]);
    let rule = Rule {
        enabled: false,
        ..enabled.get("a").unwrap().clone()
    };
    assert_eq!(next_hop_queries([&rule]), BTreeSet::new());
    let rules = RuleSet::new(vec![rule], Policy::default()).unwrap();
    let compiled = compile(&rules, &usual(), &support(), &PathChoices::default());
    assert!(compiled.table.routes.is_empty());
    let view = first(&compiled);
    assert!(view.inputs[0].joins.is_empty() && view.troubles().is_empty());
    // Its missing interfaces are no trouble, either.
    let bare = compile(&rules, &host(&[]), &support(), &PathChoices::default());
    assert_eq!(first(&bare).troubles(), [""; 0]);
    let amended = compiled.amended(
        &RuleChanges::between(&rules, &enabled),
        (&usual(), &nobody()),
        &support(),
        &PathChoices::default(),
    );
    assert_eq!(amended.diff.set.len(), 1);
}

#[test]
fn gives_a_rule_that_no_path_serves_neither_routes_nor_joins() {
    let choices = PathChoices {
        process: PathChoice::Kernel,
        ..Default::default()
    };
    let set = rules(&[("a", &[INPUT], &["239.10.1.1%eth1:6001,fragment=yes"])]);
    let compiled = compile(&set, &usual(), &support(), &choices);
    assert!(compiled.table.routes.is_empty());
    let view = first(&compiled);
    assert!(!view.placement.serves);
    assert!(view.inputs[0].joins.is_empty());
}

#[test]
fn compiles_ten_thousand_rules_without_comparing_each_with_each() {
    let numbered = (0..10_000).map(|n| RuleDocument {
        name: format!("r{n}"),
        inputs: vec![format!("239.1.{}.{}%eth0:5001", n / 250, n % 250)],
        outputs: vec![
            format!("239.2.{}.{}%eth1:5001", n / 250, n % 250)
                .as_str()
                .into(),
        ],
        ..Default::default()
    });
    let documents: Vec<RuleDocument> = numbered.collect();
    let start = rules::samples::time_on_processor();
    let set = RuleSet::from_documents(&documents, Policy::default()).unwrap();
    let compiled = compile(&set, &usual(), &support(), &PathChoices::default());
    assert_eq!(compiled.table.routes.len(), 10_000);
    assert!((rules::samples::time_on_processor() - start).as_secs() < 5);
}

proptest! {
    #[test]
    fn keeps_the_tables_promises_for_any_rules(
        sample in proptest::collection::vec(rules::samples::rule(), 1..5),
        up: bool,
    ) {
        let Ok(set) = RuleSet::new(sample, Policy::default()) else {
            return Ok(());
        };
        let mut host = usual();
        host.interfaces.get_mut(&Ifindex(3)).unwrap().up = up;
        let compiled = compile(&set, &host, &support(), &PathChoices::default());
        prop_assert_eq!(compiled.rules.len(), set.len());
        for (key, route) in &compiled.table.routes {
            let rule = set.get(&route.rule).unwrap();
            prop_assert_eq!(route.outputs.len(), rule.outputs.len());
            for (output, spec) in route.outputs.iter().zip(&rule.outputs) {
                prop_assert_eq!(&output.to, &spec.to.to_string());
                let OutputState::Up(egress) = &output.state else { continue };
                let length = egress.destination.length;
                prop_assert!(egress.destination.is_host() || length == key.groups.length);
                let ports = egress.ports.count();
                prop_assert!(ports == 1 || ports == key.ports.count());
            }
        }
    }
}

/// Few rules out of few names, groups, interfaces and options, so that they meet and differ.
fn few_rules() -> impl Strategy<Value = RuleSet> {
    let output = proptest::sample::select(vec![
        "239.10.1.1%eth1:6001",
        "239.10.1.1%eth0:6001",
        "239.10.1.1%eth9:6001",
        "239.10.1.1%lo:6001",
        "10.9.9.9:7000",
    ]);
    let groups = (1_u8..4, proptest::option::of(4_u8..6));
    let rule = ("[a-e]", groups, "eth[019]", output, proptest::bool::ANY);
    proptest::collection::vec(rule, 0..6).prop_map(|rules| {
        let mut set = RuleSet::default();
        for (name, (group, further), interface, output, userspace) in rules {
            let input = |group| format!("239.1.1.{group}%{interface}:5001");
            let document = RuleDocument {
                name,
                inputs: [group].into_iter().chain(further).map(input).collect(),
                outputs: vec![output.into()],
                path: userspace.then_some(PathChoice::Userspace),
                ..Default::default()
            };
            set = with(&set, document.to_rule(0).unwrap());
        }
        set
    })
}

proptest! {
    #[test]
    fn amends_to_what_it_would_compile(old in few_rules(), other in few_rules(), keep in 0_usize..6) {
        let (host, choices) = (usual(), PathChoices::default());
        let support = Support { userspace: Err("no".to_owned()), ..support() };
        // Some of the old rules stay, the same objects, between others.
        let removed: Vec<String> = old.names().skip(keep).map(str::to_owned).collect();
        let mut new = old.changed(&removed, Vec::new(), Policy::default()).unwrap();
        for rule in &other {
            new = with(&new, rule.clone());
        }
        let mut compiled = compile(&old, &host, &support, &choices);
        let before = compiled.clone();
        let whole = compile(&new, &host, &support, &choices);
        let changes = RuleChanges::between(&old, &new);
        prop_assert!(new.len() - changes.added.len() >= keep.min(old.len()));
        for changes in [changes, RuleChanges::of_all(&old, &new)] {
            let amended = before.amended(&changes, (&host, &nobody()), &support, &choices);
            prop_assert_eq!(&amended.rules, &whole.rules);
            prop_assert_eq!(&amended.diff, &TableDiff::between(&before.table, &whole.table));
            compiled = before.clone();
            compiled.apply(amended);
            prop_assert_eq!(&compiled.table, &whole.table);
        }
    }

    /// Another host and wildcards: all rules are amended, as if nothing had been compiled before.
    #[test]
    fn amends_all_rules_on_another_host(old in few_rules(), new in few_rules(), down: bool) {
        let (support, choices) = (support(), PathChoices::default());
        let wild = rules(&[("w", &["239.1.1.1%eth*:5001"], &["239.10.1.1%eth1:6001"])]);
        let new = with(&new, wild.iter().next().unwrap().clone());
        let mut other = usual();
        other.interfaces.remove(&Ifindex(2));
        other.interfaces.get_mut(&Ifindex(3)).unwrap().up = !down;
        let before = compile(&old, &usual(), &support, &choices);
        for host in [usual(), other] {
            let whole = compile(&new, &host, &support, &choices);
            let changes = RuleChanges::of_all(&old, &new);
            let amended = before.amended(&changes, (&host, &nobody()), &support, &choices);
            prop_assert_eq!(&amended.diff, &TableDiff::between(&before.table, &whole.table));
            let mut compiled = before.clone();
            compiled.apply(amended);
            prop_assert_eq!(&compiled, &whole);
        }
    }
}

/// The set with one more rule, if it is valid.
fn with(set: &RuleSet, rule: Rule) -> RuleSet {
    let more = set.changed(&[], vec![rule], Policy::default());
    more.unwrap_or_else(|_| set.clone())
}

/// eth0 is in VRF red, eth1 in VRF blue.
fn with_vrfs() -> Host {
    let within = |vrf, link: Interface| Interface {
        vrf: Some(Ifindex(vrf)),
        ..link
    };
    host(&[
        link(1, "lo", "127.0.0.1"),
        within(5, link(2, "eth0", "10.0.0.1")),
        within(6, link(3, "eth1", "10.0.1.1")),
        within(5, link(5, "red", "")),
        within(6, link(6, "blue", "")),
    ])
}
