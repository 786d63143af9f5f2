//! Captures replayed over loopback, and how the receiver counts streams that are not the generator's.
//! Needs no privilege.

#![expect(
    clippy::unwrap_used,
    reason = "whatever is missing here fails the test that needs it"
)]

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use packet::craft::Craft;
use traffic::capture::Capture;
use traffic::endpoint::{Destination, Listen};
use traffic::generator::{self, Line, Options};
use traffic::payload::{self, HEADER_BYTES, Stamp};
use traffic::receiver;
use traffic::report::Tally;

/// A classic capture, little-endian, Ethernet: a datagram every 100 µs, each to the port given.
fn capture(datagrams: &[(u16, Vec<u8>)]) -> Capture {
    let words = |words: &[u32]| -> Vec<u8> {
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        bytes.collect()
    };
    let mut bytes = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1]);
    for (number, (port, payload)) in datagrams.iter().enumerate() {
        let from = (Ipv4Addr::new(10, 0, 0, 1), 4000).into();
        let to = (Ipv4Addr::new(239, 1, 1, 1), *port).into();
        let frame = Craft::new(from, to, payload.clone()).frame();
        let length = frame.len() as u32;
        bytes.extend(words(&[1_700_000_000, number as u32 * 100, length, length]));
        bytes.extend(frame);
    }
    Capture::read(&*bytes).unwrap()
}

/// The first of `count` consecutive unused ports.
fn free_ports(count: u16) -> u16 {
    let bind = |port| UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).ok();
    let first_port = (0..100).find_map(|_| {
        let first = bind(0)?;
        let port = first.local_addr().ok()?.port();
        let others: Option<Vec<_>> = (1..count).map(|n| bind(port.checked_add(n)?)).collect();
        others.map(|_| port)
    });
    first_port.unwrap()
}

/// Replays a capture, each of its flows by a socket of its own, to one endpoint of some ports, and
/// returns what arrived there.
fn replay(capture: Capture, ports: u16) -> Tally {
    let first = free_ports(ports);
    let last = first + ports - 1;
    let at = format!("127.0.0.1:{first}-{last}").parse().unwrap();
    let receive = receiver::Options {
        endpoints: vec![Listen::resolve(&at).unwrap()],
        count: Some(capture.datagrams() as u64),
        duration: Some(Duration::from_secs(10)),
        idle: None,
        cpu: None,
    };
    let to = Destination::resolve(&at).unwrap().into_iter().cycle();
    let send = Options {
        replay: Some(capture.clone()),
        ..Options::to(to.take(capture.flows.len()).collect())
    };
    let control = receiver::Control::default();
    thread::scope(|scope| {
        let receiving = scope.spawn(|| receiver::run(&receive, &control).unwrap());
        let deadline = Instant::now() + Duration::from_secs(10);
        while !control.ready.load(Ordering::Acquire) {
            assert!(Instant::now() < deadline, "the receiver never became ready");
            thread::sleep(Duration::from_millis(1));
        }
        let sent = generator::run(&send, &generator::Control::default()).unwrap();
        assert_eq!(sent.errors, 0, "{:?}", sent.first_error);
        receiving.join().unwrap().total
    })
}

fn rtp(sequence: u16) -> Vec<u8> {
    let mut packet = vec![0x80, 96];
    packet.extend(sequence.to_be_bytes());
    packet.extend([0, 0, 0, 0, 0, 0, 0, 1]);
    packet.extend([0xaa; 100]);
    packet
}

#[test]
fn two_senders_with_one_rtp_source_are_two_streams() {
    let number = |index: u16| 65_500_u16.wrapping_add(index / 2);
    let datagrams = (0..200).map(|index| (5001 + index % 2, rtp(number(index))));
    let total = replay(capture(&datagrams.collect::<Vec<_>>()), 1);
    let counts = (total.packets, total.lost, total.duplicated, total.reordered);
    assert_eq!(counts, (200, 0, 0, 0));
    assert_eq!(total.unchecked, 0);
}

#[test]
fn loss_and_duplicates_of_another_sender_are_counted() {
    let numbers = (0..100).filter(|number| *number != 40).chain([99]);
    let datagrams: Vec<_> = numbers.map(|number| (5001, rtp(number))).collect();
    let total = replay(capture(&datagrams), 1);
    assert_eq!((total.packets, total.lost, total.duplicated), (100, 1, 1));
}

