//! The lines of rules whose inputs are merged: which are silent, which lose, which lag or bring
//! something else, judged from successive readings. What is dropped because another line was first is
//! as it should be, and nothing is told of it.

use std::collections::BTreeMap;
use std::time::Duration;

use dataplane::counters::{LineCounts, MergeSeen};
use model::health::DEFAULT_SILENCE;
use model::printable::plural;
use model::rule::Rule;

use super::growth::Growth;
use super::lines::LineNews;

const SECOND_NS: u64 = 1_000_000_000;
/// Losses are judged over so long.
const EPOCH_NS: u64 = 10 * SECOND_NS;
/// A line loses that lacks more than one number of so many that the lines brought together.
const LOSING: u64 = 1_000;

/// What is known of a rule's lines.
#[derive(Debug, Default)]
pub(super) struct Merged {
    lines: BTreeMap<String, Line>,
    /// Streams begun by the last reading; none before the first.
    streams: Option<u64>,
}

#[derive(Debug)]
struct Line {
    /// When its last packet came, or when it was first looked at.
    last_ns: u64,
    is_silent: bool,
    counts: LineCounts,
    /// Of what should not grow.
    growth: Growth<Unwanted>,
    epoch: Epoch,
    is_losing: bool,
    /// Whether its skew has been told of.
    is_skewed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Unwanted {
    Late,
    Stray,
}

/// Since when losses are counted, and what stood there then.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    since_ns: u64,
    missed: u64,
    numbers: u64,
    has_lost: bool,
}

impl Merged {
    /// Takes in a reading. What was counted before the first is not news.
    pub(super) fn sample(&mut self, now_ns: u64, rule: &Rule, seen: &MergeSeen) -> Vec<LineNews> {
        let mut news = Vec::new();
        let silence = rule
            .health
            .map_or(Some(DEFAULT_SILENCE), |health| health.silence);
        let window = rule.merge.unwrap_or_default().window;
        let counted = &seen.counters;
        // What each number came by first: all of them together.
        let numbers = counted.lines.values().map(|line| line.first);
        let numbers = numbers.fold(0, u64::wrapping_add);
        self.lines.retain(|at, _| counted.lines.contains_key(at));
        for (at, counts) in &counted.lines {
            let first = || Line::new(now_ns, *counts, numbers);
            let line = self.lines.entry(at.clone()).or_insert_with(first);
            let last_ns = seen.last_ns.get(at).copied().unwrap_or_default();
            line.silence(now_ns, last_ns, silence, at, &mut news);
            line.count(now_ns, *counts, at, &mut news);
            line.lose(now_ns, numbers, at, &mut news);
            line.skew(window, at, &mut news);
        }
        let before = self.streams.replace(counted.streams);
        let streams = counted.streams;
        if before.is_some_and(|before| (1..streams).contains(&before)) {
            news.push(LineNews::Restarted { streams });
        }
        news
    }

    /// What is wrong with which lines, in words that go on from the line's name.
    pub(super) fn troubles(&self) -> Vec<(String, String)> {
        let troubles = { self.lines.iter() }.filter_map(|(at, line)| Some((at, line.trouble()?)));
        troubles.map(|(at, what)| (at.clone(), what)).collect()
    }

    /// Whether nothing comes by any line.
    pub(super) fn none_delivers(&self) -> bool {
        !self.lines.is_empty() && self.lines.values().all(|line| line.is_silent)
    }
}

impl Line {
    fn new(now_ns: u64, counts: LineCounts, numbers: u64) -> Self {
        Self {
            last_ns: now_ns,
            is_silent: false,
            counts,
            growth: Growth::default(),
            epoch: Epoch::new(now_ns, counts.missed, numbers),
            is_losing: false,
            is_skewed: false,
        }
    }

