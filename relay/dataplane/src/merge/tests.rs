use std::convert::Infallible;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bpf::merge::Verdict;
use bpf::merge_layout::{BY_ONCE_FROM_EACH, BY_SEQUENCE, MergeLine};
use rules::merge::{By, PACKETS_MAX};
use sys::shared_memory::{self, Region};

use super::*;

const NOW: u64 = 1 << 40;
const RULE: u32 = 7;

/// Merges in memory that held other data before, and the words of all of them.
struct Fixture(Merges<NoBlocks>, Array<Merge>);

/// Blocks that are never read.
#[derive(Debug)]
pub(crate) struct NoBlocks;

impl BlockMemory for NoBlocks {
    type Error = Infallible;

    fn take(&mut self, _: Range<u32>) -> Result<(), Infallible> {
        Ok(())
    }

    fn give_back(&self, _: Range<u32>) -> Result<(), Infallible> {
        Ok(())
    }

    fn read(&self, _: u32) -> Option<MergeBlock> {
        None
    }
}

impl Fixture {
    fn new() -> Self {
        const BYTES: usize = 4 * size_of::<Merge>();
        let region = shared_memory::create(c"mcr-test", BYTES).unwrap();
        let memory = shared_memory::map(region.as_fd(), BYTES).unwrap();
        let words = memory.array::<Merge>(0, 4);
        for index in 0..words.len() {
            for word in words.words(index) {
                word.store(0xdead, Ordering::Relaxed);
            }
            words::tear_down(&words, index);
        }
        let merges = Merges::new(words.clone(), NoBlocks, Clock::Process);
        Self(merges, words)
    }

    /// The merge of one rule, with lines in this order.
    fn with(params: MergeParams, lines: &[u32]) -> Self {
        let mut fixture = Self::new();
        fixture.begin(RULE, params);
        for line in lines {
            fixture.join(*line, lines).expect("a place");
        }
        fixture
    }

    fn begin(&mut self, rule: u32, params: MergeParams) -> Option<ActiveMerge> {
        let hash = [rule.into(); 2];
        let Ok(has_room) = self.0.prepare((hash, Some(rule)), params);
        if !has_room {
            return None;
        }
        self.0.begin((hash, rule), params)
    }

    fn join(&self, line: u32, wanted: &[u32]) -> Option<u32> {
        words::join(&self.1, 0, (line, wanted), (NOW, false))
    }

    fn lines(&self) -> [Option<u32>; LINES_MAX] {
        lines(&self.1.read(0))
    }

    fn recover(&self) -> Option<(u32, ActiveMerge)> {
        words::recover(&self.1, 0, NOW)
    }

    /// Those of another process, in which this many rules count.
    fn inherit(&self, rules: u32) -> Self {
        let mut merges = Merges::new(self.1.clone(), NoBlocks, Clock::Process);
        merges.adopt(0..self.1.len(), |rule| rule < rules);
        Self(merges, self.1.clone())
    }

    fn change(&self, change: impl FnOnce(&mut Merge)) {
        let mut merge = self.1.read(0);
        change(&mut merge);
        self.1.write(0, &merge);
    }
}

fn rtp() -> MergeParams {
    MergeParams::of(&rules::merge::Merge::default())
}

fn by(by: By) -> MergeParams {
    MergeParams::of(&rules::merge::Merge {
        by,
        ..rules::merge::Merge::default()
    })
}

#[test]
fn a_merge_that_was_set_up_is_recovered() {
    for how in [rtp(), by(By::Mdp3), by(By::MoldUdp64), by(By::Payload)] {
        let memory = Fixture::with(how, &[3]);
        let (rule, recovered) = memory.recover().expect("it makes sense");
        assert_eq!((rule, recovered.params), (RULE, how));
        assert_eq!(memory.0.of(RULE), Some(recovered));
        assert_eq!(memory.lines(), [Some(3), None, None, None]);
        words::tear_down(&memory.1, 0);
        assert_eq!(memory.recover(), None, "its owner has gone");
    }
}

#[test]
fn more_packets_take_more_blocks() {
    let merge = |packets| rules::merge::Merge {
        packets,
        window: Duration::from_millis(3),
        ..rules::merge::Merge::default()
    };
    assert_eq!(MergeParams::of(&merge(2_048)).blocks(), 4);
    assert_eq!(MergeParams::of(&merge(65_536)).blocks(), 128);
    assert_eq!(MergeParams::of(&merge(2_048)).window_ns, 3_000_000);
}

