//! Ranges of groups and ports as one rule.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::IpAddr;
use std::time::Duration;

use lab::daemon::{Daemon, Options};
use lab::socket::{Receiver, Sender};
use lab::topology::Chain;

const PATIENCE: Duration = Duration::from_secs(5);

lab::on_both_paths!(groups_keep_their_host_bits, ports_keep_their_offset);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A group and a port.
type Address = (&'static str, u16);

fn relays(path: &str, input: &str, output: &str, pairs: &[(Address, Address)]) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon.add("range", input, &[output]).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    let mut sent = 0;
    for ((group, port), (to, to_port)) in pairs {
        let sink = Receiver::join((&chain.sink, "veth3"), ip(to), *to_port).unwrap();
        sender.send_numbered(ip(group), *port, 10, 100).unwrap();
        sink.expect(10, PATIENCE).unwrap();
        sent += 10;
    }
    daemon.settled("range", sent).unwrap();
}

fn groups_keep_their_host_bits(path: &str) {
    relays(
        path,
        "239.1.1.0/24%veth1:5001",
        "239.9.1.0/24%veth2:6001",
        &[
            (("239.1.1.0", 5001), ("239.9.1.0", 6001)),
            (("239.1.1.77", 5001), ("239.9.1.77", 6001)),
            (("239.1.1.255", 5001), ("239.9.1.255", 6001)),
        ],
    );
}

fn ports_keep_their_offset(path: &str) {
    relays(
        path,
        "239.1.1.1%veth1:5001-5150",
        "239.10.1.1%veth2:6001-6150",
        &[
            (("239.1.1.1", 5001), ("239.10.1.1", 6001)),
            (("239.1.1.1", 5042), ("239.10.1.1", 6042)),
            (("239.1.1.1", 5150), ("239.10.1.1", 6150)),
        ],
    );
}
