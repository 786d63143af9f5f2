//! Inputs that are addresses of this host: whom a frame is for, who sent it, which port; ports that
//! become groups and groups that become ports.

use compile::table::{Egress, LinkHeader, LocalDelivery, Output, RouteKey};
use packet::craft::{Craft, group_mac};
use packet::parse::{Gso, Meta};
use packet::verdict::DropReason;
use rules::net::{Mac, Ports, Prefix};

use crate::case::{
    A, B, C, Case, INGRESS, Outlet, Packet, address, changed, copy_of, craft_super_packet,
    egress_mac, input, key, output, plain, route, sent, socket,
};

const OWN: &str = "10.0.0.2";
const OWN6: &str = "fd00::2";
const PORT: u16 = 7000;
const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 0x77];

pub(crate) fn cases() -> Vec<Case> {
    [
        whose(),
        broadcasts(),
        senders(),
        numbers(),
        pieces(),
        local(),
        ipv6(),
    ]
    .concat()
}

/// A datagram to this host, in a frame for it.
fn to_own(own: &str, port: u16) -> Craft {
    let from = if own.contains(':') {
        "fd00::5"
    } else {
        "10.0.0.5"
    };
    Craft {
        source: socket(from, 4000),
        destination: socket(own, port),
        macs: (egress_mac(INGRESS), [2, 0, 0, 0, 0, 0x99]),
        ..input()
    }
}

fn at(own: &str) -> RouteKey {
    RouteKey {
        groups: Prefix::host(address(own)),
        ports: Ports::single(PORT),
        ..key()
    }
}

/// Puts the case's one route under another key.
fn under(mut case: Case, key: RouteKey) -> Case {
    case.routes[0].0 = key;
    case
}

fn relayed(name: &'static str, packet: &Craft) -> Case {
    let case = Case::relayed(name, packet.clone(), [plain(packet, A)]);
    under(case, at(&packet.destination.ip().to_string()))
}

fn passed(name: &'static str, packet: impl Into<Packet>) -> Case {
    under(Case::passed(name, packet), at(OWN))
}

/// The same packet as an interface hears it that listens to others' frames too.
fn overheard(packet: &Craft) -> Packet {
    let craft = Craft {
        macs: ([2, 0, 0, 0, 0, 0x55], packet.macs.1),
        ..packet.clone()
    };
    let packet = Packet::from(craft);
    Packet {
        meta: Meta {
            other_host: true,
            ..packet.meta
        },
        ..packet
    }
}

fn whose() -> Vec<Case> {
    let packet = to_own(OWN, PORT);
    let three = [A, B, C].map(|egress| plain(&packet, egress));
    let mut tcp = packet.frame();
    tcp[23] = 6;
    packet::craft::fix_ipv4_checksum(&mut tcp, 14);
    let (craft, large) = craft_super_packet();
    let craft = Craft {
        destination: packet.destination,
        macs: packet.macs,
        ..craft
    };
    let large = Packet {
        meta: large.meta,
        ..Packet::from(craft.clone())
    };
    let copy = copy_of(&craft, A);
    let mut copied = Packet::from(copy.clone());
    copied.meta.gso = Some(Gso { size: 1000 });
    let looped = Craft {
        source: socket("10.0.2.1", 4000),
        ..packet.clone()
    };
    let bytes = looped.payload.len() as u64;
    let looped = Case::dropped(
        "own source to this host",
        looped,
        DropReason::OwnSource,
        bytes,
    );
    let mut looped = under(looped, at(OWN));
    looped.own_addresses = [address("10.0.2.1")].into_iter().collect();
    vec![
        relayed("unicast to this host", &packet),
        under(
            Case::relayed("unicast to this host, copied", packet.clone(), three),
            at(OWN),
        ),
        under(
            Case::relayed(
                "a super-packet to this host",
                large,
                [(output(A), sent(A, copy))],
            ),
            at(OWN),
        ),
        passed(
            "unicast to another port of this host",
            to_own(OWN, PORT + 1),
        ),
        passed("unicast to another address", to_own("10.0.0.3", PORT)),
        passed("TCP to this host", tcp),
        passed("a frame for another host", overheard(&packet)),
        looped,
    ]
}

