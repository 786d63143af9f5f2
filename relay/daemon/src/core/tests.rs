//! What follows from rules and host.

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

/// Carries a request out on `host` and hands back what it came to.
fn carry_out(core: &mut Core, request: &Request, host: &Arc<Host>) -> Step {
    let asked = core.resolve(request).unwrap();
    let step = step(core, asked.clone(), host);
    let again = self::step(core, asked, host);
    core.accept(step);
    again
}

/// Works out what `asked` comes to on `host`.
fn step(core: &Core, asked: Config, host: &Arc<Host>) -> Step {
    let (rules, settings) = (Arc::new(asked.rules), Arc::new(asked.settings));
    core.step(rules, settings, Arc::clone(host), &BTreeSet::new())
}

/// Follows the host to what it is now.
fn follow(core: &Core, host: Arc<Host>, renewed: &BTreeSet<Ifindex>) -> Step {
    let (rules, settings) = (core.rules().clone(), core.settings().clone());
    core.step(rules, settings, host, renewed)
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
        settings: None,
    };
    let step = carry_out(&mut core, &Request::Replace(Box::new(list)), &host);
    assert_eq!(step.change.added, ["c"]);
    assert_eq!(step.change.changed, ["b"]);
    assert_eq!((step.change.unchanged, step.change.generation), (1, 2));
    assert_eq!((step.diff().removed.len(), step.diff().set.len()), (1, 2));
    assert!(step.change.removed.is_empty());
}

#[test]
fn nothing_to_change_keeps_the_generation() {
    let (mut core, host) = (core(), two_links());
    carry_out(&mut core, &add(vec![plain("a", 1)]), &host);
    let list = RuleList {
        generation: None,
        rules: vec![plain("a", 1)],
        settings: None,
    };
    let step = carry_out(&mut core, &Request::Replace(Box::new(list)), &host);
    assert!(step.diff().is_empty());
    assert_eq!(core.generation(), 1);
}

#[test]
fn the_last_generation_is_followed_by_the_first() {
    let (mut core, host) = (core(), two_links());
    core.continue_from(u64::MAX);
    let step = carry_out(&mut core, &add(vec![plain("a", 1)]), &host);
    assert_eq!((step.change.generation, core.generation()), (0, 0));
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
        let refusal = ApiError::from(core.resolve(&request).unwrap_err());
        assert_eq!(refusal.code, code, "{}", refusal.message);
    }
    assert_eq!(core.rules().len(), 1);
}

/// Their interfaces are not there, so that no path's room ends first.
#[test]
fn clients_bring_about_no_more_rules_than_there_may_be() {
    let mut core = core().at_most(2, 100);
    let nowhere = host(&[]);
    carry_out(
        &mut core,
        &add(vec![plain("a", 1), plain("b", 2)]),
        &nowhere,
    );
    let refusal = ApiError::from(core.resolve(&add(vec![plain("c", 3)])).unwrap_err());
    assert_eq!(refusal.code, Code::Unavailable);
    let expected = "3 rules, of at most 2: ";
    assert!(refusal.message.starts_with(expected), "{}", refusal.message);
    assert!(refusal.message.contains("--max-rules"));
    let set = vec![plain("a", 1), plain("b", 2), plain("c", 3)];
    assert!(core.resolve(&replace(set, None)).is_err());
    let instead = Request::Change(Transaction {
        remove: vec!["a".to_owned()],
        add: vec![plain("c", 3)],
        ..Transaction::default()
    });
    assert!(core.resolve(&instead).is_ok());
}

#[test]
fn clients_bring_about_no_more_outputs_than_there_may_be() {
    let core = core().at_most(1, 100);
    let with = |outputs: u8| {
        let outputs =
            (1..=outputs).map(|n| OutputDocument::Text(format!("239.10.1.{n}%eth1:6001")));
        let rule = plain("a", 1);
        add(vec![RuleDocument {
            outputs: outputs.collect(),
            ..rule
        }])
    };
    assert!(core.resolve(&with(7)).is_ok());
    let refused = core.resolve(&with(8)).unwrap_err().to_string();
    let expected = "9 inputs and outputs, of at most 8: ";
    assert!(refused.starts_with(expected), "{refused}");
}

