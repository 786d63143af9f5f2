//! What rules come to on hosts of several shapes.

mod on_demand;

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
    let links = links.iter().cloned();
    Host {
        interfaces: links.map(|link| (link.index, link)).collect(),
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

/// What can be said about the first rule.
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
fn sources_that_rules_with_a_share_set_are_own_addresses() {
    let output = "239.10.1.1%eth1:6001,source=192.0.2.9";
    let shared = |name: &str, port: u16, share: Option<&str>| {
        let plain = rules(&[(name, &[&format!("239.1.1.1%eth0:{port}")], &[output])]);
        Rule {
            share: share.map(str::to_owned),
            ..plain.get(name).unwrap().clone()
        }
    };
    let set = |rules: Vec<Rule>| RuleSet::new(rules, Policy::default()).unwrap();
    let choices = PathChoices::default();
    let address: IpAddr = "192.0.2.9".parse().unwrap();
    let own = |compiled: &Compiled| compiled.table.own_addresses.betray(Ifindex(2), address);
    let steps = [
        (vec![shared("a", 1, None)], false),
        (vec![shared("a", 1, Some("x"))], true),
        (
            vec![shared("a", 1, Some("x")), shared("b", 2, Some("y"))],
            true,
        ),
        (vec![shared("b", 2, Some("y"))], true),
        (vec![shared("b", 2, None)], false),
    ];
    let mut compiled = Compiled::default();
    let mut before = RuleSet::default();
    for (step, is_own) in steps {
        let rules = set(step);
        let fresh = compile(&rules, &usual(), &support(), &choices);
        let changes = RuleChanges::between(&before, &rules);
        let amendment = compiled.amended(&changes, (&usual(), &nobody()), &support(), &choices);
        compiled.apply(amendment);
        assert_eq!(compiled, fresh);
        assert_eq!(own(&compiled), is_own, "{:?}", rules.get("a"));
        let shares = compiled.table.routes.values().map(|route| &route.share);
        assert!(shares.clone().all(|share| share.is_some() == is_own));
        before = rules;
    }
}

#[test]
fn a_disabled_rule_comes_to_nothing() {
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
    // And whatever cannot be: its interfaces are nobody's trouble.
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
fn compiles_a_multicast_output_with_all_it_needs() {
    let compiled = one(
        INPUT,
        "239.10.1.1%eth1:6001,ttl=16,dscp=34,sport=9",
        &usual(),
    );
    let key = RouteKey {
        ingress: Ifindex(2),
        groups: Prefix::host("239.1.1.1".parse().unwrap()),
        ports: Ports::single(5001),
        source: None,
    };
    let route = &compiled.table.routes[&key];
    assert_eq!((route.rule.as_str(), route.path), ("a", Path::Kernel));
    assert_eq!(route.outputs[0].to, OUTPUT);
    assert_eq!(
        *egress(&compiled),
        Egress {
            interface: Ifindex(3),
            link: LinkHeader::Group {
                source: Mac([2, 0, 0, 0, 0, 3])
            },
            mtu: 1500,
            destination: Prefix::host("239.10.1.1".parse().unwrap()),
            ports: Ports::single(6001),
            source: Some("10.0.1.1".parse().unwrap()),
            source_port: Some(9),
            ttl: crate::table::Ttl::Set(16),
            dscp: Some(34),
            fragment: false,
            framed: false,
            answers: false,
            answers_by_socket: false,
        }
    );
    let view = first(&compiled);
    assert_eq!(view.outputs[0].down, None);
    assert_eq!(view.inputs[0].pending, None);
    let join = &view.inputs[0].joins[0];
    assert_eq!((join.interface, join.groups), (Ifindex(2), key.groups));
}

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
    let keys = keys.map(|key| (key.ingress.0, key.groups.to_string()));
    let view = &first(&compiled).inputs[0];
    assert_eq!(view.joins, []);
    (keys.collect(), view.pending.clone())
}

#[test]
fn an_input_takes_the_addresses_that_its_interface_has() {
    let mut host = usual();
    let eth1 = host.interfaces.get_mut(&Ifindex(3)).unwrap();
    eth1.broadcasts = vec![[10, 0, 1, 255].into()];
    let all = |keys: &[(u32, &str)]| {
        let keys = keys.iter().map(|(link, to)| (*link, (*to).to_owned()));
        (keys.collect::<Vec<_>>(), None)
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
        // The loopback interface's are the host's wherever packets come in.
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
fn an_address_that_is_named_goes_before_every_address() {
    let mut host = usual();
    host.interfaces.get_mut(&Ifindex(2)).unwrap().addresses = vec![[10, 0, 0, 3].into()];
    let inputs = [
        ("all", &["unicast%eth0:1"][..], &[OUTPUT][..]),
        ("one", &["10.0.0.3%eth0:1"], &["239.10.1.2%eth1:6001"]),
    ];
    let set = rules(&inputs);
    assert!(set.has_wildcards(), "what one gets depends on the other");
    let compiled = compile(&set, &host, &support(), &PathChoices::default());
    let owners: Vec<&str> = { compiled.table.routes.values() }
        .map(|route| route.rule.as_str())
        .collect();
    assert_eq!(owners, ["one"]);
}

#[test]
fn routes_know_their_input_where_the_rule_has_several() {
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
fn says_why_an_output_is_down() {
    let missing = down(&one(INPUT, "239.10.1.1%eth9:6001", &usual()));
    assert_eq!(missing.0, DownReason::InterfaceMissing);
    assert_eq!(missing.1, "no interface eth9 (have: eth0, eth1)");

    let mut host = usual();
    host.interfaces
        .get_mut(&Ifindex(3))
        .unwrap()
        .addresses
        .clear();
    let address = down(&one(INPUT, OUTPUT, &host));
    assert_eq!(address.0, DownReason::NoAddress);
    assert_eq!(
        address.1,
        "interface eth1 has no IPv4 address to send from; give it one, or the output source=ADDRESS or source=keep"
    );
    for choice in ["keep", "10.7.7.7"] {
        let output = format!("{OUTPUT},source={choice}");
        assert!(first(&one(INPUT, &output, &host)).outputs[0].down.is_none());
    }

    host.interfaces.get_mut(&Ifindex(3)).unwrap().up = false;
    let link = down(&one(INPUT, OUTPUT, &host));
    assert_eq!(link.0, DownReason::InterfaceDown);
    assert!(
        link.1
            .starts_with("interface eth1 is administratively down;")
    );
}

#[test]
fn lists_the_troubles_of_a_rule_in_full() {
    let compiled = one("239.1.1.1%wan*:5001", "239.10.1.1%eth9:6001", &usual());
    assert_eq!(
        first(&compiled).troubles(),
        [
            "rule \"a\": input 239.1.1.1%wan*:5001: no interface matches wan* (have: eth0, eth1); waits for it",
            "rule \"a\": output 239.10.1.1%eth9:6001: no interface eth9 (have: eth0, eth1)",
        ]
    );
    assert_eq!(first(&one(INPUT, OUTPUT, &usual())).troubles(), [""; 0]);
}

#[test]
fn keeps_other_outputs_up_when_one_is_down() {
    let set = rules(&[("a", &[INPUT], &["239.10.1.1%eth9:6001", OUTPUT])]);
    let compiled = compile(&set, &usual(), &support(), &PathChoices::default());
    let view = first(&compiled);
    assert!(view.outputs[0].down.is_some() && view.outputs[1].down.is_none());
    let route = compiled.table.routes.values().next().unwrap();
    assert_eq!((route.outputs[0].index, route.outputs[1].index), (0, 1));
}

fn to_port(port: u16) -> PacketQuery {
    PacketQuery {
        ports: Some(Ports::single(port)),
        ..PacketQuery::default()
    }
}

/// What the table is asked for groups that leave by eth1.
fn of_group(group: &str) -> NextHopQuery {
    NextHopQuery {
        destination: Destination::Address(group.parse().unwrap()),
        interface: Some("eth1".to_owned()),
        packet: PacketQuery::default(),
    }
}

#[test]
fn groups_leave_from_the_address_that_the_routing_table_names() {
    let input = "[ff1e::1:1%eth0]:5001";
    let outputs: &[&str] = &["[ff1e::9:9%eth1]:6001", "[ff1e::9:8%eth1]:6001,dscp=ef"];
    let asked = next_hop_queries(&rules(&[("a", &[input], outputs)]));
    assert_eq!(asked, BTreeSet::from([of_group("ff1e::1")]));
    let kept = ["[ff1e::9:9%eth1]:6001,source=keep"];
    assert!(next_hop_queries(&rules(&[("a", &[input], &kept)])).is_empty());
    let at = |next_hop| {
        let mut host = usual();
        host.next_hops.insert(of_group("ff1e::1"), next_hop);
        one(input, outputs[0], &host)
    };
    let named = at(NextHop::Unresolved {
        interface: Ifindex(3),
        via: "ff1e::1".parse().unwrap(),
        silent: false,
        source: Some("fd00::9".parse().unwrap()),
    });
    assert_eq!(egress(&named).source, Some("fd00::9".parse().unwrap()));
    let (reason, text) = down(&at(NextHop::NoRoute(Some("prohibit"))));
    assert_eq!(reason, DownReason::NoRoute);
    assert!(text.contains("ff1e::9:9 is of the type prohibit"), "{text}");
}

#[test]
fn sends_unicast_to_the_resolved_next_hop() {
    let destination: IpAddr = "10.9.9.9".parse().unwrap();
    let query = NextHopQuery {
        destination: Destination::Address(destination),
        interface: None,
        packet: to_port(7000),
    };
    let outputs: &[&str] = &["10.9.9.9:7000", "10.9.9.9:7001", OUTPUT];
    let queries = next_hop_queries(&rules(&[("a", &[INPUT], outputs)]));
    let other = NextHopQuery {
        packet: to_port(7001),
        ..query.clone()
    };
    assert_eq!(
        queries,
        BTreeSet::from([query.clone(), other, of_group("239.255.0.1")])
    );
    let gateway: IpAddr = "10.0.1.254".parse().unwrap();
    let at = |next_hop| {
        let mut host = usual();
        host.next_hops.insert(query.clone(), next_hop);
        one(INPUT, "10.9.9.9:7000", &host)
    };
    let mac = Mac([2, 9, 9, 9, 9, 9]);
    let resolved = at(NextHop::Resolved {
        interface: Ifindex(3),
        via: gateway,
        mac: Some(mac),
        source: None,
        mtu: Some(1400),
    });
    let egress = egress(&resolved);
    assert_eq!(egress.mtu, 1400);
    assert_eq!(
        egress.link,
        LinkHeader::Neighbour {
            source: Mac([2, 0, 0, 0, 0, 3]),
            destination: mac
        }
    );
    assert_eq!(egress.source, Some("10.0.1.1".parse().unwrap()));

    let (reason, text) = down(&at(NextHop::NoRoute(None)));
    assert_eq!(reason, DownReason::NoRoute);
    assert_eq!(
        text,
        "no route to 10.9.9.9; add one, `ip route get 10.9.9.9` shows it"
    );
    let (reason, text) = down(&at(NextHop::NoRoute(Some("blackhole"))));
    assert_eq!(reason, DownReason::NoRoute);
    assert!(text.contains("of the type blackhole"), "{text}");
    let (reason, text) = down(&at(NextHop::Unresolved {
        interface: Ifindex(3),
        via: gateway,
        silent: false,
        source: None,
    }));
    assert_eq!(reason, DownReason::NoNeighbour);
    assert_eq!(text, "gateway 10.0.1.254 on eth1 has not answered ARP yet");
    let (reason, text) = down(&at(NextHop::Unresolved {
        interface: Ifindex(3),
        via: gateway,
        silent: true,
        source: None,
    }));
    assert_eq!(reason, DownReason::NoNeighbour);
    assert_eq!(
        text,
        "gateway 10.0.1.254 on eth1 does not answer ARP; is it there?"
    );
    let (reason, _) = down(&one(INPUT, "10.9.9.9:7000", &usual()));
    assert_eq!(reason, DownReason::NoRoute);
}

#[test]
fn sends_to_what_a_name_stands_for_in_the_family_of_the_input() {
    let name = HostName::new("cloud.example").unwrap();
    let output = "cloud.example:7000";
    let queries = |input| next_hop_queries(&rules(&[("a", &[input], &[output])]));
    let of = |ipv4| NextHopQuery {
        destination: Destination::Name {
            name: name.clone(),
            ipv4,
        },
        interface: None,
        packet: to_port(7000),
    };
    assert_eq!(queries(INPUT), BTreeSet::from([of(true)]));
    assert_eq!(queries("[ff3e::1%eth0]:5001"), BTreeSet::from([of(false)]));
    let mut host = usual();
    let (reason, text) = down(&one(INPUT, output, &host));
    assert_eq!(reason, DownReason::NoAddress);
    assert_eq!(text, "cloud.example is being looked up");
    let mut named = Named {
        problem: Some("no such host".to_owned()),
        ..Named::default()
    };
    host.names.insert(name.clone(), named.clone());
    let (_, text) = down(&one(INPUT, output, &host));
    assert_eq!(text, "cloud.example cannot be looked up: no such host");
    named = Named {
        ipv6: Some("2001:db8::9".parse().unwrap()),
        ..Named::default()
    };
    host.names.insert(name.clone(), named.clone());
    let (_, text) = down(&one(INPUT, output, &host));
    assert_eq!(
        text,
        "cloud.example has no IPv4 address, which the rule's input asks for"
    );
    named.ipv4 = Some("10.9.9.9".parse().unwrap());
    // Its last good address serves on.
    named.problem = Some("no such host".to_owned());
    host.names.insert(name.clone(), named);
    host.next_hops.insert(
        of(true),
        NextHop::Resolved {
            interface: Ifindex(2),
            via: "10.0.1.254".parse().unwrap(),
            mac: Some(Mac([2, 0, 0, 0, 0, 9])),
            source: None,
            mtu: None,
        },
    );
    let compiled = one(INPUT, output, &host);
    let view = &first(&compiled).outputs[0];
    assert_eq!((view.to.as_str(), &view.down), (output, &None));
    assert_eq!(view.address, Some("10.9.9.9".parse().unwrap()));
    assert_eq!(view.name_error.as_deref(), Some("no such host"));
    assert_eq!(
        egress(&compiled).destination,
        Prefix::host("10.9.9.9".parse().unwrap())
    );
}

#[test]
fn delivers_what_is_for_this_host_to_its_sockets_by_the_userspace_path() {
    let own: IpAddr = "10.0.1.1".parse().unwrap();
    let query = NextHopQuery {
        destination: Destination::Address(own),
        interface: None,
        packet: to_port(7000),
    };
    let here = |interface, source| {
        let mut host = usual();
        let next_hop = NextHop::Here {
            interface: Ifindex(interface),
            source,
        };
        host.next_hops.insert(query.clone(), next_hop);
        one(INPUT, "10.0.1.1:7000", &host)
    };
    let compiled = here(1, Some(own));
    let delivered = egress(&compiled);
    assert_eq!(
        (delivered.link, delivered.source),
        (LinkHeader::Host, Some(own))
    );
    let placement = &first(&compiled).placement;
    assert_eq!((placement.path, placement.serves), (Path::Userspace, true));
    assert!(
        placement.reason.contains("output 10.0.1.1:7000"),
        "{}",
        placement.reason
    );
    let (reason, text) = down(&here(3, Some(own)));
    assert_eq!(reason, DownReason::NoRoute);
    assert!(text.contains("within eth1"), "{text}");

    let group = one(INPUT, "239.10.1.1%lo:6001", &usual());
    let loopback = "127.0.0.1".parse().unwrap();
    let delivered = egress(&group);
    assert_eq!(
        (delivered.link, delivered.source),
        (LinkHeader::Host, Some(loopback))
    );
}

#[test]
fn wants_a_route_for_ipv6_groups_on_the_loopback_interface() {
    let to = "[ff15::7%lo]:6001";
    let set = rules(&[("a", &[INPUT6], &[to])]);
    let query = next_hop_queries(&set).pop_first().unwrap();
    assert_eq!(query.interface.as_deref(), Some("lo"));
    let mut host = usual();
    host.next_hops.insert(query.clone(), NextHop::NoRoute(None));
    let (reason, text) = down(&one(INPUT6, to, &host));
    assert_eq!(reason, DownReason::NoRoute);
    assert!(
        text.contains("ip -6 route add local ff15::7 dev lo table local"),
        "{text}"
    );
    let here = NextHop::Here {
        interface: Ifindex(1),
        source: Some("::1".parse().unwrap()),
    };
    host.next_hops.insert(query, here);
    assert_eq!(egress(&one(INPUT6, to, &host)).link, LinkHeader::Host);
}

#[test]
fn puts_no_header_on_devices_without_one() {
    let mut host = usual();
    host.interfaces.get_mut(&Ifindex(3)).unwrap().mac = None;
    assert_eq!(egress(&one(INPUT, OUTPUT, &host)).link, LinkHeader::None);
}

#[test]
fn a_packet_from_an_address_of_this_host_went_in_a_loop_whatever_interface_has_it() {
    let own = one(INPUT, OUTPUT, &usual()).table.own_addresses;
    let betray = |ingress, address: &str| own.betray(Ifindex(ingress), address.parse().unwrap());
    for address in [
        "10.0.0.1",
        "10.0.1.1",
        "10.0.1.2",
        "2001:db8::1",
        "127.0.0.1",
    ] {
        assert!(betray(2, address), "{address}");
        // What programs of this host send comes by it.
        assert!(!betray(1, address), "{address} by lo");
    }
    assert!(!betray(2, "10.0.0.2"));
    let none = compile(
        &RuleSet::default(),
        &usual(),
        &support(),
        &PathChoices::default(),
    );
    assert_eq!(none.table.own_addresses, OwnAddresses::default());
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
fn joins_ranges_up_to_a_limit_and_larger_ones_as_a_whole() {
    let joins = |input: &str| {
        let compiled = one(input, OUTPUT, &usual());
        assert_eq!(compiled.table.routes.len(), 1);
        let input = first(&compiled).inputs[0].clone();
        assert_eq!(input.pending, None);
        let groups = input.joins.iter().map(|join| join.groups.to_string());
        (groups.collect::<Vec<_>>(), input.unjoined.is_some())
    };
    let joined = |groups: &str, told| (vec![groups.to_owned()], told);
    assert_eq!(
        joins("239.1.0.0/20%eth0:5001"),
        joined("239.1.0.0/20", false)
    );
    assert_eq!(joins("239.1.0.0/19%eth0:5001"), joined("0.0.0.0", true));
}

#[test]
fn compiles_ten_thousand_rules_without_comparing_each_with_each() {
    let documents = (0..10_000).map(|n| RuleDocument {
        name: format!("r{n}"),
        inputs: vec![format!("239.1.{}.{}%eth0:5001", n / 250, n % 250)],
        outputs: vec![
            format!("239.2.{}.{}%eth1:5001", n / 250, n % 250)
                .as_str()
                .into(),
        ],
        ..Default::default()
    });
    let documents: Vec<RuleDocument> = documents.collect();
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
        // Some of the old rules stay, the very same ones, in between others.
        let gone: Vec<String> = old.names().skip(keep).map(str::to_owned).collect();
        let mut new = old.changed(&gone, Vec::new(), Policy::default()).unwrap();
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

    /// Another host and wildcards: all rules are amended, and it is as if nothing had been before.
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

/// The set with one more rule, if that fits.
fn with(set: &RuleSet, rule: Rule) -> RuleSet {
    let more = set.changed(&[], vec![rule], Policy::default());
    more.unwrap_or_else(|_| set.clone())
}

fn reflecting(group: &str, interfaces: &[&str]) -> RuleDocument {
    RuleDocument {
        name: interfaces.join("-"),
        mode: Some("reflect".to_owned()),
        interfaces: interfaces.iter().map(ToString::to_string).collect(),
        group: Some(group.to_owned()),
        ..Default::default()
    }
}

#[test]
fn what_comes_by_an_interface_of_a_rule_that_reflects_leaves_by_all_others() {
    let mut host = usual();
    let third = link(4, "eth2", "10.0.2.1");
    host.interfaces.insert(third.index, third);
    for group in ["224.0.0.251:5353", "239.255.255.250:1900"] {
        let documents = [reflecting(group, &["eth0", "eth1", "eth2"])];
        let rules = RuleSet::from_documents(&documents, Policy::default()).unwrap();
        let compiled = compile(&rules, &host, &support(), &PathChoices::default());
        let ways = compiled.table.routes.iter().map(|(key, route)| {
            let outputs = route.outputs.iter().map(|output| match &output.state {
                OutputState::Up(egress) => (
                    output.index,
                    egress.interface.0,
                    egress.source.unwrap().to_string(),
                ),
                OutputState::Down(reason) => panic!("{reason:?}"),
            });
            assert_eq!(route.merge.as_ref().unwrap().how.by, rules::merge::By::Once);
            (key.ingress.0, outputs.collect::<Vec<_>>())
        });
        let by = |index: u32| (u64::from(index), index + 2, format!("10.0.{index}.1"));
        assert_eq!(
            ways.collect::<Vec<_>>(),
            [
                (2, vec![by(1), by(2)]),
                (3, vec![by(0), by(2)]),
                (4, vec![by(0), by(1)])
            ]
        );
    }
    // What is lacking is down, and the others go on.
    host.interfaces.remove(&Ifindex(4));
    let rules = [reflecting("224.0.0.251:5353", &["eth0", "eth1", "eth2"])];
    let rules = RuleSet::from_documents(&rules, Policy::default()).unwrap();
    let compiled = compile(&rules, &host, &support(), &PathChoices::default());
    assert_eq!(compiled.table.routes.len(), 2);
    assert_eq!(first(&compiled).troubles().len(), 2);
    assert!(
        compiled
            .table
            .routes
            .values()
            .all(|route| route.outputs.len() == 2)
    );
}

#[test]
fn two_rules_do_not_reflect_the_same_group_on_one_interface() {
    let refused = |rules: &[&[&str]]| {
        let rules = rules
            .iter()
            .map(|interfaces| reflecting("224.0.0.251:5353", interfaces));
        let rules: Vec<RuleDocument> = rules.collect();
        RuleSet::from_documents(&rules, Policy::default())
            .err()
            .map(|problems| problems.to_string())
    };
    let twice = refused(&[&["eth0", "eth1"], &["eth1", "eth0"]]).unwrap();
    assert_eq!(
        twice.lines().next().unwrap(),
        "rule \"eth1-eth0\": input 224.0.0.251%eth1:5353: is an input of rule \"eth0-eth1\" already; \
         a stream belongs to one rule: where both reflect it, name all interfaces in one of them"
    );
    let chain: [&[&str]; 3] = [&["eth0", "eth1"], &["eth1", "eth2"], &["eth2", "eth0"]];
    assert_eq!(refused(&chain).unwrap().lines().count(), 3);
    assert_eq!(refused(&[&["eth0", "eth1"], &["eth2", "eth3"]]), None);
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

#[test]
fn an_address_of_another_vrf_betrays_no_loop() {
    let output: &[&str] = &["239.10.1.1%eth1:6001,source=192.0.2.9"];
    let set = rules(&[("a", &[INPUT], output)]);
    let mut rule = set.get("a").unwrap().clone();
    rule.share = Some("x".to_owned());
    let set = RuleSet::new(vec![rule], Policy::default()).unwrap();
    let own = compile(&set, &with_vrfs(), &support(), &PathChoices::default())
        .table
        .own_addresses;
    for (ingress, address, is_own) in [
        (2, "10.0.0.1", true),
        (2, "10.0.1.1", false),
        (3, "10.0.1.1", true),
        (3, "10.0.0.1", false),
        // What a share sends from comes from this host or its like, wherever it is met.
        (2, "192.0.2.9", true),
        (3, "192.0.2.9", true),
        (4, "192.0.2.9", true),
    ] {
        let betrays = own.betray(Ifindex(ingress), address.parse().unwrap());
        assert_eq!(betrays, is_own, "{address} by {ingress}");
    }
}

#[test]
fn a_wildcard_stands_for_one_of_those_that_bring_the_same() {
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
fn where_nothing_can_leave_an_output_is_down() {
    use crate::host::Reach;
    let mut host = usual();
    let mut down_for = |reach, output: &str| {
        host.interfaces.get_mut(&Ifindex(3)).unwrap().reach = reach;
        let compiled = one(INPUT, output, &host);
        let down = first(&compiled).outputs[0].down.clone();
        down.map_or_else(String::new, |down| down.text)
    };
    for (reach, expected) in [
        (Reach::All, ""),
        (Reach::NoRemote, "tunnel eth1 has no remote"),
        (Reach::NoGroups, "eth1 is an ipvlan that routes"),
        (Reach::External, "brings its remote with it (external)"),
        (Reach::NoIp, "eth1 carries no IP"),
        (Reach::Returns, "eth1 is an ifb"),
    ] {
        for output in [OUTPUT, "255.255.255.255%eth1:7000"] {
            let told = down_for(reach, output);
            assert!(
                told.contains(expected) && told.is_empty() == expected.is_empty(),
                "{told}"
            );
        }
    }
}

#[test]
fn an_input_where_nothing_comes_in_says_so_unless_others_are_meant_too() {
    use crate::host::Reach;
    let mut host = usual();
    host.interfaces.get_mut(&Ifindex(2)).unwrap().reach = Reach::Returns;
    let pending = |input: &str, output: &str| {
        let compiled = one(input, output, &host);
        first(&compiled).inputs[0].pending.clone()
    };
    let told = pending(INPUT, OUTPUT).unwrap();
    assert!(told.contains("eth0 is an ifb"), "{told}");
    assert_eq!(pending("239.1.1.1%eth*:5001", "10.0.1.9:7000"), None);
}

#[test]
fn a_link_local_address_betrays_a_loop_on_its_interface_alone() {
    let mut host = with_vrfs();
    for (index, address) in [(2, "fe80::2"), (3, "fe80::3"), (3, "169.254.0.3")] {
        let link = host.interfaces.get_mut(&Ifindex(index)).unwrap();
        link.addresses.push(address.parse().unwrap());
    }
    let set = rules(&[("a", &[INPUT], &[OUTPUT])]);
    let compiled = compile(&set, &host, &support(), &PathChoices::default());
    let own = &compiled.table.own_addresses;
    for (ingress, address, is_own) in [
        (2, "fe80::2", true),
        (3, "fe80::2", false),
        (5, "fe80::2", false),
        (3, "169.254.0.3", true),
        (2, "169.254.0.3", false),
        (3, "10.0.1.1", true),
    ] {
        let betrays = own.betray(Ifindex(ingress), address.parse().unwrap());
        assert_eq!(betrays, is_own, "{address} by {ingress}");
    }
}

#[test]
fn own_addresses_follow_the_host_alone() {
    let set = rules(&[("a", &[INPUT], &[OUTPUT])]);
    let mut compiled = compile(&set, &usual(), &support(), &PathChoices::default());
    let again = RuleChanges::of_all(&set, &set);
    let mut own = |host: &Host| {
        let amendment = compiled.amended(
            &again,
            (host, &nobody()),
            &support(),
            &PathChoices::default(),
        );
        let own = amendment.diff.own.clone();
        compiled.apply(amendment);
        own
    };
    let mut host = usual();
    host.interfaces.get_mut(&Ifindex(3)).unwrap().up = false;
    assert_eq!(own(&host), None);
    let address = "10.7.7.7".parse().unwrap();
    host.interfaces
        .get_mut(&Ifindex(3))
        .unwrap()
        .addresses
        .push(address);
    assert!(own(&host).is_some_and(|own| own.betray(Ifindex(2), address)));
    assert_eq!(own(&host), None);
    host.interfaces
        .get_mut(&Ifindex(3))
        .unwrap()
        .addresses
        .pop();
    assert!(own(&host).is_some_and(|own| !own.betray(Ifindex(2), address)));
}

#[test]
fn a_vrf_is_no_interface_that_packets_come_and_go_by() {
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
fn isolated_interfaces_hear_the_others_and_not_each_other() {
    let mut host = usual();
    let third = link(4, "eth2", "10.0.2.1");
    host.interfaces.insert(third.index, third);
    for (link, network) in [(2, 0), (3, 1), (4, 2)] {
        let link = host.interfaces.get_mut(&Ifindex(link)).unwrap();
        link.broadcasts = vec![[10, 0, network, 255].into()];
    }
    for group in ["239.255.255.250:1900", "255.255.255.255:9302"] {
        let document = RuleDocument {
            isolated: vec!["eth1".to_owned(), "eth2".to_owned()],
            ..reflecting(group, &["eth0", "eth1", "eth2"])
        };
        let rules = RuleSet::from_documents(&[document], Policy::default()).unwrap();
        let compiled = compile(&rules, &host, &support(), &PathChoices::default());
        let is_broadcast = group.starts_with("255");
        for (key, route) in &compiled.table.routes {
            let outputs = route.outputs.iter().map(|output| match &output.state {
                OutputState::Up(egress) => {
                    assert!(egress.answers);
                    let header = match is_broadcast {
                        true => LinkHeader::Neighbour {
                            source: Mac([2, 0, 0, 0, 0, egress.interface.0 as u8]),
                            destination: Mac([0xff; 6]),
                        },
                        false => LinkHeader::Group {
                            source: Mac([2, 0, 0, 0, 0, egress.interface.0 as u8]),
                        },
                    };
                    assert_eq!(egress.link, header);
                    egress.interface.0
                }
                OutputState::Down(reason) => panic!("{reason:?}"),
            });
            let expected: &[u32] = if key.ingress.0 == 2 { &[3, 4] } else { &[2] };
            assert_eq!(outputs.collect::<Vec<_>>(), expected, "{key:?}");
        }
        // Broadcasts to each of the networks and to all hosts, by each interface.
        let routes = if is_broadcast { 4 * 3 } else { 3 };
        assert_eq!(compiled.table.routes.len(), routes);
    }
}

#[test]
fn reflecting_among_too_many_interfaces_takes_the_userspace_path() {
    let names: Vec<String> = (0..300).map(|number| format!("eth{number}")).collect();
    let links = names.iter().zip(2..);
    let links: Vec<Interface> = links
        .map(|(name, index)| link(index, name, "10.0.0.1"))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for (count, path) in [(256, Path::Kernel), (257, Path::Userspace)] {
        let mut document = reflecting("239.255.255.250:1900", &names[..count]);
        document.name = "many".to_owned();
        let rules = RuleSet::from_documents(&[document], Policy::default()).unwrap();
        let compiled = compile(&rules, &host(&links), &support(), &PathChoices::default());
        assert_eq!(first(&compiled).placement.path, path, "{count}");
    }
}

#[test]
fn a_group_without_a_route_goes_on_to_a_routing_daemon() {
    let mut host = usual();
    let goes_on = |host: &Host, input: &str| {
        let compiled = one(input, "10.9.9.9:7000", host);
        !first(&compiled).inputs[0].shared.is_empty()
    };
    let (group, group6) = ("239.1.1.1%eth0:5001", "[ff3e::1%eth0]:5001");
    assert!(!goes_on(&host, group));
    host.multicast_routing.inputs.insert((true, Ifindex(2)));
    assert!(goes_on(&host, group));
    assert!(!goes_on(&host, "239.1.1.1%eth1:5001"));
    let rules = rules(&[("a", &[group6], &["[2001:db8::9]:7000"])]);
    let compiled = compile(&rules, &host, &support(), &PathChoices::default());
    assert!(first(&compiled).inputs[0].shared.is_empty());
    // It comes by another interface, as the routing daemon has it.
    let group_address = "239.1.1.1".parse().unwrap();
    let routes = &mut host.multicast_routing.routes;
    routes.insert((Ifindex(3), group_address));
    assert!(!goes_on(&host, group));
    host.multicast_routing.routes = [(Ifindex(2), group_address)].into();
    assert!(goes_on(&host, group));
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