fn broadcasts() -> Vec<Case> {
    let to_all = |to: &str| Craft {
        macs: ([0xff; 6], [2, 0, 0, 0, 0, 0x99]),
        ..to_own(to, PORT)
    };
    vec![
        relayed("limited broadcast", &to_all("255.255.255.255")),
        relayed("directed broadcast", &to_all("10.0.0.255")),
        passed(
            "broadcast where only unicast is taken",
            to_all("10.0.0.255"),
        ),
    ]
}

/// Rules for any sender, for a network and for one host of it, each to an interface of its own.
fn senders() -> Vec<Case> {
    let from = |name, source: &str, egress, rule: &str| {
        let packet = Craft {
            source: socket(source, 4000),
            ..to_own(OWN, PORT)
        };
        let mut case = Case::relayed(name, packet.clone(), [plain(&packet, egress)]);
        let limited = |source: &str, length| RouteKey {
            source: Some(Prefix::new(address(source), length)),
            ..at(OWN)
        };
        case.routes = vec![
            (at(OWN), route("any", vec![output(A)])),
            (limited("10.9.9.0", 24), route("network", vec![output(B)])),
            (limited("10.9.9.9", 32), route("host", vec![output(C)])),
        ];
        case.expected.rule = Some(rule.into());
        case
    };
    let alone = |name, source: &str, is_taken| {
        let packet = Craft {
            source: socket(source, 4000),
            ..to_own(OWN, PORT)
        };
        let mut case = if is_taken {
            relayed(name, &packet)
        } else {
            passed(name, packet)
        };
        case.routes[0].0.source = Some(Prefix::new(address("10.9.9.0"), 24));
        case
    };
    vec![
        from("a sender that no rule names", "10.9.8.9", A, "any"),
        from("a sender of a network", "10.9.9.8", B, "network"),
        from("a sender with a rule of its own", "10.9.9.9", C, "host"),
        alone("a network alone: its sender", "10.9.9.255", true),
        alone("a network alone: another sender", "10.9.10.1", false),
    ]
}

fn neighbour(egress: &mut Egress, to: &str, ports: Ports) {
    egress.destination = Prefix::host(address(to));
    egress.ports = ports;
    egress.link = LinkHeader::Neighbour {
        source: Mac(egress_mac(A)),
        destination: Mac(ROUTER),
    };
}

/// Ports of one address to groups, and groups to ports of one address.
fn numbers() -> Vec<Case> {
    let ports = Ports {
        first: 7000,
        last: 7255,
    };
    let to_group = |name, port: u16, group: &str| {
        let packet = to_own(OWN, port);
        let copy = Craft {
            destination: socket(group, 5000),
            macs: (group_mac(address(group)), egress_mac(A)),
            ..copy_of(&packet, A)
        };
        let egress = |egress: &mut Egress| {
            egress.destination = Prefix::new(address("239.1.1.0"), 24);
            egress.ports = Ports::single(5000);
        };
        let case = Case::relayed(name, packet, [changed(A, egress, copy)]);
        under(case, RouteKey { ports, ..at(OWN) })
    };
    let to_port = |name, group: &str, port: u16| {
        let packet = Craft {
            destination: socket(group, 5000),
            macs: (group_mac(address(group)), [2, 0, 0, 0, 0, 0x99]),
            ..input()
        };
        let copy = Craft {
            destination: socket("10.9.9.9", port),
            macs: (ROUTER, egress_mac(A)),
            ..copy_of(&packet, A)
        };
        let egress = |egress: &mut Egress| neighbour(egress, "10.9.9.9", ports);
        let case = Case::relayed(name, packet, [changed(A, egress, copy)]);
        let groups = Prefix::new(address("239.1.1.0"), 24);
        let ports = Ports::single(5000);
        under(
            case,
            RouteKey {
                groups,
                ports,
                ..key()
            },
        )
    };
    vec![
        to_group("the first port becomes the first group", 7000, "239.1.1.0"),
        to_group("a port in the middle becomes its group", 7077, "239.1.1.77"),
        to_group("the last port becomes the last group", 7255, "239.1.1.255"),
        to_port("the first group becomes the first port", "239.1.1.0", 7000),
        to_port("a group in the middle becomes its port", "239.1.1.77", 7077),
        to_port("the last group becomes the last port", "239.1.1.255", 7255),
    ]
}