#[test]
fn clients_bring_about_no_more_memberships_than_there_may_be() {
    let mut core = core().at_most(20, 300);
    let here = two_links();
    let of = |name: &str, input: &str| RuleDocument {
        inputs: vec![input.to_owned()],
        ..plain(name, 1)
    };
    carry_out(&mut core, &add(vec![of("a", "239.1.0.0/24%eth0:1")]), &here);
    // The same groups at another port, and a range too large to be joined, are no more memberships.
    let same = [
        of("b", "239.1.0.0/24%eth0:2"),
        of("c", "239.0.0.0/8%eth0:3"),
        of("d", "10.0.0.5,10.0.0.6@232.1.0.0/28%eth0:1"),
    ];
    assert!(core.resolve(&add(same.to_vec())).is_ok());
    for (input, asked) in [
        ("239.2.0.0/24%eth0:1", 512),
        ("239.2.0.0/24%eth9:1", 512),
        ("239.2.0.0/24%eth*:1", 768),
        ("10.0.0.5,10.0.0.6,10.0.0.7@232.1.0.0/28%eth0:1", 304),
    ] {
        let refusal = ApiError::from(core.resolve(&add(vec![of("b", input)])).unwrap_err());
        assert_eq!(refusal.code, Code::Unavailable);
        let expected = format!("{asked} memberships, of at most 300: ");
        assert!(
            refusal.message.starts_with(&expected),
            "{}",
            refusal.message
        );
        assert!(refusal.message.contains("--max-memberships"));
    }
}

/// A configuration may hold more than clients may add, and what is too much may become less.
#[test]
fn too_many_rules_may_become_fewer() {
    let (mut core, nowhere) = (core(), host(&[]));
    let set = vec![plain("a", 1), plain("b", 2), plain("c", 3)];
    carry_out(&mut core, &add(set), &nowhere);
    let core = core.at_most(1, 100);
    let fewer = Request::Change(Transaction {
        remove: vec!["a".to_owned()],
        ..Transaction::default()
    });
    assert!(core.resolve(&fewer).is_ok());
    assert!(core.resolve(&add(vec![plain("d", 4)])).is_err());
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
    // It comes, and the rule with it, without anybody asking.
    let step = follow(&core, two_links(), &BTreeSet::new());
    assert_eq!((step.diff().set.len(), core.joins(&step).len()), (1, 1));
    assert_eq!(step.change.generation, core.generation());
}

#[test]
fn routes_on_a_link_made_anew_are_taken_out_and_put_in() {
    let (mut core, host) = (core(), two_links());
    carry_out(&mut core, &add(vec![plain("a", 1)]), &host);
    let renewed = BTreeSet::from([Ifindex(2)]);
    let step = follow(&core, host, &renewed);
    assert_eq!(step.cleared.removed.len(), 1);
    assert_eq!(step.diff().set.len(), 1);
    assert_eq!(step.diff().set[0].0, step.cleared.removed[0]);
}

#[test]
fn a_step_that_is_not_accepted_leaves_no_trace() {
    let (mut core, host) = (core(), two_links());
    carry_out(&mut core, &add(vec![plain("a", 1)]), &host);
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
    let found = with(NextHop::Resolved {
        interface,
        via,
        mac,
        source: None,
        mtu: None,
    });
    let step = follow(&core, found, &BTreeSet::new());
    assert!(!down(&step.diff().set[0].1));
}

fn budget(text: &str) -> Settings {
    let text = format!("{{\"budget\": {{\"unicast\": \"{text}\"}}}}");
    serde_json::from_str(&text).unwrap()
}

fn replace(rules: Vec<RuleDocument>, settings: Option<Settings>) -> Request {
    Request::Replace(Box::new(RuleList {
        generation: None,
        rules,
        settings,
    }))
}