/// A datagram as the generator sends it.
fn own(stream: u32, sequence: u64) -> Vec<u8> {
    let stamp = Stamp {
        run: 1,
        stream,
        sequence,
        intended_ns: 0,
    };
    let mut payload = vec![0; HEADER_BYTES];
    payload::write(&mut payload, &stamp, payload::body_checksum(&[]));
    payload
}

#[test]
fn forged_numbers_do_not_overflow_the_account() {
    let forged = [(1, 0), (1, u64::MAX), (2, 0), (2, u64::MAX)];
    let datagrams = forged.map(|(stream, sequence)| (5001, own(stream, sequence)));
    let total = replay(capture(&datagrams), 1);
    assert_eq!((total.packets, total.lost), (4, u64::MAX));
}

#[test]
fn copies_at_two_addresses_of_an_endpoint_are_no_duplicates() {
    let datagrams: Vec<_> = (0..200)
        .map(|index| (5001 + index % 2, own(2, u64::from(index / 2))))
        .collect();
    // A receiver that is late may read all of one address before the other's: nothing to compare.
    let compared = (0..20).any(|_| {
        let total = replay(capture(&datagrams), 2);
        let counts = (total.packets, total.lost, total.duplicated, total.reordered);
        assert_eq!(counts, (200, 0, 0, 0));
        total.skew_us.is_some()
    });
    assert!(compared);
}

#[test]
fn datagrams_without_payload_are_sent_like_others() {
    let datagrams = [(5001, vec![]), (5001, b"text".to_vec()), (5001, vec![])];
    let total = replay(capture(&datagrams), 1);
    assert_eq!((total.packets, total.bytes, total.unchecked), (3, 4, 3));
}

#[test]
fn countless_rounds_of_an_endless_capture_have_a_plan() {
    let mut bytes = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1_u32] {
        bytes.extend(word.to_le_bytes());
    }
    let (from, to) = ((Ipv4Addr::LOCALHOST, 4000), (Ipv4Addr::LOCALHOST, 5001));
    let frame = Craft::new(from.into(), to.into(), vec![0; 8]).frame();
    for seconds in [0, u32::MAX] {
        for word in [seconds, 0, frame.len() as u32, frame.len() as u32] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(&frame);
    }
    let to = Destination::resolve(&"127.0.0.1:5001".parse().unwrap()).unwrap();
    let send = Options {
        replay: Some(Capture::read(&*bytes).unwrap()),
        count: Some(u64::MAX - 1),
        duration: Some(Duration::from_secs(1)),
        ..Options::to(to)
    };
    assert_eq!(generator::planned_packets(&send), Some(1));
}

#[test]
fn lines_carry_a_capture_each_with_losses_of_its_own() {
    let datagrams: Vec<_> = (0..200u16)
        .map(|n| (5001 + n % 2, n.to_be_bytes().to_vec()))
        .collect();
    let sockets = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let line = |socket: &UdpSocket| {
        let text = format!("{},lose=20%", socket.local_addr().unwrap());
        text.parse::<Line>().unwrap()
    };
    let options = Options {
        replay: Some(capture(&datagrams)),
        ..Options::on(sockets.iter().map(line).collect())
    };
    let sent = generator::run(&options, &generator::Control::default()).unwrap();
    let mut union: Vec<u16> = Vec::new();
    for (socket, line) in sockets.iter().zip(&sent.lines) {
        socket
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let mut payload = [0; 2];
        let receive = |_| {
            assert_eq!(socket.recv(&mut payload).unwrap(), 2);
            u16::from_be_bytes(payload)
        };
        let numbers: Vec<u16> = (0..line.sent).map(receive).collect();
        // Both flows of the file, in its order.
        assert!(numbers.is_sorted() && numbers.iter().any(|n| n % 2 == 1));
        assert_eq!(line.sent + line.lost, 200);
        union.extend(numbers);
    }
    union.sort_unstable();
    union.dedup();
    let report = sent.union.unwrap();
    assert_eq!((report.numbers, report.on_any), (200, union.len() as u64));
    assert!(report.on_any > sent.lines[0].sent && report.on_any < 200);
}
