//! Truncated and hostile packets: counted drops, nothing crashes, nothing else is disturbed.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
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
    floods_cost_a_stream_nothing_and_the_daemon_no_memory,
);

/// Megabytes that the daemon and its workers may take more after a flood than early in it.
const GROWTH_MB: u64 = 48;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

struct Bed {
    chain: Chain,
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
        chain,
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

/// A valid frame with `bytes` written over it at `at` and its IPv4 header checksum recomputed.
fn with(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = good(0);
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame[IP + 10..IP + 12].fill(0);
    let words = frame[IP..UDP].chunks(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    frame[IP + 10..IP + 12].copy_from_slice(&checksum.to_be_bytes());
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

/// A generator of numbers that look random, the same in each run (Marsaglia's xorshift).
fn numbers() -> impl FnMut() -> u64 {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

fn noise_does_not_disturb_a_stream(path: &str) {
    let bed = bed(path);
    let mut random = numbers();
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

/// Megabytes of the daemon and every process it started, in its namespace.
fn resident(bed: &Bed) -> u64 {
    let of = |pid: i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kilobytes.unwrap_or(0)
    };
    let all = bed.chain.relay.processes();
    all.into_iter().map(of).sum::<u64>() >> 10
}

/// Unknown groups, pieces of datagrams, and senders that were never seen before, eight for each
/// packet of a stream. A round fits in the kernel's backlog of 1000 (`netdev_max_backlog`), so that
/// the bed loses nothing itself.
fn floods_cost_a_stream_nothing_and_the_daemon_no_memory(path: &str) {
    const ROUNDS: u64 = 30;
    const EACH: u64 = 100;
    let bed = bed(path);
    // Any sender to this one is relayed: each is a new flow.
    bed.daemon
        .add("crowd", "239.1.1.2%veth1:5002", &["239.10.1.2%veth2:6002"])
        .unwrap();
    let mut random = numbers();
    let crowd: SocketAddr = "239.1.1.2:5002".parse().unwrap();
    let mut early = 0;
    for round in 0..ROUNDS {
        for number in round * EACH..(round + 1) * EACH {
            for _ in 0..2 {
                let group = Ipv4Addr::from_bits(0xef80_0000 | random() as u32 & 0x7f_ffff);
                let unknown = SocketAddr::new(group.into(), random() as u16 | 1);
                let sender = SocketAddr::new(ip("10.0.0.1"), 4000);
                let frame = Craft::new(sender, unknown, vec![0; 100]).frame();
                bed.wire.send(&frame).unwrap();
            }
            for _ in 0..2 {
                let address = Ipv4Addr::from_bits(0x0b00_0000 | random() as u32 & 0xff_ffff);
                let sender = SocketAddr::new(address.into(), random() as u16 | 1);
                bed.wire
                    .send(&Craft::new(sender, crowd, vec![0; 100]).frame())
                    .unwrap();
            }
            for piece in [0x2000, 0x2000 | 13, 13, 0x1fff] {
                // First fragments of datagrams that never complete, and other fragments without a first one.
                let mut craft = Craft::new(SocketAddr::new(ip("10.0.0.9"), 9), crowd, vec![0; 96]);
                (craft.id, craft.fragment) = (random() as u16, piece);
                bed.wire.send(&craft.frame()).unwrap();
            }
            bed.wire.send(&good(number)).unwrap();
        }
        let sent = (round + 1) * EACH;
        bed.sink.expect_these(round * EACH..sent, PATIENCE).unwrap();
        let counted = |rule: &api::reply::RuleStats| rule.received.packets == sent;
        bed.daemon
            .wait_for("cam1", "all is counted", counted)
            .unwrap();
        if round == 2 {
            early = resident(&bed);
        }
    }
    bed.daemon.settled("cam1", ROUNDS * EACH).unwrap();
    let crowd = bed.daemon.rule("crowd").unwrap();
    // Those of new senders and the first pieces at least; of the others those that share a number.
    assert!(crowd.received.packets >= ROUNDS * EACH * 3, "{crowd:?}");
    let late = resident(&bed);
    println!("{path}: {early} MB early, {late} MB late");
    assert!(
        late <= early + GROWTH_MB,
        "memory grew from {early} MB to {late} MB"
    );
}
