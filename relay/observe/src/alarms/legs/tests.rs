//! What is events of legs, reading by reading.

use dataplane::counters::{MergeCounters, MergeSeen, MergeStats, Traffic};
use rules::document::RuleDocument;

use super::*;
use crate::events::kind::{LINE_DEGRADED, LINE_DOWN, LINE_UP, LINES_DIFFER, SKEW_EXCEEDS_WINDOW};

const HALF: u64 = SECOND_NS / 2;
const RED: &str = "239.1.1.1%red:5001";
const BLUE: &str = "239.2.1.1%blue:5001";

fn rule(more: &str) -> Rule {
    let text = format!(
        r#"{{"name": "cam1", "inputs": ["{RED}", "{BLUE}"], "outputs": ["10.9.9.9:7000"], {more}}}"#
    );
    let document: RuleDocument = serde_json::from_str(&text).unwrap();
    document.to_rule(0).unwrap()
}

/// Kinds and messages, without the rule's name.
fn reports(events: Vec<Event>) -> Vec<(String, String)> {
    let words = |event: Event| {
        assert_eq!(event.subject, "cam1");
        let words = event.message.strip_prefix("rule \"cam1\": ").unwrap();
        (event.kind, words.to_owned())
    };
    events.into_iter().map(words).collect()
}

fn report(kind: &str, words: &str) -> (String, String) {
    (kind.to_owned(), words.to_owned())
}

/// Two legs under failover.
struct StandBy {
    legs: Legs,
    rule: Rule,
}

