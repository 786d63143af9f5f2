//! Streams whose numbers do what numbers should not: they go back, stand still, jump once, or are none.

use packet::verdict::DropReason::{self, Duplicate, Stray};
use rules::merge::{By, ByteOrder, Field, Sequence};

use crate::merged::{mold, of_source, rtp};
use crate::merged_bed::{STREAMS, Step};

/// A number of four bytes at the fourth, without sessions.
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

/// Each by itself, on a rule of its own.
pub(crate) fn rows() -> Vec<(&'static str, By, Vec<Step>)> {
    vec![
        ("numbers that go back", By::Rtp, goes_back()),
        ("numbers that go back while a line lags", By::Rtp, lags()),
        ("a tail that comes again", By::Rtp, tail()),
        ("one strange packet", By::Rtp, strange()),
        ("a number that stands still", By::Rtp, still()),
        ("reports among packets", By::Rtp, reports()),
        ("packets outside the sequence", exchange(), unsequenced()),
        ("the end of a session", By::MoldUdp64, end_of_session()),
        ("many messages a packet", By::MoldUdp64, many_messages()),
        ("many sources", By::Rtp, many_sources()),
    ]
}

const AGAIN: Option<DropReason> = Some(Duplicate);

/// Both lines bring these.
fn both(numbers: std::ops::Range<u16>) -> Vec<Step> {
    let on_both = |number| [(0, rtp(number), None), (1, rtp(number), AGAIN)];
    numbers.flat_map(on_both).collect()
}

/// Both lines bring these, which passed before.
fn again(numbers: std::ops::Range<u16>) -> Vec<Step> {
    let on_both = |number| [0, 1].map(|line| (line, rtp(number), AGAIN));
    numbers.flat_map(on_both).collect()
}

fn goes_back() -> Vec<Step> {
    let mut steps = both(100..112);
    steps.extend(again(100..107));
    steps.extend(both(107..112));
    // Those before it have not come since it began.
    steps.extend(both(100..107));
    steps
}

fn lags() -> Vec<Step> {
    let mut steps = both(100..110);
    steps.extend((110..120).map(|number| (0, rtp(number), None)));
    steps.extend((100..107).map(|number| (0, rtp(number), AGAIN)));
    steps.push((0, rtp(107), None));
    steps.extend((110..120).map(|number| (1, rtp(number), AGAIN)));
    // What it brings of the new beginning passes as well.
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
    // They are nobody's confirmation of a new beginning.
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

/// As many as a rule may have, and some more, which find no room.
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

/// A line that lies a thousand packets behind fills in what the other lost.
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
