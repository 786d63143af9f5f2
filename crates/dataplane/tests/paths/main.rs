//! Two paths, one truth: one table of cases {rules, packet in, packets out, verdict, counters} runs
//! through `packet`'s reference, the kernel path and the userspace path; then generated tables and
//! packets do.
//!
//! A case added to a `cases_*` file is a case for all three. `MCR_CASES=N` sets the number of
//! generated packets.

mod agreement;
mod bed;
mod case;
mod cases_fields;
mod cases_hostile;
mod cases_routes;
mod cases_sizes;
mod generated;
mod kernel;
mod reference;
mod relayed;
mod userspace;

use case::Case;
use relayed::{Relay, Sum};

/// Generated packets in an ordinary run: a few seconds.
const FEW: usize = 5_000;
/// Generated packets in a long run.
const MANY: usize = 100_000;

/// The cases for all three.
fn cases() -> Vec<Case> {
    [
        cases_fields::cases(),
        cases_sizes::cases(),
        cases_routes::cases(),
        cases_hostile::cases(),
    ]
    .concat()
}

/// Cases that only the reference executes yet.
fn cases_to_come() -> Vec<Case> {
    cases_routes::ranges()
}

#[test]
fn every_case_has_a_name_of_its_own() {
    let cases = [cases(), cases_to_come()].concat();
    let mut names: Vec<_> = cases.iter().map(|case| case.name).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
}

#[test]
fn the_reference_gives_what_the_cases_say() {
    for case in [cases(), cases_to_come()].concat() {
        let reference = reference::Reference::of(&case.table());
        let observed = reference.execute(case::INGRESS, &case.packet, case.socket_bound);
        case.expected.assert_matches(case.name, &observed);
    }
}

#[test]
fn the_kernel_path_gives_what_the_cases_say() {
    kernel::with_relay("cases", demand_cases);
}

#[test]
fn the_kernel_path_agrees_with_the_reference_on_generated_packets() {
    kernel::with_relay("few", |relay| agreement::demand(relay, count_or(FEW)));
}

#[test]
#[ignore = "takes a minute; run with --ignored"]
fn the_kernel_path_agrees_with_the_reference_on_very_many_packets() {
    kernel::with_relay("many", |relay| agreement::demand(relay, count_or(MANY)));
}

#[test]
fn the_userspace_path_gives_what_the_cases_say() {
    userspace::with_relay("user-cases", demand_cases);
}

#[test]
fn the_userspace_path_agrees_with_the_reference_on_generated_packets() {
    userspace::with_relay("user-few", |relay| agreement::demand(relay, count_or(FEW)));
}

#[test]
#[ignore = "takes a minute; run with --ignored"]
fn the_userspace_path_agrees_with_the_reference_on_very_many_packets() {
    userspace::with_relay("user-many", |relay| {
        agreement::demand(relay, count_or(MANY))
    });
}

/// Not a test: what the bed of the userspace path runs as its worker process.
#[test]
#[ignore = "a worker process, started by the bed"]
fn worker_process() {
    if std::env::args().any(|argument| argument == "--exact") {
        let _ = dataplane::userspace::worker::main();
        // The harness must not print a summary.
        std::process::exit(0);
    }
}

/// Runs every case on a path and names all that fail.
fn demand_cases(relay: &mut Relay<'_>) {
    let failures: Vec<_> = cases()
        .iter()
        .filter_map(|case| difference(relay, case))
        .collect();
    assert!(
        failures.is_empty(),
        "{} of {} cases failed:\n{}",
        failures.len(),
        cases().len(),
        failures.join("\n")
    );
}

/// Runs one case and says how it failed.
fn difference(relay: &mut Relay<'_>, case: &Case) -> Option<String> {
    let mut expected = Sum::default();
    expected.expect(&case.packet, &case.expected);
    relay.apply(&case.table());
    let _socket = case.socket_bound.then(|| bed::bind(case::PORT));
    let seen = relay.forward([&case.packet], &expected);
    let name = case.name;
    let told = |what: &str, seen: String, expected: String| {
        Some(format!(
            "case {name:?}: {what}:\n  seen     {seen}\n  expected {expected}"
        ))
    };
    if seen.copies != expected.copies {
        told(
            "copies",
            format!("{:?}", seen.copies),
            format!("{:?}", expected.copies),
        )
    } else if seen.passed_up != expected.passed_up {
        told(
            "passed up",
            format!("{:?}", seen.passed_up),
            format!("{:?}", expected.passed_up),
        )
    } else if seen.counters != expected.counters {
        told(
            "counters",
            format!("{:?}", seen.counters),
            format!("{:?}", expected.counters),
        )
    } else {
        None
    }
}

fn count_or(default: usize) -> usize {
    let set = std::env::var("MCR_CASES").ok();
    set.map_or(default, |text| text.parse().expect("MCR_CASES is a number"))
}
