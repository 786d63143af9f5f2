use super::super::tests::{MS, merge, rtp, windows};
use super::super::{Verdict, Windows};
use super::*;
use rules::merge::By;

fn at(ms: u64) -> When {
    When {
        now_ns: ms * MS,
        judged_ns: ms * MS,
    }
}

fn read(windows: &Windows, reading: &mut Reading, ms: u64) -> Counts {
    read_when(windows, reading, at(ms))
}

fn read_when(windows: &Windows, reading: &mut Reading, when: When) -> Counts {
    let block = |number| Some(windows.blocks.read(number));
    counts(|| windows.rules.read(0), reading, block, when)
}

fn prepare(by: rules::merge::By) -> Windows {
    let windows = windows();
    windows.rules.write(0, &merge(by));
    windows
}

fn missed(counts: &Counts) -> [u64; 2] {
    [counts.lines[0].missed, counts.lines[1].missed]
}

#[test]
fn what_may_still_arrive_is_not_lost_yet() {
    let windows = prepare(rules::merge::By::Rtp);
    let judge = |line, number, ms| windows.judge((0, line), (&rtp(number, 7), 0), ms * MS);
    let mut reading = Reading::default();
    for number in [65_530, 65_531, 65_533, 65_535, 0, 1] {
        assert_eq!(judge(0, number, 10), Verdict::First);
    }
    for number in [65_530, 65_531] {
        assert_eq!(judge(1, number, 11), Verdict::Duplicate);
    }
    let counts = read(&windows, &mut reading, 12);
    assert_eq!(
        (counts.lost, missed(&counts)),
        (0, [0, 0]),
        "two are missing, both young"
    );
    assert_eq!(judge(1, 65_532, 13), Verdict::First);
    for (number, at) in [(65_533, 13), (65_535, 13), (0, 14), (1, 60)] {
        assert_eq!(judge(1, number, at), Verdict::Duplicate);
    }
    for (line, at) in [(0, 61), (1, 62)] {
        judge(line, 2, at);
    }
    let counts = read(&windows, &mut reading, 63);
    assert_eq!(
        (counts.lost, missed(&counts)),
        (1, [1, 0]),
        "one is lost, one came on the second"
    );
    let counts = read(&windows, &mut reading, 200);
    assert_eq!(
        (counts.lost, missed(&counts)),
        (1, [1, 0]),
        "and that is all"
    );
    assert_eq!(counts.streams, 1);
}

/// The second line is some packets behind the first, one that continues at once where it ends.
#[test]
fn a_stream_that_begins_anew_again_and_again_loses_nothing() {
    for (behind, length) in [(0, 300), (3, 300), (5, 40), (7, 1_000)] {
        let windows = prepare(rules::merge::By::Rtp);
        let mut reading = Reading::default();
        for at in 0..30_000_u64 {
            let ms = 10 + at;
            for (line, at) in [(0, Some(at)), (1, at.checked_sub(behind))] {
                if let Some(at) = at {
                    let packet = rtp(100 + (at % length) as u16, 7);
                    let _ = windows.judge((0, line), (&packet, 0), ms * MS);
                }
            }
            if at % 50 == 0 {
                let counts = read(&windows, &mut reading, ms);
                assert_eq!((counts.lost, missed(&counts)), (0, [0, 0]), "at {at}");
            }
        }
        // Not each of a short one: within a window four are recorded.
        let streams = read(&windows, &mut reading, 30_100).streams;
        assert!(streams > 24_000 / length, "{streams} of {length}");
    }
}