#[test]
fn ended_streams_give_their_cells_back_and_their_counts_stay() {
    let windows = bpf::merge::Windows::create().unwrap().1;
    let mut merges = Merges::new(windows.rules.clone(), NoBlocks, Clock::Process);
    let params = MergeParams {
        streams: 3,
        ..rtp()
    };
    assert_eq!(merges.prepare(([1; 2], None), params), Ok(true));
    let rule = merges.begin(([1; 2], RULE), params).unwrap();
    for line in [3, 4] {
        merges.join(rule, line, &[3, 4]).unwrap();
    }
    let judge = |source: u32, at| {
        let mut packet = [0; 12];
        packet[0] = 0x80;
        packet[8..].copy_from_slice(&source.to_be_bytes());
        [0, 1].map(|line| windows.judge((rule.index, line), (&packet, 0), at))
    };
    let now = sys::clock::monotonic_ns();
    let before = now - 20_000_000_000;
    let once = [Verdict::First, Verdict::Duplicate];
    for source in 0..3 {
        assert_eq!(judge(source, before), once);
    }
    assert_eq!(judge(3, before), [Verdict::Exceeded; 2]);
    let mut reading = RuleReading::default();
    assert_eq!(words::cells(&windows.rules, rule.index).len(), 2);
    for (sources, streams) in [(4..4, 3), (4..7, 6)] {
        for source in sources {
            assert_eq!(judge(source, now), once, "{source} has room again");
        }
        let counts = merges.counts(rule.index, &mut reading);
        assert_eq!(counts.lines[0].packets, [streams, 0, 0, 0, 0]);
        assert_eq!(counts.lines[1].packets, [0, streams, 0, 0, 0]);
        assert_eq!((counts.streams, counts.lines[0].exceeded), (streams, 1));
    }
    let cells = words::cells(&windows.rules, rule.index);
    merges.end(RULE);
    merges.free().unwrap();
    assert!(
        cells
            .iter()
            .all(|cell| words::reserve(&windows.rules, *cell))
    );
}

#[test]
fn the_only_stream_of_a_rule_gives_way_to_another() {
    let windows = bpf::merge::Windows::create().unwrap().1;
    let mut merges = Merges::new(windows.rules.clone(), NoBlocks, Clock::Process);
    let params = MergeParams {
        streams: 1,
        ..rtp()
    };
    assert_eq!(merges.prepare(([1; 2], None), params), Ok(true));
    let rule = merges.begin(([1; 2], RULE), params).unwrap();
    merges.join(rule, 3, &[3]).unwrap();
    let judge = |source, at| {
        let mut packet = [0; 12];
        packet[0] = 0x80;
        packet[11] = source;
        windows.judge((rule.index, 3), (&packet, 0), at)
    };
    let now = sys::clock::monotonic_ns();
    let mut reading = RuleReading::default();
    assert_eq!(judge(1, now - 20_000_000_000), Verdict::First);
    assert_eq!(judge(2, now - 20_000_000_000), Verdict::Exceeded);
    merges.counts(rule.index, &mut reading);
    assert_eq!(judge(2, now), Verdict::First);
    assert_eq!(judge(1, now), Verdict::Exceeded, "that one is over");
    let counts = merges.counts(rule.index, &mut reading);
    assert_eq!((counts.streams, counts.lost), (2, 0));
}

#[test]
fn a_stream_keeps_its_cell_for_three_windows() {
    for (window_ns, remaining) in [(15_000_000_000, 1), (5_000_000_000, 0)] {
        let windows = bpf::merge::Windows::create().unwrap().1;
        let mut merges = Merges::new(windows.rules.clone(), NoBlocks, Clock::Process);
        let params = MergeParams { window_ns, ..rtp() };
        assert_eq!(merges.prepare(([1; 2], None), params), Ok(true));
        let rule = merges.begin(([1; 2], RULE), params).unwrap();
        merges.join(rule, 3, &[3]).unwrap();
        let before = sys::clock::monotonic_ns() - 20_000_000_000;
        for source in [1, 2] {
            let mut packet = [0; 12];
            packet[0] = 0x80;
            packet[11] = source;
            let seen = windows.judge((rule.index, 3), (&packet, 0), before);
            assert_eq!(seen, Verdict::First);
        }
        let mut reading = RuleReading::default();
        merges.counts(rule.index, &mut reading);
        let cells = words::cells(&windows.rules, rule.index);
        assert_eq!(cells.len(), remaining, "{window_ns}");
    }
}

#[test]
fn window_and_streams_change_in_place() {
    let other = MergeParams {
        window_ns: 1,
        streams: 7,
        ..rtp()
    };
    assert!(rtp().keeps_memory_of(other));
    assert!(!rtp().keeps_memory_of(by(By::Payload)));
    let mut memory = Fixture::with(rtp(), &[3]);
    let before = memory.recover().expect("it is there").1;
    assert_eq!(memory.begin(RULE, other).expect("it is there").index, 0);
    let after = memory.recover().expect("it is there").1;
    let params = other;
    assert_eq!(after, ActiveMerge { params, ..before });
}