impl StandBy {
    fn new() -> Self {
        Self {
            legs: Legs::default(),
            rule: rule(r#""failover": "500ms""#),
        }
    }

    /// A reading at a second: which leg is relayed, and when the last packet of each arrived.
    fn at(
        &mut self,
        second: u64,
        active: &str,
        last: [u64; 2],
        adopted: bool,
    ) -> Vec<(String, String)> {
        let traffic = last.map(|last| Traffic {
            last_ns: last * SECOND_NS,
            ..Traffic::default()
        });
        let legs = [RED, BLUE].map(str::to_owned).into_iter();
        let seen = LinesSeen {
            active: active.to_owned(),
            changes: u64::from(active == BLUE),
            came: legs.zip(traffic).collect(),
        };
        let counted = Received {
            lines: Some(Box::new(seen)),
            ..Received::default()
        };
        assert!(Legs::has(&self.rule, &counted));
        let now_ns = second * SECOND_NS;
        reports(self.legs.sample(now_ns, &self.rule, &counted, adopted))
    }
}

#[test]
fn a_leg_that_falls_silent_and_the_one_that_takes_over_are_reported_once() {
    let mut bed = StandBy::new();
    assert_eq!(bed.at(10, RED, [10, 10], false), []);
    let switched = format!("input {BLUE} is relayed now, {RED} was");
    let silent = format!("input {RED} is silent: no packet for 2.0 s");
    assert_eq!(
        bed.at(12, BLUE, [10, 12], false),
        [
            report(INPUT_SWITCHED, &switched),
            report(LINE_DOWN, &silent)
        ]
    );
    assert_eq!(bed.at(13, BLUE, [10, 13], false), []);
    let trouble = (RED.to_owned(), "is silent".to_owned());
    assert_eq!(bed.legs.troubles(), [trouble]);
    let delivers = format!("input {RED} delivers again");
    assert_eq!(
        bed.at(14, BLUE, [14, 14], false),
        [report(LINE_UP, &delivers)]
    );
    assert_eq!(bed.legs.troubles(), []);
    assert!(!bed.legs.none_delivers());
}

#[test]
fn a_switch_before_the_first_reading_is_reported_unless_adopted() {
    let switched = format!("input {BLUE} is relayed now");
    for adopted in [false, true] {
        let expected = [report(INPUT_SWITCHED, &switched)];
        let events = StandBy::new().at(1, BLUE, [1, 1], adopted);
        assert_eq!(events, expected[usize::from(adopted)..]);
    }
}

#[test]
fn a_leg_that_never_delivered_is_reported_after_the_silence() {
    let mut bed = StandBy::new();
    assert_eq!(bed.at(100, RED, [100, 0], false), []);
    assert_eq!(bed.at(101, RED, [101, 0], false), []);
    assert_eq!(bed.at(102, RED, [102, 0], false).len(), 1);
    let trouble = (BLUE.to_owned(), "is silent".to_owned());
    assert_eq!(bed.legs.troubles(), [trouble]);
}

/// Two merged legs, read every half second.
struct Bed {
    rule: Rule,
    legs: Legs,
    now_ns: u64,
    seen: MergeSeen,
}

impl Bed {
    fn new(more: &str) -> Self {
        let legs = [RED, BLUE].map(|at| (at.to_owned(), LineStats::default()));
        let counters = MergeCounters {
            together: MergeStats {
                streams: 1,
                ..MergeStats::default()
            },
            lines: legs.into_iter().collect(),
        };
        let mut bed = Self {
            rule: rule(&format!(r#""merge": "rtp"{more}"#)),
            legs: Legs::default(),
            now_ns: 100 * SECOND_NS,
            seen: MergeSeen {
                counters,
                last_ns: BTreeMap::new(),
            },
        };
        assert_eq!(bed.run(1, |_| {}), []);
        bed
    }

    /// Takes readings half a second apart; each leg delivers a thousand numbers in between.
    fn run(&mut self, readings: u64, change: impl Fn(&mut Self)) -> Vec<(String, String)> {
        let mut events = Vec::new();
        for _ in 0..readings {
            self.now_ns += HALF;
            for at in [RED, BLUE] {
                self.seen.last_ns.insert(at.to_owned(), self.now_ns);
            }
            self.leg(RED).first += 1_000;
            self.leg(BLUE).duplicate += 1_000;
            change(self);
            events.extend(self.sample());
        }
        events
    }

    fn sample(&mut self) -> Vec<(String, String)> {
        let counted = Received {
            merge: Some(Box::new(self.seen.clone())),
            ..Received::default()
        };
        assert!(Legs::has(&self.rule, &counted));
        reports(self.legs.sample(self.now_ns, &self.rule, &counted, false))
    }

    fn leg(&mut self, at: &str) -> &mut LineStats {
        self.seen.counters.lines.get_mut(at).unwrap()
    }

    fn stop(&mut self, at: &str) {
        self.seen.last_ns.insert(at.to_owned(), 0);
    }

    fn troubles(&self) -> Vec<(String, String)> {
        self.legs.troubles()
    }
}

#[test]
fn duplicates_and_healthy_legs_are_not_reported() {
    let mut bed = Bed::new("");
    assert_eq!(bed.run(100, |_| {}), []);
    assert_eq!(bed.troubles(), []);
    assert!(!bed.legs.none_delivers());
}

#[test]
fn a_silent_leg_is_told_of_and_with_both_nothing_delivers() {
    let mut bed = Bed::new("");
    let silent = format!("input {BLUE} is silent: no packet for 2.5 s");
    assert_eq!(
        bed.run(5, |bed| bed.stop(BLUE)),
        [report(LINE_DOWN, &silent)]
    );
    assert_eq!(bed.troubles(), [(BLUE.to_owned(), "is silent".to_owned())]);
    assert!(!bed.legs.none_delivers());
    bed.run(5, |bed| {
        bed.stop(RED);
        bed.stop(BLUE);
    });
    assert!(bed.legs.none_delivers());
    let delivers = [RED, BLUE].map(|at| report(LINE_UP, &format!("input {at} delivers again")));
    assert_eq!(bed.run(1, |_| {}), delivers);
    assert_eq!(bed.troubles(), []);
}

#[test]
fn silence_is_as_long_as_the_health_of_the_rule_says() {
    let mut bed = Bed::new(r#", "health": {"silence": "5s"}"#);
    assert_eq!(bed.run(10, |bed| bed.stop(RED)), []);
    assert_eq!(bed.run(1, |bed| bed.stop(RED)).len(), 1);
    let mut bed = Bed::new(r#", "health": {"silence": "off"}"#);
    assert_eq!(bed.run(100, |bed| bed.stop(RED)), []);
    // A slow leg may pause for longer than a fast one.
    let mut bed = Bed::new(r#", "health": {"silence": "auto"}"#);
    for _ in 0..20 {
        bed.run(1, |bed| bed.leg(BLUE).duplicate -= 999);
        bed.run(2, |bed| {
            bed.stop(BLUE);
            bed.leg(BLUE).duplicate -= 1_000;
        });
    }
    let stop = |bed: &mut Bed| {
        for at in [RED, BLUE] {
            bed.stop(at);
        }
        bed.leg(RED).first -= 1_000;
        bed.leg(BLUE).duplicate -= 1_000;
    };
    let events = bed.run(12, stop);
    assert!(events[0].1.contains(RED) && events.len() == 1, "{events:?}");
    let events = bed.run(6, stop);
    assert!(
        events[0].1.contains(BLUE) && events.len() == 1,
        "{events:?}"
    );
}

#[test]
fn a_leg_loses_that_lacks_more_than_one_in_a_thousand() {
    let mut bed = Bed::new("");
    assert_eq!(bed.run(30, |bed| bed.leg(BLUE).missed += 1), []);
    let events = bed.run(20, |bed| bed.leg(BLUE).missed += 10);
    // Eleven readings after the second of three epochs began with ten.
    let loses = format!("input {BLUE} loses packets: 20 of 11 000 came by others alone");
    assert_eq!(events, [report(LINE_DEGRADED, &loses)]);
    let trouble = (BLUE.to_owned(), "loses packets".to_owned());
    assert_eq!(bed.troubles(), [trouble]);
    // It ends after ten seconds without losses.
    let keeps = format!("input {BLUE} loses no more packets");
    assert_eq!(bed.run(41, |_| {}), [report(LINE_UP, &keeps)]);
    assert_eq!(bed.troubles(), []);
}

#[test]
fn what_a_silent_leg_misses_is_explained_by_its_silence() {
    let mut bed = Bed::new("");
    let events = bed.run(60, |bed| {
        bed.stop(BLUE);
        if !bed.troubles().is_empty() {
            bed.leg(BLUE).missed += 1_000;
        }
    });
    assert_eq!(events.len(), 1, "{events:?}");
}

#[test]
fn a_leg_that_lost_and_is_silent_is_not_reported_as_recovered() {
    let mut bed = Bed::new("");
    let loses = bed.run(20, |bed| bed.leg(BLUE).missed += 10);
    assert_eq!(loses.len(), 1, "{loses:?}");
    let events = bed.run(60, |bed| bed.stop(BLUE));
    let kinds: Vec<&str> = events.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, [LINE_DOWN]);
}

#[test]
fn late_and_stray_packets_are_told_of_once_until_they_stop() {
    let mut bed = Bed::new("");
    let events = bed.run(10, |bed| {
        bed.leg(BLUE).late += 5;
        bed.leg(RED).stray += 1;
    });
    let differs = format!(
        "input {RED} brings 1 packet that no other leg does: it is of another sender, or numbers \
         its packets differently"
    );
    let late = format!(
        "input {BLUE} is too far behind: 5 packets came later than merge remembers; raise \
         merge.packets, or find what delays the leg"
    );
    // In the order of the leg names.
    assert_eq!(
        events,
        [
            report(LINES_DIFFER, &differs),
            report(SKEW_EXCEEDS_WINDOW, &late)
        ]
    );
    assert_eq!(
        bed.troubles(),
        [
            (
                RED.to_owned(),
                "brought 10 packets of another stream".to_owned()
            ),
            (BLUE.to_owned(), "brought 50 packets too late".to_owned()),
        ]
    );
    assert_eq!(bed.run(20, |_| {}), []);
    assert_eq!(bed.troubles(), []);
}

#[test]
fn numbers_that_stand_still_are_told_of() {
    let mut bed = Bed::new("");
    let events = bed.run(10, |bed| bed.leg(RED).still += 3);
    let still = format!(
        "input {RED} brings 3 packets under one number: its sender does not count; each payload \
         passes once"
    );
    assert_eq!(events, [report(LINE_DEGRADED, &still)]);
    let trouble = "brought 30 packets under one number".to_owned();
    assert_eq!(bed.troubles(), [(RED.to_owned(), trouble)]);
}

#[test]
fn a_leg_that_brings_nothing_new_is_told_of() {
    let mut bed = Bed::new("");
    // Duplicates among other packets are not events.
    assert_eq!(bed.run(10, |bed| bed.leg(BLUE).repeated += 900), []);
    let loops = |bed: &mut Bed| {
        bed.leg(BLUE).duplicate -= 1_000;
        bed.leg(BLUE).repeated += 4;
    };
    let events = bed.run(10, loops);
    let repeats = format!(
        "input {BLUE} brings nothing new: 8 packets that it brought before; its sender repeats a \
         few packets again and again"
    );
    assert_eq!(events, [report(LINE_DEGRADED, &repeats)]);
    let trouble = (BLUE.to_owned(), "brings nothing new".to_owned());
    assert_eq!(bed.troubles(), [trouble]);
    let again = format!("input {BLUE} brings something new again");
    assert_eq!(bed.run(1, |_| {}), [report(LINE_UP, &again)]);
    assert_eq!(bed.troubles(), []);
}

#[test]
fn more_streams_than_there_is_room_for_are_told_of() {
    let mut bed = Bed::new("");
    let events = bed.run(10, |bed| bed.leg(RED).exceeded += 3);
    let exceeded = format!(
        "input {RED} brings 3 packets of more streams than are told apart at a time: raise \
         merge.streams, or merge fewer SSRCs or sessions in one rule"
    );
    assert_eq!(events, [report(LINE_DEGRADED, &exceeded)]);
    let trouble = "brought 30 packets of too many streams".to_owned();
    assert_eq!(bed.troubles(), [(RED.to_owned(), trouble)]);
}

#[test]
fn legs_that_cut_the_same_differently_are_told_of() {
    let mut bed = Bed::new("");
    let events = bed.run(10, |bed| bed.leg(BLUE).differently_cut += 2);
    let cut = format!(
        "input {BLUE} brings 2 packets differently cut: what they hold may leave twice; have all \
         legs send the same packets"
    );
    assert_eq!(events, [report(LINES_DIFFER, &cut)]);
    let trouble = "brought 20 packets differently cut".to_owned();
    assert_eq!(bed.troubles(), [(BLUE.to_owned(), trouble)]);
}

#[test]
fn a_leg_that_lags_half_the_window_is_reported_before_it_is_late() {
    let mut bed = Bed::new("");
    let skew = |us: u64| move |bed: &mut Bed| bed.leg(BLUE).skew_seconds.ns = us * 1_000;
    assert_eq!(bed.run(1, skew(25_000)), []);
    let lags = format!(
        "input {BLUE} is 26.5 ms behind, more than half the window of 50 ms; raise merge.window, or \
         find what delays the leg"
    );
    assert_eq!(
        bed.run(1, skew(26_500)),
        [report(SKEW_EXCEEDS_WINDOW, &lags)]
    );
    assert_eq!(bed.run(1, skew(20_000)), []);
    let trouble = (BLUE.to_owned(), "is 20 ms behind".to_owned());
    assert_eq!(bed.troubles(), [trouble]);
    assert_eq!(bed.run(1, skew(18_000)), []);
    assert_eq!(bed.troubles(), []);
}

#[test]
fn a_stream_that_begins_after_the_first_is_reported() {
    let mut bed = Bed::new("");
    let events = bed.run(1, |bed| bed.seen.counters.together.streams = 2);
    let began = "a stream began: another source or session, or numbers that do not go on; 2 so far";
    assert_eq!(events, [report(STREAM_RESTARTED, began)]);
    assert_eq!(bed.run(5, |_| {}), []);
}

#[test]
fn the_first_packet_of_a_jump_is_not_stray() {
    let mut bed = Bed::new("");
    let events = bed.run(1, |bed| {
        bed.seen.counters.together.streams = 2;
        bed.leg(RED).stray += 1;
    });
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!((&*events[0].0, bed.troubles()), (STREAM_RESTARTED, vec![]));
}

#[test]
fn counts_before_the_first_reading_and_removed_legs_are_not_reported() {
    let mut bed = Bed::new("");
    bed.legs = Legs::default();
    bed.seen.counters.together.streams = 7;
    *bed.leg(RED) = LineStats {
        first: 1_000,
        missed: 900,
        late: 5,
        stray: 5,
        ..LineStats::default()
    };
    assert_eq!(bed.run(1, |_| {}), []);
    bed.seen.counters.lines.remove(BLUE);
    bed.now_ns += HALF;
    assert_eq!(bed.sample(), []);
    assert_eq!(bed.legs.legs.len(), 1);
}
