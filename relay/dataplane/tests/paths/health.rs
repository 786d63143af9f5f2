//! Stream health: each path counts in the same packets what the reference counts. Times are those of the run, so
//! only a jitter far above them is compared.

use std::time::Duration;

use compile::table::Table;
use dataplane::counters::HealthCounters;
use lab::wait;
use packet::craft::{Craft, CraftChecksum};
use packet::health::{self, Watch};
use packet::mpeg_ts::{ADAPTATION, NULL_PID, PAYLOAD, SYNC, packet as ts_packet};
use packet::parse::Gso;
use rules::health::{Content, Inspect};

use compile::table::DownReason;
use packet::verdict::DropReason;

use crate::case::{A, INGRESS, Packet, down, input, key, output, route};
use crate::reference::Reference;
use crate::relayed::{Relay, Sum};
use crate::segments::NO_SUPER_PACKETS;

const CLOCK: u32 = 90_000;

/// One stream: the content to inspect, and the payloads; each a datagram, or a super-packet of datagrams of that
/// size.
struct Stream {
    name: &'static str,
    content: Content,
    payloads: Vec<(Vec<u8>, Option<u16>)>,
}

/// Runs every stream through `relay`.
pub(crate) fn demand(relay: &mut Relay<'_>) {
    for stream in streams() {
        let is_possible = stream.payloads.iter().all(|(_, size)| size.is_none());
        if !is_possible && !relay.gets_super_packets() {
            let name = stream.name;
            eprintln!("skipped: stream {name}: {NO_SUPER_PACKETS}");
            continue;
        }
        let inspect = Inspect {
            content: stream.content,
            clock_hz: CLOCK,
        };
        let mut watch = Watch::new(plain(stream.content), CLOCK);
        for (payload, size) in &stream.payloads {
            let size = size.map_or(payload.len(), usize::from).max(1);
            payload.chunks(size).for_each(|one| watch.inspect(one, 1));
            if payload.is_empty() {
                watch.inspect(payload, 1);
            }
        }
        let expected = expected(&watch);
        let is_all = |health: &HealthCounters| timeless(health) == expected;
        let health = forward(relay, stream.name, inspect, &stream.payloads, &is_all);
        assert_eq!(timeless(&health), expected, "stream {}", stream.name);
    }
    // Two packets establish the source; the third arrives a second too early.
    let seconds = [0, 1, 2].map(|n| (rtp(9, n, u32::from(n) * CLOCK, &[]), None));
    let health = forward(relay, "early", Inspect::default(), &seconds, &|health| {
        health.rtp_packets == 3
    });
    let jitter = Duration::from_nanos(health.jitter_ns);
    let most = Duration::from_secs(1) / 16;
    assert!(jitter > most / 2 && jitter <= most, "{jitter:?}");
    assert!(health.arrivals.last_ns > 0);
    // The same rule inspected for other content starts anew and recognises it.
    let other = Inspect {
        content: Content::Ts,
        ..Inspect::default()
    };
    let payload = (ts_packet(5, 0, PAYLOAD).to_vec(), None);
    let health = forward(relay, "other", other, &[payload], &|health| {
        health.ts_packets == 1
    });
    assert_eq!((health.ts_packets, health.rtp_packets), (1, 0));
    demand_going_on(relay);
}

/// A rule's counts continue when its route returns or is inspected for something else; another rule that takes the
/// route over begins anew. No packet is missed while a source is established.
fn demand_going_on(relay: &mut Relay<'_>) {
    let steady: Vec<_> = (0..50).map(|n| one(media(7, n))).collect();
    let auto = Inspect::default();
    let rtp_alone = Inspect {
        content: Content::Rtp,
        ..auto
    };
    for (rule, inspect, is_new, expected) in [
        ("returns", auto, true, 50),
        ("returns", auto, true, 100),
        ("returns", rtp_alone, true, 150),
        ("returns", auto, false, 200),
        ("takes over", auto, false, 50),
        ("takes over", rtp_alone, false, 100),
        ("returns", rtp_alone, false, 250),
    ] {
        let forward = if is_new { forward } else { swing };
        let health = forward(relay, rule, inspect, &steady, &|health| {
            health.rtp_packets == expected
        });
        assert_eq!((health.rtp_packets, health.lost), (expected, 0), "{rule}");
    }
}

/// Forwards packets of a stream by a route that is new.
fn forward(
    relay: &mut Relay<'_>,
    rule: &str,
    inspect: Inspect,
    payloads: &[(Vec<u8>, Option<u16>)],
    is_all: &dyn Fn(&HealthCounters) -> bool,
) -> HealthCounters {
    relay.apply(&Table::default());
    swing(relay, rule, inspect, payloads, is_all)
}

