//! Routes and joins of inputs.

use super::*;

#[test]
fn makes_a_route_for_every_source_and_interface() {
    let sources = "10.0.0.5,10.0.0.6@232.1.1.1%eth*:5001";
    let compiled = one(sources, OUTPUT, &usual());
    let keys: Vec<(u32, String)> = compiled
        .table
        .routes
        .keys()
        .map(|key| (key.ingress.0, key.source.unwrap().to_string()))
        .collect();
    let expected = [
        (2, "10.0.0.5"),
        (2, "10.0.0.6"),
        (3, "10.0.0.5"),
        (3, "10.0.0.6"),
    ];
    assert_eq!(
        keys,
        expected.map(|(link, source)| (link, source.to_owned()))
    );
    let input = &first(&compiled).inputs[0];
    assert_eq!(input.interfaces, [Ifindex(2), Ifindex(3)]);
    assert_eq!(input.joins.len(), 2);
    assert_eq!(input.joins[0].sources.len(), 2);
}

/// The destinations that one rule's routes are for, each with its interface.
fn taken(input: &str, host: &Host) -> (Vec<(u32, String)>, Option<String>) {
    let compiled = one(input, "239.9.9.9%eth1:6001", host);
    let keys = compiled.table.routes.keys();
    let taken = keys.map(|key| (key.ingress.0, key.groups.to_string()));
    let view = &first(&compiled).inputs[0];
    assert_eq!(view.joins, []);
    (taken.collect(), view.pending.clone())
}

#[test]
fn an_input_takes_the_addresses_that_its_interface_has() {
    let mut host = usual();
    let eth1 = host.interfaces.get_mut(&Ifindex(3)).unwrap();
    eth1.broadcasts = vec![[10, 0, 1, 255].into()];
    let all = |keys: &[(u32, &str)]| {
        let owned = keys.iter().map(|(link, to)| (*link, (*to).to_owned()));
        (owned.collect::<Vec<_>>(), None)
    };
    for (input, keys) in [
        ("unicast%eth1:1", &[(3, "10.0.1.1"), (3, "10.0.1.2")][..]),
        (
            "unicast%eth*:1",
            &[(2, "10.0.0.1"), (3, "10.0.1.1"), (3, "10.0.1.2")],
        ),
        ("10.0.1.2%eth1:1", &[(3, "10.0.1.2")]),
        ("10.0.1.255%eth1:1", &[(3, "10.0.1.255")]),
        ("255.255.255.255%eth0:1", &[(2, "255.255.255.255")]),
        // Those of the loopback interface are the host's on any interface.
        ("127.0.0.1%eth0:1", &[(2, "127.0.0.1")]),
    ] {
        assert_eq!(taken(input, &host), all(keys), "{input}");
    }
    let ipv6 = one("[unicast%eth1]:1", "[ff3e::9%eth1]:6001", &host);
    assert_eq!(ipv6.table.routes.len(), 2);
    for (input, why) in [
        (
            "10.0.0.1%eth1:1",
            "10.0.0.1 is an address of eth0, not of eth1; write %eth0",
        ),
        (
            "10.0.1.7%eth1:1",
            "interface eth1 has no address 10.0.1.7 (have: 10.0.1.1, 10.0.1.2, 10.0.1.255); waits for it; if a group was meant, those begin with 224 to 239, or ff",
        ),
        (
            "unicast%eth7:1",
            "no interface eth7 (have: eth0, eth1); waits for it",
        ),
    ] {
        assert_eq!(taken(input, &host), (vec![], Some(why.to_owned())));
    }
    let compiled = one("[unicast%eth0]:1", "[ff3e::9%eth1]:6001", &host);
    let pending = first(&compiled).inputs[0].pending.clone();
    let why = "interface eth0 has no IPv6 address; waits for one";
    assert_eq!(pending.as_deref(), Some(why));
}

#[test]
fn an_address_that_is_named_takes_precedence_over_every_address() {
    let mut host = usual();
    host.interfaces.get_mut(&Ifindex(2)).unwrap().addresses = vec![[10, 0, 0, 3].into()];
    let inputs = [
        ("all", &["unicast%eth0:1"][..], &[OUTPUT][..]),
        ("one", &["10.0.0.3%eth0:1"], &["239.10.1.2%eth1:6001"]),
    ];
    let set = rules(&inputs);
    assert!(set.has_wildcards(), "what one gets depends on the other");
    let compiled = compile(&set, &host, &support(), &PathChoices::default());
    let owners: Vec<&str> = compiled
        .table
        .routes
        .values()
        .map(|route| route.rule.as_str())
        .collect();
    assert_eq!(owners, ["one"]);
}

