use std::time::Duration;

use model::merge::By;
use zerocopy::IntoBytes;

use super::*;

const NOW: u64 = 1 << 40;
const RULE: u32 = 7;

/// One merge.
struct Memory(Merge);

impl Memory {
    fn new() -> Self {
        let mut memory = Self(Merge::default());
        for at in (0..size_of::<Merge>()).step_by(WORD) {
            memory.store(0, at, 0xdead);
        }
        memory
    }

    /// Set up, with lines in this order.
    fn with(how: How, lines: &[u32]) -> Self {
        let mut memory = Self::new();
        set_up(&mut memory, 0, RULE, (how, 64));
        for line in lines {
            memory.join(*line, lines).expect("a place");
        }
        memory
    }

    fn join(&mut self, line: u32, wanted: &[u32]) -> Option<u32> {
        join(self, 0, (line, wanted), NOW)
    }

    fn find(&mut self) -> Option<Found> {
        find(self, 0, NOW)
    }

    fn bytes(&mut self, at: usize) -> &mut [u8] {
        &mut self.0.as_mut_bytes()[at..at + WORD]
    }
}

impl Words for Memory {
    fn merge(&self, _: u32) -> Merge {
        self.0
    }
    fn set_merge(&mut self, _: u32, words: &Merge) {
        self.0 = *words;
    }
    fn store(&mut self, _: u32, at: usize, value: u64) {
        self.bytes(at).copy_from_slice(&value.to_ne_bytes());
    }
    fn add(&mut self, _: u32, at: usize, value: u64) {
        let bytes = self.bytes(at).try_into().expect("a word");
        self.store(0, at, u64::from_ne_bytes(bytes).wrapping_add(value));
    }
}

fn rtp() -> How {
    How::of(&model::merge::Merge::default())
}

fn by(by: By) -> How {
    How::of(&model::merge::Merge {
        by,
        ..model::merge::Merge::default()
    })
}

#[test]
fn what_is_set_up_is_found_again() {
    for how in [rtp(), by(By::Mdp3), by(By::MoldUdp64), by(By::Payload)] {
        let mut memory = Memory::with(how, &[3]);
        let found = memory.find().expect("it makes sense");
        assert_eq!((found.owner, found.how, found.first_block), (RULE, how, 64));
        assert_eq!(lines(&memory.0), [Some(3), None, None, None]);
        tear_down(&mut memory, 0);
        assert_eq!(memory.find(), None, "its owner has gone");
    }
}

#[test]
fn more_packets_take_more_blocks() {
    let merge = |packets| model::merge::Merge {
        packets,
        window: Duration::from_millis(3),
        ..model::merge::Merge::default()
    };
    assert_eq!(How::of(&merge(2_048)).blocks(), 4);
    assert_eq!(How::of(&merge(65_536)).blocks(), 128);
    assert_eq!(How::of(&merge(2_048)).window_ns, 3_000_000);
}

#[test]
fn only_the_window_changes_in_place() {
    let other = How {
        window_ns: 1,
        ..rtp()
    };
    assert!(rtp().keeps_memory_of(other));
    assert!(!rtp().keeps_memory_of(by(By::Payload)));
    let mut memory = Memory::with(rtp(), &[3]);
    set_window(&mut memory, 0, 1);
    assert_eq!(memory.find().expect("it is there").how, other);
}

#[test]
fn a_line_keeps_its_place_while_others_come_and_go() {
    let mut memory = Memory::with(rtp(), &[5, 6, 7]);
    part_with_others(&mut memory, 0, &[6, 7]);
    assert_eq!(lines(&memory.0), [None, Some(6), Some(7), None]);
    assert_eq!(memory.join(7, &[6, 7, 8]), Some(2));
    assert_eq!(memory.join(8, &[6, 7, 8]), Some(0));
}

#[test]
fn a_line_takes_the_place_of_one_that_goes_where_no_other_is_free() {
    let mut memory = Memory::with(rtp(), &[1, 2, 3, 4]);
    assert_eq!(memory.join(9, &[1, 2, 4, 9]), Some(2));
    assert_eq!(memory.join(8, &[1, 2, 4, 9]), None);
}

#[test]
fn what_a_former_line_was_first_with_stays_with_the_rule() {
    let change = |how| {
        let mut memory = Memory::with(how, &[1, 2]);
        memory.0.line[0].counts = [70, 3, 0, 0, 0];
        memory.0.line[0].part[2].first = 1 << 48;
        part_with_others(&mut memory, 0, &[2]);
        assert_eq!(memory.0.line[0].counts[0], 70, "nobody has its place yet");
        memory.join(9, &[2, 9]);
        let new = MergeLine {
            owner: 10,
            since_ns: NOW,
            ..MergeLine::default()
        };
        assert_eq!(memory.0.line[0], new);
        memory.0.firsts
    };
    assert_eq!(change(rtp()), 70);
    assert_eq!(change(by(By::MoldUdp64)), 0, "the packets count there");
}

#[test]
fn nonsense_is_not_adopted() {
    let harm = |harm: fn(&mut Merge)| {
        let mut memory = Memory::with(rtp(), &[1, 2]);
        harm(&mut memory.0);
        memory.find()
    };
    assert!(harm(|merge| merge.newest = u64::MAX).is_some());
    assert_eq!(harm(|merge| merge.format.by = BY_ONCE_FROM_EACH + 1), None);
    assert_eq!(harm(|merge| merge.format.by = BY_SEQUENCE), None, "where?");
    assert_eq!(harm(|merge| merge.format.session_bytes = 17), None);
    assert_eq!(harm(|merge| merge.format.count_bytes = 3), None);
    assert_eq!(harm(|merge| merge.first_block = BLOCKS - 3), None);
    assert_eq!(harm(|merge| merge.first_block = u32::MAX), None);
    assert_eq!(harm(|merge| merge.blocks_log = 40), None);
    assert_eq!(harm(|merge| merge.owner = u64::MAX), None);
}

#[test]
fn places_of_nobody_and_times_to_come_are_mended() {
    let mut memory = Memory::with(rtp(), &[1, 2]);
    memory.0.stream[1].seen_ns = NOW + 1;
    memory.0.line[0].since_ns = NOW + 1;
    memory.0.line[2].owner = 3;
    memory.0.line[2].since_ns = NOW;
    memory.0.line[3].owner = u64::MAX;
    memory.0.line[3].since_ns = NOW;
    assert!(memory.find().is_some());
    assert_eq!(lines(&memory.0), [None, Some(2), None, None]);
    assert_eq!(memory.0.stream[1].seen_ns, 0);
    assert_eq!(memory.0.line[3].owner, 0);
}

#[test]
fn blocks_are_taken_where_they_first_fit() {
    let mut space = Space::new(16);
    assert_eq!(
        [4, 4, 8].map(|n| space.take(n)),
        [Some(0), Some(4), Some(8)]
    );
    assert_eq!(space.take(4), None);
    space.give_back(4);
    assert_eq!(space.take(8), None);
    assert_eq!(space.take(4), Some(4));
    space.give_back(8);
    space.give_back(4);
    assert_eq!(space.take(12), Some(4));
}

#[test]
fn blocks_that_are_found_are_taken_once() {
    let mut space = Space::new(16);
    assert!(space.occupy(4, 4));
    for (first, count) in [(4, 4), (0, 5), (7, 1), (5, 1), (13, 4), (u32::MAX, 4)] {
        assert!(!space.occupy(first, count), "{first}, {count}");
    }
    assert!(space.occupy(8, 8));
    assert_eq!(space.take(8), None);
    assert_eq!(space.take(4), Some(0));
}
