//! Networks whose querier never asks and whose switches forget: `rejoin` at an input.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::IpAddr;
use std::time::Duration;

use igmp::codec::{Message, RecordKind, Report, Version, read};
use lab::daemon::{Daemon, Options};
use lab::frame::FrameReceiver;
use lab::link;
use lab::namespace::Namespace;
use lab::socket::Sender;
use lab::topology::Chain;
use lab::wait;

lab::on_both_paths!(
    a_bridge_that_forgets_goes_on_delivering,
    what_is_reported_is_in_the_version_spoken_and_never_a_leave,
);

const OUTPUTS: [&str; 2] = ["239.10.1.1%veth2:6001", "[ff1e::10:1%veth2]:6001"];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Whether the bridge knows a member of a group.
fn knows(switch: &Namespace, group: &str) -> bool {
    let shown = switch.tool("bridge", "mdb show dev br0").unwrap();
    shown.contains(&format!("grp {group} "))
}

fn a_bridge_that_forgets_goes_on_delivering(path: &str) {
    let chain = Chain::snooping().unwrap();
    let switch = chain.switch.as_ref().unwrap();
    // It asks once an hour, and forgets after 6 s.
    let set = "link set br0 type bridge mcast_query_interval 360000 \
               mcast_startup_query_interval 360000 mcast_membership_interval 600";
    switch.ip(set).unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let rules = [
        ("any", "239.1.1.1%veth1:5001,rejoin=1s", "239.1.1.1", 5001),
        (
            "one",
            "10.0.0.1@232.1.1.1%veth1:5002,rejoin=1s",
            "232.1.1.1",
            5002,
        ),
        ("six", "[ff1e::1:1%veth1]:5003,rejoin=1s", "ff1e::1:1", 5003),
        ("none", "239.1.1.4%veth1:5004", "239.1.1.4", 5004),
        ("none6", "[ff1e::1:5%veth1]:5005", "ff1e::1:5", 5005),
    ];
    for (name, input, group, _) in rules {
        let output = OUTPUTS[usize::from(group.contains(':'))];
        daemon.add(name, input, &[output]).unwrap();
        link::wait_for_member((switch, "br0"), group).unwrap();
    }
    let patience = wait::scaled(Duration::from_secs(30));
    let has_forgotten = || !knows(switch, "239.1.1.4") && !knows(switch, "ff1e::1:5");
    wait::until_within(patience, "the bridge forgets", has_forgotten).unwrap();
    for (name, _, group, port) in rules {
        let from = if group.contains(':') {
            "fd00:0::1"
        } else {
            "10.0.0.1"
        };
        let sender = Sender::open((&chain.sender, "veth0"), ip(from)).unwrap();
        sender.send_numbered(ip(group), port, 100, 300).unwrap();
        if !name.starts_with("none") {
            daemon.settled(name, 100).unwrap();
        }
    }
    for name in ["none", "none6"] {
        assert_eq!(daemon.rule(name).unwrap().received.packets, 0, "{name}");
    }
}

fn what_is_reported_is_in_the_version_spoken_and_never_a_leave(path: &str) {
    let chain = Chain::plain().unwrap();
    let wire = FrameReceiver::open((&chain.sender, "veth0")).unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let patience = wait::scaled(Duration::from_secs(20));
    // The kernel reports a change twice, within 2 s; later reports are repetitions.
    let next = |version: Version, group: &str, kind: RecordKind, times: usize| {
        let mut count = 0;
        let matches = |report: &Report| {
            let mut records = report.records.iter();
            report.version == version
                && records.any(|record| record.group == ip(group) && record.kind == kind)
        };
        let is_enough = |frame: &[u8]| {
            let Ok(packet) = read(frame.get(14..).unwrap_or_default()) else {
                return false;
            };
            let Message::Report(report) = packet.message else {
                return false;
            };
            let leaves = |kind| matches!(kind, RecordKind::ToInclude | RecordKind::Block);
            assert!(
                !report.records.iter().any(|record| leaves(record.kind)),
                "{report:?}"
            );
            count += usize::from(matches(&report));
            count >= times
        };
        wire.receive(patience, is_enough).unwrap();
    };
    let any = [
        "239.1.1.1%veth1:5001,rejoin=1s",
        "[ff1e::1:1%veth1]:5001,rejoin=1s",
    ];
    for (name, input) in ["four", "six"].iter().zip(any) {
        let output = OUTPUTS[usize::from(input.contains('['))];
        daemon.add(name, input, &[output]).unwrap();
    }
    let one = "10.0.0.1@232.1.1.1%veth1:5002,rejoin=1s";
    daemon.add("one", one, &[OUTPUTS[0]]).unwrap();
    next(Version::V3, "239.1.1.1", RecordKind::IsExclude, 3);
    next(Version::V3, "ff1e::1:1", RecordKind::IsExclude, 3);
    next(Version::V3, "232.1.1.1", RecordKind::IsInclude, 3);
    chain
        .relay
        .sysctl("net/ipv4/conf/veth1/force_igmp_version", "2")
        .unwrap();
    chain
        .relay
        .sysctl("net/ipv6/conf/veth1/force_mld_version", "1")
        .unwrap();
    next(Version::V2, "239.1.1.1", RecordKind::IsExclude, 3);
    next(Version::V2, "ff1e::1:1", RecordKind::IsExclude, 3);
    chain
        .relay
        .sysctl("net/ipv4/conf/veth1/force_igmp_version", "1")
        .unwrap();
    next(Version::V1, "239.1.1.1", RecordKind::IsExclude, 3);
}
