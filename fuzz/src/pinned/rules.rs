//! The rules that the maps hold, the rules they change to, and a packet for each route.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use compile::table::{
    Egress, FailoverLegs, LinkHeader, LocalDelivery, MergeLegs, Output, OutputState, Path,
    RateLimit, RateUnit, Route, RouteKey, Table, Ttl,
};
use packet::craft::Craft;
use rules::failover::Failover;
use rules::health::Inspect;
use rules::merge::Merge;
use rules::net::{Ifindex, Mac, Ports, Prefix};

/// An interface that is down, so that no relayed packet leaves.
pub(super) const INTERFACE: Ifindex = Ifindex(100);
/// The rule whose inputs stand by for each other, and their groups.
pub(super) const FAILOVER: (&str, [&str; 2]) = ("lines", ["239.1.3.1", "239.1.3.2"]);
/// The groups of the rule whose inputs are merged.
pub(super) const MERGED: [&str; 2] = ["239.1.5.1", "239.1.5.2"];
const PORT: u16 = 5001;
const SENDER: &str = "10.0.0.1";
const SENDER6: &str = "fd00::1";

/// A table with every kind of route, and the table it changes to: some routes stay, some are removed,
/// some are added, some change.
pub(super) fn tables() -> [Table; 2] {
    let stays = || {
        let (rule, lines) = FAILOVER;
        let lines = lines.map(|line| (key(line, PORT), stands_by(rule, line)));
        let watched = Route {
            inspect: Some(Inspect::default()),
            ..route("watched", &["ff15::1:1"])
        };
        let specific = RouteKey {
            source: Some(address(SENDER).into()),
            ..key("239.1.4.1", PORT)
        };
        let merged = MERGED.map(|line| (key(line, PORT), merges(line)));
        let others = [
            (key("ff15::1", PORT), watched),
            (specific, route("specific", &["239.10.4.1"])),
        ];
        lines.into_iter().chain(merged).chain(others)
    };
    let range = RouteKey {
        groups: Prefix::new(address("239.1.2.0"), 24),
        ports: Ports {
            first: 5002,
            last: 5010,
        },
        ..key("239.1.2.0", PORT)
    };
    let first = [
        (key("239.1.1.1", PORT), limited("goes")),
        (range, route("range", &["239.10.2.1"])),
    ];
    let second = [
        (key("239.1.1.2", PORT), limited("comes")),
        (range, route("range", &["239.11.2.1", "239.11.2.2"])),
    ];
    [first, second].map(|own| Table {
        routes: stays().chain(own).collect(),
        own_addresses: [address("10.0.1.1")].into_iter().collect(),
        budget: None,
    })
}

/// Packets for each route that is not a leg's, and for none.
pub(super) fn packets() -> Vec<Vec<u8>> {
    let destinations = [
        ("239.1.1.1", PORT),
        ("239.1.1.2", PORT),
        ("239.1.2.9", 5007),
        ("239.1.4.1", PORT),
        ("239.1.4.1", PORT + 1),
    ];
    let ipv4 = destinations.map(|(group, port)| frame(SENDER, group, port));
    let others = [
        frame("10.0.0.2", "239.1.4.1", PORT),
        frame("10.0.1.1", "239.1.1.1", PORT),
        frame(SENDER6, "ff15::1", PORT),
    ];
    ipv4.into_iter().chain(others).collect()
}

/// A packet of a leg.
pub(super) fn packet_of(line: &str) -> Vec<u8> {
    frame(SENDER, line, PORT)
}

fn frame(source: &str, group: &str, port: u16) -> Vec<u8> {
    // The fixed part of RTP (RFC 3550 section 5.1).
    let payload = [0x80, 33, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 7, 7, 7, 7];
    with_payload(source, group, port, &payload)
}

fn with_payload(source: &str, group: &str, port: u16, payload: &[u8]) -> Vec<u8> {
    let from = SocketAddr::new(address(source), 5000);
    let to = SocketAddr::new(address(group), port);
    Craft::new(from, to, payload.to_vec()).frame()
}

fn key(group: &str, port: u16) -> RouteKey {
    RouteKey {
        ingress: INTERFACE,
        groups: Prefix::host(address(group)),
        ports: Ports::single(port),
        source: None,
    }
}

fn limited(rule: &str) -> Route {
    let limit = Some(RateLimit {
        unit: RateUnit::Packets,
        rate: 1_000_000,
        burst: 1_000_000,
    });
    let mut route = route(rule, &["239.10.1.1", "239.10.1.2"]);
    route.outputs[0].limit = limit;
    Route { limit, ..route }
}

/// A packet with that number.
pub(super) fn numbered(line: &str, number: u16) -> Vec<u8> {
    let [high, low] = number.to_be_bytes();
    let payload = [0x80, 33, high, low, 0, 0, 0, 1, 0, 0, 0, 1, 7, 7, 7, 7];
    with_payload(SENDER, line, PORT, &payload)
}

/// A leg that is merged.
fn merges(line: &str) -> Route {
    let merge = MergeLegs {
        how: Merge {
            window: Duration::from_millis(1),
            ..Merge::default()
        },
        lines: MERGED.map(str::to_owned).to_vec(),
    };
    Route {
        input: Some(line.to_owned()),
        merge: Some(Box::new(merge)),
        ..route("merged", &["239.10.5.1"])
    }
}

/// A leg that counts as silent as soon as possible.
fn stands_by(rule: &str, line: &str) -> Route {
    let (_, lines) = FAILOVER;
    let when = Failover {
        silence: Duration::from_nanos(1),
        ..Failover::default()
    };
    Route {
        input: Some(line.to_owned()),
        failover: Some(Box::new(FailoverLegs {
            when,
            lines: lines.map(str::to_owned).to_vec(),
        })),
        ..route(rule, &["239.10.3.1"])
    }
}

fn route(rule: &str, groups: &[&str]) -> Route {
    let outputs = groups.iter().zip(0..);
    Route {
        rule: rule.to_owned(),
        input: None,
        path: Path::Kernel,
        local: LocalDelivery::No,
        limit: None,
        failover: None,
        merge: None,
        share: None,
        inspect: None,
        outputs: outputs.map(|(group, index)| output(index, group)).collect(),
    }
}

fn output(index: u32, group: &str) -> Output {
    let to = address(group);
    let own = if to.is_ipv4() {
        "10.0.1.1"
    } else {
        "fd00:1::1"
    };
    Output {
        index: index.into(),
        to: format!("{group}%lo:6001"),
        state: OutputState::Up(Egress {
            interface: INTERFACE,
            link: LinkHeader::Group {
                source: Mac([2, 0, 0, 0, 0, 1]),
            },
            mtu: 1500,
            destination: Prefix::host(to),
            ports: Ports::single(6001),
            source: Some(address(own)),
            source_port: None,
            ttl: Ttl::Keep,
            dscp: None,
            fragment: false,
            framed: false,
            answers: false,
            answers_by_socket: false,
        }),
        limit: None,
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("addresses here are addresses")
}