/// The same by the existing route, changed first.
fn swing(
    relay: &mut Relay<'_>,
    rule: &str,
    inspect: Inspect,
    payloads: &[(Vec<u8>, Option<u16>)],
    is_all: &dyn Fn(&HealthCounters) -> bool,
) -> HealthCounters {
    let mut route = route(rule, vec![output(A)]);
    route.inspect = Some(inspect);
    let table = Table {
        routes: [(key(), route)].into(),
        ..Table::default()
    };
    relay.apply(&table);
    let packets: Vec<Packet> = payloads.iter().map(packet).collect();
    let mut reference = Reference::of(&table);
    let mut expected = Sum::default();
    for packet in &packets {
        expected.expect(packet, &reference.execute(INGRESS, packet, |_| false));
    }
    let seen = relay.forward(&packets, &expected);
    assert_eq!(seen.counters, expected.counters, "rule {rule}");
    // A worker publishes health right after its other counts.
    let mut health = HealthCounters::default();
    let _ = wait::until_within(Duration::from_secs(2), "all of it is told", || {
        health = relay.health(rule);
        is_all(&health)
    });
    health
}

/// Makes the payload of one packet of a stream from its number.
type Form<'f> = &'f dyn Fn(u16) -> Vec<u8>;

/// Prints the cost of inspection for the kernel path's program, without copies: the best of many runs of one packet
/// each, so that sequences continue.
pub(crate) fn print_cost(relay: &mut Relay<'_>) {
    let content = |n: u16| ts_of(&(0..7).map(|i| (i, n as u8, PAYLOAD)).collect::<Vec<_>>());
    let forms: [(&str, Form<'_>); 3] = [
        ("RTP of 1024 bytes", &|n| {
            rtp(7, n, u32::from(n) * 90, &[0; 1012])
        }),
        ("7 MPEG-TS packets", &content),
        ("7 MPEG-TS packets in RTP", &|n| {
            rtp(7, n, u32::from(n) * 90, &content(n))
        }),
    ];
    let modes = [None, Some(Content::None), Some(Content::Auto)];
    for (form, payload) in forms {
        let mut costs = [const { Vec::new() }; 3];
        for round in 0..5_u16 {
            for (costs, content) in costs.iter_mut().zip(modes) {
                apply_cost(relay, content, None);
                costs.extend((0..400).map(|n| {
                    let packet = packet(&one(payload(round * 400 + n)));
                    relay.test_run_alone(&packet).duration_ns
                }));
            }
        }
        let [off, none, auto] = costs.map(|mut costs| {
            costs.sort_unstable();
            (costs[costs.len() / 20], costs[costs.len() / 2])
        });
        println!("{form}: off {off:?}, times alone {none:?}, all {auto:?} ns (5 %, median)");
    }
}

/// Prints the mean of very many runs of one packet without copies: the cost where packets follow each other closely.
/// The packet's content is the same each time, so only arrival times are inspected realistically.
pub(crate) fn print_mean(relay: &mut Relay<'_>) {
    let packet = packet(&one(vec![0; 1024]));
    let mut means = [const { Vec::new() }; 3];
    let modes = [
        (None, None),
        (Some(Content::None), None),
        (None, Some("one")),
    ];
    for _ in 0..21 {
        for (means, (content, input)) in means.iter_mut().zip(modes) {
            apply_cost(relay, content, input);
            means.push(relay.test_run_often(&packet, 200_000).duration_ns);
        }
    }
    let names = ["off", "times alone", "one of several inputs"];
    for (name, means) in names.iter().zip(&mut means) {
        means.sort_unstable();
        println!("mean of 200,000 runs, {name}: {means:?} ns");
    }
}

/// Applies a rule without copies.
fn apply_cost(relay: &mut Relay<'_>, content: Option<Content>, input: Option<&str>) {
    let (down, _) = down(DownReason::NoRoute, DropReason::NoRoute);
    let mut route = route("cost", vec![down]);
    route.input = input.map(str::to_owned);
    route.inspect = content.map(|content| Inspect {
        content,
        clock_hz: CLOCK,
    });
    relay.apply(&Table {
        routes: [(key(), route)].into(),
        ..Table::default()
    });
}

/// The same without what depends on arrival times.
fn timeless(health: &HealthCounters) -> HealthCounters {
    HealthCounters {
        arrivals: Default::default(),
        jitter_ns: 0,
        ..*health
    }
}

fn packet((payload, size): &(Vec<u8>, Option<u16>)) -> Packet {
    let craft = Craft {
        payload: payload.clone(),
        checksum: match size {
            Some(_) => CraftChecksum::Partial,
            None => input().checksum,
        },
        ..input()
    };
    let mut packet = Packet::from(craft);
    packet.meta.gso = size.map(|size| Gso { size });
    packet
}

fn streams() -> Vec<Stream> {
    let stream = |name, content, payloads| Stream {
        name,
        content,
        payloads,
    };
    let rtp_all = |sequences: Vec<u16>| sequences.into_iter().map(|n| one(media(7, n))).collect();
    let steady = (65_500..=u16::MAX).chain(0..50);
    let holes = (0..200).filter(|n| !(20..25).contains(n) && *n != 90);
    let mixed = (0..30).chain([33, 31, 33, 32, 30]).chain(34..120);
    vec![
        stream("steady", Content::Auto, rtp_all(steady.collect())),
        stream("holes", Content::Rtp, rtp_all(holes.collect())),
        stream("mixed", Content::Auto, rtp_all(mixed.collect())),
        stream(
            "gap",
            Content::Auto,
            rtp_all((0..9).chain(500..700).collect()),
        ),
        stream(
            "restart",
            Content::Auto,
            rtp_all((0..9).chain(9000..9100).collect()),
        ),
        stream("generated", Content::Rtp, generated()),
        stream("ts", Content::Auto, ts_stream()),
        stream("bare ts", Content::Ts, ts_stream()),
        stream("ts in rtp", Content::Auto, ts_in_rtp()),
        stream("crowded", Content::Ts, crowded(&|_, content| content)),
        stream(
            "crowded rtp",
            Content::Auto,
            crowded(&|n, content| rtp(5, n, 0, &content)),
        ),
        stream("super", Content::Auto, super_packets()),
        stream("odd", Content::Auto, odd()),
        stream("odd ts", Content::Ts, odd()),
        stream("nothing", Content::None, rtp_all((0..9).collect())),
    ]
}

fn one(payload: Vec<u8>) -> (Vec<u8>, Option<u16>) {
    (payload, None)
}

fn rtp(ssrc: u32, sequence: u16, timestamp: u32, content: &[u8]) -> Vec<u8> {
    let mut payload = vec![0x80, 96];
    payload.extend(sequence.to_be_bytes());
    payload.extend(timestamp.to_be_bytes());
    payload.extend(ssrc.to_be_bytes());
    payload.extend(content);
    payload
}

fn media(ssrc: u32, sequence: u16) -> Vec<u8> {
    rtp(ssrc, sequence, u32::from(sequence) * 3000, &[1; 40])
}

/// Losses, late and double packets, jumps and a second source, the same every time.
fn generated() -> Vec<(Vec<u8>, Option<u16>)> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let (mut next, mut ssrc) = (60_000_u16, 1);
    let mut payloads = Vec::new();
    for _ in 0..1500 {
        let step = match random(100) {
            0..70 => 1,
            70..80 => random(5) as u16,
            80..90 => 0_u16.wrapping_sub(random(80) as u16),
            90..95 => random(130) as u16,
            95..97 => random(65_536) as u16,
            97 => {
                ssrc = 1 + random(3) as u32;
                1
            }
            _ => 2,
        };
        next = next.wrapping_add(step);
        payloads.push(one(media(ssrc, next)));
    }
    payloads
}

