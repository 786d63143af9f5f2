//! The lab itself: what the tests rely on behaves as they assume.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::IpAddr;
use std::time::Duration;

use lab::link;
use lab::socket::{Receiver, Sender, udp_counters};
use lab::topology::{Chain, DualBridge, Pipeline};

const GROUP: &str = "239.1.1.1";
const SILENCE: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(5);

fn group() -> IpAddr {
    GROUP.parse().unwrap()
}

#[test]
fn a_snooping_chain_delivers_to_members_alone() {
    let chain = Chain::snooping().unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), "10.0.0.1".parse().unwrap()).unwrap();
    let before = link::statistics((&chain.relay, "veth1")).unwrap().received;
    sender.send_numbered(group(), 5001, 100, 64).unwrap();
    let after = link::statistics((&chain.relay, "veth1")).unwrap().received;
    assert!(after - before < 50, "unknown group was flooded");
    let receiver = Receiver::join((&chain.relay, "veth1"), group(), 5001).unwrap();
    let switch = chain.switch.as_ref().unwrap();
    link::wait_for_member((switch, "br0"), GROUP).unwrap();
    sender.send_numbered(group(), 5001, 100, 64).unwrap();
    receiver.expect(100, PATIENCE).unwrap();
}

#[test]
fn a_plain_chain_delivers_without_relay_only_to_the_relay() {
    let chain = Chain::plain().unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), "10.0.0.1".parse().unwrap()).unwrap();
    let relay = Receiver::join((&chain.relay, "veth1"), group(), 5001).unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), group(), 5001).unwrap();
    sender.send_numbered(group(), 5001, 10, 1400).unwrap();
    sender.send_segmented(group(), 5001, 10, 10, 1400).unwrap();
    relay.expect(20, PATIENCE).unwrap();
    sink.expect_nothing(SILENCE).unwrap();
    assert_eq!(udp_counters(&chain.relay).unwrap().bad_checksums, 0);
}

#[test]
fn ipv6_multicast_reaches_a_member() {
    let chain = Chain::plain().unwrap();
    let group: IpAddr = "ff1e::1".parse().unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), "fd00::1".parse().unwrap()).unwrap();
    let relay = Receiver::join((&chain.relay, "veth1"), group, 5001).unwrap();
    sender.send_numbered(group, 5001, 10, 100).unwrap();
    relay.expect(10, PATIENCE).unwrap();
}

#[test]
fn two_bridges_are_not_connected() {
    let bed = DualBridge::new(3).unwrap();
    let sender = Sender::open((&bed.sender, "veth0"), "10.0.0.1".parse().unwrap()).unwrap();
    let sink = Receiver::join((&bed.sinks[2], "veth3"), group(), 5001).unwrap();
    link::wait_for_member((&bed.right, "br1"), GROUP).unwrap();
    sender.send_numbered(group(), 5001, 10, 64).unwrap();
    sink.expect_nothing(SILENCE).unwrap();
}

#[test]
fn a_pipeline_has_its_addresses() {
    let bed = Pipeline::new(3).unwrap();
    let last = bed.relays[2].ip("-4 -o address show dev veth2").unwrap();
    assert!(last.contains("10.0.3.1/24"), "{last}");
}
