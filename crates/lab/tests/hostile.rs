//! Truncated and hostile packets: counted drops, nothing crashes, nothing else is disturbed.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use lab::daemon::{Daemon, Options};
use lab::frame::FrameSender;
use lab::socket::{self, Receiver};
use lab::topology::Chain;
use packet::craft::Craft;

const PATIENCE: Duration = Duration::from_secs(5);
const IP: usize = 14;
const UDP: usize = IP + 20;

lab::on_both_paths!(
    contradicting_lengths_are_counted_as_malformed,
    headers_that_name_no_rule_are_left_to_the_stack,
    noise_does_not_disturb_a_stream,
);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

struct Bed {
    // Held for its namespaces.
    _chain: Chain,
    daemon: Daemon,
    wire: FrameSender,
    sink: Receiver,
}

fn bed(path: &str) -> Bed {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["239.10.1.1%veth2:6001"])
        .unwrap();
    let wire = FrameSender::open((&chain.sender, "veth0")).unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    Bed {
        _chain: chain,
        daemon,
        wire,
        sink,
    }
}

fn good(number: u64) -> Vec<u8> {
    let source: SocketAddr = "10.0.0.1:4000".parse().unwrap();
    let destination: SocketAddr = "239.1.1.1:5001".parse().unwrap();
    Craft::new(source, destination, socket::payload(number, 100)).frame()
}

/// A good frame with `bytes` written over it at `at`, its IPv4 header checksum made right again.
fn with(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = good(0);
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame[IP + 10..IP + 12].fill(0);
    let words = frame[IP..UDP].chunks(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[IP + 10..IP + 12].copy_from_slice(&sum.to_be_bytes());
    frame
}

fn contradicting_lengths_are_counted_as_malformed(path: &str) {
    let bed = bed(path);
    let mut wrong_sum = good(0);
    wrong_sum[IP + 10] ^= 0x55;
    let mut short = good(0);
    short.truncate(UDP + 8 + 50);
    let malformed = [
        (
            "total length beyond the packet",
            with(IP + 2, &2000u16.to_be_bytes()),
        ),
        (
            "total length below the headers",
            with(IP + 2, &27u16.to_be_bytes()),
        ),
        (
            "UDP length below its header",
            with(UDP + 4, &7u16.to_be_bytes()),
        ),
        (
            "UDP length beyond the packet",
            with(UDP + 4, &2000u16.to_be_bytes()),
        ),
        ("wrong header checksum", wrong_sum),
        ("cut in the payload", short),
    ];
    for (sent, (what, frame)) in (1..).zip(&malformed) {
        bed.wire.send(frame).unwrap();
        let what = format!("{what} is counted");
        bed.daemon
            .wait_for("cam1", &what, |rule| {
                rule.dropped.get("malformed") == Some(&sent)
            })
            .unwrap();
    }
    for number in 0..10 {
        bed.wire.send(&good(number)).unwrap();
    }
    bed.sink.expect(10, PATIENCE).unwrap();
    let rule = bed
        .daemon
        .settled("cam1", 10 + malformed.len() as u64)
        .unwrap();
    assert_eq!(rule.outputs[0].sent.packets, 10);
}

fn headers_that_name_no_rule_are_left_to_the_stack(path: &str) {
    let bed = bed(path);
    let mut cut_at_ip = good(0);
    cut_at_ip.truncate(IP + 12);
    let mut cut_at_udp = good(0);
    cut_at_udp.truncate(UDP + 4);
    let passed = [
        with(IP, &[0x44]),
        with(IP, &[0x65]),
        with(IP, &[0x4f]),
        with(IP + 9, &[6]),
        with(IP + 16, &[10, 0, 0, 2]),
        with(UDP + 2, &5002u16.to_be_bytes()),
        cut_at_ip,
        cut_at_udp,
    ];
    for frame in &passed {
        bed.wire.send(frame).unwrap();
    }
    for number in 0..10 {
        bed.wire.send(&good(number)).unwrap();
    }
    bed.sink.expect(10, PATIENCE).unwrap();
    bed.daemon.settled("cam1", 10).unwrap();
}

fn noise_does_not_disturb_a_stream(path: &str) {
    let bed = bed(path);
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for number in 0..500 {
        for _ in 0..10 {
            let mut frame = good(0);
            for _ in 0..4 {
                let at = IP + (random() as usize) % 28;
                frame[at] = random() as u8;
            }
            // The group may not survive, so that no damaged copy can look like a good packet.
            frame[IP + 19] = 200;
            frame.truncate(IP + 1 + (random() as usize) % (frame.len() - IP));
            bed.wire.send(&frame).unwrap();
        }
        bed.wire.send(&good(number)).unwrap();
    }
    bed.sink.expect(500, PATIENCE).unwrap();
    bed.daemon.settled("cam1", 500).unwrap();
}
