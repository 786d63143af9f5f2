//! Local delivery: who on the relay's own host still hears a relayed stream.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::IpAddr;
use std::time::Duration;

use lab::daemon::{Daemon, Options};
use lab::socket::{Receiver, Sender};
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
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["239.10.1.1%veth2:6001"])
        .unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 10, 100)
        .unwrap();
    sink.expect(10, PATIENCE).unwrap();

    let own = Receiver::join((&chain.relay, "veth1"), ip("239.1.1.1"), 5001).unwrap();
    let mut sent = 10;
    // "From then on" leaves the relay a moment to see that the socket is there.
    wait::until("the host's socket hears the stream", || {
        sender.send(ip("239.1.1.1"), 5001, b"probe").unwrap();
        sent += 1;
        own.receive(Duration::from_millis(20)).unwrap().is_some()
    })
    .unwrap();
    while own.receive(Duration::from_millis(50)).unwrap().is_some() {}
    let probes = sink.collect(sent as usize - 10, PATIENCE).unwrap();
    assert_eq!(probes.len() as u64, sent - 10);

    sender
        .send_numbered(ip("239.1.1.1"), 5001, 20, 100)
        .unwrap();
    let sources = own.expect(20, PATIENCE).unwrap();
    assert!(
        sources.iter().all(|source| source.ip() == ip("10.0.0.1")),
        "the host's own copy is the packet as it came"
    );
    sink.expect(20, PATIENCE).unwrap();
    daemon.settled("cam1", sent + 20).unwrap();
}

fn a_rule_that_says_no_keeps_the_stream_from_the_host(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let own = Receiver::join((&chain.relay, "veth1"), ip("239.1.1.1"), 5001).unwrap();
    daemon
        .mcr(&[
            "add",
            "239.1.1.1%veth1:5001",
            "239.10.1.1%veth2:6001",
            "--name",
            "cam1",
            "--local",
            "no",
        ])
        .unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 10, 100)
        .unwrap();
    sink.expect(10, PATIENCE).unwrap();
    daemon.settled("cam1", 10).unwrap();
    if path == "kernel" {
        own.expect_nothing(SILENCE).unwrap();
    }
}