#[test]
fn routes_name_their_input_if_the_rule_has_several() {
    let inputs_of = |inputs: &[&str]| {
        let set = rules(&[("a", inputs, &[OUTPUT])]);
        let compiled = compile(&set, &usual(), &support(), &PathChoices::default());
        let routes = compiled.table.routes.into_values();
        routes.map(|route| route.input).collect::<Vec<_>>()
    };
    let sources = "10.0.0.5,10.0.0.6@232.1.1.1%eth0:5001";
    assert_eq!(inputs_of(&[sources]), [None, None]);
    let [first, second] = [INPUT, sources].map(|at| Some(at.to_owned()));
    let expected = [second.clone(), second, first];
    assert_eq!(inputs_of(&[INPUT, sources]), expected);
}

#[test]
fn a_wildcard_takes_the_path_of_an_interface_that_it_comes_to_match() {
    let rules = rules(&[("a", &["239.1.1.1%eth?:5001"], &["239.10.1.1%out:6001"])]);
    let mut choices = PathChoices::default();
    let userspace = [("eth1".to_owned(), PathChoice::Userspace)];
    choices.interfaces.extend(userspace);
    let placed = |links: &[Interface]| {
        let compiled = compile(&rules, &host(links), &support(), &choices);
        let placement = &first(&compiled).placement;
        (placement.path, placement.reason.to_string())
    };
    let (first, out) = (link(2, "eth0", "10.0.0.1"), link(4, "out", "10.0.2.1"));
    assert_eq!(placed(&[first.clone(), out.clone()]).0, Path::Kernel);
    let forced = "forced by interface eth1's path = \"userspace\"".to_owned();
    let second = link(3, "eth1", "10.0.1.1");
    assert_eq!(placed(&[first, second, out]), (Path::Userspace, forced));
}

#[test]
fn never_takes_loopback_for_a_wildcard_but_by_its_name() {
    let any = one("239.1.1.1%*:5001", OUTPUT, &usual());
    assert_eq!(first(&any).inputs[0].interfaces, [Ifindex(2), Ifindex(3)]);
    let loopback = one("239.1.1.1%lo:5001", OUTPUT, &usual());
    assert_eq!(first(&loopback).inputs[0].interfaces, [Ifindex(1)]);
}

#[test]
fn leaves_an_interface_to_the_rule_that_names_it() {
    let set = rules(&[
        ("any", &["239.1.1.1%eth*:5001"], &["10.9.9.9:1"]),
        ("own", &["239.1.1.1%eth0:5001"], &["10.9.9.9:1"]),
    ]);
    let compiled = compile(&set, &usual(), &support(), &PathChoices::default());
    let owners: Vec<(u32, &str)> = compiled
        .table
        .routes
        .iter()
        .map(|(key, route)| (key.ingress.0, route.rule.as_str()))
        .collect();
    assert_eq!(owners, [(2, "own"), (3, "any")]);
}

#[test]
fn lets_a_rule_wait_for_its_input_interface() {
    let compiled = one("239.1.1.1%eth9:5001", OUTPUT, &usual());
    assert!(compiled.table.routes.is_empty());
    let input = &first(&compiled).inputs[0];
    assert!(input.interfaces.is_empty() && input.joins.is_empty());
    assert_eq!(
        input.pending.as_deref(),
        Some("no interface eth9 (have: eth0, eth1); waits for it")
    );
}

#[test]
fn keeps_the_route_of_an_input_interface_that_is_down_and_says_so() {
    let mut host = usual();
    host.interfaces.get_mut(&Ifindex(2)).unwrap().up = false;
    let compiled = one(INPUT, OUTPUT, &host);
    assert_eq!(compiled.table.routes.len(), 1);
    let input = &first(&compiled).inputs[0];
    assert_eq!(input.joins.len(), 1);
    assert!(
        input
            .pending
            .as_deref()
            .unwrap()
            .starts_with("interface eth0 is administratively down;")
    );
}

#[test]
fn joins_ranges_up_to_a_limit_and_larger_ones_as_a_whole() {
    let joins = |input: &str| {
        let compiled = one(input, OUTPUT, &usual());
        assert_eq!(compiled.table.routes.len(), 1);
        let input = first(&compiled).inputs[0].clone();
        assert_eq!(input.pending, None);
        let groups = input.joins.iter().map(|join| join.groups.to_string());
        (groups.collect::<Vec<_>>(), input.unjoined.is_some())
    };
    let joined = |groups: &str, is_unjoined| (vec![groups.to_owned()], is_unjoined);
    assert_eq!(
        joins("239.1.0.0/20%eth0:5001"),
        joined("239.1.0.0/20", false)
    );
    assert_eq!(joins("239.1.0.0/19%eth0:5001"), joined("0.0.0.0", true));
}

