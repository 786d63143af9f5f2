//! Streams with irregular numbers: they go back, stand still, jump once, or are missing.

use packet::verdict::DropReason::{self, Duplicate, Stray};
use rules::merge::{By, ByteOrder, Field, Sequence};

use crate::merged::{mold, of_source, rtp};
use crate::merged_bed::{STREAMS, Step};

/// A number of four bytes at offset 4, without sessions.
pub(crate) const fn exchange() -> By {
    By::Sequence(Sequence {
        number: Field {
            offset: 4,
            bytes: 4,
        },
        order: ByteOrder::Little,
        session: None,
        count: None,
    })
}

/// Each stream on a rule of its own.
pub(crate) fn rows() -> Vec<(&'static str, By, Vec<Step>)> {
    vec![
        ("numbers that go back", By::Rtp, goes_back()),
        ("numbers that go back while a line lags", By::Rtp, lags()),
        ("numbers that go back across their wrap", By::Rtp, wraps()),
        ("a jump to their wrap", By::Rtp, jumps_to_wrap()),
        ("a long tail that comes again", By::Rtp, long_tail()),
        ("a tail that comes again", By::Rtp, tail()),
        ("a few that come again and again", By::Rtp, few()),
        ("one strange packet", By::Rtp, strange()),
        ("strange packets ahead", By::Rtp, strange_ahead()),
        ("a number that stands still", By::Rtp, still()),
        ("one that does on one line", By::Rtp, still_on_one()),
        ("reports among packets", By::Rtp, reports()),
        ("types of payloads", By::Rtp, types()),
        ("packets outside the sequence", exchange(), unsequenced()),
        ("the end of a session", By::MoldUdp64, end_of_session()),
        ("messages and ends of sessions", By::MoldUdp64, sessions()),
        ("many messages a packet", By::MoldUdp64, many_messages()),
        ("many sources", By::Rtp, many_sources()),
        (
            "disorder across the wrap, and restarts",
            By::Rtp,
            disorder(),
        ),
        ("sources of their own", By::Rtp, own_sources()),
        (
            "sources of their own, by number",
            number_of_rtp(),
            by_number(),
        ),
        ("repairs on a line of their own", By::MoldUdp64, repairs()),
        ("stuffing", By::Payload, stuffing()),
        ("times of their own", By::Payload, own_times()),
        ("parity", By::Rtp, parity()),
    ]
}

const AGAIN: Option<DropReason> = Some(Duplicate);

/// Both lines deliver these.
fn both(numbers: std::ops::Range<u16>) -> Vec<Step> {
    let on_both = |number| [(0, rtp(number), None), (1, rtp(number), AGAIN)];
    numbers.flat_map(on_both).collect()
}

/// Both lines deliver these, which passed before.
fn again(numbers: std::ops::Range<u16>) -> Vec<Step> {
    let on_both = |number| [0, 1].map(|line| (line, rtp(number), AGAIN));
    numbers.flat_map(on_both).collect()
}

pub(crate) fn goes_back() -> Vec<Step> {
    let mut steps = both(100..112);
    steps.extend(again(100..107));
    steps.extend(both(107..112));
    // Those before it have not arrived since it began.
    steps.extend(both(100..107));
    steps
}

/// The eighth of the repeated ones is 0.
fn wraps() -> Vec<Step> {
    let across = |(line, mut payload, reason): Step| {
        let number = u16::from_be_bytes([payload[2], payload[3]]).wrapping_sub(107);
        payload[2..4].copy_from_slice(&number.to_be_bytes());
        (line, payload, reason)
    };
    goes_back().into_iter().map(across).collect()
}

/// In disorder.
fn jumps_to_wrap() -> Vec<Step> {
    let mut steps = both(20_000..20_002);
    steps.push((1, rtp(65_535), Some(Stray)));
    steps.extend(both(0..1));
    steps.extend([(0, rtp(65_535), None), (1, rtp(65_535), AGAIN)]);
    steps
}

