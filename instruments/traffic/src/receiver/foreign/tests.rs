use std::net::Ipv4Addr;

use super::*;
use crate::framing::{Framing, Label, recognise};
use crate::payload::Stamp;

const HERE: Origin = Origin {
    address: 0,
    source: None,
};

/// A payload as the generator frames it, without its own header.
fn framed(framing: Framing, sequence: u64) -> Vec<u8> {
    let mut payload = vec![0; framing.usual_size()];
    let stamp = Stamp {
        run: 1,
        stream: 0,
        sequence,
        intended_ns: 0,
    };
    framing.write(&mut payload, &stamp, &Label::of(&stamp));
    payload
}

fn take(foreign: &mut Foreign, origin: Origin, framing: Framing, sequence: u64) {
    foreign.take(origin, &recognise(&framed(framing, sequence)));
}

fn after(framing: Framing, numbers: impl IntoIterator<Item = u64>) -> Gaps {
    let mut foreign = Foreign::default();
    for sequence in numbers {
        take(&mut foreign, HERE, framing, sequence);
    }
    foreign.gaps()
}

fn gaps(lost: u64, duplicated: u64, reordered: u64) -> Gaps {
    Gaps {
        lost,
        duplicated,
        reordered,
        ..Gaps::default()
    }
}

fn rtp(source: u32, sequence: u16) -> Framed<'static> {
    Framed {
        framing: Framing::Rtp,
        rtp: Some(rtp::Header {
            payload_type: rtp::DYNAMIC,
            sequence,
            timestamp: 0,
            ssrc: source,
        }),
        ts: None,
    }
}

#[test]
fn rtp_numbers_run_on_over_their_end() {
    assert_eq!(after(Framing::Rtp, 65_530..65_550), gaps(0, 0, 0));
    assert_eq!(
        after(Framing::Rtp, [65_533, 65_534, 65_538, 65_537]),
        gaps(2, 0, 1)
    );
    assert_eq!(after(Framing::RtpTs, [7, 8, 8, 10]), gaps(1, 1, 0));
}

#[test]
fn an_rtp_restart_is_counted_wherever_it_continues() {
    let one = Gaps {
        restarts: 1,
        ..Gaps::default()
    };
    // Ahead; back to what was never seen; back to what was, which copies also are.
    for (end, anew) in [
        (10, 30_000),
        (10, 3_009),
        (10, 60_001),
        (6_000, 465),
        (6_000, 5_700),
    ] {
        for start in [0, end - 10, 65_530] {
            let number = |n| (start + n) % 65_536;
            let restarted = (start..start + end).chain((0..1000).map(|n| number(anew + n)));
            assert_eq!(after(Framing::Rtp, restarted), one, "{end} {anew} {start}");
        }
    }
    let astray = (0..10).chain([30_000]).chain(12..20);
    assert_eq!(after(Framing::Rtp, astray), gaps(2, 0, 0));
    let dropout = (0..10).chain(3_008..3_010);
    assert_eq!(after(Framing::Rtp, dropout), gaps(2_998, 0, 0));
}

/// Of two paths of which one is half a second longer, packets arrive in bursts.
#[test]
fn copies_that_arrive_far_behind_are_no_restart() {
    for burst in [1, 2, 64] {
        let bursts = (500..5_000_u64).step_by(burst);
        let twice =
            bursts.flat_map(|n| (n..n + burst as u64).chain(n - 500..n - 500 + burst as u64));
        let gaps = after(Framing::Rtp, (0..500).chain(twice));
        assert_eq!((gaps.lost, gaps.reordered, gaps.restarts), (0, 0, 0));
        assert!(
            (4_436..=4_564).contains(&gaps.duplicated),
            "{burst}: {gaps:?}"
        );
    }
}