    fn silence(
        &mut self,
        now_ns: u64,
        last_ns: u64,
        silence: Option<Duration>,
        at: &str,
        news: &mut Vec<LineNews>,
    ) {
        self.last_ns = self.last_ns.max(last_ns);
        let ns = now_ns.saturating_sub(self.last_ns);
        let is_silent = silence.is_some_and(|longest| u128::from(ns) > longest.as_nanos());
        let line = at.to_owned();
        match (self.is_silent, is_silent) {
            (false, true) => news.push(LineNews::Silent { line, ns }),
            (true, false) => news.push(LineNews::Delivers { line }),
            _ => {}
        }
        self.is_silent = is_silent;
    }

    /// What came too late, and what is not of the stream.
    fn count(&mut self, now_ns: u64, counts: LineCounts, at: &str, news: &mut Vec<LineNews>) {
        let before = std::mem::replace(&mut self.counts, counts);
        // Fewer than before: another line, that began anew.
        let grown = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        let late = grown(counts.late, before.late);
        let stray = grown(counts.stray, before.stray);
        let line = || at.to_owned();
        if self.growth.note(now_ns, Unwanted::Late, late) {
            let packets = late;
            news.push(LineNews::Late {
                line: line(),
                packets,
            });
        }
        if self.growth.note(now_ns, Unwanted::Stray, stray) {
            let packets = stray;
            news.push(LineNews::Differs {
                line: line(),
                packets,
            });
        }
        self.growth.take_ended(now_ns);
    }

    /// Whether it lacks what others bring. Numbers that are still on their way weigh alike at the
    /// begin and at the end of what is compared.
    fn lose(&mut self, now_ns: u64, numbers: u64, at: &str, news: &mut Vec<LineNews>) {
        let epoch = &mut self.epoch;
        let missed = self.counts.missed.saturating_sub(epoch.missed);
        let of = numbers.saturating_sub(epoch.numbers);
        let age_ns = now_ns.saturating_sub(epoch.since_ns);
        // All that a silent line lacks is told by its silence.
        let loses = !self.is_silent && age_ns >= SECOND_NS && missed.saturating_mul(LOSING) > of;
        epoch.has_lost |= loses;
        let line = || at.to_owned();
        if loses && !self.is_losing {
            self.is_losing = true;
            news.push(LineNews::Loses {
                line: line(),
                missed,
                of,
            });
        }
        if age_ns >= EPOCH_NS {
            if self.is_losing && !epoch.has_lost {
                self.is_losing = false;
                if !self.is_silent {
                    news.push(LineNews::Keeps { line: line() });
                }
            }
            *epoch = Epoch::new(now_ns, self.counts.missed, numbers);
        }
    }

    /// Whether it lies so far behind that little is left of the window. It has to come well below
    /// again before that is over.
    fn skew(&mut self, window: Duration, at: &str, news: &mut Vec<LineNews>) {
        let window_ns = window.as_nanos() as u64;
        let skew_ns = self.counts.skew_ns;
        let limit_ns = match self.is_skewed {
            true => window_ns * 3 / 8,
            false => window_ns / 2,
        };
        let is_skewed = skew_ns > limit_ns && !self.is_silent;
        if is_skewed && !self.is_skewed {
            let line = at.to_owned();
            news.push(LineNews::Skewed {
                line,
                skew_ns,
                window_ns,
            });
        }
        self.is_skewed = is_skewed;
    }

    fn trouble(&self) -> Option<String> {
        let packets = |which| self.growth.packets(which);
        let many = |packets: u64, what: &str| {
            format!("brought {packets} packet{} {what}", plural(packets))
        };
        let late = packets(Unwanted::Late).map(|late| many(late, "too late"));
        let stray = packets(Unwanted::Stray).map(|stray| many(stray, "of another stream"));
        let skewed = || format!("is {} ms behind", self.counts.skew_ns / 1_000_000);
        let silent = self.is_silent.then(|| "is silent".to_owned());
        let losing = || self.is_losing.then(|| "loses packets".to_owned());
        let skewed = || self.is_skewed.then(skewed);
        silent.or_else(losing).or(late).or(stray).or_else(skewed)
    }
}

