//! The same packets on several legs, each with its own faults.
//!
//! A packet's outcome on a leg is a function of seed, leg, number and due time, whatever the timing
//! of the run was. A leg preserves the order of its packets, except of those reordered on purpose.

use std::collections::VecDeque;
use std::time::Duration;

use super::line::LineFaults;
use super::option::Options;
use crate::clock;
use crate::random::{self, Choice};
use crate::report::{LineReport, UnionReport};
use crate::sequence::Sequence;

/// One copy of a packet that waits to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    /// The packet's number in the run.
    pub(super) number: u64,
    /// Its stream and its number there, which define the order.
    pub(super) position: (usize, u64),
    /// When the packet was meant to leave, in nanoseconds of CLOCK_REALTIME: on every leg the same.
    pub(super) intended_ns: u64,
    /// When the copy leaves, in nanoseconds after the start.
    due_ns: u64,
}

/// All legs of a run.
pub(super) struct Lines {
    lines: Vec<Line>,
    /// The leg of the last copy sent: copies due at once leave leg by leg.
    latest: usize,
    /// What was sent on any leg, by stream.
    sent: Vec<Option<Sequence>>,
    numbers: u64,
    on_any: u64,
}

struct Line {
    faults: LineFaults,
    cuts_ns: Vec<(u64, u64)>,
    seed: u64,
    /// Where blocks of lost packets begin.
    phase: u64,
    waiting: VecDeque<Copy>,
    /// A copy that waits for its successor.
    held: Option<Copy>,
    /// Due time of the last copy.
    latest_ns: u64,
    /// Packets that passed, without repeats.
    passed: u64,
    report: LineReport,
}

impl Lines {
    /// The legs that `options` define; `None` if each destination is a separate stream.
    pub(super) fn of(options: &Options) -> Option<Self> {
        let line = |(index, faults): (usize, &LineFaults)| {
            let to = &options.destinations[index];
            let seed = random::bits(options.seed, Choice::Line, index as u64);
            Line::new(faults, seed, to.to_string())
        };
        (!options.lines.is_empty()).then(|| Self {
            lines: options.lines.iter().enumerate().map(line).collect(),
            latest: 0,
            sent: vec![None; options.streams()],
            numbers: 0,
            on_any: 0,
        })
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.lines.len() as u64
    }

    /// The longest that a packet may be held back.
    pub(super) fn most_delay(faults: &[LineFaults]) -> Duration {
        let delays = faults.iter().map(|faults| faults.delay + faults.jitter);
        delays.max().unwrap_or_default()
    }

    /// Puts a packet on the legs, due on all of them at the same time.
    pub(super) fn put(
        &mut self,
        number: u64,
        position: (usize, u64),
        due_ns: u64,
        intended_ns: u64,
    ) {
        let copy = Copy {
            number,
            position,
            intended_ns,
            due_ns,
        };
        self.numbers += 1;
        let mut passes = false;
        for line in &mut self.lines {
            passes |= line.put(copy);
        }
        self.on_any += u64::from(passes);
    }

    /// Releases copies that wait for a successor: there are no more packets.
    pub(super) fn finish(&mut self) {
        for line in &mut self.lines {
            line.waiting.extend(line.held.take());
        }
    }

    /// When the next copy is due; `None` if none waits.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        let fronts = self.lines.iter().filter_map(|line| line.waiting.front());
        fronts.map(|copy| copy.due_ns).min()
    }

    /// The next copy to send, and its leg.
    pub(super) fn next(&self) -> Option<(usize, Copy)> {
        let count = self.lines.len();
        let lines = (0..count).map(|step| (self.latest + step) % count);
        let fronts = lines.filter_map(|line| Some((line, *self.lines[line].waiting.front()?)));
        fronts.min_by_key(|(_, copy)| copy.due_ns)
    }

    /// Records that the next copy of a leg was sent.
    pub(super) fn record_sent(&mut self, line: usize) {
        self.latest = line;
        let Some(copy) = self.lines[line].waiting.pop_front() else {
            return;
        };
        let (stream, number) = copy.position;
        let is_first = match &mut self.sent[stream] {
            Some(sequence) => {
                let before = sequence.distinct();
                sequence.record(number);
                sequence.distinct() > before
            }
            unsent => {
                *unsent = Some(Sequence::starting_at(number));
                true
            }
        };
        let report = &mut self.lines[line].report;
        report.sent += 1;
        report.first += u64::from(is_first);
    }

    pub(super) fn reports(&self) -> Vec<LineReport> {
        let report = |line: &Line| LineReport {
            missed: self.on_any - line.passed,
            ..line.report.clone()
        };
        self.lines.iter().map(report).collect()
    }

    pub(super) fn union(&self) -> UnionReport {
        let sum = |figure: fn(&Sequence) -> u64| self.sent.iter().flatten().map(figure).sum();
        UnionReport {
            numbers: self.numbers,
            on_any: self.on_any,
            lost: sum(Sequence::lost),
            reordered: sum(Sequence::reordered),
        }
    }
}