#[test]
fn streams_are_counted_when_generations_begin_anew() {
    let windows = prepare(rules::merge::By::Rtp);
    let mut rule = windows.rules.read(0);
    rule.newest = (0xffff - 3) << 8;
    windows.rules.write(0, &rule);
    let mut reading = Reading::default();
    let judge = |number, ms| windows.judge((0, 0), (&rtp(number, 7), 0), ms * MS);
    assert_eq!(judge(500, 10), Verdict::First, "the last generation");
    let before = read(&windows, &mut reading, 11).streams;
    for (number, ms) in [(20_000, 100), (40_000, 200)] {
        assert_eq!(judge(number, ms), Verdict::First, "it begins anew");
    }
    assert_eq!(read(&windows, &mut reading, 201).streams, before + 2);
}

#[test]
fn a_silent_line_misses_what_the_other_delivers() {
    let windows = prepare(rules::merge::By::Rtp);
    let mut reading = Reading::default();
    for number in 0..20_000u64 {
        let at = MS + number * MS / 10;
        let packet = rtp(number as u16, 7);
        if number % 10 != 0 {
            assert_eq!(windows.judge((0, 0), (&packet, 0), at), Verdict::First);
        }
        if number < 5_000 && number % 10 != 0 {
            assert_eq!(windows.judge((0, 1), (&packet, 0), at), Verdict::Duplicate);
        }
        if number % 3_000 == 0 {
            read(&windows, &mut reading, at / MS);
        }
    }
    for ms in [2_001, 2_052, 2_103] {
        read(&windows, &mut reading, ms);
    }
    let counts = read(&windows, &mut reading, 2_200);
    // The first number is unknown, because nothing had arrived before it.
    assert_eq!((counts.lost, missed(&counts)), (1_999, [0, 13_500]));
}

#[test]
fn numbers_that_packets_take_up_are_counted() {
    let windows = prepare(rules::merge::By::MoldUdp64);
    let mut reading = Reading::default();
    for packet in 0..100u64 {
        let mut payload = vec![1; 10];
        payload.extend((7 + packet * 3).to_be_bytes());
        payload.extend([0, 3]);
        for (line, every) in [(0, 5), (1, 10)] {
            if packet % every != 1 {
                let _ = windows.judge((0, line), (&payload, 0), MS + packet * MS);
            }
        }
    }
    let mut counts = read(&windows, &mut reading, 105);
    for step in 1..8 {
        counts = read(&windows, &mut reading, 105 + step * 51);
    }
    assert_eq!((counts.lost, missed(&counts)), (30, [30, 0]));
}

#[test]
fn a_payload_is_missed_when_two_windows_have_passed() {
    let windows = prepare(rules::merge::By::Payload);
    let mut reading = Reading::default();
    for number in 0..100u8 {
        for (line, every) in [(0, 7), (1, 5)] {
            if number % every != 0 {
                let _ = windows.judge((0, line), (&[number], 0), MS);
            }
        }
    }
    assert_eq!(missed(&read(&windows, &mut reading, 2)), [0, 0]);
    let counts = read(&windows, &mut reading, 130);
    assert_eq!((counts.lost, missed(&counts)), (0, [12, 17]));
}

/// One line is 20 ms behind, with a payload each millisecond; each loses one. Their distance is no loss, and a
/// loss of one is counted while the other continues.
fn lines_apart(since_ns: u64, lost: [u32; 2]) -> Vec<[u64; 2]> {
    let windows = prepare(rules::merge::By::Payload);
    let mut rule = windows.rules.read(0);
    (0..2).for_each(|line| rule.line[line].since_ns = since_ns);
    windows.rules.write(0, &rule);
    let mut reading = Reading::default();
    let mut seen = Vec::new();
    for ms in 1..=3_000_u32 {
        for (line, number) in [(0, ms), (1, ms.wrapping_sub(20))] {
            // Where the merge begins in a running stream, the line ahead has delivered 20 before.
            let is_there = (1..=ms).contains(&number) || since_ns > MS;
            if is_there && number != lost[line] {
                let packet = number.to_be_bytes();
                let _ = windows.judge((0, line as u32), (&packet, 0), u64::from(ms) * MS);
            }
        }
        if ms % 100 == 0 {
            seen.push(missed(&read(&windows, &mut reading, ms.into())));
        }
    }
    seen
}

