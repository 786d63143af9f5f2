//! Which interfaces `auto` lets merge.

use compile::host::Interface;
use compile::table::{LinkHeader, LocalDelivery, Output, Path, RateLimit, RateUnit, RouteKey, Ttl};
use rules::net::{Mac, Ports, Prefix};

use super::*;

const INGRESS: Ifindex = Ifindex(1);
const SEGMENTS: Ifindex = Ifindex(2);
const PLAIN: Ifindex = Ifindex(3);

fn route(path: Path, egress: Ifindex) -> Route {
    let group = Prefix::host("239.10.1.1".parse().unwrap());
    let egress = Egress {
        interface: egress,
        link: LinkHeader::Group {
            source: Mac([2, 0, 0, 0, 0, 1]),
        },
        mtu: 1500,
        destination: group,
        ports: Ports::single(6001),
        source: None,
        source_port: None,
        ttl: Ttl::Keep,
        dscp: None,
        fragment: false,
        framed: false,
        answers: false,
        answers_by_socket: false,
    };
    Route {
        rule: "a".into(),
        input: None,
        path,
        local: LocalDelivery::Auto,
        failover: None,
        merge: None,
        share: None,
        inspect: None,
        limit: None,
        outputs: vec![Output {
            index: 0,
            to: "239.10.1.1%veth2:6001".into(),
            state: OutputState::Up(egress),
            limit: None,
        }],
    }
}

fn merges(routes: impl IntoIterator<Item = Route>) -> bool {
    let mut table = Table::default();
    for (port, route) in (5001..).zip(routes) {
        let key = RouteKey {
            ingress: INGRESS,
            groups: Prefix::host("239.1.1.1".parse().unwrap()),
            ports: Ports::single(port),
            source: None,
        };
        table.routes.insert(key, route);
    }
    obstacle(relayed(&table).get(&INGRESS), |index| index == SEGMENTS).is_none()
}

#[test]
fn the_kernel_path_gains_where_every_output_segments() {
    assert!(merges([route(Path::Kernel, SEGMENTS)]));
    assert!(!merges([
        route(Path::Kernel, SEGMENTS),
        route(Path::Kernel, PLAIN)
    ]));
}

#[test]
fn the_userspace_path_gains_whatever_its_outputs_are() {
    assert!(merges([route(Path::Userspace, PLAIN)]));
    assert!(!merges([
        route(Path::Userspace, PLAIN),
        route(Path::Kernel, PLAIN)
    ]));
}

#[test]
fn packets_that_are_judged_one_by_one_are_not_merged() {
    let mut limited = route(Path::Userspace, PLAIN);
    limited.limit = Some(RateLimit {
        unit: RateUnit::Packets,
        rate: 100,
        burst: 10,
    });
    assert!(!merges([limited]));
    let mut cut = route(Path::Userspace, PLAIN);
    if let OutputState::Up(egress) = &mut cut.outputs[0].state {
        egress.fragment = true;
    }
    assert!(!merges([cut]));
}

#[test]
fn an_interface_without_a_working_output_is_left_alone() {
    assert!(!merges([]));
    let mut down = route(Path::Userspace, PLAIN);
    down.outputs[0].state = OutputState::Down(table::DownReason::InterfaceMissing);
    assert!(!merges([down]));
}

/// The judgement and text for an interface `in0`, which does not exist, from which one rule relays.
fn judged(gro: Gro, path: Path, takes_merged: bool) -> Option<(bool, String)> {
    let mut host = Host::default();
    let link = Interface {
        index: INGRESS,
        name: "in0".into(),
        up: true,
        mtu: 1500,
        ..Interface::default()
    };
    host.interfaces.insert(INGRESS, link);
    let mut table = Table::default();
    let key = RouteKey {
        ingress: INGRESS,
        groups: Prefix::host("239.1.1.1".parse().unwrap()),
        ports: Ports::single(5001),
        source: None,
    };
    table.routes.insert(key, route(path, PLAIN));
    let asked = InterfaceSettings {
        gro: Some(gro),
        ..InterfaceSettings::default()
    };
    let settings = BTreeMap::from([("in0".to_owned(), asked)]);
    let mut judged = judge(&settings, &host, &table, takes_merged);
    let judgement = judged.remove(&INGRESS)?;
    Some((judgement.merge, judgement.unswitched(false)?))
}

#[test]
fn a_userspace_path_that_would_lose_what_is_merged_gets_it_single() {
    for gro in [Gro::On, Gro::Auto] {
        let merges = |path, takes| judged(gro, path, takes).unwrap().0;
        assert!(merges(Path::Userspace, true));
        assert!(!merges(Path::Userspace, false));
        let (_, text) = judged(gro, Path::Userspace, false).unwrap();
        assert!(text.contains("would lose what is merged"), "{text}");
    }
    assert!(judged(Gro::On, Path::Kernel, false).unwrap().0);
    // Not requested, and nothing is lost.
    assert_eq!(judged(Gro::Off, Path::Userspace, false), None);
}

#[test]
fn the_default_decision_spares_rules_that_judge_packet_by_packet() {
    let singly = |route: Route| {
        let mut table = Table::default();
        let key = RouteKey {
            ingress: INGRESS,
            groups: Prefix::host("239.1.1.1".parse().unwrap()),
            ports: Ports::single(5001),
            source: None,
        };
        table.routes.insert(key, route);
        relayed(&table)[&INGRESS].judged_singly.is_some()
    };
    assert!(!singly(route(Path::Kernel, SEGMENTS)));
    let mut limited = route(Path::Kernel, SEGMENTS);
    limited.outputs[0].limit = Some(RateLimit {
        unit: RateUnit::Packets,
        rate: 100,
        burst: 10,
    });
    assert!(singly(limited));
}
