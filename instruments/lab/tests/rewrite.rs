//! What a copy looks like on the wire, field by field.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use lab::daemon::{Daemon, Options};
use lab::frame::{FrameReceiver, FrameSender};
use lab::link;
use lab::socket::{self, Receiver};
use lab::topology::Chain;
use packet::craft::Craft;

const PATIENCE: Duration = Duration::from_secs(5);

lab::on_both_paths!(
    keeps_what_no_option_changes,
    each_output_is_rewritten_as_its_options_say,
    a_decrement_drops_at_one,
    ip_options_are_kept,
    a_packet_above_the_mtu_of_one_output_reaches_the_others,
);

struct Bed {
    chain: Chain,
    daemon: Daemon,
    wire: FrameSender,
    receiver: FrameReceiver,
}

fn bed(path: &str, outputs: &[&str]) -> Bed {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon.add("cam1", "239.1.1.1%veth1:5001", outputs).unwrap();
    let wire = FrameSender::open((&chain.sender, "veth0")).unwrap();
    let receiver = FrameReceiver::open((&chain.sink, "veth3")).unwrap();
    Bed {
        chain,
        daemon,
        wire,
        receiver,
    }
}

fn craft() -> Craft {
    let source: SocketAddr = "10.0.0.1:4000".parse().unwrap();
    let destination: SocketAddr = "239.1.1.1:5001".parse().unwrap();
    let mut craft = Craft::new(source, destination, socket::payload(0, 100));
    craft.ttl = 8;
    craft.traffic_class = 0b1011_1001;
    craft.id = 0xbeef;
    craft
}

/// The fields of an Ethernet frame with IPv4 and UDP.
#[derive(Debug, PartialEq, Eq)]
struct Fields {
    mac: ([u8; 6], [u8; 6]),
    options: Vec<u8>,
    tos: u8,
    id: u16,
    fragment: u16,
    ttl: u8,
    source: (Ipv4Addr, u16),
    destination: (Ipv4Addr, u16),
    payload: Vec<u8>,
}

fn fields(frame: &[u8]) -> Fields {
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let address = |at: usize| Ipv4Addr::new(frame[at], frame[at + 1], frame[at + 2], frame[at + 3]);
    let udp = 14 + usize::from(frame[14] & 0xf) * 4;
    let end = udp + usize::from(word(udp + 4));
    Fields {
        mac: (
            frame[..6].try_into().unwrap(),
            frame[6..12].try_into().unwrap(),
        ),
        options: frame[34..udp].to_vec(),
        tos: frame[15],
        id: word(18),
        fragment: word(20),
        ttl: frame[22],
        source: (address(26), word(udp)),
        destination: (address(30), word(udp + 2)),
        payload: frame[udp + 8..end].to_vec(),
    }
}

impl Bed {
    fn copy_to(&self, group: [u8; 4]) -> Fields {
        let to_group = |frame: &[u8]| frame.get(30..34) == Some(group.as_slice());
        let frame = self.receiver.receive(PATIENCE, to_group).unwrap();
        fields(&frame.expect("a copy on the wire").bytes)
    }

    fn mac_of_egress(&self) -> [u8; 6] {
        let text = link::mac((&self.chain.relay, "veth2")).unwrap();
        let bytes = text
            .split(':')
            .map(|byte| u8::from_str_radix(byte, 16).unwrap());
        bytes.collect::<Vec<_>>().try_into().unwrap()
    }
}

fn keeps_what_no_option_changes(path: &str) {
    let bed = bed(path, &["239.10.1.1%veth2:6001"]);
    bed.wire.send(&craft().frame()).unwrap();
    let expected = Fields {
        mac: ([0x01, 0x00, 0x5e, 0x0a, 0x01, 0x01], bed.mac_of_egress()),
        options: Vec::new(),
        tos: 0b1011_1001,
        id: 0xbeef,
        fragment: 0x4000,
        ttl: 8,
        source: ([10, 0, 1, 1].into(), 4000),
        destination: ([239, 10, 1, 1].into(), 6001),
        payload: socket::payload(0, 100),
    };
    assert_eq!(bed.copy_to([239, 10, 1, 1]), expected);
    bed.daemon.settled("cam1", 1).unwrap();
}