impl Line {
    fn new(faults: &LineFaults, seed: u64, to: String) -> Self {
        let cut_ns = |cut: &std::ops::Range<Duration>| {
            (clock::nanoseconds(cut.start), clock::nanoseconds(cut.end))
        };
        Self {
            faults: faults.clone(),
            cuts_ns: faults.cuts.iter().map(cut_ns).collect(),
            seed,
            phase: random::below(random::bits(seed, Choice::Line, 0), faults.burst),
            waiting: VecDeque::new(),
            held: None,
            latest_ns: 0,
            passed: 0,
            report: LineReport {
                to,
                ..LineReport::default()
            },
        }
    }

    /// Puts a packet on the leg; returns whether it passes.
    fn put(&mut self, mut copy: Copy) -> bool {
        let happens = |choice, number, percent| random::happens(self.seed, choice, number, percent);
        // Whole blocks are lost, so that a burst is never shorter than requested.
        let block = (copy.number + self.phase) / self.faults.burst;
        if happens(Choice::Lose, block, self.faults.lose) {
            self.report.lost += 1;
            return false;
        }
        copy.due_ns = self.due_ns(&copy);
        let is_cut = |&(from, to): &(u64, u64)| (from..to).contains(&copy.due_ns);
        if self.cuts_ns.iter().any(is_cut) {
            self.report.cut += 1;
            return false;
        }
        let twice = happens(Choice::Duplicate, copy.number, self.faults.duplicate);
        let late = happens(Choice::Reorder, copy.number, self.faults.reorder);
        self.latest_ns = copy.due_ns;
        self.passed += 1;
        self.report.duplicated += u64::from(twice);
        // A repeat follows at once; a reordered packet has none.
        if late && !twice && self.held.is_none() {
            self.held = Some(copy);
            return true;
        }
        self.waiting.push_back(copy);
        if twice {
            self.waiting.push_back(copy);
        }
        if let Some(earlier) = self.held.take() {
            self.report.reordered += 1;
            self.waiting.push_back(Copy {
                due_ns: copy.due_ns,
                ..earlier
            });
        }
        true
    }