#[test]
fn a_payload_is_missed_while_the_stream_goes_on() {
    let seen = lines_apart(1, [1_010, 2_010]);
    assert_eq!(seen[..10], [[0; 2]; 10]);
    assert_eq!(seen[12], [1, 0], "what the line ahead lost");
    assert_eq!(seen[22..], [[1, 1]; 8], "and what the line behind lost");
}

#[test]
fn what_was_in_flight_when_a_merge_by_payload_began_is_not_missed() {
    let seen = lines_apart(100 * MS, [1_010, 150]);
    assert_eq!(seen[9], [0, 1]);
    assert_eq!(seen[12..], [[1, 1]; 18]);
}

/// Packets arrive while the words are read, and then no more.
#[test]
fn a_line_that_joins_later_misses_nothing_of_before() {
    let windows = prepare(rules::merge::By::Payload);
    let mut rule = windows.rules.read(0);
    rule.line[1].since_ns = 1_000 * MS;
    rule.line[1].joins = 1;
    windows.rules.write(0, &rule);
    let next = std::cell::Cell::new(0_u32);
    let judge_packet = |ms: u64| {
        let packet = next.get().to_be_bytes();
        for line in 0..1 + u32::from(ms >= 900) {
            let _ = windows.judge((0, line), (&packet, 0), ms * MS);
        }
        next.set(next.get() + 1);
    };
    let mut reading = Reading::default();
    for ms in (100..3_000).step_by(100) {
        let words = || {
            (0..3).filter(|_| ms < 2_000).for_each(|_| judge_packet(ms));
            windows.rules.read(0)
        };
        let block = |number| Some(windows.blocks.read(number));
        let counts = counts(words, &mut reading, block, at(ms));
        assert_eq!(missed(&counts), [0, 0], "{ms}");
    }
}

/// From 1 to 2 s the second line's packets wait for their worker, which then judges them all.
#[test]
fn what_waits_to_be_judged_is_not_missed() {
    use rules::merge::By::{MoldUdp64, Payload, Rtp};
    for by in [Rtp, MoldUdp64, Payload] {
        let windows = prepare(by);
        let mut reading = Reading::default();
        let judge = |line, ms: u64| {
            let number = ms / 10;
            let mut packet = rtp(number as u16, 7);
            if by == MoldUdp64 {
                packet = [&[1; 10][..], &number.to_be_bytes(), &[0, 1]].concat();
            }
            let _ = windows.judge((0, line), (&packet, 0), ms * MS);
        };
        let mut seen = Vec::new();
        for ms in (10..4_000).step_by(10) {
            let waits = (1_000..2_000).contains(&ms);
            // Each loses one.
            if ms != 1_700 {
                judge(0, ms);
            }
            if !waits && ms != 500 {
                judge(1, ms);
            }
            if ms == 2_000 {
                (1_000..2_000).step_by(10).for_each(|late| judge(1, late));
            }
            let when = When {
                judged_ns: if waits { 1_000 } else { ms } * MS,
                ..at(ms)
            };
            seen.push(missed(&read_when(&windows, &mut reading, when)));
        }
        seen.dedup();
        assert_eq!(seen, [[0, 0], [0, 1], [1, 1]], "{by:?}");
    }
}

