//! How copies leave, and why an output is down.

use super::*;

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

/// The query to the routing table for a group that leaves by eth1.
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
    let queries = next_hop_queries(&rules(&[("a", &[input], outputs)]));
    assert_eq!(queries, BTreeSet::from([of_group("ff1e::1")]));
    let keeping = ["[ff1e::9:9%eth1]:6001,source=keep"];
    assert!(next_hop_queries(&rules(&[("a", &[input], &keeping)])).is_empty());
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
fn sends_to_the_address_of_a_name_in_the_family_of_the_input() {
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
    // Its last good address stays in use.
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
fn an_output_is_down_if_nothing_can_leave_by_its_interface() {
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
            let text = down_for(reach, output);
            assert!(
                text.contains(expected) && text.is_empty() == expected.is_empty(),
                "{text}"
            );
        }
    }
}
