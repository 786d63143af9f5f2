//! Outputs on demand: real receivers behind a snooping bridge, and nothing is sent, or joined, without a
//! listener.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod receivers;
mod side_by_side;
mod zapping;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use api::reply::{DemandStats, ListenerStats, RuleStats, State};
use igmp::codec::{Record, RecordKind, Report, Version, craft};
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::namespace::Namespace;
use lab::socket::{self, Receiver, Sender};
use lab::wait;
use packet::craft::group_mac;
use sys::group_socket::GroupSocket;

const PATIENCE: Duration = Duration::from_secs(10);
const PORT: u16 = 5000;
const RANGE: &str = "239.1.1.0/24%eth0:5000";
const OUTPUT: &str = "239.9.9.0/24%eth1:5000,demand=igmp,querier=yes";

lab::on_both_paths!(
    a_range_pulls_what_is_listened_to,
    a_group_ends_when_its_last_receiver_has_left,
    ordinary_outputs_are_served_always,
    an_interface_made_anew_is_listened_on,
);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A sender, relays between it and a switch that snoops, and receivers behind that.
struct Bed {
    sender: Namespace,
    switch: Namespace,
    relay: Namespace,
    receivers: [Namespace; 2],
}

impl Bed {
    /// The sender is 10.0.0.2 and fd00:0::2, the relay .1 of both networks, receivers .101 and .102.
    fn new() -> Self {
        let [sender, switch, relay] =
            ["sender", "switch", "relay"].map(|label| Namespace::new(label).unwrap());
        // The bridge's own queries would replace the relay's.
        let bridge =
            "link add br0 type bridge mcast_snooping 1 mcast_igmp_version 3 mcast_mld_version 2";
        switch.ip(bridge).unwrap();
        link::up((&switch, "br0")).unwrap();
        link::veth((&sender, "eth0"), (&relay, "eth0")).unwrap();
        let bed = Self {
            receivers: ["one", "two"].map(|label| Namespace::new(label).unwrap()),
            sender,
            switch,
            relay,
        };
        bed.number((&bed.sender, "eth0"), 0, 2);
        link::multicast_route((&bed.sender, "eth0")).unwrap();
        bed.number((&bed.relay, "eth0"), 0, 1);
        bed.plug((&bed.relay, "eth1"), "relay", 1);
        for (number, receiver) in (101..).zip(&bed.receivers) {
            bed.plug((receiver, "eth0"), &format!("p{number}"), number);
            link::multicast_route((receiver, "eth0")).unwrap();
        }
        bed
    }

    fn number(&self, end: link::End<'_>, network: u8, number: u8) {
        link::address(end, &format!("10.0.{network}.{number}/24")).unwrap();
        link::address(end, &format!("fd00:{network}::{number}/64")).unwrap();
    }

    fn plug(&self, end: link::End<'_>, port: &str, number: u8) {
        link::veth((&self.switch, port), end).unwrap();
        self.switch
            .ip(&format!("link set {port} master br0"))
            .unwrap();
        self.number(end, 1, number);
    }

    fn start(&self, path: &str, rules: &[(&str, &str, &[&str])]) -> Daemon {
        let daemon = Daemon::start(&self.relay, Options::path(path)).unwrap();
        for (name, input, outputs) in rules {
            daemon.add(name, input, outputs).unwrap();
        }
        daemon
    }

    fn join(&self, receiver: usize, group: &str) -> Receiver {
        let end = (&self.receivers[receiver], "eth0");
        Receiver::join(end, ip(group), PORT).unwrap()
    }

