//! What follows from rules and host.

use std::net::IpAddr;

use model::document::OutputDocument;
use model::host::{Interface, NextHop};
use model::net::Mac;
use model::table::OutputState;

use super::*;

fn support() -> Support {
    Support {
        kernel: Ok(()),
        userspace: Ok(()),
    }
}

fn core() -> Core {
    Core::new(support(), PathChoice::Auto, Policy::default())
}

fn link(index: u32, name: &str) -> Interface {
    Interface {
        index: Ifindex(index),
        name: name.to_owned(),
        up: true,
        mtu: 1500,
        mac: Some(Mac([2, 0, 0, 0, 0, index as u8])),
        addresses: vec![IpAddr::from([10, 0, index as u8, 1])],
        gro_list: false,
    }
}

fn host(links: &[Interface]) -> Arc<Host> {
    let interfaces = links.iter().map(|link| (link.index, link.clone()));
    Arc::new(Host {
        interfaces: interfaces.collect(),
        ..Host::default()
    })
}

fn two_links() -> Arc<Host> {
    host(&[link(2, "eth0"), link(3, "eth1")])
}

fn rule(name: &str, number: u8, output: &str) -> RuleDocument {
    RuleDocument {
        name: name.to_owned(),
        inputs: vec![format!("239.1.1.{number}%eth0:5001")],
        outputs: vec![OutputDocument::Text(output.to_owned())],
        ..RuleDocument::default()
    }
}

fn plain(name: &str, number: u8) -> RuleDocument {
    rule(name, number, &format!("239.10.1.{number}%eth1:6001"))
}

fn add(rules: Vec<RuleDocument>) -> Request {
    Request::Change(Transaction {
        add: rules,
        ..Transaction::default()
    })
}

/// Carries a request out on `host` and hands back what it came to.
fn carry_out(core: &mut Core, request: &Request, host: &Arc<Host>) -> Step {
    let rules = Arc::new(core.asked(request).unwrap());
    let step = core.step(Arc::clone(&rules), Arc::clone(host), &BTreeSet::new());
    let again = core.step(rules, Arc::clone(host), &BTreeSet::new());
    core.accept(step);
    again
}

#[test]
fn a_change_touches_only_the_rules_that_differ() {
    let (mut core, host) = (core(), two_links());
    carry_out(&mut core, &add(vec![plain("a", 1), plain("b", 2)]), &host);
    assert_eq!((core.generation(), core.rules().len()), (1, 2));
    assert_eq!(core.wanted().len(), 2);
    let list = RuleList {
        generation: Some(1),
        rules: vec![plain("a", 1), plain("b", 3), plain("c", 4)],
    };
    let step = carry_out(&mut core, &Request::Replace(list), &host);
    assert_eq!(step.change.added, ["c"]);
    assert_eq!(step.change.changed, ["b"]);
    assert_eq!((step.change.unchanged, step.change.generation), (1, 2));
    assert_eq!(
        (step.parts.diff.removed.len(), step.parts.diff.set.len()),
        (1, 2)
    );
    assert!(step.gone.is_empty());
}

#[test]
fn nothing_to_change_keeps_the_generation() {
    let (mut core, host) = (core(), two_links());
    carry_out(&mut core, &add(vec![plain("a", 1)]), &host);
    let list = RuleList {
        generation: None,
        rules: vec![plain("a", 1)],
    };
    let step = carry_out(&mut core, &Request::Replace(list), &host);
    assert!(step.parts.diff.is_empty());
    assert_eq!(core.generation(), 1);
}

#[test]
fn a_change_for_another_generation_is_a_conflict() {
    let (mut core, host) = (core(), two_links());
    carry_out(&mut core, &add(vec![plain("a", 1)]), &host);
    let stale = Request::Change(Transaction {
        generation: Some(0),
        remove: vec!["a".to_owned()],
        ..Transaction::default()
    });
    let refusal = Refusal::from(core.asked(&stale).unwrap_err());
    assert_eq!(refusal.code, Code::Conflict);
    assert!(
        refusal.message.contains("generation 1, not 0"),
        "{}",
        refusal.message
    );
}