/// One line's tail is long enough for a restart: what continues then still leaves once.
fn long_tail() -> Vec<Step> {
    let mut steps = both(100..120);
    steps.extend((110..117).map(|number| (1, rtp(number), AGAIN)));
    steps.push((1, rtp(117), None));
    steps.extend(both(120..140));
    steps
}

fn few() -> Vec<Step> {
    let mut steps = both(100..105);
    (0..5).for_each(|_| steps.extend(again(100..105)));
    steps.extend(both(105..107));
    steps
}

fn lags() -> Vec<Step> {
    let mut steps = both(100..110);
    steps.extend((110..120).map(|number| (0, rtp(number), None)));
    steps.extend((100..107).map(|number| (0, rtp(number), AGAIN)));
    steps.push((0, rtp(107), None));
    steps.extend((110..120).map(|number| (1, rtp(number), AGAIN)));
    // What it delivers of the new beginning passes as well.
    steps.extend([(1, rtp(100), None), (1, rtp(107), AGAIN)]);
    steps.extend([(0, rtp(110), None), (1, rtp(110), AGAIN)]);
    steps
}

fn tail() -> Vec<Step> {
    let mut steps = both(100..120);
    for next in 120..123 {
        steps.extend(again(110..117));
        steps.extend(both(next..next + 1));
    }
    steps
}

fn strange() -> Vec<Step> {
    let mut steps = both(1..3);
    for next in 3..8 {
        let strange = rtp(30_000 + next * 30);
        steps.push((0, strange, Some(Stray)));
        steps.extend(both(next..next + 1));
    }
    steps
}

/// With a little more distance what a lagging line delivers would no longer be recorded: of a stream, and of the
/// target of its jump.
fn strange_ahead() -> Vec<Step> {
    let mut steps = both(98..100);
    steps.extend((101..141).map(|number| (0, rtp(number), None)));
    steps.extend([(1, rtp(2_140), None), (0, rtp(141), None)]);
    steps.push((1, rtp(100), None));
    steps.extend((101..142).map(|number| (1, rtp(number), AGAIN)));
    steps.push((0, rtp(30_000), Some(Stray)));
    steps.extend((30_001..30_005).map(|number| (0, rtp(number), None)));
    steps.extend([(1, rtp(32_044), None), (0, rtp(30_005), None)]);
    steps.push((1, rtp(30_000), None));
    steps.extend((30_001..30_006).map(|number| (1, rtp(number), AGAIN)));
    steps.extend(both(30_006..30_010));
    steps
}

fn still() -> Vec<Step> {
    let with = |content: u8| {
        let mut payload = rtp(7);
        payload.push(content);
        payload
    };
    let mut steps = vec![(0, with(0), None), (1, with(0), AGAIN)];
    steps.extend((1..9).map(|content| (0, with(content), AGAIN)));
    steps.extend((9..12).flat_map(|n| [(0, with(n), None), (1, with(n), AGAIN)]));
    steps.extend([(1, with(12), None), (0, with(12), AGAIN)]);
    steps.extend(both(8..10));
    steps
}

/// The other continues, and shows that nothing has begun anew.
fn still_on_one() -> Vec<Step> {
    let mut steps = both(1..3);
    for number in 3..20 {
        let mut stuck = rtp(2);
        stuck.push(number as u8);
        steps.extend([(0, stuck, AGAIN), (1, rtp(number), None)]);
    }
    steps.push((0, rtp(5), AGAIN));
    steps.extend(both(20..22));
    steps
}

/// All types that packets of RTP and RTCP may have on one port, with and without the marker.
fn types() -> Vec<Step> {
    let mut steps = Vec::new();
    let numbers = [0, 33, 63, 96, 127]
        .into_iter()
        .flat_map(|kind| [kind, 0x80 | kind]);
    for (number, kind) in (1..).zip(numbers) {
        let mut packet = rtp(number);
        packet[1] = kind;
        steps.extend([(0, packet.clone(), None), (1, packet, AGAIN)]);
        for report in [192, 200, 204, 223] {
            let mut packet = of_source(7, 0xbeef);
            packet[1] = report;
            packet.push(kind);
            steps.extend([(1, packet.clone(), None), (0, packet, AGAIN)]);
        }
    }
    steps
}

