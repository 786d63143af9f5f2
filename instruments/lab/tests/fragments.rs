//! Fragments: relayed when received, made where a rule allows it.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::Duration;

use lab::bed::{Bed, INPUT, PORT, RULE};
use lab::daemon::{Daemon, Options};
use lab::frame::FrameSender;
use lab::link;
use lab::socket::{Receiver, Sender, payload, udp_counters};
use lab::topology::Chain;
use packet::craft::{Craft, fix_ipv4_checksum};

const PATIENCE: Duration = Duration::from_secs(5);
/// Four fragments.
const SIZE: usize = 5000;
/// Length of the Ethernet header.
const ETHERNET: usize = 14;

lab::on_both_paths!(
    a_datagram_in_fragments_is_whole_at_the_sink,
    fragments_in_any_order_are_whole_at_the_sink,
    fragments_in_any_order_are_whole_at_the_sink_by_ipv6,
    fragments_behind_whose_header_are_options_are_whole_at_the_sink,
);

fn a_datagram_in_fragments_is_whole_at_the_sink(path: &str) {
    let bed = Bed::new(path).unwrap();
    bed.relay(20, 4000).unwrap();
    assert_eq!(udp_counters(&bed.chain.sink).unwrap().bad_checksums, 0);
    let stats = bed.daemon.stats().unwrap();
    lab::accounting::check(&stats).unwrap();
}

fn fragments_in_any_order_are_whole_at_the_sink(path: &str) {
    let bed = Bed::new(path).unwrap();
    let (from, to) = ("10.0.0.1:4000", "239.1.1.1:5001");
    relay_in_any_order(&bed.daemon, &bed.chain, &bed.sink, from, to);
}

fn fragments_in_any_order_are_whole_at_the_sink_by_ipv6(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let output = ["[ff1e::10:1%veth2]:6001"];
    daemon.add(RULE, "[ff1e::1:1%veth1]:5001", &output).unwrap();
    let group = "ff1e::10:1".parse().unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), group, 6001).unwrap();
    let (from, to) = ("[fd00::1]:4000", "[ff1e::1:1]:5001");
    relay_in_any_order(&daemon, &chain, &sink, from, to);
}

/// Destination options in the part that is cut (RFC 8200 section 4.5): no fragment's header says UDP.
fn fragments_behind_whose_header_are_options_are_whole_at_the_sink(path: &str) {
    const OPTIONS: u8 = 60;
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let output = ["[ff1e::10:1%veth2]:6001"];
    daemon.add(RULE, "[ff1e::1:1%veth1]:5001", &output).unwrap();
    let group = "ff1e::10:1".parse().unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), group, 6001).unwrap();
    let wire = FrameSender::open((&chain.sender, "veth0")).unwrap();
    let (from, to) = ("[fd00::1]:4000", "[ff1e::1:1]:5001");
    for (number, order) in (0..).zip([[0, 1, 2, 3], [3, 2, 1, 0]]) {
        let mut craft = Craft::new(
            from.parse().unwrap(),
            to.parse().unwrap(),
            payload(number, SIZE),
        );
        craft.first_extension = OPTIONS;
        craft.options = vec![17, 0, 1, 4, 0, 0, 0, 0];
        let pieces = pieces_of_ipv6(&craft.frame(), number as u32 + 1);
        for at in order {
            wire.send(&pieces[at]).unwrap();
        }
        sink.expect_these(number..number + 1, PATIENCE).unwrap();
    }
    assert_eq!(udp_counters(&chain.sink).unwrap().bad_checksums, 0);
}

/// Sends fragments as a network may deliver them; the sink's own stack has to reassemble them.
fn relay_in_any_order(daemon: &Daemon, chain: &Chain, sink: &Receiver, from: &str, to: &str) {
    let wire = FrameSender::open((&chain.sender, "veth0")).unwrap();
    let orders: [(&str, [usize; 4]); 4] = [
        ("the last one to the first", [3, 2, 1, 0]),
        ("the first one last", [1, 2, 3, 0]),
        ("the first two exchanged", [1, 0, 2, 3]),
        ("the last one first", [3, 0, 1, 2]),
    ];
    for (number, (name, order)) in (0..).zip(orders) {
        let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
        let datagram = Craft::new(from, to, payload(number, SIZE)).frame();
        let pieces = if from.is_ipv4() {
            pieces_of_ipv4(&datagram, number as u16 + 1)
        } else {
            pieces_of_ipv6(&datagram, number as u32 + 1)
        };
        assert_eq!(pieces.len(), order.len());
        for at in order {
            wire.send(&pieces[at]).unwrap();
        }
        let received = sink.expect_these(number..number + 1, PATIENCE);
        received.unwrap_or_else(|error| panic!("{name}: {error:#}"));
    }
    assert_eq!(udp_counters(&chain.sink).unwrap().bad_checksums, 0);
    let rule = daemon.settled(RULE, 16).unwrap();
    assert_eq!(rule.outputs[0].sent, rule.received);
    assert_eq!(rule.received.bytes, 4 * SIZE as u64);
}

