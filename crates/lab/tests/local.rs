//! Local delivery: who on the relay's own host still hears a relayed stream.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::IpAddr;
use std::time::Duration;

use lab::bed::{Bed, INPUT, OUTPUT, PORT, RULE};
use lab::daemon::Options;
use lab::socket::Receiver;
use lab::topology::Chain;
use lab::wait;

const PATIENCE: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_millis(200);

lab::on_both_paths!(
    a_socket_of_the_host_gets_its_copy_also_when_it_binds_later,
    a_rule_that_says_no_keeps_the_stream_from_the_host,
);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn a_socket_of_the_host_gets_its_copy_also_when_it_binds_later(path: &str) {
    let bed = Bed::new(path).unwrap();
    bed.relay(10, 100).unwrap();

    let own = Receiver::join((&bed.chain.relay, "veth1"), bed.group(), PORT).unwrap();
    let mut sent = 10;
    // "From then on" leaves the relay a moment to see that the socket is there.
    wait::until("the host's socket hears the stream", || {
        bed.sender.send(bed.group(), PORT, b"probe").unwrap();
        sent += 1;
        own.receive(Duration::from_millis(20)).unwrap().is_some()
    })
    .unwrap();
    while own.receive(Duration::from_millis(50)).unwrap().is_some() {}
    let probes = bed.sink.collect(sent as usize - 10, PATIENCE).unwrap();
    assert_eq!(probes.len() as u64, sent - 10);

    bed.relay(20, 100).unwrap();
    let sources = own.expect(20, PATIENCE).unwrap();
    assert!(
        sources.iter().all(|source| source.ip() == ip("10.0.0.1")),
        "the host's own copy is the packet as it came"
    );
    bed.daemon.settled(RULE, sent + 20).unwrap();
}

fn a_rule_that_says_no_keeps_the_stream_from_the_host(path: &str) {
    let bed = Bed::without_rule(Chain::plain().unwrap(), Options::path(path)).unwrap();
    let own = Receiver::join((&bed.chain.relay, "veth1"), bed.group(), PORT).unwrap();
    bed.daemon
        .mcr(&["add", INPUT, OUTPUT, "--name", RULE, "--local", "no"])
        .unwrap();
    bed.relay(10, 100).unwrap();
    bed.daemon.settled(RULE, 10).unwrap();
    if path == "kernel" {
        own.expect_nothing(SILENCE).unwrap();
    }
}
