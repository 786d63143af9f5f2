//! Many rules and many groups at the kernel's default limits.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use lab::accounting;
use lab::capture::wait_for_received;
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::namespace::Namespace;
use lab::socket::{Receiver, Sender};
use lab::topology::Chain;

const PATIENCE: Duration = Duration::from_secs(10);
/// Packets on their way at one time: the kernel's own queues hold 1000, those of every other test
/// included.
const IN_FLIGHT: u64 = 100;

lab::on_both_paths!(
    one_hundred_and_fifty_rules,
    five_hundred_groups_with_default_sysctls,
);

fn input(stream: u16) -> (IpAddr, u16) {
    let group = Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(239, 1, 1, 0)) + u32::from(stream));
    (group.into(), 5000 + stream)
}

fn output(stream: u16) -> (IpAddr, u16) {
    let group = Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(239, 10, 1, 0)) + u32::from(stream));
    (group.into(), 6000 + stream)
}

fn config(streams: u16) -> String {
    let rules = (1..=streams).map(|stream| {
        let ((from, from_port), (to, to_port)) = (input(stream), output(stream));
        format!(
            "[[rule]]\nname = \"s{stream}\"\ninput = \"{from}%veth1:{from_port}\"\n\
             outputs = [\"{to}%veth2:{to_port}\"]\n"
        )
    });
    std::iter::once("version = 1\n".to_owned())
        .chain(rules)
        .collect()
}

fn one_hundred_and_fifty_rules(path: &str) {
    relay_streams(path, 150, 20);
}

fn five_hundred_groups_with_default_sysctls(path: &str) {
    relay_streams(path, 500, 5);
}

fn relay_streams(path: &str, streams: u16, packets: u64) {
    let chain = Chain::snooping().unwrap();
    assert_eq!(membership_limit(&chain.relay), "20");
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon.apply(&config(streams)).unwrap();
    let stats = daemon.stats().unwrap();
    assert_eq!(stats.rules.len(), usize::from(streams));
    assert!(stats.rules.iter().all(|rule| rule.inputs[0].joined));

    let receivers: Vec<_> = (1..=streams)
        .map(|stream| {
            let (group, port) = output(stream);
            Receiver::join((&chain.sink, "veth3"), group, port).unwrap()
        })
        .collect();
    let switch = chain.switch.as_ref().unwrap();
    lab::wait::until("the bridge knows every group", || {
        let shown = switch.tool("bridge", "mdb show dev br0").unwrap();
        shown.matches("grp 239.1.").count() == usize::from(streams)
    })
    .unwrap();

    let sender = Sender::open((&chain.sender, "veth0"), "10.0.0.1".parse().unwrap()).unwrap();
    let end = (&chain.sink, "veth3");
    let before = link::statistics(end).unwrap().received;
    let mut sent = 0;
    for number in 0..packets {
        for stream in 1..=streams {
            let (group, port) = input(stream);
            let payload = lab::socket::payload(number, 100);
            sender.send(group, port, &payload).unwrap();
            sent += 1;
            if sent % IN_FLIGHT == 0 {
                wait_for_received(end, before, sent).unwrap();
            }
        }
    }
    for receiver in &receivers {
        receiver.expect(packets, PATIENCE).unwrap();
    }
    let stats = daemon.stats().unwrap();
    accounting::check(&stats).unwrap();
    assert!(
        stats
            .rules
            .iter()
            .all(|rule| rule.received.packets == packets)
    );
}

fn membership_limit(namespace: &Namespace) -> String {
    namespace
        .run(|| {
            Ok(std::fs::read_to_string(
                "/proc/sys/net/ipv4/igmp_max_memberships",
            )?)
        })
        .unwrap()
        .trim()
        .to_owned()
}
