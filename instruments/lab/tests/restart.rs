//! The kernel path continues to forward and count while no process of MCR runs. What a load sees
//! of it: `hitless`.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::IpAddr;
use std::time::Duration;

use api::reply::State;
use lab::bed::{Bed, GROUP, OUTPUT, RULE};
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::namespace::Namespace;
use lab::socket::{Receiver, Sender};
use lab::topology::Chain;
use lab::wait;

#[test]
fn kernel_path_forwards_and_counts_while_the_daemon_is_dead() {
    let mut bed = Bed::new("kernel").unwrap();
    bed.relay(50, 100).unwrap();
    bed.daemon.kill().unwrap();
    bed.relay(50, 100).unwrap();
    bed.daemon.start_again().unwrap();
    bed.relay(50, 100).unwrap();
    let rule = bed.daemon.settled(RULE, 150).unwrap();
    assert_eq!(rule.outputs[0].sent.packets, 150);
    assert_eq!(bed.daemon.taken_over("found").unwrap(), 1);
}

#[test]
fn workers_forward_and_count_while_the_supervisor_is_dead() {
    let mut bed = Bed::new("userspace").unwrap();
    bed.relay(50, 100).unwrap();
    for round in 1..4 {
        bed.daemon.kill().unwrap();
        bed.relay(50, 100).unwrap();
        bed.daemon.start_again().unwrap();
        bed.relay(50, 100).unwrap();
        let rule = bed.daemon.settled(RULE, 50 + round * 100).unwrap();
        assert_eq!(rule.outputs[0].sent.packets, 50 + round * 100);
    }
}

lab::on_both_paths!(
    an_interface_made_anew_while_no_daemon_runs_is_relayed_from,
    what_a_daemon_of_another_namespace_left_is_made_anew,
    groups_that_the_kernel_forgot_are_joined_again,
);

/// Number of the input interface: the same in every namespace, whenever it is made.
const INDEX: u32 = 77;
const PATIENCE: Duration = Duration::from_secs(5);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Makes `in0`, the relay's link to `far`, which is always like the one before.
fn make_input(relay: &Namespace, far: &Namespace) {
    link::veth_with_index((relay, "in0"), (far, "in1"), INDEX).unwrap();
    link::address((relay, "in0"), "10.0.7.1/24").unwrap();
    link::address((far, "in1"), "10.0.7.2/24").unwrap();
    link::multicast_route((far, "in1")).unwrap();
}

/// Whether the kernel has the group on the link of that name.
fn joined(namespace: &Namespace, name: &str, group: &str) -> bool {
    let list = namespace.ip(&format!("maddr show dev {name}")).unwrap();
    list.split_whitespace().any(|word| word == group)
}

/// A daemon that relays from `in0`, and the namespace at the other end of `in0`.
fn relaying(chain: &Chain, path: &str) -> (Daemon, Namespace) {
    let far = Namespace::new("far").unwrap();
    make_input(&chain.relay, &far);
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let input = format!("{GROUP}%in0:5001");
    daemon.add(RULE, &input, &[OUTPUT]).unwrap();
    (daemon, far)
}

/// Sends from `far` and waits until all of it arrives at the sink.
fn relays(chain: &Chain, daemon: &Daemon, far: &Namespace) {
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let sender = Sender::open((far, "in1"), ip("10.0.7.2")).unwrap();
    sender.send_numbered(ip(GROUP), 5001, 20, 100).unwrap();
    let relayed = sink.expect(20, PATIENCE);
    relayed.unwrap_or_else(|error| panic!("{error}: {:?}", daemon.rule(RULE)));
    sink.expect_nothing(Duration::from_millis(100)).unwrap();
}

fn an_interface_made_anew_while_no_daemon_runs_is_relayed_from(path: &str) {
    let chain = Chain::plain().unwrap();
    let (mut daemon, far) = relaying(&chain, path);
    relays(&chain, &daemon, &far);
    daemon.kill().unwrap();
    link::delete((&chain.relay, "in0")).unwrap();
    make_input(&chain.relay, &far);
    assert!(!joined(&chain.relay, "in0", GROUP));
    daemon.start_again().unwrap();
    assert!(joined(&chain.relay, "in0", GROUP), "joined on the new one");
    relays(&chain, &daemon, &far);
}