#[test]
fn bytes_that_only_look_like_rtp_are_not_validated() {
    let far = (0..100).map(|n| n * 7919 % 65_536);
    let to_and_fro = (0..100).map(|n| 5 + n % 2 * 4);
    for numbers in [far.collect::<Vec<_>>(), to_and_fro.collect(), vec![7; 100]] {
        let mut foreign = Foreign::default();
        numbers
            .into_iter()
            .for_each(|n| take(&mut foreign, HERE, Framing::Rtp, n));
        assert_eq!((foreign.gaps(), foreign.unchecked()), (gaps(0, 0, 0), 100));
    }
}

#[test]
fn a_stream_that_loses_every_other_packet_is_validated() {
    assert_eq!(after(Framing::Rtp, (0..1000).step_by(2)), gaps(499, 0, 0));
    let from_the_first_on = [10, 12].into_iter().chain(13..100);
    assert_eq!(after(Framing::Rtp, from_the_first_on), gaps(1, 0, 0));
}

#[test]
fn streams_made_up_by_a_sender_are_bounded() {
    let mut foreign = Foreign::default();
    (0..3).for_each(|sequence| foreign.take(HERE, &rtp(7, sequence)));
    for source in 100..100 + 3 * MAX_STREAMS as u32 {
        foreign.take(HERE, &rtp(source, 1));
    }
    assert!(foreign.streams.len() <= MAX_STREAMS);
    assert_eq!(foreign.unchecked(), 3 * MAX_STREAMS as u64);
    foreign.take(HERE, &rtp(7, 4));
    assert_eq!(foreign.gaps(), gaps(1, 0, 0), "the steady one is forgotten");
}

#[test]
fn a_gap_in_continuity_is_one_lost_datagram() {
    assert_eq!(after(Framing::Ts, 0..100), gaps(0, 0, 0));
    assert_eq!(after(Framing::Ts, [0, 1, 3, 4, 9, 10]), gaps(2, 0, 0));
}

#[test]
fn a_repeated_ts_datagram_is_a_duplicate() {
    assert_eq!(after(Framing::Ts, [0, 1, 1, 2, 3, 2, 4]), gaps(0, 2, 0));
    assert_eq!(after(Framing::Ts, [0, 1, 5, 5, 6]), gaps(1, 1, 0));
    assert_eq!(after(Framing::Ts, [0, 1, 2, 3, 1]), gaps(0, 1, 0));
}

/// With 7 packets of one PID each, and nothing in them, every 16th datagram is the same.
#[test]
fn a_gap_in_a_stream_that_repeats_itself_is_no_duplicate() {
    let lost = (0..200).filter(|number| ![100, 140, 141].contains(number));
    assert_eq!(after(Framing::Ts, lost), gaps(2, 0, 0));
    let copied = (0..100).chain([97]).chain(100..200);
    assert_eq!(after(Framing::Ts, copied), gaps(0, 1, 0));
}

#[test]
fn loss_before_rtp_encapsulation_is_counted_separately() {
    let mut foreign = Foreign::default();
    for (number, content) in [(0, 0), (1, 1), (2, 3), (3, 4), (5, 6), (6, 7), (6, 7)] {
        let mut payload = framed(Framing::RtpTs, number);
        let size = Framing::Ts.usual_size();
        let start = payload.len() - size;
        payload[start..].copy_from_slice(&framed(Framing::Ts, content));
        foreign.take(HERE, &recognise(&payload));
    }
    let expected = Gaps {
        continuity_errors: 1,
        ..gaps(1, 1, 0)
    };
    assert_eq!(foreign.gaps(), expected);
}

#[test]
fn senders_and_groups_have_streams_of_their_own() {
    let at = |address, port| Origin {
        address,
        source: Some((Ipv4Addr::LOCALHOST, port).into()),
    };
    for framing in [Framing::Rtp, Framing::Ts, Framing::RtpTs] {
        let mut foreign = Foreign::default();
        for sequence in 0..100 {
            take(&mut foreign, at(0, 1), framing, sequence);
            take(&mut foreign, at(0, 2), framing, sequence + 5000);
            take(&mut foreign, at(1, 1), framing, sequence);
        }
        assert_eq!(foreign.gaps(), gaps(0, 0, 0), "{framing:?}");
        assert_eq!(foreign.unchecked(), 0, "{framing:?}");
    }
}