#[test]
fn a_line_keeps_its_position_while_others_are_added_and_removed() {
    let mut memory = Fixture::with(rtp(), &[5, 6, 7]);
    memory.0.retain_legs(RULE, Some(&[6, 7]));
    assert_eq!(memory.lines(), [None, Some(6), Some(7), None]);
    assert_eq!(memory.join(7, &[6, 7, 8]), Some(2));
    assert_eq!(memory.join(8, &[6, 7, 8]), Some(3));
    assert_eq!(memory.join(5, &[5, 6, 7, 8]), Some(0), "where it was");
}

#[test]
fn a_line_takes_the_position_of_a_removed_one_where_no_other_is_free() {
    let memory = Fixture::with(rtp(), &[1, 2, 3, 4]);
    assert_eq!(memory.join(9, &[1, 2, 4, 9]), Some(2));
    assert_eq!(memory.join(8, &[1, 2, 4, 9]), None);
}

/// By payload, the lowest bit of its position tells two legs apart.
#[test]
fn a_leg_of_a_payload_differs_from_the_one_that_stays() {
    let mut memory = Fixture::with(by(By::Payload), &[1, 2]);
    for (line, lines, position) in [
        (3, [2, 3], 2),
        (4, [3, 4], 3),
        (5, [4, 5], 0),
        (6, [5, 6], 1),
    ] {
        assert_eq!(memory.join(line, &lines), Some(position));
        memory.0.retain_legs(RULE, Some(&lines));
    }
    memory.change(|merge| {
        merge.line[1] = MergeLine {
            owner: 8,
            ..merge.line[0]
        }
    });
    memory.change(|merge| {
        merge.line[2] = MergeLine {
            owner: 9,
            ..merge.line[0]
        }
    });
    assert!(memory.recover().is_some());
    assert_eq!(
        memory.lines(),
        [Some(5), Some(7), None, None],
        "as a former version left it"
    );
}

#[test]
fn the_rule_keeps_what_a_former_line_delivered_first() {
    let change = |how| {
        let mut memory = Fixture::with(how, &[1, 2, 3, 4]);
        memory.change(|merge| {
            merge.line[0].counts = [70, 3, 0, 0, 0];
            merge.line[0].part[2].first = 1 << 48;
        });
        memory.0.retain_legs(RULE, Some(&[2, 3, 4]));
        let line = memory.1.read(0).line[0];
        assert_eq!(line.counts[0], 70, "nobody has its place yet");
        memory.join(9, &[2, 3, 4, 9]);
        let new = MergeLine {
            owner: 10,
            since_ns: NOW + 100_000_000,
            joins: 1,
            ..MergeLine::default()
        };
        assert_eq!(memory.1.read(0).line[0], new);
        memory.1.read(0).firsts
    };
    assert_eq!(change(rtp()), 70);
    assert_eq!(change(by(By::MoldUdp64)), 0, "the packets count there");
}

#[test]
fn nonsense_is_not_adopted() {
    let harm = |harm: fn(&mut Merge)| {
        let memory = Fixture::with(rtp(), &[1, 2]);
        memory.change(harm);
        memory.recover().map(|(rule, _)| rule)
    };
    assert!(harm(|merge| merge.newest = u64::MAX).is_some());
    assert_eq!(harm(|merge| merge.format.by = BY_ONCE_FROM_EACH + 1), None);
    assert_eq!(harm(|merge| merge.format.by = BY_SEQUENCE), None, "where?");
    assert_eq!(harm(|merge| merge.format.session_bytes = 17), None);
    assert_eq!(harm(|merge| merge.format.count_bytes = 3), None);
    assert_eq!(harm(|merge| merge.first_block = RINGS - 3), None);
    assert_eq!(harm(|merge| merge.first_block = u32::MAX), None);
    assert_eq!(harm(|merge| merge.blocks_log = 40), None);
    assert_eq!(harm(|merge| merge.owner = u64::MAX), None);
}

#[test]
fn unowned_positions_and_future_times_are_repaired() {
    let memory = Fixture::with(rtp(), &[1, 2]);
    memory.change(|merge| {
        merge.stream[1].seen_ns = NOW + 1;
        merge.line[0].since_ns = NOW + 100_000_001;
        merge.line[2].owner = 3;
        merge.line[2].since_ns = NOW;
        merge.line[3].owner = u64::MAX;
        merge.line[3].since_ns = NOW;
    });
    assert!(memory.recover().is_some());
    assert_eq!(memory.lines(), [None, Some(2), None, None]);
    let after = memory.1.read(0);
    assert_eq!((after.stream[1].seen_ns, after.line[3].since_ns), (0, 0));
}