/// Two lines replace two others, which had delivered packets.
#[test]
fn lines_that_replace_others_miss_nothing_of_before() {
    for by in [rules::merge::By::Rtp, rules::merge::By::Payload] {
        let windows = prepare(by);
        let mut reading = Reading::default();
        for ms in (10..3_000).step_by(10) {
            if ms == 1_000 {
                let mut rule = windows.rules.read(0);
                for (index, line) in rule.line.iter_mut().enumerate() {
                    let is_new = index > 1;
                    line.since_ns = if is_new {
                        (1_100 + index as u64) * MS
                    } else {
                        0
                    };
                    line.joins = is_new.into();
                }
                windows.rules.write(0, &rule);
            }
            for line in [0, 1] {
                let line = line + if ms < 1_000 { 0 } else { 2 };
                // Each of the former lines loses packets, and one of the others.
                if ms % 100 != u64::from(line) * 10 || ms > 1_000 && line == 2 {
                    let _ = windows.judge((0, line), (&rtp((ms / 10) as u16, 7), 0), ms * MS);
                }
            }
            let counts = read(&windows, &mut reading, ms);
            let gaps = [2, 3].map(|line| counts.lines[line].missed);
            let lost = ((ms + 70) / 100).saturating_sub(10);
            assert!(gaps[0] == 0 && gaps[1] <= lost, "{by:?} at {ms}: {gaps:?}");
            if ms == 2_990 {
                assert!(gaps[1] >= lost - 4, "{by:?}: {gaps:?}");
            }
        }
    }
}

/// The second line was away for more than three windows and is three packets ahead as the source begins anew.
#[test]
fn what_a_line_delivers_before_another_confirms_it_is_not_missed() {
    let windows = prepare(rules::merge::By::Rtp);
    let mut reading = Reading::default();
    let judge = |line, number: u64, ssrc, ms| {
        windows.judge((0, line), (&rtp(number as u16, ssrc), 0), ms * MS)
    };
    for ms in 10..1_000 {
        judge(0, ms, 7, ms);
        if !(500..800).contains(&ms) {
            judge(1, ms, 7, ms);
        }
    }
    for ms in 1_000..1_300 {
        judge(0, ms, 7, ms);
    }
    for ms in 1_300..1_600 {
        let ahead = judge(1, ms, 9, ms);
        assert_eq!(ahead == Verdict::Stray, ms < 1_304, "{ms}");
        if ms >= 1_303 {
            judge(0, ms - 3, 9, ms);
        }
        read(&windows, &mut reading, ms);
    }
    for ms in [1_700, 1_800] {
        let words = windows.rules.read(0);
        assert_eq!(words.cells >> 32, 1);
        let cell = |number: u64| {
            let mut cell = windows.rules.read(number as u32);
            for (line, own) in cell.line.iter_mut().zip(words.line) {
                (line.since_ns, line.owner, line.seen_ns) = (own.since_ns, own.owner, own.seen_ns);
            }
            cell
        };
        let of = (words.cells & 0xffff_ffff) - 1;
        let block = |number| Some(windows.blocks.read(number));
        let mut reading = Reading::default();
        let counts = counts(|| cell(of), &mut reading, block, at(ms));
        assert_eq!((counts.lost, missed(&counts)), (0, [0, 0]), "{ms}");
    }
}

/// It is not the newest of its stream, unless that arrives there.
#[test]
fn what_a_foreign_packet_is_ahead_is_neither_lost_nor_missed() {
    let mold = |number: u64| {
        let number = (30 * number).to_be_bytes();
        [&[b'A'; 10][..], &number, &[0, 30]].concat()
    };
    for (by, payload) in [
        (
            By::Rtp,
            (|number| rtp(number as u16, 7)) as fn(u64) -> Vec<u8>,
        ),
        (By::Mdp3, |number| (number as u32).to_le_bytes().to_vec()),
        (By::MoldUdp64, mold),
    ] {
        for strange in [0, 1] {
            let windows = prepare(by);
            let mut reading = Reading::default();
            let judge =
                |line, number, ms: u64| windows.judge((0, line), (&payload(number), 0), ms * MS);
            for ms in 10..3_000 {
                let is_strange = ms == 560;
                let [first, second] = [0, 1].map(|line| judge(line, 60_000 + ms, ms));
                if !is_strange {
                    assert_eq!((first, second), (Verdict::First, Verdict::Duplicate));
                }
                if ms == 500 {
                    assert_eq!(judge(strange, 60_560, ms), Verdict::First);
                }
                let counts = read(&windows, &mut reading, ms);
                assert_eq!((counts.lost, missed(&counts)), (0, [0, 0]), "{by:?}: {ms}");
            }
        }
    }
}