fn ts_of(packets: &[(u16, u8, u8)]) -> Vec<u8> {
    let packets = packets
        .iter()
        .map(|(pid, n, kind)| ts_packet(*pid, *n, *kind));
    packets.collect::<Vec<_>>().concat()
}

fn ts_stream() -> Vec<(Vec<u8>, Option<u16>)> {
    let (media, sound, both) = (0x100, 0x101, PAYLOAD | ADAPTATION);
    let mut jump = ts_of(&[(media, 9, both), (media, 10, PAYLOAD)]);
    jump[5] = 0x80;
    let mut broken = ts_of(&[(media, 3, PAYLOAD), (media, 11, PAYLOAD)]);
    broken[1] |= 0x80;
    let mut unsynchronised = ts_of(&[(media, 12, PAYLOAD), (media, 1, PAYLOAD)]);
    unsynchronised[188] = 0;
    [
        ts_of(&[(media, 0, PAYLOAD), (media, 1, both), (sound, 15, PAYLOAD)]),
        ts_of(&[
            (media, 2, PAYLOAD),
            (sound, 0, PAYLOAD),
            (NULL_PID, 9, PAYLOAD),
        ]),
        // Twice is allowed, three times is not; an adaptation field alone does not count.
        ts_of(&[
            (media, 2, PAYLOAD),
            (media, 2, PAYLOAD),
            (media, 2, ADAPTATION),
        ]),
        ts_of(&[(media, 3, ADAPTATION), (media, 4, 0), (sound, 3, PAYLOAD)]),
        jump,
        broken,
        unsynchronised,
        ts_of(&(0..7).map(|n| (sound, 4 + n, PAYLOAD)).collect::<Vec<_>>()),
    ]
    .map(one)
    .into()
}