/// Fragments as RFC 791 has them: 13 bits of offset, in units of 8 bytes, and above them whether
/// more follow.
fn pieces_of_ipv4(datagram: &[u8], id: u16) -> Vec<Vec<u8>> {
    const PIECE: usize = 1480;
    let (headers, data) = datagram.split_at(ETHERNET + 20);
    let pieces = data.chunks(PIECE).enumerate().map(|(number, piece)| {
        let mut frame = [headers, piece].concat();
        let more = u16::from((number + 1) * PIECE < data.len());
        let offset = (number * PIECE / 8) as u16;
        let length = (20 + piece.len()) as u16;
        frame[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&length.to_be_bytes());
        frame[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&id.to_be_bytes());
        frame[ETHERNET + 6..ETHERNET + 8].copy_from_slice(&(more << 13 | offset).to_be_bytes());
        fix_ipv4_checksum(&mut frame, ETHERNET);
        frame
    });
    pieces.collect()
}

/// Fragments as RFC 8200 has them: a header of their own before each piece.
fn pieces_of_ipv6(datagram: &[u8], id: u32) -> Vec<Vec<u8>> {
    const PIECE: usize = 1448;
    const FRAGMENT: u8 = 44;
    let (headers, data) = datagram.split_at(ETHERNET + 40);
    let next = headers[ETHERNET + 6];
    let pieces = data.chunks(PIECE).enumerate().map(|(number, piece)| {
        let more = u16::from((number + 1) * PIECE < data.len());
        let offset = ((number * PIECE) as u16 | more).to_be_bytes();
        let header = [[next, 0, offset[0], offset[1]], id.to_be_bytes()].concat();
        let mut frame = [headers, &header, piece].concat();
        let length = (header.len() + piece.len()) as u16;
        frame[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&length.to_be_bytes());
        frame[ETHERNET + 6] = FRAGMENT;
        frame
    });
    pieces.collect()
}

#[test]
fn a_rule_that_allows_it_fragments_for_a_smaller_mtu() {
    let chain = Chain::plain().unwrap();
    for end in [(&chain.relay, "veth2"), (&chain.sink, "veth3")] {
        end.0.ip(&format!("link set {} mtu 1000", end.1)).unwrap();
    }
    let mut bed = Bed::without_rule(chain, Options::path("auto")).unwrap();
    let output = ["239.10.1.1%veth2:6001,fragment=yes"];
    bed.daemon.add(RULE, INPUT, &output).unwrap();
    assert_eq!(bed.daemon.rule(RULE).unwrap().path, "userspace");
    // Sockets opened before this sysctl set DF, those after it leave it clear.
    let sender = &bed.chain.sender;
    sender.sysctl("net/ipv4/ip_no_pmtu_disc", "1").unwrap();
    let source = "10.0.0.1".parse().unwrap();
    let plain = Sender::open((sender, "veth0"), source).unwrap();
    let careful = std::mem::replace(&mut bed.sender, plain);
    bed.relay(20, 1400).unwrap();
    let smaller = link::statistics((&bed.chain.sink, "veth3")).unwrap();
    assert!(smaller.received >= 40, "{smaller:?}");
    bed.daemon.settled(RULE, 20).unwrap();

    careful.send_numbered(bed.group(), PORT, 5, 1400).unwrap();
    let rule = bed.daemon.settled(RULE, 25).unwrap();
    assert_eq!(rule.outputs[0].dropped["too_big"], 5);

    // Received fragments are fragmented again where needed.
    bed.relay(20, 4000).unwrap();
    let counters = udp_counters(&bed.chain.sink).unwrap();
    assert_eq!(counters.bad_checksums, 0);
    let stats = bed.daemon.stats().unwrap();
    lab::accounting::check(&stats).unwrap();
}