fn what_a_daemon_of_another_namespace_left_is_made_anew(path: &str) {
    let (before, chain) = (Chain::plain().unwrap(), Chain::plain().unwrap());
    let (mut daemon, old) = relaying(&before, path);
    relays(&before, &daemon, &old);
    daemon.kill().unwrap();
    let far = Namespace::new("far").unwrap();
    make_input(&chain.relay, &far);
    daemon.start_again_in(&chain.relay).unwrap();
    assert!(joined(&chain.relay, "in0", GROUP), "joined here");
    relays(&chain, &daemon, &far);
    let is_left = || !joined(&before.relay, "in0", GROUP);
    wait::until("the group is left where nobody relays any more", is_left).unwrap();
    let sink = Receiver::join((&before.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let sender = Sender::open((&old, "in1"), ip("10.0.7.2")).unwrap();
    sender.send_numbered(ip(GROUP), 5001, 20, 100).unwrap();
    sink.expect_nothing(Duration::from_millis(100)).unwrap();
}

fn groups_that_the_kernel_forgot_are_joined_again(path: &str) {
    let group = "ff3e::1:1";
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let input = format!("[{group}%veth1]:5001");
    daemon
        .add(RULE, &input, &["[ff3e::2:1%veth2]:6001"])
        .unwrap();
    let joined = || joined(&chain.relay, "veth1", group);
    assert!(joined());
    // Too small for IPv6: the kernel drops the memberships, and the sockets still list them.
    for mtu in [1279, 1500] {
        let set = format!("link set veth1 mtu {mtu}");
        chain.relay.ip(&set).unwrap();
    }
    let again = wait::until("the group is joined again", joined);
    again.unwrap_or_else(|error| panic!("{error}: {:?}", daemon.stats()));
}

#[test]
fn what_an_interface_drops_that_went_down_while_no_daemon_ran_is_told() {
    let mut bed = Bed::new("kernel").unwrap();
    bed.relay(50, 100).unwrap();
    bed.daemon.kill().unwrap();
    link::down((&bed.chain.relay, "veth2")).unwrap();
    bed.sender
        .send_numbered(bed.group(), 5001, 200, 100)
        .unwrap();
    bed.sink.expect_nothing(Duration::from_millis(100)).unwrap();
    bed.daemon.start_again().unwrap();
    // Handed to the device, which counts its own drops.
    let rule = bed.daemon.settled(RULE, 250).unwrap();
    assert_eq!(rule.outputs[0].sent.packets, 250);
    assert_eq!(rule.outputs[0].state, State::Down);
    let link = wait::some_within(wait::PATIENCE, "the drops are told", || {
        let links = bed.daemon.stats().ok()?.egress;
        links.into_iter().find(|link| link.interface == "veth2")
    });
    assert!(link.unwrap().device_dropped >= 200);
    let table = bed.daemon.mcr(&["stats"]).unwrap();
    assert!(table.contains("behind MCR, veth2: 2"), "{table}");
}

#[test]
fn counters_of_a_rule_that_was_removed_do_not_come_back() {
    let mut bed = Bed::new("userspace").unwrap();
    bed.relay(50, 100).unwrap();
    bed.daemon.mcr(&["remove", RULE]).unwrap();
    bed.daemon.kill().unwrap();
    bed.daemon.start_again().unwrap();
    bed.daemon
        .add(RULE, lab::bed::INPUT, &[lab::bed::OUTPUT])
        .unwrap();
    bed.relay(50, 100).unwrap();
    bed.daemon.settled(RULE, 50).unwrap();
}

#[test]
fn restarts_of_workers_are_told_once() {
    let mut bed = Bed::new("userspace").unwrap();
    bed.daemon.kill_worker(0).unwrap();
    logged(&bed, "1 time so far");
    bed.daemon.kill().unwrap();
    bed.daemon.start_again().unwrap();
    bed.daemon.kill_worker(0).unwrap();
    let log = logged(&bed, "2 times so far");
    assert_eq!(log.matches("worker_restarted").count(), 2, "{log}");
}

/// Waits until the daemon's log has these words and hands it back.
fn logged(bed: &Bed, words: &str) -> String {
    wait::until(words, || bed.daemon.log().contains(words)).unwrap();
    bed.daemon.log()
}