impl Epoch {
    const fn new(since_ns: u64, missed: u64, numbers: u64) -> Self {
        Self {
            since_ns,
            missed,
            numbers,
            has_lost: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use dataplane::counters::MergeCounters;
    use model::document::RuleDocument;

    use super::*;

    const HALF: u64 = SECOND_NS / 2;
    const LINES: [&str; 2] = ["239.1.1.1%red:5001", "239.2.1.1%blue:5001"];

    fn rule(more: &str) -> Rule {
        let text = format!(
            r#"{{"name": "cam1", "inputs": ["{}", "{}"], "outputs": ["10.9.9.9:7000"],
                "merge": "rtp"{more}}}"#,
            LINES[0], LINES[1]
        );
        let document: RuleDocument = serde_json::from_str(&text).unwrap();
        document.to_rule(0).unwrap()
    }

    /// Two lines, read every half second.
    struct Bed {
        rule: Rule,
        merged: Merged,
        now_ns: u64,
        seen: MergeSeen,
    }

    impl Bed {
        fn new(more: &str) -> Self {
            let lines = LINES.map(|at| (at.to_owned(), LineCounts::default()));
            let counters = MergeCounters {
                streams: 1,
                lines: lines.into_iter().collect(),
                ..MergeCounters::default()
            };
            let mut bed = Self {
                rule: rule(more),
                merged: Merged::default(),
                now_ns: 100 * SECOND_NS,
                seen: MergeSeen {
                    counters,
                    last_ns: BTreeMap::new(),
                },
            };
            assert_eq!(bed.goes_on(1, |_| {}), []);
            bed
        }

        /// So many readings, half a second and a thousand numbers apart, by both lines.
        fn goes_on(&mut self, readings: u64, change: impl Fn(&mut Self)) -> Vec<LineNews> {
            let mut news = Vec::new();
            for _ in 0..readings {
                self.now_ns += HALF;
                for at in LINES {
                    self.seen.last_ns.insert(at.to_owned(), self.now_ns);
                }
                self.line(0).first += 1_000;
                self.line(1).duplicate += 1_000;
                change(self);
                news.extend(self.merged.sample(self.now_ns, &self.rule, &self.seen));
            }
            news
        }

        fn line(&mut self, place: usize) -> &mut LineCounts {
            self.seen.counters.lines.get_mut(LINES[place]).unwrap()
        }

        fn stop(&mut self, place: usize) {
            self.seen.last_ns.insert(LINES[place].to_owned(), 0);
        }

        fn troubles(&self) -> Vec<(String, String)> {
            self.merged.troubles()
        }
    }

    #[test]
    fn duplicates_and_lines_as_they_should_be_are_no_news() {
        let mut bed = Bed::new("");
        assert_eq!(bed.goes_on(100, |_| {}), []);
        assert_eq!(bed.troubles(), []);
        assert!(!bed.merged.none_delivers());
    }

    #[test]
    fn a_silent_line_is_told_of_and_with_both_nothing_delivers() {
        let mut bed = Bed::new("");
        let line = LINES[1].to_owned();
        let ns = 5 * HALF;
        let silent = |bed: &mut Bed| bed.stop(1);
        assert_eq!(
            bed.goes_on(5, silent),
            [LineNews::Silent {
                line: line.clone(),
                ns
            }]
        );
        assert_eq!(bed.troubles(), [(line.clone(), "is silent".to_owned())]);
        assert!(!bed.merged.none_delivers());
        bed.goes_on(5, |bed| {
            bed.stop(0);
            bed.stop(1);
        });
        assert!(bed.merged.none_delivers());
        let delivers = LINES.map(|line| LineNews::Delivers {
            line: line.to_owned(),
        });
        assert_eq!(bed.goes_on(1, |_| {}), delivers);
        assert_eq!(bed.troubles(), []);
    }

