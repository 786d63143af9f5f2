//! The state and the rates of streams, sample by sample.

use std::time::Duration;

use rules::document::HealthDocument;

use super::*;

const START: u64 = 1_000 * SECOND_NS;

/// A stream with health settings, and its next reading.
struct Bench {
    stream: Stream,
    health: Health,
    traffic: Traffic,
    inspected: HealthCounters,
    now_ns: u64,
}

impl Bench {
    fn new(keys: &str) -> Self {
        let health = HealthDocument::from_text(keys).unwrap();
        Self {
            stream: Stream::default(),
            health: health.read().unwrap(),
            traffic: Traffic::default(),
            inspected: HealthCounters::default(),
            now_ns: START,
        }
    }

    /// Takes samples every half second at this rate; returns the changes of state.
    fn run(&mut self, samples: u64, pps: u64) -> Vec<(State, Option<String>)> {
        let sample = |_| {
            self.now_ns += SECOND_NS / 2;
            // At one packet a second every second sample has one.
            let packets = (pps + self.now_ns / (SECOND_NS / 2) % 2) / 2;
            self.traffic.packets += packets;
            self.traffic.bytes += packets * 1000;
            if packets > 0 {
                self.traffic.last_ns = self.now_ns;
            }
            let mut counted = Received::default();
            counted.add(self.traffic, &self.inspected);
            self.stream
                .sample(self.now_ns, Some(&self.health), &counted)
        };
        (0..samples).filter_map(sample).collect()
    }

    fn states(&mut self, samples: u64, pps: u64) -> Vec<State> {
        self.run(samples, pps)
            .into_iter()
            .map(|(state, _)| state)
            .collect()
    }
}

#[test]
fn rates_are_those_of_the_last_second_and_of_ten() {
    let mut bench = Bench::new("silence=2s");
    bench.run(20, 1000);
    bench.run(4, 2000);
    let rates = bench.stream.rates();
    assert!((rates.packets_1s - 2000.0).abs() < 1.0, "{rates:?}");
    assert!((rates.bits_1s - 16e6).abs() < 1e4, "{rates:?}");
    assert!((rates.packets_10s - 1200.0).abs() < 1.0, "{rates:?}");
}

/// The end of a stream right after a sample shows half a second later, and that sample may be the first
/// of the last second for another half.
#[test]
fn rates_are_zero_two_seconds_after_the_last_packet() {
    let mut bench = Bench::new("silence=2s");
    bench.run(20, 1000);
    bench.run(3, 0);
    let rates = bench.stream.rates();
    assert_eq!((rates.packets_1s, rates.bits_1s), (0.0, 0.0));
    assert!(rates.packets_10s > 0.0, "{rates:?}");
    bench.run(19, 0);
    let rates = bench.stream.rates();
    assert_eq!((rates.packets_10s, rates.bits_10s), (0.0, 0.0));
}

#[test]
fn silence_is_reported_once_and_ends_with_the_first_packet() {
    let mut bench = Bench::new("silence=2s");
    assert_eq!(bench.states(10, 1000), []);
    let changes = bench.run(10, 0);
    let reason = "silent for 2.0 s (silence = 2s)".to_owned();
    assert_eq!(changes, [(State::Down, Some(reason))]);
    assert_eq!(bench.run(1, 1000), [(State::Up, None)]);
    let health = bench.stream.health(bench.now_ns, &bench.inspected).unwrap();
    assert_eq!(health.silent_seconds, Some(0.0));
}

#[test]
fn the_time_for_which_a_rule_was_disabled_is_no_silence() {
    let mut bench = Bench::new("silence=2s");
    assert_eq!(bench.run(20, 1000), []);
    for _ in 0..60 {
        bench.now_ns += SECOND_NS / 2;
        bench.stream.follow(bench.now_ns, false);
        let mut counted = Received::default();
        counted.add(bench.traffic, &bench.inspected);
        assert_eq!(bench.stream.sample(bench.now_ns, None, &counted), None);
        assert_eq!(bench.stream.pause(bench.now_ns, None, false), None);
    }
    bench.now_ns += SECOND_NS / 2;
    bench.stream.follow(bench.now_ns, true);
    let allowed = Some(Silence::After(Duration::from_secs(2)));
    assert_eq!(bench.stream.pause(bench.now_ns, allowed, false), None);
    assert_eq!(bench.run(3, 0), []);
    assert_eq!(bench.run(6, 1000), []);
    let longest_ns = bench.stream.pauses.longest_ns(Silence::Auto);
    assert_eq!(
        longest_ns,
        Some(2 * SECOND_NS),
        "it is no pause to learn from"
    );
    assert_eq!(bench.states(6, 0), [State::Down]);
}

#[test]
fn a_stream_that_never_arrived_is_down() {
    let mut bench = Bench::new("silence=2s");
    let changes = bench.run(10, 0);
    let reason = "nothing came within 2.0 s (silence = 2s)".to_owned();
    assert_eq!(changes, [(State::Down, Some(reason))]);
    let mut bench = Bench::new("silence=off");
    assert_eq!(bench.run(10, 0), []);
}