#[test]
fn refusals_carry_the_code_of_their_cause() {
    let (mut core, host) = (core(), two_links());
    carry_out(&mut core, &add(vec![plain("a", 1)]), &host);
    let remove = |name: &str| {
        Request::Change(Transaction {
            remove: vec![name.to_owned()],
            ..Transaction::default()
        })
    };
    for (request, code) in [
        (add(vec![plain("a", 2)]), Code::Exists),
        (remove("nobody"), Code::NotFound),
        (add(vec![rule("b", 2, "nonsense")]), Code::Invalid),
        (add(vec![plain("b", 1)]), Code::Invalid),
    ] {
        let refusal = Refusal::from(core.asked(&request).unwrap_err());
        assert_eq!(refusal.code, code, "{}", refusal.message);
    }
    assert_eq!(core.rules().len(), 1);
}

#[test]
fn every_problem_of_a_set_is_reported_at_once() {
    let request = add(vec![rule("a", 1, "nonsense"), rule("b", 2, "10.0.0.1:0")]);
    let refusal = Refusal::from(core().asked(&request).unwrap_err());
    assert_eq!(refusal.message.lines().count(), 2, "{}", refusal.message);
}

#[test]
fn a_rule_for_a_missing_interface_waits_with_a_warning() {
    let mut core = core();
    let alone = host(&[link(3, "eth1")]);
    let rules = Arc::new(core.asked(&add(vec![plain("a", 1)])).unwrap());
    let step = core.step(rules, alone, &BTreeSet::new());
    assert!(step.parts.diff.set.is_empty() && step.joins().is_empty());
    assert_eq!(step.change.warnings.len(), 1);
    assert!(step.change.warnings[0].contains("no interface eth0 (have: eth1)"));
    core.accept(step);
    // It comes, and the rule with it, without anybody asking.
    let step = core.step(core.rules().clone(), two_links(), &BTreeSet::new());
    assert_eq!((step.parts.diff.set.len(), step.joins().len()), (1, 1));
    assert_eq!(step.change.generation, core.generation());
}

#[test]
fn routes_on_a_link_made_anew_are_taken_out_and_put_in() {
    let (mut core, host) = (core(), two_links());
    carry_out(&mut core, &add(vec![plain("a", 1)]), &host);
    let renewed = BTreeSet::from([Ifindex(2)]);
    let step = core.step(core.rules().clone(), host, &renewed);
    assert_eq!(step.parts.cleared.removed.len(), 1);
    assert_eq!(step.parts.diff.set.len(), 1);
    assert_eq!(step.parts.diff.set[0].0, step.parts.cleared.removed[0]);
}

#[test]
fn a_step_that_is_not_accepted_leaves_no_trace() {
    let (mut core, host) = (core(), two_links());
    carry_out(&mut core, &add(vec![plain("a", 1)]), &host);
    let rules = Arc::new(core.asked(&add(vec![plain("b", 2)])).unwrap());
    let first = core.step(Arc::clone(&rules), Arc::clone(&host), &BTreeSet::new());
    drop(first);
    assert_eq!((core.generation(), core.rules().len()), (1, 1));
    let second = core.step(rules, host, &BTreeSet::new());
    assert_eq!(second.parts.diff.set.len(), 1);
}

#[test]
fn a_next_hop_that_answers_brings_the_output_up() {
    let mut core = core();
    let request = add(vec![rule("a", 1, "10.0.3.9:7000")]);
    let rules = core.asked(&request).unwrap();
    let query = Core::queries(&rules).remove(0);
    let with = |next_hop| {
        let mut host = Host::clone(&two_links());
        host.next_hops.insert(query.clone(), next_hop);
        Arc::new(host)
    };
    let (interface, via) = (Ifindex(3), query.destination);
    let silent = with(NextHop::Unresolved {
        interface,
        via,
        silent: true,
    });
    let step = core.step(Arc::new(rules), silent, &BTreeSet::new());
    let down = |route: &model::table::Route| matches!(route.outputs[0].state, OutputState::Down(_));
    assert!(down(&step.parts.diff.set[0].1));
    core.accept(step);
    let mac = Some(Mac([2, 0, 0, 0, 9, 9]));
    let found = with(NextHop::Resolved {
        interface,
        via,
        mac,
    });
    let step = core.step(core.rules().clone(), found, &BTreeSet::new());
    assert!(!down(&step.parts.diff.set[0].1));
}