#[test]
fn settings_change_where_they_are_given_and_stay_where_not() {
    let (mut core, host) = (core(), two_links());
    let request = replace(vec![plain("a", 1)], Some(budget("100pps")));
    let step = carry_out(&mut core, &request, &host);
    assert_eq!(step.change.settings, ["budget: 100pps (was none)"]);
    assert_eq!(core.table().budget.unwrap().rate, 100);
    carry_out(&mut core, &replace(vec![plain("b", 2)], None), &host);
    carry_out(&mut core, &add(vec![plain("c", 3)]), &host);
    assert_eq!(core.settings().budget, budget("100pps").budget);
    assert_eq!(
        (core.generation(), core.table().budget.unwrap().rate),
        (3, 100)
    );
    let same = vec![plain("b", 2), plain("c", 3)];
    let request = replace(same, Some(Settings::default()));
    let step = carry_out(&mut core, &request, &host);
    assert_eq!(step.change.settings, ["budget: none (was 100pps)"]);
    assert_eq!((core.generation(), core.table().budget), (4, None));
}

#[test]
fn settings_permit_link_local_inputs_as_long_as_they_say_so() {
    let (mut core, host) = (core(), two_links());
    let mdns = rule("mdns", 1, "239.10.1.1%eth1:6001");
    let mdns = RuleDocument {
        inputs: vec!["224.0.0.251%eth0:5353".to_owned()],
        ..mdns
    };
    assert!(core.resolve(&add(vec![mdns.clone()])).is_err());
    let permission = Settings {
        allow_link_local: true,
        ..Settings::default()
    };
    let request = replace(vec![mdns.clone()], Some(permission));
    carry_out(&mut core, &request, &host);
    let kept = core.resolve(&replace(vec![mdns.clone()], None));
    assert!(kept.is_ok());
    let request = replace(vec![mdns], Some(Settings::default()));
    assert!(core.resolve(&request).is_err());
}

/// Rules that send to hosts on both paths halve the budget, and when those of one path go it is
/// whole again; worked out from the change, it is what a whole look comes to.
#[test]
fn a_change_of_few_rules_shares_the_budget_as_a_whole_look_does() {
    let mut core = core();
    let to_host = |name: &str, number: u8, path: Option<PathChoice>| RuleDocument {
        path,
        ..rule(name, number, "10.0.3.9%eth1:7000")
    };
    let (kernel, userspace) = (Some(PathChoice::Kernel), Some(PathChoice::Userspace));
    let asked = core.resolve(&add(vec![to_host("a", 1, kernel)])).unwrap();
    let query = core.queries(&asked.rules, &asked.settings).remove(0);
    let (interface, via) = (Ifindex(3), IpAddr::from([10, 0, 3, 9]));
    let mac = Some(Mac([2, 0, 0, 0, 9, 9]));
    let mut host = Host::clone(&two_links());
    let next_hop = NextHop::Resolved {
        interface,
        via,
        mac,
        source: None,
        mtu: None,
    };
    host.next_hops.insert(query, next_hop);
    let host = Arc::new(host);
    let first = replace(vec![to_host("a", 1, kernel)], Some(budget("100pps")));
    carry_out(&mut core, &first, &host);
    let remove = |name: &str| {
        Request::Change(Transaction {
            remove: vec![name.to_owned()],
            ..Transaction::default()
        })
    };
    for (request, rate) in [
        (add(vec![plain("b", 2)]), 100),
        (add(vec![to_host("c", 3, userspace)]), 50),
        (add(vec![to_host("d", 4, userspace)]), 50),
        (remove("c"), 50),
        (remove("a"), 100),
        (add(vec![to_host("a", 1, kernel)]), 50),
        (remove("d"), 100),
    ] {
        let asked = core.resolve(&request).unwrap();
        let step = step(&core, asked, &host);
        assert!(
            step.recompiled.some().is_some(),
            "only what differs is compiled"
        );
        core.accept(step);
        assert_eq!(core.table().budget.unwrap().rate, rate, "{request:?}");
        assert_eq!(core.spenders, Spenders::of(core.table()));
    }
}