#[test]
fn a_successor_adopts_each_sound_merge_once() {
    let mut memory = Fixture::new();
    let third = memory.begin(3, rtp()).expect("there is room");
    let other = memory.begin(1, rtp()).expect("there is room");
    assert!(memory.begin(9, rtp()).is_some());
    // Another that claims the same rule, and another rule that claims the same blocks.
    let mut stolen = memory.1.read(third.index);
    memory.1.write(3, &stolen);
    let mut after = memory.inherit(5);
    assert_eq!(after.0.rules(), BTreeSet::from([1, 3]));
    assert_eq!(
        [1, 3].map(|rule| after.0.of(rule)),
        [Some(other), Some(third)]
    );
    assert!(!words::is_owned(&memory.1, 2), "its rule does not count");
    assert!(!words::is_owned(&memory.1, 3));
    stolen.owner = 5;
    memory.1.write(3, &stolen);
    assert_eq!(memory.inherit(5).0.rules(), BTreeSet::from([1, 3]));
    after.0.end(1);
    assert!(after.0.is_waiting());
    after.0.free().unwrap();
    assert_eq!(
        after.begin(4, rtp()).map(|merge| merge.first_block),
        Some(other.first_block)
    );
}

#[test]
fn another_number_of_packets_needs_room_beside_the_former() {
    let mut memory = Fixture::with(rtp(), &[]);
    let before = memory.0.of(RULE).expect("it is there");
    let fewer = MergeParams::of(&rules::merge::Merge {
        packets: 32_768,
        ..rules::merge::Merge::default()
    });
    let after = memory.begin(RULE, fewer).expect("there is room");
    assert_ne!(
        (after.index, after.first_block),
        (before.index, before.first_block)
    );
    assert_ne!(memory.0.space.take(1), Some(before.first_block));
    memory.0.free().unwrap();
    assert_eq!(memory.0.space.take(1), Some(before.first_block));
    memory.0.end(RULE);
    assert_eq!(memory.0.of(RULE), None);
}

#[test]
fn what_is_prepared_and_not_used_leaves_no_trace() {
    let mut memory = Fixture::new();
    let hash = [1; 2];
    let most = MergeParams::of(&rules::merge::Merge {
        packets: PACKETS_MAX,
        ..rules::merge::Merge::default()
    });
    let mut fitting = 0;
    while memory.0.prepare(([fitting; 2], None), most).unwrap() {
        fitting += 1;
    }
    assert!(fitting > 1);
    assert_eq!(
        memory.0.prepare((hash, None), most),
        Ok(true),
        "it has room"
    );
    memory.0.drop_prepared().unwrap();
    assert_eq!(memory.0.space.take(1), Some(0));
    assert!(memory.0.begin((hash, RULE), most).is_none());
}

#[test]
fn a_rule_that_is_off_keeps_its_merge_until_there_is_no_room() {
    let most = MergeParams::of(&rules::merge::Merge {
        packets: PACKETS_MAX,
        ..rules::merge::Merge::default()
    });
    let mut memory = Fixture::with(rtp(), &[1, 2]);
    let other = memory.begin(3, most).expect("there is room");
    memory.0.join(other, 5, &[5]).expect("a place");
    for rule in [RULE, 3] {
        memory.0.retain_legs(rule, Some(&[]));
        assert!(!memory.0.is_running(rule) && memory.0.of(rule).is_some());
    }
    let after = memory.inherit(RULE + 1);
    assert_eq!(after.0.rules(), BTreeSet::from([3, RULE]));
    // One goes on in the same change.
    assert_eq!(
        memory.0.prepare(([RULE.into(); 2], Some(RULE)), rtp()),
        Ok(true)
    );
    let mut fitting = 0;
    while memory.0.prepare(([100 + fitting; 2], None), most).unwrap() {
        fitting += 1;
    }
    assert!(memory.0.is_waiting());
    assert_eq!(memory.0.rules(), BTreeSet::from([RULE]));
    memory.0.free().unwrap();
    assert_eq!(memory.0.prepare(([99; 2], None), most), Ok(true));
    let again = memory.begin(RULE, rtp()).expect("it is there");
    assert_eq!(memory.0.join(again, 2, &[2]), Some(1), "where it was");
    memory.0.retain_legs(RULE, Some(&[2]));
    assert_eq!(memory.lines(), [None, Some(2), None, None]);
}
