//! Steps computed from rules and host.

mod bounds;
mod fleet;
mod settings;

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::request::RuleList;
use compile::host::{Interface, NextHop};
use compile::table::OutputState;
use rules::document::OutputDocument;
use rules::net::Mac;

use super::*;
use crate::api::api_error::{ApiError, Code};

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
        ..Interface::default()
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

/// Accepts the step of a request on `host`; returns an equal step.
fn execute(core: &mut Core, request: &Request, host: &Arc<Host>) -> Step {
    let asked = core.resolve(request).unwrap();
    let step = step(core, asked.clone(), host);
    let again = self::step(core, asked, host);
    core.accept(step);
    again
}

/// The step to `asked` on `host`.
fn step(core: &Core, asked: Config, host: &Arc<Host>) -> Step {
    let (rules, settings) = (Arc::new(asked.rules), Arc::new(asked.settings));
    core.step(rules, settings, Arc::clone(host), &BTreeSet::new())
}

/// The step of the running rules to another state of the host.
fn follow(core: &Core, host: Arc<Host>, renewed: &BTreeSet<Ifindex>) -> Step {
    let (rules, settings) = (core.rules().clone(), core.settings().clone());
    core.step(rules, settings, host, renewed)
}

fn replace(rules: Vec<RuleDocument>, settings: Option<Settings>) -> Request {
    Request::Replace(Box::new(RuleList {
        generation: None,
        rules,
        settings,
    }))
}

#[test]
fn a_change_touches_only_the_rules_that_differ() {
    let (mut core, host) = (core(), two_links());
    execute(&mut core, &add(vec![plain("a", 1), plain("b", 2)]), &host);
    assert_eq!((core.generation(), core.rules().len()), (1, 2));
    assert_eq!(core.wanted().len(), 2);
    let list = RuleList {
        generation: Some(1),
        rules: vec![plain("a", 1), plain("b", 3), plain("c", 4)],
        settings: None,
    };
    let step = execute(&mut core, &Request::Replace(Box::new(list)), &host);
    assert_eq!(step.change.added, ["c"]);
    assert_eq!(step.change.changed, ["b"]);
    assert_eq!((step.change.unchanged, step.change.generation), (1, 2));
    assert_eq!((step.diff().removed.len(), step.diff().set.len()), (1, 2));
    assert!(step.change.removed.is_empty());
}

#[test]
fn nothing_to_change_keeps_the_generation() {
    let (mut core, host) = (core(), two_links());
    execute(&mut core, &add(vec![plain("a", 1)]), &host);
    let list = RuleList {
        generation: None,
        rules: vec![plain("a", 1)],
        settings: None,
    };
    let step = execute(&mut core, &Request::Replace(Box::new(list)), &host);
    assert!(step.diff().is_empty());
    assert_eq!(core.generation(), 1);
}

#[test]
fn the_last_generation_is_followed_by_the_first() {
    let (mut core, host) = (core(), two_links());
    core.continue_from(u64::MAX);
    let step = execute(&mut core, &add(vec![plain("a", 1)]), &host);
    assert_eq!((step.change.generation, core.generation()), (0, 0));
}

#[test]
fn a_change_for_another_generation_is_a_conflict() {
    let (mut core, host) = (core(), two_links());
    execute(&mut core, &add(vec![plain("a", 1)]), &host);
    let stale = Request::Change(Transaction {
        generation: Some(0),
        remove: vec!["a".to_owned()],
        ..Transaction::default()
    });
    let refusal = ApiError::from(core.resolve(&stale).unwrap_err());
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
    execute(&mut core, &add(vec![plain("a", 1)]), &host);
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
        let refusal = ApiError::from(core.resolve(&request).unwrap_err());
        assert_eq!(refusal.code, code, "{}", refusal.message);
    }
    assert_eq!(core.rules().len(), 1);
}

#[test]
fn every_problem_of_a_set_is_reported_at_once() {
    let request = add(vec![rule("a", 1, "nonsense"), rule("b", 2, "10.0.0.1:0")]);
    let refusal = ApiError::from(core().resolve(&request).unwrap_err());
    assert_eq!(refusal.message.lines().count(), 2, "{}", refusal.message);
}

#[test]
fn a_rule_for_a_missing_interface_waits_with_a_warning() {
    let mut core = core();
    let alone = host(&[link(3, "eth1")]);
    let asked = core.resolve(&add(vec![plain("a", 1)])).unwrap();
    let step = step(&core, asked, &alone);
    assert!(step.diff().set.is_empty() && core.joins(&step).is_empty());
    assert_eq!(step.change.warnings.len(), 1);
    assert!(step.change.warnings[0].contains("no interface eth0 (have: eth1)"));
    core.accept(step);
    // When the interface appears, the rule starts without a request.
    let step = follow(&core, two_links(), &BTreeSet::new());
    assert_eq!((step.diff().set.len(), core.joins(&step).len()), (1, 1));
    assert_eq!(step.change.generation, core.generation());
}

#[test]
fn routes_on_a_recreated_link_are_removed_and_added() {
    let (mut core, host) = (core(), two_links());
    execute(&mut core, &add(vec![plain("a", 1)]), &host);
    let renewed = BTreeSet::from([Ifindex(2)]);
    let step = follow(&core, host, &renewed);
    assert_eq!(step.cleared.removed.len(), 1);
    assert_eq!(step.diff().set.len(), 1);
    assert_eq!(step.diff().set[0].0, step.cleared.removed[0]);
}

#[test]
fn a_step_that_is_not_accepted_leaves_no_trace() {
    let (mut core, host) = (core(), two_links());
    execute(&mut core, &add(vec![plain("a", 1)]), &host);
    let asked = core.resolve(&add(vec![plain("b", 2)])).unwrap();
    drop(step(&core, asked.clone(), &host));
    assert_eq!((core.generation(), core.rules().len()), (1, 1));
    let second = step(&core, asked, &host);
    assert_eq!(second.diff().set.len(), 1);
}

#[test]
fn a_next_hop_that_answers_brings_the_output_up() {
    let mut core = core();
    let request = add(vec![rule("a", 1, "10.0.3.9:7000")]);
    let asked = core.resolve(&request).unwrap();
    let query = core.queries(&asked.rules, &asked.settings).remove(0);
    let with = |next_hop| {
        let mut host = Host::clone(&two_links());
        host.next_hops.insert(query.clone(), next_hop);
        Arc::new(host)
    };
    let (interface, via) = (Ifindex(3), IpAddr::from([10, 0, 3, 9]));
    let silent = with(NextHop::Unresolved {
        interface,
        via,
        silent: true,
        source: None,
    });
    let first = step(&core, asked, &silent);
    let down =
        |route: &compile::table::Route| matches!(route.outputs[0].state, OutputState::Down(_));
    assert!(down(&first.diff().set[0].1));
    core.accept(first);
    let mac = Some(Mac([2, 0, 0, 0, 9, 9]));
    let resolved = with(NextHop::Resolved {
        interface,
        via,
        mac,
        source: None,
        mtu: None,
    });
    let step = follow(&core, resolved, &BTreeSet::new());
    assert!(!down(&step.diff().set[0].1));
}
