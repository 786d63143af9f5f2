//! Checksums are valid at a real UDP socket, whatever state they arrive in.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use lab::daemon::{Daemon, Options};
use lab::frame::{FrameReceiver, FrameSender};
use lab::link;
use lab::socket::{self, Receiver, Sender, udp_counters};
use lab::topology::Chain;
use packet::craft::{Craft, CraftChecksum};
use sys::packet_socket::VnetHeader;

const PATIENCE: Duration = Duration::from_secs(5);

lab::on_both_paths!(
    valid_from_a_packet_socket,
    valid_from_a_packet_socket_that_left_them_partial,
    zero_stays_zero,
    valid_from_a_udp_socket,
    valid_from_a_segmenting_socket_where_the_egress_cannot_segment,
    valid_from_a_segmenting_socket_where_the_egress_can,
    valid_from_a_segmenting_socket_at_three_outputs,
);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

struct Bed {
    chain: Chain,
    daemon: Daemon,
    sink: Receiver,
}

impl Bed {
    fn new(path: &str) -> Self {
        let chain = Chain::plain().unwrap();
        let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
        daemon
            .add("cam1", "239.1.1.1%veth1:5001", &["239.10.1.1%veth2:6001"])
            .unwrap();
        let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
        Self {
            chain,
            daemon,
            sink,
        }
    }

    fn expect(&self, count: u64, size: u64) {
        self.sink.expect(count, PATIENCE).unwrap();
        assert_eq!(udp_counters(&self.chain.sink).unwrap().bad_checksums, 0);
        let rule = self.daemon.settled("cam1", count).unwrap();
        assert_eq!(rule.received.bytes, count * size);
        assert_eq!(rule.outputs[0].sent.bytes, count * size);
    }

    fn udp_sender(&self) -> Sender {
        Sender::open((&self.chain.sender, "veth0"), ip("10.0.0.1")).unwrap()
    }
}

fn craft(number: u64, size: usize, checksum: CraftChecksum) -> Vec<u8> {
    let source: SocketAddr = "10.0.0.1:4000".parse().unwrap();
    let destination: SocketAddr = "239.1.1.1:5001".parse().unwrap();
    let mut craft = Craft::new(source, destination, socket::payload(number, size));
    craft.checksum = checksum;
    craft.frame()
}

fn valid_from_a_packet_socket(path: &str) {
    let bed = Bed::new(path);
    let sender = FrameSender::open((&bed.chain.sender, "veth0")).unwrap();
    // Every remainder of the length, odd ones too: the sum runs over 16-bit words.
    for number in 0..64 {
        let size = 100 + number as usize;
        let frame = craft(number, size, CraftChecksum::Complete);
        sender.send(&frame).unwrap();
    }
    bed.sink.expect(64, PATIENCE).unwrap();
    assert_eq!(udp_counters(&bed.chain.sink).unwrap().bad_checksums, 0);
    bed.daemon.settled("cam1", 64).unwrap();
}

fn valid_from_a_packet_socket_that_left_them_partial(path: &str) {
    let bed = Bed::new(path);
    let sender = FrameSender::open((&bed.chain.sender, "veth0")).unwrap();
    let partial = VnetHeader {
        flags: VnetHeader::NEEDS_CHECKSUM,
        checksum_start: 34,
        checksum_offset: 6,
        ..VnetHeader::default()
    };
    for number in 0..64 {
        let frame = craft(number, 333, CraftChecksum::Partial);
        sender.send_with(partial, &frame).unwrap();
    }
    bed.expect(64, 333);
}

fn zero_stays_zero(path: &str) {
    let bed = Bed::new(path);
    let sender = FrameSender::open((&bed.chain.sender, "veth0")).unwrap();
    let wire = FrameReceiver::open((&bed.chain.sink, "veth3")).unwrap();
    for number in 0..10 {
        let frame = craft(number, 200, CraftChecksum::Zero);
        sender.send(&frame).unwrap();
    }
    let to_group = |frame: &[u8]| frame.get(30..34) == Some([239, 10, 1, 1].as_slice());
    let frame = wire.receive(PATIENCE, to_group).unwrap().unwrap();
    assert_eq!(frame.bytes[40..42], [0, 0], "the UDP checksum field");
    bed.expect(10, 200);
}

fn valid_from_a_udp_socket(path: &str) {
    let bed = Bed::new(path);
    let sender = bed.udp_sender();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 500, 1400)
        .unwrap();
    bed.expect(500, 1400);
}

fn valid_from_a_segmenting_socket_where_the_egress_cannot_segment(path: &str) {
    let bed = Bed::new(path);
    send_super_packets(&bed);
    bed.expect(200, 1000);
}

fn valid_from_a_segmenting_socket_where_the_egress_can(path: &str) {
    let bed = Bed::new(path);
    link::features((&bed.chain.relay, "veth2"), "tx on").unwrap();
    send_super_packets(&bed);
    bed.expect(200, 1000);
}

fn valid_from_a_segmenting_socket_at_three_outputs(path: &str) {
    let bed = Bed::new(path);
    let outputs = [
        "239.10.2.1%veth2:6001",
        "239.10.2.2%veth2:6002",
        "10.0.1.2:7000",
    ];
    bed.daemon
        .add("three", "239.1.2.1%veth1:5001", &outputs)
        .unwrap();
    bed.daemon
        .wait_for("three", "the neighbour is known", |rule| {
            rule.outputs[2].state == api::reply::State::Up
        })
        .unwrap();
    let end = (&bed.chain.sink, "veth3");
    let receivers = [
        Receiver::join(end, ip("239.10.2.1"), 6001).unwrap(),
        Receiver::join(end, ip("239.10.2.2"), 6002).unwrap(),
        Receiver::bind(&bed.chain.sink, "10.0.1.2:7000".parse().unwrap()).unwrap(),
    ];
    let sender = bed.udp_sender();
    for round in 0..10 {
        sender
            .send_segmented(ip("239.1.2.1"), 5001, round * 20, 20, 700)
            .unwrap();
    }
    for receiver in &receivers {
        receiver.expect(200, PATIENCE).unwrap();
    }
    assert_eq!(udp_counters(&bed.chain.sink).unwrap().bad_checksums, 0);
    bed.daemon.settled("three", 200).unwrap();
}

fn send_super_packets(bed: &Bed) {
    let sender = bed.udp_sender();
    for round in 0..10 {
        sender
            .send_segmented(ip("239.1.1.1"), 5001, round * 20, 20, 1000)
            .unwrap();
    }
}
