//! Merging by the C code that both paths run: every schedule with few preemptions, generated streams
//! against a model of sets, and threads that race. `tests/merge/` is the checker.

#[path = "merge/chance.rs"]
mod chance;
#[path = "merge/mutants.rs"]
mod mutants;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bpf::merge::{Verdict, Windows};
use bpf::merge_layout::{CELLS, Merge};
use chance::{Format, Random, World};
use mutants::{MUTANTS, Mutant};
use sys::shared_memory::Region;

const HEADERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/relay");
const CHECKER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/merge");

/// The checker over the headers in `headers`; none where the C library has no coroutines.
fn build(headers: &Path, to: &Path) -> Option<PathBuf> {
    if cfg!(target_env = "musl") {
        eprintln!("skipped: musl has no makecontext");
        return None;
    }
    let check = to.join("check");
    let status = Command::new("clang")
        .args(["-O1", "-Wall", "-Wno-unused-function", "-I"])
        .arg(headers)
        .args(["-I", CHECKER, &format!("{CHECKER}/check.c"), "-o"])
        .arg(&check)
        .status()
        .expect("clang compiled the program, too");
    assert!(status.success(), "clang cannot compile the checker");
    Some(check)
}

/// Returns whether the checker reports no error. A crash of the checker counts as an error.
fn passes(check: &Path, arguments: &[&str]) -> bool {
    let output = Command::new(check)
        .args(arguments)
        .output()
        .expect("the checker runs");
    let report = String::from_utf8_lossy(&output.stdout);
    println!("{report}({})", output.status);
    assert_ne!(
        output.status.code(),
        Some(2),
        "no such check: {arguments:?}"
    );
    output.status.success()
}

fn check(arguments: &[&str]) {
    let directory = tempfile::tempdir().expect("room for the checker");
    if let Some(check) = build(Path::new(HEADERS), directory.path()) {
        assert!(passes(&check, arguments), "{arguments:?}: see above");
    }
}

fn notice(mutants: &[Mutant]) {
    for mutant in mutants {
        let directory = tempfile::tempdir().expect("room for a mutant");
        let mut is_there = false;
        for header in fs::read_dir(HEADERS).expect("the headers are there") {
            let header = header.expect("the headers are there").path();
            let text = fs::read_to_string(&header).expect("a header is text");
            is_there |= text.contains(mutant.from);
            let copy = directory
                .path()
                .join(header.file_name().unwrap_or_default());
            fs::write(copy, text.replace(mutant.from, mutant.to)).expect("room for a mutant");
        }
        assert!(is_there, "no such code: {}", mutant.from);
        let Some(check) = build(directory.path(), directory.path()) else {
            return;
        };
        let survives = passes(&check, &["preempt", "2"]) && passes(&check, &["random", "2000"]);
        assert!(
            !survives,
            "nobody noticed: {} -> {}",
            mutant.from, mutant.to
        );
    }
}

#[test]
fn every_schedule_with_two_preemptions_passes_each_packet_once() {
    check(&["preempt", "2"]);
}

#[test]
fn generated_streams_are_merged_as_a_model_of_sets_says() {
    check(&["random", "2000"]);
}

/// The first: a line that was away recovers just as the source begins anew. The second: a source returns to earlier
/// numbers while their record is being replaced. Two: a packet that only one line has arrives a little after the
/// first that the line delivers of the stream. Another: a jump in disorder. Two: a foreign sender that delivers what
/// another line delivers, too, which it has not missed. The last three: the newest arrives long before those before
/// it, of which a line fills in some.
#[test]
fn streams_that_once_failed_are_merged_as_a_model_of_sets_says() {
    for stream in [
        "16495816007541495340",
        "10447420669437434761",
        "9984105854722532748",
        "11950504052727989812",
        "11856838713194168344",
        "3316015101965925773",
        "17164073592421964249",
        "16764673395252750588",
        "15909927824263320771",
        "2051772769703829266",
    ] {
        check(&["random", "1", stream]);
    }
}

#[test]
fn the_checker_notices_some_errors() {
    notice(&MUTANTS[..3]);
}

/// Begins with the scene `MCR_TEST_SCENE`, if that names one.
#[test]
#[ignore = "an hour: make merge-check"]
fn every_schedule_with_three_preemptions_passes_each_packet_once() {
    let from = std::env::var("MCR_TEST_SCENE").ok();
    let arguments = ["preempt", "3"].into_iter().chain(from.as_deref());
    check(&arguments.collect::<Vec<_>>());
}

#[test]
#[ignore = "minutes: make merge-check"]
fn very_many_generated_streams_are_merged_as_a_model_of_sets_says() {
    for seed in ["11", "12345", "987654321"] {
        check(&["random", "60000", seed]);
    }
}

#[test]
#[ignore = "a minute: make merge-check"]
fn the_checker_notices_every_error() {
    notice(MUTANTS);
}