    /// Sends to a group every two milliseconds until it is dropped.
    fn stream(&self, source: &str, groups: &[&str]) -> Stream {
        let sender = Sender::open((&self.sender, "eth0"), ip(source)).unwrap();
        let groups: Vec<IpAddr> = groups.iter().map(|group| ip(group)).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let work = std::thread::spawn(move || {
            let mut sent = 0;
            while !stopped.load(Ordering::Relaxed) {
                for group in &groups {
                    sender
                        .send(*group, PORT, &socket::payload(sent, 100))
                        .unwrap();
                }
                sent += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
            sent
        });
        Stream {
            stop,
            work: Some(work),
        }
    }

    /// The groups of 239.1.0.0/16 that the relay has joined on its input.
    fn pulled(&self) -> Vec<String> {
        let list = self.relay.ip("maddr show dev eth0").unwrap();
        let words = list
            .split_whitespace()
            .filter(|word| word.starts_with("239.1."));
        let mut groups: Vec<String> = words.map(str::to_owned).collect();
        groups.sort();
        groups
    }
}

/// A continuous stream.
struct Stream {
    stop: Arc<AtomicBool>,
    work: Option<JoinHandle<u64>>,
}

impl Stream {
    /// Ends it; returns how many packets were sent to each group.
    fn end(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.work.take().unwrap().join().unwrap()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn wants(count: u64) -> impl FnMut(&RuleStats) -> bool {
    move |rule| rule.outputs[0].wanted == Some(count)
}

fn listeners(daemon: &Daemon, rule: &str) -> Vec<ListenerStats> {
    let text = daemon.mcr(&["show", rule, "--json"]).unwrap();
    let shown: serde_json::Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(shown["listeners"].clone()).unwrap()
}

fn standing(daemon: &Daemon, protocol: &str) -> DemandStats {
    let mut links = daemon.stats().unwrap().demand.into_iter();
    links.find(|link| link.protocol == protocol).unwrap()
}

fn a_range_pulls_what_is_listened_to(path: &str) {
    let bed = Bed::new();
    let daemon = bed.start(path, &[("tv", RANGE, &[OUTPUT])]);
    let idle = daemon.wait_for("tv", "it is idle", wants(0)).unwrap();
    assert_eq!((idle.word(), idle.state), ("idle", State::Up));
    assert_eq!(bed.pulled(), Vec::<String>::new());
    let stream = bed.stream(
        "10.0.0.2",
        &["239.1.1.1", "239.1.1.2", "239.1.1.3", "239.1.1.200"],
    );
    let sinks = [
        (0, "239.9.9.1"),
        (0, "239.9.9.2"),
        (1, "239.9.9.2"),
        (1, "239.9.9.3"),
    ]
    .map(|(receiver, group)| bed.join(receiver, group));
    for sink in &sinks {
        let datagram = sink
            .receive(PATIENCE)
            .unwrap()
            .expect("what is listened to comes");
        assert_eq!(datagram.from.ip(), ip("10.0.1.1"));
    }
    assert_eq!(bed.pulled(), ["239.1.1.1", "239.1.1.2", "239.1.1.3"]);
    let rule = daemon.wait_for("tv", "three are wanted", wants(3)).unwrap();
    assert_eq!(rule.outputs[0].members, Some(2));
    assert!(
        rule.inputs[0].joined && rule.outputs[0].dropped["not_wanted"] > 0,
        "{rule:?}"
    );
    let listeners = listeners(&daemon, "tv");
    let summary: Vec<(&str, &str, &str)> = listeners
        .iter()
        .map(|host| {
            (
                host.group.as_str(),
                host.host.as_str(),
                host.protocol.as_str(),
            )
        })
        .collect();
    assert_eq!(
        summary,
        [
            ("239.9.9.1", "10.0.1.101", "igmpv3"),
            ("239.9.9.2", "10.0.1.101", "igmpv3"),
            ("239.9.9.2", "10.0.1.102", "igmpv3"),
            ("239.9.9.3", "10.0.1.102", "igmpv3"),
        ]
    );
    stream.end();
    drop(sinks);
    let rule = daemon.wait_for("tv", "nobody listens", wants(0)).unwrap();
    assert_eq!((rule.word(), rule.state), ("idle", State::Up));
    wait::until("nothing is pulled", || bed.pulled().is_empty()).unwrap();
    daemon.settled("tv", rule.received.packets).unwrap();
    let status = daemon.mcr(&["status"]).unwrap();
    assert!(
        status.contains("1 idle") && !status.contains("tv:"),
        "{status}"
    );
}

fn a_group_ends_when_its_last_receiver_has_left(path: &str) {
    let bed = Bed::new();
    let daemon = bed.start(
        path,
        &[(
            "tv",
            "239.1.1.1%eth0:5000",
            &["239.9.9.1%eth1:5000,demand=igmp,querier=yes"],
        )],
    );
    let sinks = [0, 1].map(|receiver| bed.join(receiver, "239.9.9.1"));
    daemon
        .wait_for("tv", "both are known", |rule| {
            rule.outputs[0].members == Some(2)
        })
        .unwrap();
    // Listeners are registered before the output follows.
    daemon.wait_for("tv", "it is wanted", wants(1)).unwrap();
    let [first, second] = sinks;
    drop(first);
    daemon
        .wait_for("tv", "one is left", |rule| {
            rule.outputs[0].members == Some(1)
        })
        .unwrap();
    let last_left = Instant::now();
    drop(second);
    daemon.wait_for("tv", "nobody is left", wants(0)).unwrap();
    // Two queries, a second apart, and a second to answer the last.
    assert!(
        last_left.elapsed() > Duration::from_millis(1500),
        "{:?}",
        last_left.elapsed()
    );
    wait::until("the group is left", || bed.pulled().is_empty()).unwrap();
}

fn ordinary_outputs_are_served_always(path: &str) {
    let bed = Bed::new();
    let always = "239.8.8.0/24%eth1:6000";
    let daemon = bed.start(path, &[("tv", RANGE, &[OUTPUT, always])]);
    let rule = daemon
        .wait_for("tv", "it is up", |rule| rule.inputs[0].joined)
        .unwrap();
    assert_eq!(rule.word(), "waiting", "nobody has sent yet");
    let sender = Sender::open((&bed.sender, "eth0"), ip("10.0.0.2")).unwrap();
    sender
        .send_numbered(ip("239.1.1.5"), PORT, 10, 100)
        .unwrap();
    let rule = daemon.settled("tv", 10).unwrap();
    let [demanded, always] = &rule.outputs[..] else {
        panic!("{rule:?}");
    };
    assert_eq!(
        (demanded.sent.packets, demanded.dropped["not_wanted"]),
        (0, 10)
    );
    assert_eq!(always.sent.packets, 10);
    let sink = bed.join(0, "239.9.9.5");
    daemon.wait_for("tv", "one is wanted", wants(1)).unwrap();
    sender
        .send_numbered(ip("239.1.1.5"), PORT, 10, 100)
        .unwrap();
    sink.expect(10, PATIENCE).unwrap();
    let rule = daemon.settled("tv", 20).unwrap();
    assert_eq!(
        (rule.outputs[0].sent.packets, rule.outputs[1].sent.packets),
        (10, 20)
    );
}

fn an_interface_made_anew_is_listened_on(path: &str) {
    let bed = Bed::new();
    let daemon = bed.start(path, &[("tv", RANGE, &[OUTPUT])]);
    let sink = bed.join(0, "239.9.9.1");
    daemon.wait_for("tv", "one is wanted", wants(1)).unwrap();
    let index = link::index((&bed.relay, "eth1")).unwrap();
    link::delete((&bed.relay, "eth1")).unwrap();
    daemon
        .wait_for("tv", "its output is down", |rule| {
            rule.outputs[0].state == State::Down
        })
        .unwrap();
    link::veth_with_index((&bed.relay, "eth1"), (&bed.switch, "again"), index).unwrap();
    bed.switch.ip("link set again master br0").unwrap();
    bed.number((&bed.relay, "eth1"), 1, 1);
    let stream = bed.stream("10.0.0.2", &["239.1.1.1"]);
    // Listeners are queried again.
    wait::until_within(Duration::from_secs(30), "it comes again", || {
        sink.receive(Duration::from_millis(100)).unwrap().is_some()
    })
    .unwrap();
    drop(stream);
}

#[test]
fn members_are_served_while_the_daemon_is_dead_and_by_the_next_one() {
    let bed = Bed::new();
    let mut daemon = bed.start("kernel", &[("tv", RANGE, &[OUTPUT])]);
    let sink = bed.join(0, "239.9.9.1");
    daemon.wait_for("tv", "one is wanted", wants(1)).unwrap();
    let record = std::path::Path::new("/run/mcr")
        .join(daemon.instance())
        .join("listening.json");
    wait::until("it is written down", || {
        std::fs::read_to_string(&record).is_ok_and(|text| text.contains("239.9.9.1"))
    })
    .unwrap();
    let stream = bed.stream("10.0.0.2", &["239.1.1.1"]);
    let mut numbers = Vec::new();
    let mut take = |count| {
        for _ in 0..count {
            let datagram = sink.receive(PATIENCE).unwrap().expect("the stream goes on");
            numbers.push(socket::number(&datagram.payload).unwrap());
        }
    };
    take(100);
    daemon.kill().unwrap();
    take(300);
    daemon.start_again().unwrap();
    assert_eq!(bed.pulled(), ["239.1.1.1"]);
    take(300);
    // Hosts are registered again once they have answered.
    daemon
        .wait_for("tv", "the host has answered", |rule| {
            rule.outputs[0].members == Some(1)
        })
        .unwrap();
    let first = numbers[0];
    let expected: Vec<u64> = (first..first + numbers.len() as u64).collect();
    assert_eq!(numbers, expected, "nothing is lost");
    stream.end();
}

#[test]
fn the_lower_address_asks() {
    let bed = Bed::new();
    let other = Namespace::new("other").unwrap();
    bed.plug((&other, "eth1"), "other", 200);
    let rule: [(&str, &str, &[&str]); 1] = [("tv", RANGE, &[OUTPUT])];
    let high = Daemon::start(&other, Options::path("userspace")).unwrap();
    high.add("tv", RANGE, &[OUTPUT]).unwrap();
    wait::until("it asks, being alone", || {
        standing(&high, "igmp").is_querier
    })
    .unwrap();
    let low = bed.start("userspace", &rule);
    wait::until("it leaves that to the lower address", || {
        let standing = standing(&high, "igmp");
        !standing.is_querier && standing.querier.as_deref() == Some("10.0.1.1")
    })
    .unwrap();
    assert!(standing(&low, "igmp").is_querier);
    // Both receive reports of listeners, and of leaves when the other one queries.
    let sink = bed.join(0, "239.9.9.1");
    for daemon in [&low, &high] {
        daemon.wait_for("tv", "one is wanted", wants(1)).unwrap();
    }
    drop(sink);
    for daemon in [&low, &high] {
        daemon.wait_for("tv", "none is wanted", wants(0)).unwrap();
    }
}

#[test]
fn a_flood_of_reports_fills_no_more_than_its_room() {
    const MOST: u64 = 4096;
    let bed = Bed::new();
    let range = "239.1.0.0/16%eth0:5000";
    let output = "239.9.0.0/16%eth1:5000,demand=igmp,querier=yes";
    let daemon = bed.start("userspace", &[("tv", range, &[output])]);
    let host = &bed.receivers[0];
    let index = link::index((host, "eth0")).unwrap();
    let socket = host.run(|| Ok(GroupSocket::open(index, true)?)).unwrap();
    let groups: Vec<IpAddr> = (0..MOST as u32 + 500)
        .map(|n| Ipv4Addr::from(0xef09_0000 + n).into())
        .collect();
    for groups in groups.chunks(100) {
        let records = groups.iter().map(|group| Record {
            kind: RecordKind::ToExclude,
            group: *group,
            sources: Vec::new(),
        });
        let report = Report {
            version: Version::V3,
            records: records.collect(),
        };
        let (to, packet) = craft::report(ip("10.0.1.101"), &report).unwrap();
        socket.send(group_mac(to), &packet).unwrap();
    }
    wait::until("what is too much is counted", || {
        standing(&daemon, "igmp").refused > 0
    })
    .unwrap();
    let standing = standing(&daemon, "igmp");
    assert!(standing.groups <= MOST, "{standing:?}");
    let events = daemon.log();
    assert!(events.contains("no room for"), "{events}");
    // Others are served as before.
    daemon
        .add("cam1", "239.200.1.1%eth0:5000", &["239.201.1.1%eth1:5000"])
        .unwrap();
    let cam1 = daemon.wait_for("cam1", "it is up", |rule| rule.inputs[0].joined);
    cam1.unwrap();
}

#[test]
fn what_lingers_stays_joined_after_the_last_host_left() {
    let bed = Bed::new();
    let output = "239.9.9.0/24%eth1:5000,demand=igmp,querier=yes,linger=4s";
    let daemon = bed.start("userspace", &[("tv", RANGE, &[output])]);
    let sink = bed.join(0, "239.9.9.1");
    daemon.wait_for("tv", "one is wanted", wants(1)).unwrap();
    wait::until("it is pulled", || bed.pulled() == ["239.1.1.1"]).unwrap();
    drop(sink);
    daemon.wait_for("tv", "none is wanted", wants(0)).unwrap();
    assert_eq!(bed.pulled(), ["239.1.1.1"], "it lingers");
    // A host that returns finds it joined, and it lingers again.
    let sink = bed.join(0, "239.9.9.1");
    daemon
        .wait_for("tv", "one is wanted again", wants(1))
        .unwrap();
    drop(sink);
    daemon
        .wait_for("tv", "none is wanted again", wants(0))
        .unwrap();
    wait::until("its time is over", || bed.pulled().is_empty()).unwrap();
}