#[test]
fn a_wildcard_matches_one_of_the_interfaces_that_receive_the_same() {
    let doubled = |by: u32, bonded, link: Interface| Interface {
        doubled_by: Some(Ifindex(by)),
        bonded,
        ..link
    };
    let host = host(&[
        doubled(4, true, link(2, "e0", "")),
        doubled(4, true, link(3, "e1", "")),
        link(4, "bond1", "10.0.0.1"),
        doubled(6, false, link(5, "p0", "")),
        link(6, "pb", "10.0.1.1"),
        doubled(8, false, link(7, "mv", "10.0.2.2")),
        link(8, "m", "10.0.2.1"),
    ]);
    for (pattern, expected) in [
        ("*", &[4, 8, 6][..]),
        ("e*", &[]),
        ("e0", &[2]),
        ("p*", &[6]),
        ("p0*", &[5]),
        ("m*", &[8]),
        ("mv*", &[7]),
    ] {
        let set = rules(&[(
            "a",
            &[&format!("239.1.1.1%{pattern}:5001")],
            &["239.2.2.2%pb:1"],
        )]);
        let compiled = compile(&set, &host, &support(), &PathChoices::default());
        let input = &first(&compiled).inputs[0];
        let links: Vec<u32> = input.interfaces.iter().map(|link| link.0).collect();
        assert_eq!(links, expected, "{pattern}");
        if pattern == "e*" {
            let why = input.pending.as_deref().unwrap_or_default();
            assert!(why.contains("links of a bond, such as e0"), "{why}");
        }
    }
}

#[test]
fn an_input_that_receives_nothing_is_pending_unless_it_matches_other_interfaces_too() {
    use crate::host::Reach;
    let mut host = usual();
    host.interfaces.get_mut(&Ifindex(2)).unwrap().reach = Reach::Returns;
    let pending = |input: &str, output: &str| {
        let compiled = one(input, output, &host);
        first(&compiled).inputs[0].pending.clone()
    };
    let reason = pending(INPUT, OUTPUT).unwrap();
    assert!(reason.contains("eth0 is an ifb"), "{reason}");
    assert_eq!(pending("239.1.1.1%eth*:5001", "10.0.1.9:7000"), None);
}

#[test]
fn a_vrf_is_not_an_interface_that_packets_arrive_or_leave_by() {
    let host = with_vrfs();
    let compiled = one("239.1.1.1%red:5001", OUTPUT, &host);
    let input = &first(&compiled).inputs[0];
    let why = input.pending.as_deref().unwrap();
    assert!(why.contains("write one of them (eth0)"), "{why}");
    assert_eq!(input.joins, []);
    let (reason, text) = down(&one(INPUT, "239.10.1.1%blue:6001", &host));
    assert_eq!(reason, DownReason::NoRoute);
    assert!(text.contains("write one of them (eth1)"), "{text}");
    let (_, text) = down(&one(INPUT, "10.9.9.9:7000", &{
        let mut host = with_vrfs();
        let all = next_hop_queries(&rules(&[("a", &[INPUT], &["10.9.9.9:7000"])]));
        host.next_hops = all
            .into_iter()
            .map(|query| (query, NextHop::NoRoute(None)))
            .collect();
        host
    }));
    assert!(
        text.ends_with("as in 10.9.9.9%red (have: red, blue)"),
        "{text}"
    );
}

#[test]
fn a_group_without_a_route_goes_on_to_a_routing_daemon() {
    let mut host = usual();
    let is_shared = |host: &Host, input: &str| {
        let compiled = one(input, "10.9.9.9:7000", host);
        !first(&compiled).inputs[0].shared.is_empty()
    };
    let (group, group6) = ("239.1.1.1%eth0:5001", "[ff3e::1%eth0]:5001");
    assert!(!is_shared(&host, group));
    host.multicast_routing.inputs.insert((true, Ifindex(2)));
    assert!(is_shared(&host, group));
    assert!(!is_shared(&host, "239.1.1.1%eth1:5001"));
    let rules = rules(&[("a", &[group6], &["[2001:db8::9]:7000"])]);
    let compiled = compile(&rules, &host, &support(), &PathChoices::default());
    assert!(first(&compiled).inputs[0].shared.is_empty());
    // The routing daemon expects it by another interface.
    let group_address = "239.1.1.1".parse().unwrap();
    let routes = &mut host.multicast_routing.routes;
    routes.insert((Ifindex(3), group_address));
    assert!(!is_shared(&host, group));
    host.multicast_routing.routes = [(Ifindex(2), group_address)].into();
    assert!(is_shared(&host, group));
}

#[test]
fn an_interface_is_found_by_its_further_names() {
    let mut host = usual();
    let eth0 = host.interfaces.get_mut(&Ifindex(2)).unwrap();
    eth0.alternatives = vec!["enp9s0f1".to_owned()];
    let compiled = one("239.1.1.1%enp9s0f1:5001", "239.2.1.1%enp9s0f1:6001", &host);
    let view = first(&compiled);
    assert_eq!(view.inputs[0].interfaces, [Ifindex(2)]);
    assert_eq!(view.outputs[0].link, Some(Ifindex(2)));
}