    /// When a copy reaches the leg's end: not before the copy in front of it.
    fn due_ns(&self, copy: &Copy) -> u64 {
        let jitter = clock::nanoseconds(self.faults.jitter);
        let bits = random::bits(self.seed, Choice::Jitter, copy.number);
        let late = clock::nanoseconds(self.faults.delay) + random::below(bits, jitter + 1);
        copy.due_ns.saturating_add(late).max(self.latest_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::line;

    const STEP_NS: u64 = 1_000_000;

    fn options(lines: &[&str]) -> Options {
        let lines = lines.iter().enumerate().map(|(index, faults)| {
            let text = format!("127.0.0.1:{}{faults}", 5001 + index);
            text.parse::<line::Line>().unwrap()
        });
        Options {
            seed: 7,
            ..Options::on(lines.collect())
        }
    }

    /// Runs so many packets, a millisecond apart; returns leg and number of each copy in order.
    fn run(options: &Options, count: u64) -> (Lines, Vec<(usize, u64)>) {
        let mut lines = Lines::of(options).unwrap();
        let mut sent = Vec::new();
        for number in 0..count {
            let due = number * STEP_NS;
            while lines.next_due_ns().is_some_and(|next| next < due) {
                pop(&mut lines, &mut sent);
            }
            lines.put(number, (0, number), due, due);
        }
        lines.finish();
        while lines.next_due_ns().is_some() {
            pop(&mut lines, &mut sent);
        }
        (lines, sent)
    }

    fn pop(lines: &mut Lines, sent: &mut Vec<(usize, u64)>) {
        let (line, copy) = lines.next().unwrap();
        sent.push((line, copy.number));
        lines.record_sent(line);
    }

    fn numbers(sent: &[(usize, u64)], line: usize) -> Vec<u64> {
        let of_line = sent.iter().filter(|(at, _)| *at == line);
        of_line.map(|&(_, number)| number).collect()
    }

    #[test]
    fn lines_without_faults_carry_everything_in_order() {
        let (lines, sent) = run(&options(&["", ""]), 100);
        for line in 0..2 {
            assert_eq!(numbers(&sent, line), (0..100).collect::<Vec<_>>());
        }
        let expected = UnionReport {
            numbers: 100,
            on_any: 100,
            ..UnionReport::default()
        };
        assert_eq!(lines.union(), expected);
        let first: u64 = lines.reports().iter().map(|line| line.first).sum();
        assert_eq!(first, 100);
    }

    #[test]
    fn the_report_matches_what_was_sent() {
        let faults = ",lose=30%,jitter=3ms,duplicate=2%,reorder=2%";
        let (lines, sent) = run(&options(&[faults, faults]), 10_000);
        let mut distinct: Vec<u64> = sent.iter().map(|&(_, number)| number).collect();
        distinct.sort_unstable();
        distinct.dedup();
        let union = lines.union();
        assert_eq!(union.on_any, distinct.len() as u64);
        let span = distinct.last().unwrap() - distinct.first().unwrap() + 1;
        assert_eq!(union.lost, span - union.on_any);
        for (index, line) in lines.reports().iter().enumerate() {
            let mut of_line = numbers(&sent, index);
            assert_eq!(line.sent, of_line.len() as u64);
            of_line.sort_unstable();
            of_line.dedup();
            assert_eq!(line.missed, union.on_any - of_line.len() as u64);
            assert_eq!(line.lost, 10_000 - of_line.len() as u64);
            assert_eq!(line.sent - line.duplicated, of_line.len() as u64);
            assert!((2700..3300).contains(&line.lost), "{line:?}");
            assert!(line.duplicated > 0 && line.reordered > 0, "{line:?}");
        }
    }

    #[test]
    fn the_same_seed_makes_the_same_choices_and_lines_differ() {
        let lossy = options(&[",lose=10%", ",lose=10%"]);
        let (_, first) = run(&lossy, 1000);
        let (_, again) = run(&lossy, 1000);
        assert_eq!(first, again);
        assert_ne!(numbers(&first, 0), numbers(&first, 1));
        let (_, other) = run(&Options { seed: 8, ..lossy }, 1000);
        assert_ne!(first, other);
    }

    #[test]
    fn bursts_are_as_long_as_requested() {
        let (lines, sent) = run(&options(&[",lose=10%,burst=20"]), 20_000);
        let passed = numbers(&sent, 0);
        let steps = passed.windows(2).map(|pair| pair[1] - pair[0] - 1);
        let gaps: Vec<u64> = steps.filter(|&gap| gap > 0).collect();
        assert!(
            !gaps.is_empty() && gaps.iter().all(|gap| gap % 20 == 0),
            "{gaps:?}"
        );
        let lost = lines.reports()[0].lost;
        assert!((1000..3000).contains(&lost), "{lost}");
    }

    #[test]
    fn a_late_line_is_behind_by_its_delay_and_first_only_where_the_other_lost() {
        let (lines, sent) = run(&options(&[",lose=5%", ",delay=40ms"]), 1000);
        let at = |line, number| sent.iter().position(|&one| one == (line, number)).unwrap();
        // Some forty packets of the first leg are sent in between.
        let before = numbers(&sent[..at(1, 100)], 0);
        assert!((130..=140).contains(before.last().unwrap()), "{before:?}");
        let [a, b] = &lines.reports()[..] else {
            panic!("two lines");
        };
        assert_eq!((b.first, b.missed), (a.lost, 0));
        assert_eq!(a.missed, a.lost);
        assert_eq!(lines.union().lost, 0);
        assert_eq!(lines.union().reordered, a.lost);
    }

    #[test]
    fn nothing_passes_while_a_line_is_cut() {
        let (lines, sent) = run(&options(&[",delay=10ms,cut=200ms-300ms", ""]), 1000);
        let passed = numbers(&sent, 0);
        // What was sent 10 ms before reaches the end of the leg in that time.
        let expected: Vec<u64> = (0..190).chain(290..1000).collect();
        assert_eq!(passed, expected);
        let [a, _] = &lines.reports()[..] else {
            panic!("two lines");
        };
        assert_eq!((a.cut, a.lost, a.missed), (100, 0, 100));
    }

    #[test]
    fn what_is_due_at_once_leaves_line_by_line() {
        let mut lines = Lines::of(&options(&["", ""])).unwrap();
        (0..4).for_each(|number| lines.put(number, (0, number), 0, 0));
        let mut sent = Vec::new();
        while lines.next_due_ns().is_some() {
            pop(&mut lines, &mut sent);
        }
        let order: Vec<usize> = sent.iter().map(|&(line, _)| line).collect();
        assert_eq!(order, [0, 0, 0, 0, 1, 1, 1, 1]);
    }
}