#[test]
fn the_pause_of_a_watched_stream_is_learnt_under_auto() {
    let mut bench = Bench::new("silence=auto");
    assert_eq!(bench.states(40, 1), []);
    let changes = bench.run(12, 0);
    let reason = "silent for 5.0 s (silence = auto, 5.0 s now)".to_owned();
    assert_eq!(changes, [(State::Down, Some(reason))]);
    assert_eq!(bench.states(1, 1000), [State::Up]);
    // Twenty packets later its pauses are forgotten.
    assert_eq!(bench.states(4, 1000), []);
    let changes = bench.run(10, 0);
    let reason = "silent for 2.0 s (silence = auto, 2.0 s now)".to_owned();
    assert_eq!(changes, [(State::Down, Some(reason))]);
}

#[test]
fn a_rate_outside_its_bounds_degrades_for_ten_seconds() {
    let mut bench = Bench::new("rate_min=900pps,rate_max=1100pps");
    assert_eq!(bench.states(20, 1000), []);
    let changes = bench.run(4, 1200);
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert_eq!(changes[0].0, State::Degraded);
    let reason = changes[0].1.as_deref().unwrap();
    assert!(
        reason.ends_with("pps, above rate_max = 1100pps"),
        "{reason}"
    );
    assert_eq!(bench.states(19, 1000), []);
    assert_eq!(bench.states(4, 1000), [State::Up]);
    assert_eq!(bench.states(4, 100), [State::Degraded]);
}

#[test]
fn trouble_in_packets_degrades_for_ten_seconds() {
    type Trouble = (fn(&mut HealthCounters), &'static str);
    let troubles: [Trouble; 4] = [
        (
            |inspected| inspected.lost += 3,
            "3 RTP packets lost within 10 s",
        ),
        (
            |inspected| inspected.ssrc_changes += 1,
            "1 change of the RTP source within 10 s",
        ),
        (
            |inspected| inspected.continuity_errors += 2,
            "2 MPEG-TS continuity errors within 10 s",
        ),
        (
            |inspected| inspected.sync_errors += 1,
            "1 MPEG-TS packet without sync byte within 10 s",
        ),
    ];
    for (trouble, reason) in troubles {
        let mut bench = Bench::new("silence=2s");
        assert_eq!(bench.run(4, 1000), []);
        trouble(&mut bench.inspected);
        let changes = bench.run(1, 1000);
        assert_eq!(changes, [(State::Degraded, Some(reason.to_owned()))]);
        assert_eq!(bench.states(30, 1000), [State::Up]);
    }
}

#[test]
fn reordered_and_duplicated_packets_are_counted_but_no_trouble() {
    let mut bench = Bench::new("silence=2s");
    bench.run(4, 1000);
    bench.inspected.reordered += 5;
    bench.inspected.duplicated += 5;
    assert_eq!(bench.run(4, 1000), []);
}

#[test]
fn content_that_is_not_the_expected_one_degrades() {
    let mut bench = Bench::new("content=rtp");
    bench.inspected.unrecognised = 0;
    bench.run(2, 1000);
    bench.inspected.unrecognised = 10_000;
    assert_eq!(bench.states(2, 1000), [State::Degraded]);
}

#[test]
fn a_rule_without_health_has_rates_and_no_state() {
    let mut stream = Stream::default();
    let mut counted = Received::default();
    for at in 0..5 {
        counted.traffic.packets += 500;
        assert_eq!(
            stream.sample(START + at * SECOND_NS / 2, None, &counted),
            None
        );
    }
    assert!((stream.rates().packets_1s - 1000.0).abs() < 1.0);
    assert_eq!(stream.health(START, &HealthCounters::default()), None);
}

#[test]
fn omitted_quiet_samples_change_no_rate() {
    let (mut thin, mut whole) = (Stream::default(), Stream::default());
    let document = HealthDocument::from_text("silence=off").unwrap();
    let health = document.read().unwrap();
    let mut counted = Received::default();
    for at in 0..400_u64 {
        // Long and short pauses between streams of two lengths.
        if at % 100 < 3 || (at % 100 > 60 && at % 7 < 4) {
            counted.traffic.packets += 500;
            counted.traffic.bytes += 500_000;
        }
        let now_ns = START + at * SECOND_NS / 2;
        thin.sample(now_ns, None, &counted);
        whole.sample(now_ns, Some(&health), &counted);
        let samples = (thin.samples.len(), whole.samples.len());
        let (thin, whole) = (thin.rates(), whole.rates());
        assert!((thin.packets_1s - whole.packets_1s).abs() < 1e-6, "{at}");
        assert!((thin.packets_10s - whole.packets_10s).abs() < 1e-6, "{at}");
        assert!((thin.bits_10s - whole.bits_10s).abs() < 1e-3, "{at}");
        if at % 100 == 50 {
            assert_eq!(samples, (QUIET, 21), "{at}");
        }
    }
}