/// Other ports of this host are nobody's here, so a fragment without ports is nobody's.
fn pieces() -> Vec<Case> {
    let piece = |id, fragment, own: &Craft| Craft {
        id,
        fragment,
        ..own.clone()
    };
    let packet = to_own(OWN, PORT);
    let first = piece(0x4001, 0x2000, &packet);
    let bytes = packet.payload.len() as u64;
    let orphan = Case::dropped(
        "a fragment to this host without its first",
        piece(0x4002, 0x2010, &packet),
        DropReason::FragmentUnknown,
        bytes + 8,
    );
    let mut orphan = under(orphan, at(OWN));
    orphan.expected.passed_up = true;
    vec![
        relayed("a first fragment to this host", &first),
        passed(
            "a first fragment to another port of this host",
            piece(0x4003, 0x2000, &to_own(OWN, PORT + 1)),
        ),
        orphan,
    ]
}

fn local() -> Vec<Case> {
    let case = |name, local, passed_up, port| {
        let packet = Craft {
            source: socket("10.0.0.5", port),
            ..to_own(OWN, PORT)
        };
        let mut case = relayed(name, &packet);
        case.routes[0].1.local = local;
        case.expected.passed_up = passed_up;
        case
    };
    vec![
        case(
            "unicast with local=yes passes up",
            LocalDelivery::Yes,
            true,
            4101,
        ),
        case(
            "unicast with local=no is consumed",
            LocalDelivery::No,
            false,
            4102,
        ),
    ]
}

fn ipv6() -> Vec<Case> {
    let copy = |packet: &Craft, group: &str| Craft {
        source: socket("fd00:1::1", packet.source.port()),
        destination: socket(group, 6001),
        macs: (group_mac(address(group)), egress_mac(A)),
        ..packet.clone()
    };
    let to = |name, packet: &Craft, groups: Prefix, group: &str| {
        let egress = |egress: &mut Egress| {
            egress.destination = groups;
            egress.source = Some(address("fd00:1::1"));
        };
        let outputs: [(Output, Outlet); 1] = [changed(A, egress, copy(packet, group))];
        under(Case::relayed(name, packet.clone(), outputs), at(OWN6))
    };
    let one = Prefix::host(address("ff3e::a:1"));
    let packet = to_own(OWN6, PORT);
    let relayed = to("unicast to this host over IPv6", &packet, one, "ff3e::a:1");
    let passed = |name, packet| {
        let mut case = Case::passed(name, packet);
        case.routes[0].1.outputs.clear();
        case
    };
    let overheard = overheard(&packet);
    let overheard = passed("a frame for another host over IPv6", overheard);
    let mut limited = to("a sender of a network over IPv6", &packet, one, "ff3e::a:1");
    limited.routes[0].0.source = Some(Prefix::new(address("fd00::"), 64));
    let mut stranger = passed("another sender over IPv6", packet.clone().into());
    stranger.routes[0].0 = RouteKey {
        source: Some(Prefix::new(address("fd00:0:0:1::"), 64)),
        ..at(OWN6)
    };
    let groups = Prefix::new(address("ff3e::a:0"), 120);
    let numbered = to_own(OWN6, 7077);
    let mut numbered = to(
        "a port becomes its group over IPv6",
        &numbered,
        groups,
        "ff3e::a:4d",
    );
    numbered.routes[0].0.ports = Ports {
        first: 7000,
        last: 7255,
    };
    let grouped = Craft {
        destination: socket("ff3e::b:4d", 5000),
        macs: (group_mac(address("ff3e::b:4d")), [2, 0, 0, 0, 0, 0x99]),
        ..to_own(OWN6, 5000)
    };
    let unicast = Craft {
        destination: socket("fd00:9::9", 7077),
        macs: (ROUTER, egress_mac(A)),
        ..copy(&grouped, "ff3e::a:1")
    };
    let egress = |egress: &mut Egress| {
        let ports = Ports {
            first: 7000,
            last: 7255,
        };
        neighbour(egress, "fd00:9::9", ports);
        egress.source = Some(address("fd00:1::1"));
    };
    let outputs = [changed(A, egress, unicast)];
    let grouped = Case::relayed("a group becomes its port over IPv6", grouped, outputs);
    let groups_of = RouteKey {
        groups: Prefix::new(address("ff3e::b:0"), 120),
        ports: Ports::single(5000),
        ..key()
    };
    vec![
        relayed,
        under(overheard, at(OWN6)),
        limited,
        stranger,
        numbered,
        under(grouped, groups_of),
    ]
}