/// The second line delivers another sender's numbers, from before the stream began; or, after it was away,
/// numbers that it delivered before. Only what lags is late.
#[test]
fn foreign_numbers_that_are_behind_hide_nothing_that_their_line_misses() {
    for (away, first, verdict) in [
        (10..2_000, 100, Verdict::Stray),
        (1_000..4_000, 10_100, Verdict::Stray),
        (1_000..7_000, 11_100, Verdict::Late),
    ] {
        let windows = prepare(rules::merge::By::Mdp3);
        let mut reading = Reading::default();
        let judge = |line, number: u64, ms: u64| {
            let packet = (number as u32).to_le_bytes();
            windows.judge((0, line), (&packet, 0), ms * MS)
        };
        let mut strange = 0;
        for ms in 10..9_000 {
            assert_eq!(judge(0, 10_000 + ms, ms), Verdict::First);
            if !away.contains(&ms) && ms < away.end {
                assert_eq!(judge(1, 10_000 + ms, ms), Verdict::Duplicate);
            } else if (away.end..away.end + 500).contains(&ms) {
                let number = first + ms - away.end;
                assert_eq!(judge(1, number, ms), verdict, "{number} at {ms}");
                strange += u64::from(verdict == Verdict::Stray);
            }
            read(&windows, &mut reading, ms);
        }
        let delivered = away.start - 10 + 500 * u64::from(verdict == Verdict::Late);
        let counts = [9_100, 9_200].map(|ms| read(&windows, &mut reading, ms))[1];
        assert_eq!(missed(&counts), [0, 8_990 - delivered], "{away:?}");
        assert_eq!(counts.lines[1].packets[Verdict::Stray.index()], strange);
    }
}

/// Later streams take the places of all that were known.
#[test]
fn nothing_is_lost_or_missed_while_all_legs_are_away() {
    let windows = prepare(By::Rtp);
    let mut reading = Reading::default();
    let judge = |line, number, ms| windows.judge((0, line), (&rtp(number, 7), 0), ms * MS);
    let both = |numbers: std::ops::Range<u16>, ms: u64| {
        for (number, ms) in numbers.clone().zip(ms..) {
            for line in [0, 1] {
                let (lost, missed) = (numbers.start + 7, numbers.start + 3 + 2 * line as u16);
                if number != lost && (number != missed || line == 0) {
                    judge(line, number, ms);
                }
            }
        }
    };
    let mut settled = |begin: u64| {
        let reads = (begin..).step_by(60).take(READINGS + 2);
        let counts = reads.map(|ms| read(&windows, &mut reading, ms)).last();
        counts.map(|counts| (counts, (counts.lost, missed(&counts))))
    };
    both(1..20, 10);
    let (counts, seen) = settled(30).unwrap();
    assert_eq!(seen, (1, [0, 1]));
    let mut rule = windows.rules.read(0);
    close(&mut rule, &counts, [true, true, false, false], false);
    rule.line.iter_mut().for_each(|line| line.since_ns = 0);
    windows.rules.write(0, &rule);
    assert_eq!(settled(500).unwrap().1, (1, [0, 1]));
    open(&mut rule);
    for index in [0, 1] {
        open_line(&mut rule, index);
        rule.line[index].since_ns = 1_100 * MS;
    }
    windows.rules.write(0, &rule);
    both(100..120, 1_010);
    assert_eq!(settled(1_040).unwrap().1, (2, [0, 2]));
    for stream in 0..5 {
        both(
            10_000 * stream + 5_000..10_000 * stream + 5_002,
            2_000 + 200 * u64::from(stream),
        );
    }
    assert_eq!(settled(3_100).unwrap().1, (2, [0, 2]));
}