/// RTCP on the same port, whose words look like numbers and sources.
fn reports() -> Vec<Step> {
    let report = |content: u8| {
        let mut payload = of_source(u16::from(content), 0xdead);
        payload[1] = 200;
        payload
    };
    let mut steps = both(1..3);
    for content in 3..6 {
        steps.extend([(1, report(content), None), (0, report(content), AGAIN)]);
        steps.extend(both(content.into()..u16::from(content) + 1));
    }
    steps
}

fn unsequenced() -> Vec<Step> {
    let packet = |number: u32, content: u8| {
        let mut payload = vec![content; 4];
        payload.extend(number.to_le_bytes());
        payload.resize(30, content);
        payload
    };
    let both = |number, content| {
        let packet = packet(number, content);
        [(0, packet.clone(), None), (1, packet, AGAIN)]
    };
    let mut steps = Vec::new();
    for (number, content) in [(0, 1), (5_000_000, 1), (0, 2), (5_000_001, 1), (0, 3)] {
        steps.extend(both(number, content));
    }
    // They confirm no new beginning.
    steps.extend((4..12).flat_map(|content| both(0, content)));
    steps.extend(both(5_000_002, 1));
    steps
}

fn end_of_session() -> Vec<Step> {
    let heartbeat = mold("A", 4, 0);
    let end = mold("A", 4, 0xffff);
    vec![
        (0, mold("A", 1, 3), None),
        (0, heartbeat.clone(), None),
        (0, end.clone(), None),
        (1, heartbeat, AGAIN),
        (1, end, AGAIN),
    ]
}

/// A session that begins with a heartbeat, has a packet of very many messages, and ends beside another.
fn sessions() -> Vec<Step> {
    let packets = [
        mold("B", 1, 0),
        mold("B", 1, 32_000),
        mold("B", 32_001, 1),
        mold("C", 1, 0),
        mold("C", 1, 1),
        mold("B", 32_002, 0),
        mold("B", 32_002, 0xffff),
        mold("C", 2, 0xffff),
    ];
    let both = |packet: Vec<u8>| [(1, packet.clone(), None), (0, packet, AGAIN)];
    packets.into_iter().flat_map(both).collect()
}

/// As many as a rule may have, and some more, for which there is no room.
fn many_sources() -> Vec<Step> {
    let mut steps = Vec::new();
    for number in 1..3 {
        for source in 0..STREAMS - 4 {
            let packet = of_source(number, 1_000 + source);
            steps.extend([(0, packet.clone(), None), (1, packet, AGAIN)]);
        }
    }
    let more = |range: std::ops::Range<u32>, reason| {
        range.map(move |source| (0, of_source(1, 1_000 + source), reason))
    };
    steps.extend(more(STREAMS - 4..STREAMS, None));
    steps.extend(more(
        STREAMS..STREAMS + 4,
        Some(DropReason::StreamsExceeded),
    ));
    steps.extend(more(STREAMS - 1..STREAMS, AGAIN));
    steps
}

/// Each line delivers neighbours in turn; the source begins anew, and numbers jump to just before their wrap.
fn disorder() -> Vec<Step> {
    let mut steps = Vec::new();
    let mut arrive = |ssrc, numbers: &[i32]| {
        for (at, number) in numbers.iter().enumerate() {
            let packet = of_source(*number as u16, ssrc);
            steps.push((at % 2, packet.clone(), None));
            if at >= 2 {
                let packet = of_source(numbers[at - 2] as u16, ssrc);
                steps.push(((at + 1) % 2, packet, AGAIN));
            }
        }
        for (at, number) in numbers.iter().enumerate().skip(numbers.len() - 2) {
            steps.push(((at + 1) % 2, of_source(*number as u16, ssrc), AGAIN));
        }
    };
    arrive(7, &[-4, -2, -3, 0, -1, 2, 1, 4, 3]);
    arrive(9, &[1, 0, -1, 2, 4, 3]);
    arrive(7, &[5, 7, 6]);
    steps.push((0, of_source(30_000, 9), Some(Stray)));
    for number in [30_001, 29_999, 30_000] {
        steps.push((1, of_source(number, 9), None));
    }
    for number in [29_999, 30_000, 30_001] {
        steps.push((0, of_source(number, 9), AGAIN));
    }
    steps
}