    #[test]
    fn silence_is_as_long_as_the_health_of_the_rule_says() {
        let mut bed = Bed::new(r#", "health": {"silence": "5s"}"#);
        assert_eq!(bed.goes_on(10, |bed| bed.stop(0)), []);
        assert_eq!(bed.goes_on(1, |bed| bed.stop(0)).len(), 1);
        let mut bed = Bed::new(r#", "health": {"silence": "off"}"#);
        assert_eq!(bed.goes_on(100, |bed| bed.stop(0)), []);
    }

    #[test]
    fn a_line_loses_that_lacks_more_than_one_in_a_thousand() {
        let mut bed = Bed::new("");
        assert_eq!(bed.goes_on(30, |bed| bed.line(1).missed += 1), []);
        let news = bed.goes_on(20, |bed| bed.line(1).missed += 10);
        let [LineNews::Loses { line, missed, of }] = &news[..] else {
            panic!("{news:?}");
        };
        assert_eq!(line, LINES[1]);
        assert!(missed * LOSING > *of, "{news:?}");
        let trouble = (LINES[1].to_owned(), "loses packets".to_owned());
        assert_eq!(bed.troubles(), [trouble]);
        // Over when ten seconds of their own have passed without.
        let line = LINES[1].to_owned();
        assert_eq!(bed.goes_on(41, |_| {}), [LineNews::Keeps { line }]);
        assert_eq!(bed.troubles(), []);
    }

    #[test]
    fn what_a_silent_line_lacks_is_its_silence() {
        let mut bed = Bed::new("");
        let news = bed.goes_on(60, |bed| {
            bed.stop(1);
            if bed.merged.lines[LINES[1]].is_silent {
                bed.line(1).missed += 1_000;
            }
        });
        assert_eq!(news.len(), 1, "{news:?}");
    }

    #[test]
    fn late_and_stray_packets_are_told_of_once_until_they_stop() {
        let mut bed = Bed::new("");
        let news = bed.goes_on(10, |bed| {
            bed.line(1).late += 5;
            bed.line(0).stray += 7;
        });
        let [first, second] = LINES.map(str::to_owned);
        assert_eq!(
            news,
            [
                LineNews::Differs {
                    line: first.clone(),
                    packets: 7
                },
                LineNews::Late {
                    line: second.clone(),
                    packets: 5
                },
            ]
        );
        assert_eq!(
            bed.troubles(),
            [
                (first, "brought 70 packets of another stream".to_owned()),
                (second, "brought 50 packets too late".to_owned()),
            ]
        );
        assert_eq!(bed.goes_on(20, |_| {}), []);
        assert_eq!(bed.troubles(), []);
    }

    #[test]
    fn a_line_that_lags_half_the_window_is_told_of_before_it_is_late() {
        let mut bed = Bed::new("");
        let skew = |ms: u64| move |bed: &mut Bed| bed.line(1).skew_ns = ms * 1_000_000;
        assert_eq!(bed.goes_on(1, skew(25)), []);
        let line = LINES[1].to_owned();
        let skewed = LineNews::Skewed {
            line: line.clone(),
            skew_ns: 26_000_000,
            window_ns: 50_000_000,
        };
        assert_eq!(bed.goes_on(1, skew(26)), [skewed]);
        assert_eq!(bed.goes_on(1, skew(20)), []);
        assert_eq!(bed.troubles(), [(line, "is 20 ms behind".to_owned())]);
        assert_eq!(bed.goes_on(1, skew(18)), []);
        assert_eq!(bed.troubles(), []);
    }

    #[test]
    fn a_stream_that_begins_behind_the_first_is_told_of() {
        let mut bed = Bed::new("");
        let news = bed.goes_on(1, |bed| bed.seen.counters.streams = 2);
        assert_eq!(news, [LineNews::Restarted { streams: 2 }]);
        assert_eq!(bed.goes_on(5, |_| {}), []);
    }

    #[test]
    fn what_was_before_the_first_reading_and_lines_that_go_are_no_news() {
        let mut bed = Bed::new("");
        bed.merged = Merged::default();
        bed.seen.counters.streams = 7;
        let before = LineCounts {
            first: 1_000,
            missed: 900,
            late: 5,
            stray: 5,
            ..LineCounts::default()
        };
        *bed.line(0) = before;
        assert_eq!(bed.goes_on(1, |_| {}), []);
        bed.seen.counters.lines.remove(LINES[1]);
        let seen = bed.seen.clone();
        assert_eq!(bed.merged.sample(bed.now_ns + HALF, &bed.rule, &seen), []);
        assert_eq!(bed.merged.lines.len(), 1);
    }
}
