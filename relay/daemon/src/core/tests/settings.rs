//! Settings that change together with rules.

use super::*;

fn budget(text: &str) -> Settings {
    let text = format!("{{\"budget\": {{\"unicast\": \"{text}\"}}}}");
    serde_json::from_str(&text).unwrap()
}

#[test]
fn settings_change_if_they_are_given_and_stay_otherwise() {
    let (mut core, host) = (core(), two_links());
    let request = replace(vec![plain("a", 1)], Some(budget("100pps")));
    let step = execute(&mut core, &request, &host);
    assert_eq!(step.change.settings, ["budget: 100pps (was none)"]);
    assert_eq!(core.table().budget.unwrap().rate, 100);
    execute(&mut core, &replace(vec![plain("b", 2)], None), &host);
    execute(&mut core, &add(vec![plain("c", 3)]), &host);
    assert_eq!(core.settings().budget, budget("100pps").budget);
    assert_eq!(
        (core.generation(), core.table().budget.unwrap().rate),
        (3, 100)
    );
    let same = vec![plain("b", 2), plain("c", 3)];
    let request = replace(same, Some(Settings::default()));
    let step = execute(&mut core, &request, &host);
    assert_eq!(step.change.settings, ["budget: none (was 100pps)"]);
    assert_eq!((core.generation(), core.table().budget), (4, None));
}

#[test]
fn link_local_inputs_are_permitted_while_the_settings_allow_them() {
    let (mut core, host) = (core(), two_links());
    let mdns = RuleDocument {
        inputs: vec!["224.0.0.251%eth0:5353".to_owned()],
        ..rule("mdns", 1, "239.10.1.1%eth1:6001")
    };
    assert!(core.resolve(&add(vec![mdns.clone()])).is_err());
    let permission = Settings {
        allow_link_local: true,
        ..Settings::default()
    };
    let request = replace(vec![mdns.clone()], Some(permission));
    execute(&mut core, &request, &host);
    let unchanged = core.resolve(&replace(vec![mdns.clone()], None));
    assert!(unchanged.is_ok());
    let request = replace(vec![mdns], Some(Settings::default()));
    assert!(core.resolve(&request).is_err());
}

/// Rules that send to hosts on both paths halve the budget, and when those of one path are removed it is
/// whole again; computed from the change, it equals a full computation.
#[test]
fn a_change_of_few_rules_shares_the_budget_as_a_full_computation_does() {
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
    execute(&mut core, &first, &host);
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
