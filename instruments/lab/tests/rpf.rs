//! Reverse-path filtering: a source that no route leads back to is relayed, from an address that
//! the receiving network can route back to.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::IpAddr;
use std::time::Duration;

use lab::daemon::{Daemon, Options};
use lab::link;
use lab::socket::{Receiver, Sender};
use lab::topology::Chain;

const PATIENCE: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_millis(200);

lab::on_both_paths!(relays_a_source_that_no_route_leads_back_to);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn relays_a_source_that_no_route_leads_back_to(path: &str) {
    let chain = Chain::plain().unwrap();
    for place in ["all", "veth1"] {
        let key = format!("net/ipv4/conf/{place}/rp_filter");
        chain.relay.sysctl(&key, "1").unwrap();
    }
    let strange = ip("192.0.2.77");
    link::address((&chain.sender, "veth0"), "192.0.2.77/32").unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), strange).unwrap();

    // A socket on the relay shows that the kernel itself refuses the source.
    let refused = Receiver::join((&chain.relay, "veth1"), ip("239.1.1.9"), 5009).unwrap();
    sender
        .send_numbered(ip("239.1.1.9"), 5009, 10, 100)
        .unwrap();
    refused.expect_nothing(SILENCE).unwrap();

    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["239.10.1.1%veth2:6001"])
        .unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 100, 100)
        .unwrap();
    let sources = sink.expect(100, PATIENCE).unwrap();
    assert!(sources.iter().all(|source| source.ip() == ip("10.0.1.1")));
    daemon.settled("cam1", 100).unwrap();
}