fn each_output_is_rewritten_as_its_options_say(path: &str) {
    let outputs = [
        "239.10.1.1%veth2:6001,ttl=33,dscp=34,sport=7777",
        "239.10.1.2%veth2:6002,source=keep",
        "239.10.1.3%veth2:6003,source=192.0.2.9,ttl=dec",
        "239.10.1.4%veth2:6004",
    ];
    let bed = bed(path, &outputs);
    bed.wire.send(&craft().frame()).unwrap();
    let copies = [1, 2, 3, 4].map(|last| bed.copy_to([239, 10, 1, last]));
    let [all, keep, fixed, plain] = copies;
    // DSCP 34, the packet's ECN.
    assert_eq!((all.ttl, all.tos, all.source.1), (33, 34 << 2 | 0b01, 7777));
    assert_eq!(keep.source, ([10, 0, 0, 1].into(), 4000));
    assert_eq!((fixed.source.0, fixed.ttl), ([192, 0, 2, 9].into(), 7));
    // Each output starts from the received packet, not from the previous copy.
    assert_eq!((plain.ttl, plain.tos), (8, 0b1011_1001));
    assert_eq!(plain.source, ([10, 0, 1, 1].into(), 4000));
    bed.daemon.settled("cam1", 1).unwrap();
}

fn a_decrement_drops_at_one(path: &str) {
    let bed = bed(
        path,
        &["239.10.1.1%veth2:6001,ttl=dec", "239.10.1.2%veth2:6002"],
    );
    let mut last_hop = craft();
    last_hop.ttl = 1;
    bed.wire.send(&last_hop.frame()).unwrap();
    assert_eq!(bed.copy_to([239, 10, 1, 2]).ttl, 1);
    let rule = bed.daemon.settled("cam1", 1).unwrap();
    assert_eq!(rule.outputs[0].dropped.get("ttl_expired"), Some(&1));
    assert_eq!(rule.outputs[1].sent.packets, 1);
}

fn ip_options_are_kept(path: &str) {
    let bed = bed(path, &["239.10.1.1%veth2:6001"]);
    let mut with_options = craft();
    // Router alert and padding: RFC 2113, RFC 791.
    with_options.options = vec![148, 4, 0, 0, 1, 1, 1, 0];
    bed.wire.send(&with_options.frame()).unwrap();
    let copy = bed.copy_to([239, 10, 1, 1]);
    assert_eq!(copy.options, with_options.options);
    assert_eq!(copy.payload, socket::payload(0, 100));
    bed.daemon.settled("cam1", 1).unwrap();
}

fn a_packet_above_the_mtu_of_one_output_reaches_the_others(path: &str) {
    let chain = Chain::plain().unwrap();
    let narrow = lab::namespace::Namespace::new("narrow").unwrap();
    link::veth((&chain.relay, "narrow0"), (&narrow, "narrow1")).unwrap();
    link::address((&chain.relay, "narrow0"), "10.0.5.1/24").unwrap();
    chain.relay.ip("link set narrow0 mtu 900").unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let outputs = ["239.10.1.1%narrow0:6001", "239.10.1.2%veth2:6002"];
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &outputs)
        .unwrap();
    let group: IpAddr = "239.10.1.2".parse().unwrap();
    let wide = Receiver::join((&chain.sink, "veth3"), group, 6002).unwrap();
    let wire = FrameSender::open((&chain.sender, "veth0")).unwrap();
    for (number, size) in [(0, 1200), (1, 900 - 28 + 1), (2, 900 - 28)] {
        let mut large = craft();
        large.payload = socket::payload(number, size);
        wire.send(&large.frame()).unwrap();
    }
    wide.expect(3, PATIENCE).unwrap();
    let rule = daemon.settled("cam1", 3).unwrap();
    assert_eq!(rule.outputs[0].dropped["too_big"], 2);
    assert_eq!(rule.outputs[0].sent.packets, 1);
}
