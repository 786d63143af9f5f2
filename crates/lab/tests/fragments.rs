//! Fragments: relayed when they come, made where a rule allows it.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::IpAddr;
use std::time::Duration;

use lab::daemon::{Daemon, Options};
use lab::link;
use lab::socket::{Receiver, Sender, udp_counters};
use lab::topology::Chain;

const PATIENCE: Duration = Duration::from_secs(5);

lab::on_both_paths!(a_datagram_in_fragments_is_whole_at_the_sink);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn a_datagram_in_fragments_is_whole_at_the_sink(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["239.10.1.1%veth2:6001"])
        .unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 20, 4000)
        .unwrap();
    sink.expect(20, PATIENCE).unwrap();
    assert_eq!(udp_counters(&chain.sink).unwrap().bad_checksums, 0);
    let stats = daemon.stats().unwrap();
    lab::accounting::check(&stats).unwrap();
}

#[test]
fn a_rule_that_allows_it_fragments_for_a_smaller_mtu() {
    let chain = Chain::plain().unwrap();
    for end in [(&chain.relay, "veth2"), (&chain.sink, "veth3")] {
        end.0.ip(&format!("link set {} mtu 1000", end.1)).unwrap();
    }
    let daemon = Daemon::start(&chain.relay, Options::path("auto")).unwrap();
    let output = ["239.10.1.1%veth2:6001,fragment=yes"];
    daemon.add("cam1", "239.1.1.1%veth1:5001", &output).unwrap();
    assert_eq!(daemon.rule("cam1").unwrap().path, "userspace");
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    // Sockets opened before this sysctl set DF, those after it leave it clear.
    let careful = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    chain
        .sender
        .sysctl("net/ipv4/ip_no_pmtu_disc", "1")
        .unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 20, 1400)
        .unwrap();
    sink.expect(20, PATIENCE).unwrap();
    let smaller = link::statistics((&chain.sink, "veth3")).unwrap();
    assert!(smaller.received >= 40, "{smaller:?}");
    daemon.settled("cam1", 20).unwrap();

    careful
        .send_numbered(ip("239.1.1.1"), 5001, 5, 1400)
        .unwrap();
    let rule = daemon.settled("cam1", 25).unwrap();
    assert_eq!(rule.outputs[0].dropped["too_big"], 5);
}
