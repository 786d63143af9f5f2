//! Rounds of faults: a few in every run of the tests, many by `make fleet`.

use std::fmt::Write as _;
use std::fs;
use std::time::{Duration, Instant};

use lab::fleet::bed::Bed;
use lab::fleet::relay::Settings;
use lab::fleet::scenario::{Fault, Pace, Round, play};
use lab::fleet::{etcd, table};
use lab::random::Random;
use lab::reliability;

use crate::{is_skipped, turn};

/// The stream must resume within this, on a busy machine.
const BACK_MS: f64 = 30_000.0;

/// Two relays on this path; other policies and holds run in the long form.
fn settings(path: &str, on_isolation: &str, hold_ms: u64) -> Settings {
    Settings {
        path: path.to_owned(),
        on_isolation: on_isolation.to_owned(),
        hold: Duration::from_millis(hold_ms),
    }
}

/// What must hold in every round, however busy the machine is.
fn check(round: &Round) {
    assert_eq!(round.twice, 0, "{round:?}");
    assert_eq!(round.flaps, 0, "{round:?}");
    assert!(round.gap_ms < BACK_MS, "{round:?}");
    assert!(
        !round.fault.must_move() || round.takeover_ms.is_some(),
        "{round:?}"
    );
}

fn a_few_rounds(path: &str, faults: &[Fault]) {
    if is_skipped() {
        return;
    }
    let _turn = turn();
    let mut random = Random::new();
    let settings = settings(path, "peers", 1200);
    let mut bed = Bed::new(2, &settings).unwrap();
    for fault in faults {
        let delay = Duration::from_millis(random.below(200));
        let round = play(&mut bed, *fault, None, Pace::QUICK, delay).unwrap();
        println!("{path}: {round:?}");
        check(&round);
    }
}

#[test]
fn nothing_comes_twice_on_the_kernel_path() {
    let faults = [
        Fault::HostDeath,
        Fault::Kill,
        Fault::Drained,
        Fault::LeaderKilled,
    ];
    a_few_rounds("kernel", &faults);
}

#[test]
fn nothing_comes_twice_on_the_userspace_path() {
    a_few_rounds("userspace", &[Fault::HostDeath, Fault::Drained]);
}

/// Combinations of path, policy and hold that the table has.
const COMBINATIONS: [(&str, &str, u64); 5] = [
    ("kernel", "peers", 1200),
    ("kernel", "stop", 1200),
    ("kernel", "peers", 300),
    ("userspace", "peers", 1200),
    ("userspace", "stop", 1200),
];

/// `MCR_TEST_ROUNDS` rounds of each fault (10 by default) for each combination. `MCR_TEST_ONLY` selects
/// combinations by a part of their title, `MCR_TEST_FAULT` faults by a part of their name.
#[test]
#[ignore = "long: make fleet"]
fn table_of_faults() {
    let _turn = turn();
    let mut random = Random::new();
    let rounds = number("MCR_TEST_ROUNDS", 10);
    let only = std::env::var("MCR_TEST_ONLY").unwrap_or_default();
    let fault = std::env::var("MCR_TEST_FAULT").unwrap_or_default();
    let is_wanted = |it: &Fault| format!("{it:?}").contains(&fault);
    let mut report = Report::new();
    for (path, on_isolation, hold_ms) in COMBINATIONS {
        let title = format!("{path} path, on_isolation = {on_isolation}, hold {hold_ms} ms");
        if !title.contains(&only) {
            continue;
        }
        let settings = settings(path, on_isolation, hold_ms);
        let mut bed = Bed::new(2, &settings).unwrap();
        let mut played = Vec::new();
        for _ in 0..rounds {
            for fault in Fault::ALL.into_iter().filter(is_wanted) {
                let delay = Duration::from_millis(random.below(500));
                let round = play(&mut bed, fault, None, Pace::LONG, delay).unwrap();
                println!("{title}: {round:?}");
                played.push(round);
            }
            report.show(&title, &played);
        }
        report.keep(&title, &played);
    }
    report.check();
}

/// Faults of chance, every other one of a relay with one of etcd meanwhile: for `MCR_TEST_SECONDS`,
/// an hour if it is not set.
#[test]
#[ignore = "long: make fleet"]
fn an_hour_of_chance() {
    let _turn = turn();
    let mut random = Random::new();
    let seconds = number("MCR_TEST_SECONDS", 3600);
    let mut report = Report::new();
    for path in ["kernel", "userspace"] {
        let title = format!(
            "chance, seed {}, {path} path, on_isolation = peers",
            random.seed()
        );
        let mut bed = Bed::new(2, &settings(path, "peers", 1200)).unwrap();
        let end = Instant::now() + Duration::from_secs(seconds) / 2;
        let mut played = Vec::new();
        while Instant::now() < end {
            let pace = Pace {
                fault: Duration::from_millis(200 + random.below(4000)),
                ..Pace::LONG
            };
            let delay = Duration::from_millis(random.below(500));
            let fault = random.choose(&Fault::ALL);
            let round = play(&mut bed, fault, second(&mut random, fault), pace, delay).unwrap();
            println!("{title}: {round:?}");
            played.push(round);
        }
        report.keep(&title, &played);
    }
    report.check();
}

/// Something that happens to etcd while a fault of a relay lasts, every other time.
fn second(random: &mut Random, fault: Fault) -> Option<(Fault, Duration)> {
    let is_of_a_relay = !Fault::OF_ETCD.contains(&fault) && fault != Fault::HostAndLeader;
    let after = Duration::from_millis(100 + random.below(1500));
    let second = random.choose(&Fault::OF_ETCD);
    (is_of_a_relay && random.below(2) == 0).then_some((second, after))
}

fn number(name: &str, otherwise: u64) -> u64 {
    let given = std::env::var(name).ok();
    given
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

/// What `make fleet` leaves: tables on the terminal and in `target/bench/fleet.md`.
struct Report {
    text: String,
    wrong: Vec<Round>,
}

impl Report {
    fn new() -> Self {
        let version = etcd::version().unwrap();
        Self {
            text: format!("etcd {version}, three members, two relays, 5,000 packets a second\n"),
            wrong: Vec::new(),
        }
    }

    fn show(&self, title: &str, played: &[Round]) {
        println!("\n{title}\n\n{}{}", table::HEAD, table::rows(played));
    }

    fn keep(&mut self, title: &str, played: &[Round]) {
        self.show(title, played);
        let _ = write!(
            self.text,
            "\n### {title}\n\n{}{}",
            table::HEAD,
            table::rows(played)
        );
        let is_wrong = |round: &&Round| round.twice > 0 || round.flaps > 0;
        self.wrong.extend(played.iter().filter(is_wrong).cloned());
        let directory = reliability::directory().unwrap();
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("fleet.md"), &self.text).unwrap();
    }

    fn check(&self) {
        assert!(self.wrong.is_empty(), "{:?}", self.wrong);
    }
}