fn of_share(share: &str, document: RuleDocument) -> RuleDocument {
    RuleDocument {
        share: Some(share.to_owned()),
        ..document
    }
}

fn install(core: &mut Core, rules: &[RuleDocument]) -> BTreeMap<String, String> {
    let (set, refused) = core.with_fleet(rules);
    let settings = Arc::clone(core.settings());
    let step = core.step(Arc::new(set), settings, two_links(), &BTreeSet::new());
    core.accept(step);
    refused
}

fn names(core: &Core) -> Vec<&str> {
    core.rules().names().collect()
}

#[test]
fn rules_of_a_fleet_come_and_go_beside_those_of_the_host() {
    let mut core = core();
    carry_out(&mut core, &add(vec![plain("own", 1)]), &two_links());
    let a = of_share("a", plain("a1", 2));
    let b = of_share("b", plain("b1", 3));
    assert_eq!(install(&mut core, &[a.clone(), b]), BTreeMap::new());
    assert_eq!(names(&core), ["own", "a1", "b1"]);
    let generation = core.generation();
    assert_eq!(
        install(&mut core, &[a.clone(), of_share("b", plain("b1", 3))]),
        BTreeMap::new()
    );
    assert_eq!(core.generation(), generation, "nothing changed");
    install(&mut core, &[a]);
    assert_eq!(names(&core), ["own", "a1"]);
    // Another configuration of the host leaves them as they are.
    let list = RuleList {
        rules: vec![plain("other", 4)],
        ..RuleList::default()
    };
    carry_out(&mut core, &Request::Replace(Box::new(list)), &two_links());
    assert_eq!(names(&core), ["other", "a1"]);
}

#[test]
fn a_share_that_cannot_be_is_left_out_with_its_reason_and_the_others_come() {
    let mut core = core().at_most(4, 100);
    carry_out(&mut core, &add(vec![plain("own", 1)]), &two_links());
    let shares = [
        of_share("good", plain("g1", 2)),
        of_share("name", plain("own", 3)),
        of_share("name", plain("n2", 4)),
        of_share("key", plain("k1", 1)),
        of_share("text", rule("t1", 5, "nowhere")),
        of_share("late", plain("l1", 6)),
        of_share("much", plain("m1", 7)),
        of_share("much", plain("m2", 8)),
    ];
    let refused = install(&mut core, &shares);
    assert_eq!(names(&core), ["own", "g1", "l1"]);
    let why = |share: &str, word: &str| assert!(refused[share].contains(word), "{refused:?}");
    why("name", "\"own\": is there already");
    why("key", "own");
    why("text", "nowhere");
    why("much", "5 rules, of at most 4");
    assert_eq!(refused.len(), 4, "{refused:?}");
}

#[test]
fn what_is_the_fleets_is_changed_by_the_fleet_alone() {
    let mut core = core();
    install(&mut core, &[of_share("a", plain("a1", 2))]);
    let remove = Request::Change(Transaction {
        remove: vec!["a1".to_owned()],
        ..Transaction::default()
    });
    for request in [remove, add(vec![plain("a1", 3)])] {
        let refused = core.resolve(&request).unwrap_err();
        assert!(refused.to_string().contains("mcr fleet apply"), "{refused}");
        assert_eq!(ApiError::from(refused).code, Code::Invalid);
    }
    let shared = vec![of_share("b", plain("b1", 3))];
    let list = RuleList {
        rules: shared.clone(),
        ..RuleList::default()
    };
    for request in [add(shared), Request::Replace(Box::new(list))] {
        let refused = core.resolve(&request).unwrap_err().to_string();
        assert!(
            refused.contains("only rules of a fleet have a share"),
            "{refused}"
        );
    }
}