fn ts_in_rtp() -> Vec<(Vec<u8>, Option<u16>)> {
    let content = |n: u8| ts_of(&[(0x20, n * 2, PAYLOAD), (0x20, n * 2 + 1, PAYLOAD)]);
    let mut payloads: Vec<Vec<u8>> = (0..20).map(|n| rtp(3, n, 0, &content(n as u8))).collect();
    // With a contributor and an extension in front; and one that lies about its extension.
    let mut extended = vec![0x91, 33, 0, 20, 0, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3, 4];
    extended.extend([0xbe, 0xde, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8]);
    extended.extend(content(21));
    let mut lying = rtp(3, 21, 0, &[0xff; 8]);
    lying[0] = 0x90;
    // Padded by four bytes, and by more than there are.
    let padded = [4, 255].map(|padding| {
        let mut padded = rtp(3, 22, 0, &[content(22), vec![0, 0, 0, padding]].concat());
        padded[0] = 0xa0;
        padded
    });
    payloads.extend([extended, lying]);
    payloads.extend(padded);
    payloads.into_iter().map(one).collect()
}

/// Datagrams of seven packets, as usual, of more PIDs than a path may cache, and stuffing at the end of each round.
/// Some PIDs jump, some are sent twice, some three times.
fn crowded(form: &dyn Fn(u16, Vec<u8>) -> Vec<u8>) -> Vec<(Vec<u8>, Option<u16>)> {
    let packets = (0..4_u8).flat_map(|round| {
        (1..=NULL_PID).step_by(13).map(move |pid| {
            let counter = match (pid % 5, round) {
                (0, 2..) => round + 3,
                (1, 1) => 0,
                (2, 1 | 2) => 0,
                (2, 3) => 1,
                _ => round,
            };
            (pid, counter, PAYLOAD)
        })
    });
    let packets: Vec<_> = packets.collect();
    let datagrams = packets.chunks_exact(7).map(ts_of);
    (0..)
        .zip(datagrams)
        .map(|(n, content)| one(form(n, content)))
        .collect()
}

fn super_packets() -> Vec<(Vec<u8>, Option<u16>)> {
    let content = |n: u16| rtp(4, n, 0, &ts_of(&[(0x21, n as u8, PAYLOAD)]));
    let some = |from: u16, to: u16| (from..to).map(content).collect::<Vec<_>>().concat();
    let mut short = some(40, 44);
    short.truncate(short.len() - 100);
    vec![
        (some(0, 10), Some(200)),
        (some(10, 20), Some(200)),
        (some(21, 40), Some(200)),
        (short, Some(200)),
    ]
}

fn odd() -> Vec<(Vec<u8>, Option<u16>)> {
    // A sender report, feedback and an extended report; and the media types on either side.
    let [report, feedback, extended, below, above] = [200, 205, 207, 0x80 | 63, 96].map(|second| {
        let mut packet = media(7, 1);
        packet[1] = second;
        packet
    });
    [
        vec![],
        vec![0x80; 11],
        vec![SYNC; 187],
        vec![0; 188],
        vec![0x40; 100],
        report,
        feedback,
        extended,
        below,
        above,
        media(7, 1),
    ]
    .map(one)
    .into()
}

const fn plain(content: Content) -> health::Content {
    match content {
        Content::Auto => health::Content::Auto,
        Content::Rtp => health::Content::Rtp,
        Content::Ts => health::Content::Ts,
        Content::None => health::Content::None,
    }
}

/// What a path should count, without times.
fn expected(watch: &Watch) -> HealthCounters {
    let (rtp, ts) = (&watch.rtp, &watch.ts);
    HealthCounters {
        rtp_packets: rtp.packets,
        lost: rtp.lost,
        reordered: rtp.reordered,
        duplicated: rtp.duplicated,
        restarts: rtp.restarts,
        ssrc_changes: rtp.ssrc_changes,
        source: rtp.is_followed.then_some((rtp.ssrc, rtp.payload_type)),
        ts_packets: ts.packets,
        continuity_errors: ts.continuity_errors,
        transport_errors: ts.transport_errors,
        sync_errors: ts.sync_errors,
        pids: ts.pids,
        unrecognised: watch.unrecognised,
        ..HealthCounters::default()
    }
}
