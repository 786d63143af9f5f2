//! VLAN: a tagged frame seen on the parent never matches an untagged rule.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use lab::daemon::{Daemon, Options};
use lab::frame::FrameSender;
use lab::socket::{self, Receiver};
use lab::topology::Chain;
use packet::craft::Craft;

const PATIENCE: Duration = Duration::from_secs(5);

lab::on_both_paths!(a_tagged_frame_matches_no_untagged_rule);

fn a_tagged_frame_matches_no_untagged_rule(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["239.10.1.1%veth2:6001"])
        .unwrap();
    let group: IpAddr = "239.10.1.1".parse().unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), group, 6001).unwrap();
    let wire = FrameSender::open((&chain.sender, "veth0")).unwrap();
    let source: SocketAddr = "10.0.0.1:4000".parse().unwrap();
    let destination: SocketAddr = "239.1.1.1:5001".parse().unwrap();
    let frame = |number| Craft::new(source, destination, socket::payload(number, 100)).frame();
    // 802.1Q and 802.1ad. A priority tag names no VLAN: its frame is taken, as the host's stack takes it.
    let priority = [0x81, 0x00, 0xe0, 0];
    for tag in [[0x81, 0x00, 0x00, 7], [0x88, 0xa8, 0x00, 7], priority] {
        let tagged = [&frame(0)[..12], &tag, &frame(0)[12..]].concat();
        wire.send(&tagged).unwrap();
    }
    wire.send(&frame(1)).unwrap();
    sink.expect(2, PATIENCE).unwrap();
    daemon.settled("cam1", 2).unwrap();
}