/// A vendor gives each line a source of its own: they are two streams, and the first stays.
fn own_sources() -> Vec<Step> {
    let on = |line: usize, number| of_source(number, 7 + line as u32);
    let mut steps = Vec::new();
    for number in 1..10 {
        steps.extend([(0, on(0, number), None), (1, on(1, number), Some(Stray))]);
    }
    steps
}

/// RTP's number without its source.
const fn number_of_rtp() -> By {
    By::Sequence(Sequence {
        number: Field {
            offset: 2,
            bytes: 2,
        },
        order: ByteOrder::Big,
        session: None,
        count: None,
    })
}

/// Then the number alone identifies packets, including 0 after the wrap.
fn by_number() -> Vec<Step> {
    let on = |line: usize, at: u16| of_source(at.wrapping_sub(3), 7 + line as u32);
    let both = |at: u16| {
        let first = usize::from(at % 2);
        [
            (first, on(first, at), None),
            (1 - first, on(1 - first, at), AGAIN),
        ]
    };
    (0..8).flat_map(both).collect()
}

/// A third line delivers only retransmissions and heartbeats.
fn repairs() -> Vec<Step> {
    let mut steps = Vec::new();
    for number in 0..6 {
        let packet = mold("A", 1 + 3 * number, 3);
        if number != 2 && number != 3 {
            steps.extend([(0, packet.clone(), None), (1, packet, AGAIN)]);
        }
    }
    steps.extend([
        (2, mold("A", 19, 0), None),
        (2, mold("A", 7, 2), None),
        (2, mold("A", 9, 4), None),
        (2, mold("A", 7, 6), AGAIN),
        (2, mold("A", 1, 3), AGAIN),
        (0, mold("A", 7, 3), AGAIN),
        (0, mold("A", 19, 0), AGAIN),
        (1, mold("A", 19, 1), None),
        (2, mold("A", 19, 1), AGAIN),
    ]);
    steps
}

/// MPEG-TS of which many datagrams are nothing but null packets, the same each time.
fn stuffing() -> Vec<Step> {
    let null = [&[0x47, 0x1f, 0xff, 0x10][..], &[0xff; 184]]
        .concat()
        .repeat(7);
    let mut steps = Vec::new();
    for number in 0..8 {
        let mut content = null.clone();
        content[188 * 3 + 4] = number;
        steps.extend([(0, content.clone(), None), (0, null.clone(), None)]);
        steps.extend([(0, null.clone(), None), (1, content, AGAIN)]);
        steps.extend([(1, null.clone(), AGAIN), (1, null.clone(), AGAIN)]);
    }
    steps
}

/// Headers that differ from line to line, like SRT's: no packets are equal then.
fn own_times() -> Vec<Step> {
    let on = |line: usize, number: u8| {
        let mut payload = vec![0, 0, 0, number, 0xc0, 0, 0, 1, 0, 0, 0, line as u8];
        payload.resize(1_328, number);
        payload
    };
    let each = |number| [(0, on(0, number), None), (1, on(1, number), None)];
    (1..6).flat_map(each).collect()
}

/// FEC of ST 2022-1 has no source.
fn parity() -> Vec<Step> {
    let packet = |at: u16| {
        let mut payload = of_source(at.wrapping_sub(2), 0);
        payload[1] = 96;
        payload[4..8].fill(0);
        payload
    };
    let both = |at| [(1, packet(at), None), (0, packet(at), AGAIN)];
    (0..6).flat_map(both).collect()
}

/// A line that is a thousand packets behind fills in what the other lost.
fn many_messages() -> Vec<Step> {
    let packet = |number: u64| mold("A", 1 + 30 * number, 30);
    vec![
        (0, packet(0), None),
        (0, packet(1_000), None),
        (0, packet(2_000), None),
        (1, packet(1), None),
        (1, packet(0), AGAIN),
        (1, packet(999), None),
        (1, packet(2_000), AGAIN),
    ]
}