/// What is wrong with what leaves of a random world, and how many packets there were.
fn chance(seed: u64) -> (Option<String>, usize) {
    let world = World::new(&mut Random::of(seed), 4, 2_000);
    let by = match world.format {
        Format::Rtp => rules::merge::By::Rtp,
        Format::MoldUdp64 => rules::merge::By::MoldUdp64,
        Format::Mdp3 => rules::merge::By::Mdp3,
        Format::Payload => rules::merge::By::Payload,
        Format::Sessions => rules::merge::By::Sequence(rules::merge::Sequence {
            number: rules::merge::Field {
                offset: 4,
                bytes: 4,
            },
            order: rules::merge::ByteOrder::Big,
            session: Some(rules::merge::Field {
                offset: 0,
                bytes: 4,
            }),
            count: None,
        }),
    };
    let (_, windows) = Windows::create().expect("a region");
    let model = rules::merge::Merge {
        by,
        window: Duration::from_millis(400),
        packets: if by == rules::merge::By::Payload {
            16_384
        } else {
            2_048
        },
        streams: 1_024,
    };
    let mut rule = Merge::of(&model, 8);
    (rule.first_place, rule.places) = (bpf::merge::RULES - CELLS, CELLS);
    rule.line[..world.legs]
        .iter_mut()
        .for_each(|line| line.since_ns = 1);
    windows.rules.write(3, &rule);
    let leaving = world.arrivals.iter().filter_map(|arrival| {
        let now_ns = 1_000_000_000 + arrival.at_us * 1_000;
        let packet = (&*world.payload(arrival.packet), 7);
        let verdict = windows.judge((3, arrival.leg as u32), packet, now_ns);
        (verdict == Verdict::First).then_some(arrival.packet)
    });
    (world.judge(leaving), world.arrivals.len())
}

/// The first ones failed once: an unconfirmed jump of packets with many numbers, a stream that continued after a
/// pause and was late behind a foreign packet, a key without an entry beside free ones, a jump in disorder. The one
/// after them has a jump whose first packet to arrive is none of its first, the next two foreign packets: near each
/// other, and near the target of a jump. Then one with a jump to near a leg's number that has missed the jump
/// before.
#[test]
fn of_streams_of_chance_everything_leaves_once() {
    for seed in [
        25, 55, 77, 96, 147, 158, 223, 1_620, 1_838, 9_451, 41_022_120, 52_016_241, 52_016_659,
        52_039_366, 1, 2, 3, 4, 5, 6, 7,
    ] {
        let (wrong, _) = chance(seed);
        assert_eq!(wrong, None, "seed {seed}");
    }
}

/// For `MCR_TEST_SECONDS`, from the seed `MCR_TEST_SEED` on.
#[test]
#[ignore = "long: make merge-chance"]
fn of_very_many_streams_of_chance_everything_leaves_once() {
    let given = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let end = Instant::now() + Duration::from_secs(given("MCR_TEST_SECONDS").unwrap_or(60));
    let first = given("MCR_TEST_SEED").unwrap_or(1);
    let (mut seed, mut packets) = (first, 0);
    while Instant::now() < end {
        let (wrong, count) = chance(seed);
        assert_eq!(wrong, None, "MCR_TEST_SEED={seed}");
        (seed, packets) = (seed + 1, packets + count);
    }
    println!(
        "{packets} packets in {} worlds from {first} on",
        seed - first
    );
}

/// Two threads are two lines, each with its own losses, never further apart than the window.
#[test]
fn threads_that_race_pass_each_number_once() {
    const NUMBERS: u64 = 150_000;
    const APART: u64 = 500;
    let (_, windows) = Windows::create().expect("a region");
    let mut rule = Merge::of(&rules::merge::Merge::default(), 8);
    rule.line[0].since_ns = 1;
    rule.line[1].since_ns = 1;
    windows.rules.write(5, &rule);
    let at = [AtomicU64::new(0), AtomicU64::new(0)];
    // Checked at the end: a line that ends too early makes the other wait for ever.
    let strange = Mutex::new(Vec::new());
    let is_lost = |line: u64, number: u64| {
        number > 0 && (number * 2 + line).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58 == 0
    };
    let judge = |line: usize, number: u64| {
        let mut packet = [0; 12];
        packet[0] = 0x80;
        let sequence = 65_000u16.wrapping_add(number as u16);
        packet[2..4].copy_from_slice(&sequence.to_be_bytes());
        let now_ns = 1_000_000_000 + number * 10_000;
        windows.judge((5, line as u32), (&packet, 0), now_ns)
    };
    let run = |line: usize| {
        let mut passed = Vec::new();
        for number in 0..NUMBERS {
            at[line].store(number, Ordering::Release);
            while number > at[1 - line].load(Ordering::Acquire) + APART {
                std::thread::yield_now();
            }
            if is_lost(line as u64, number) {
                continue;
            }
            match judge(line, number) {
                Verdict::First => passed.push(number),
                Verdict::Duplicate => {}
                other => strange
                    .lock()
                    .expect("no line panics")
                    .push((line, number, other)),
            }
        }
        at[line].store(u64::MAX / 2, Ordering::Release);
        passed
    };
    let mut passed = std::thread::scope(|scope| {
        let lines = [0, 1].map(|line| {
            scope.spawn({
                let run = &run;
                move || run(line)
            })
        });
        lines.map(|line| line.join().expect("a line ends")).concat()
    });
    assert_eq!(strange.into_inner().expect("no line panics"), []);
    passed.sort_unstable();
    let is_received = |number: &u64| !is_lost(0, *number) || !is_lost(1, *number);
    assert!(
        passed.iter().copied().eq((0..NUMBERS).filter(is_received)),
        "{} passed of {}",
        passed.len(),
        (0..NUMBERS).filter(is_received).count()
    );
    assert_eq!(windows.rules.read(5).unsettled, 0);
}
