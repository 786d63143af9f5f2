//! Two paths, one truth: one table of cases {rules, packet in, packets out, verdict, counters} runs
//! through `packet`'s reference, the kernel path and the userspace path; then generated tables and
//! packets do.
//!
//! A case added to a `cases_*` file is a case for all three. `MCR_CASES=N` sets the number of
//! generated packets.

mod agreement;
mod answered;
mod bed;
mod case;
mod cases_addresses;
mod cases_demand;
mod cases_fields;
mod cases_fragments;
mod cases_gates;
mod cases_hostile;
mod cases_inputs;
mod cases_ipv6;
mod cases_limits;
mod cases_routes;
mod cases_sizes;
mod fragments;
mod gates;
mod generated;
mod health;
mod kernel;
mod latency;
mod limits;
mod merged;
mod merged_bed;
mod merged_changes;
mod merged_cost;
mod merged_parts;
mod program;
mod reference;
mod reflected;
mod relayed;
mod segments;
mod together;
mod unusual;
mod userspace;

use std::collections::BTreeMap;

use case::Case;
use dataplane::features::Feature;
use relayed::{Relay, Sum, growth};

/// Generated packets in an ordinary run: a few seconds.
const FEW: usize = 5_000;
/// Generated packets in a long run.
const MANY: usize = 100_000;

/// All cases, for all three.
fn cases() -> Vec<Case> {
    [
        cases_fields::cases(),
        cases_sizes::cases(),
        cases_routes::cases(),
        cases_inputs::cases(),
        cases_addresses::cases(),
        cases_demand::cases(),
        cases_fragments::cases(),
        cases_hostile::cases(),
        cases_ipv6::cases(),
        cases_limits::cases(),
        cases_gates::cases(),
    ]
    .concat()
}

#[test]
fn every_case_has_a_name_of_its_own() {
    let cases = cases();
    let mut names: Vec<_> = cases.iter().map(|case| case.name).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
}

#[test]
fn the_reference_gives_what_the_cases_say() {
    for case in cases() {
        let mut reference = reference::Reference::of(&case.table());
        let observed = reference.execute(case::INGRESS, &case.packet, |_| case.socket_bound);
        case.expected.assert_matches(case.name, &observed);
    }
}

#[test]
fn the_kernel_path_gives_what_the_cases_say() {
    kernel::with_relay("cases", |relay| demand(relay, cases()));
}

#[test]
fn the_kernel_path_gives_what_the_cases_say_through_clsact() {
    kernel::with_relay_without("clsact", &[Feature::Tcx], |relay| demand(relay, cases()));
}

#[test]
fn the_hook_at_xdp_gives_what_the_cases_say() {
    kernel::with_relay_at_xdp("xdp-cases", |relay| {
        demand(relay, cases());
        assert!(relay.taken_at_xdp() > 0);
    });
}

#[test]
fn the_hook_at_xdp_agrees_with_the_reference_on_generated_packets() {
    kernel::with_relay_at_xdp("xdp-few", |relay| {
        agreement::demand(relay, count_or(FEW));
        assert!(relay.taken_at_xdp() > 0);
    });
}

#[test]
#[ignore = "takes a minute; run with --ignored"]
fn the_hook_at_xdp_agrees_with_the_reference_on_very_many_packets() {
    kernel::with_relay_at_xdp("xdp-many", |relay| {
        agreement::demand(relay, count_or(MANY));
    });
}

#[test]
fn the_hook_at_xdp_does_what_tc_does_beside_it() {
    kernel::with_relay_at_xdp("xdp-rest", |relay| {
        gates::demand(relay);
        limits::demand(relay);
        merged::demand(relay);
        health::demand(relay);
        fragments::demand(relay);
        latency::demand(relay);
    });
}

#[test]
fn the_kernel_path_relays_packets_that_come_together() {
    kernel::with_relay("together", |relay| together::demand(relay, cases()));
}

#[test]
fn the_userspace_path_relays_packets_that_wait_together() {
    userspace::with_relay("user-together", |relay| together::demand(relay, cases()));
}

#[test]
fn the_kernel_path_relays_datagrams_in_fragments() {
    kernel::with_relay("pieces", fragments::demand);
}

#[test]
fn the_userspace_path_relays_datagrams_in_fragments() {
    userspace::with_relay("user-pieces", fragments::demand);
}

#[test]
fn the_kernel_path_starts_another_limit_full() {
    kernel::with_relay("limits", limits::demand);
}

#[test]
fn the_userspace_path_starts_another_limit_full() {
    userspace::with_relay("user-limits", limits::demand);
}

#[test]
fn the_kernel_path_passes_what_a_gate_lets_pass() {
    kernel::with_relay("gates", gates::demand);
}

#[test]
fn the_userspace_path_passes_what_a_gate_lets_pass() {
    userspace::with_relay("user-gates", gates::demand);
}

#[test]
fn the_kernel_path_reflects_each_packet_once() {
    kernel::with_relay("reflected", reflected::demand);
}

#[test]
fn the_userspace_path_reflects_each_packet_once() {
    userspace::with_relay("user-reflected", reflected::demand);
}

#[test]
fn the_kernel_path_gives_answers_to_whoever_asked() {
    kernel::with_relay("answered", answered::demand);
}

#[test]
fn the_userspace_path_gives_answers_to_whoever_asked() {
    userspace::with_relay("user-answered", answered::demand);
}

#[test]
fn the_kernel_path_merges_lines() {
    kernel::with_relay("merged", merged::demand);
}

#[test]
fn the_kernel_path_finds_what_the_reference_finds_in_streams() {
    kernel::with_relay("health", health::demand);
}

#[test]
fn the_kernel_path_counts_how_long_packets_stay() {
    kernel::with_relay("latency", |relay| {
        latency::demand(relay);
        latency::demand_stamped(relay);
    });
}

#[test]
fn the_userspace_path_counts_how_long_packets_stay() {
    userspace::with_relay("user-latency", latency::demand);
}

#[test]
#[ignore = "prints times; run with --ignored --nocapture on an idle machine"]
fn the_cost_of_looking_at_packets_on_the_kernel_path() {
    kernel::with_relay("cost", |relay| {
        health::print_mean(relay);
        health::print_cost(relay);
    });
}

#[test]
#[ignore = "prints times; run with --ignored --nocapture on an idle machine"]
fn the_cost_of_merging_on_the_kernel_path() {
    kernel::with_relay("merge-cost", merged_cost::print);
}

#[test]
fn the_userspace_path_finds_what_the_reference_finds_in_streams() {
    userspace::with_relay("user-health", health::demand);
}

#[test]
fn the_userspace_path_merges_lines() {
    userspace::with_relay("user-merged", merged::demand);
}

#[test]
fn the_userspace_path_merges_lines_on_a_kernel_that_has_nothing_optional() {
    userspace::with_relay_without("user-merged-old", &Feature::ALL, merged::demand);
}

#[test]
fn the_kernel_program_gives_what_the_cases_say_in_a_test_run() {
    kernel::with_relay("program", |relay| program::demand(relay, &cases()));
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
    userspace::with_relay("user-cases", |relay| demand(relay, cases()));
}

#[test]
fn the_userspace_path_gives_what_the_cases_say_on_a_kernel_that_has_nothing_optional() {
    userspace::with_relay_without("user-old", &Feature::ALL, |relay| {
        demand(relay, cases());
        fragments::demand(relay);
        agreement::demand(relay, count_or(FEW));
    });
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
fn demand(relay: &mut Relay<'_>, cases: Vec<Case>) {
    let every = cases.len();
    let cases = segments::possible(relay, cases);
    let failures = cases
        .iter()
        .filter_map(|case| undisturbed_difference(relay, case));
    let failures: Vec<_> = failures.collect();
    let (failed, all) = (failures.len(), cases.len());
    let (passed, skipped) = (all - failed, every - all);
    println!("packet cases: {passed} passed, {failed} failed, {skipped} skipped");
    assert!(
        failed == 0,
        "{failed} of {all} cases failed:\n{}",
        failures.join("\n")
    );
}

/// Runs one case and returns how it failed, again where the host dropped packets meanwhile.
fn undisturbed_difference(relay: &mut Relay<'_>, case: &Case) -> Option<String> {
    for _ in 0..2 {
        let drops = bed::host_drops();
        let difference = difference(relay, case)?;
        if bed::host_drops() == drops {
            return Some(difference);
        }
        eprintln!("the host dropped packets; again: {difference}");
    }
    difference(relay, case)
}

/// Runs one case and returns how it failed.
fn difference(relay: &mut Relay<'_>, case: &Case) -> Option<String> {
    let mut expected = Sum::default();
    expected.expect(&case.packet, &case.expected);
    relay.apply(&case.table());
    let _socket = case.socket_bound.then(|| bed::Bound::new(case::PORT));
    let before = relay.counters();
    // Twice: nothing is booked.
    for _ in 0..2 {
        let explained = relay.explain(case.table(), &case.packet, case.socket_bound);
        case.expected.assert_matches(case.name, &explained);
    }
    let booked = growth(&before, &relay.counters());
    assert_eq!(booked, BTreeMap::new(), "{}", case.name);
    let seen = relay.forward([&case.packet], &expected);
    let name = case.name;
    let difference = |what: &str, seen: String, expected: String| {
        Some(format!(
            "case {name:?}: {what}:\n  seen     {seen}\n  expected {expected}"
        ))
    };
    if seen.copies != expected.copies {
        difference(
            "copies",
            format!("{:?}", seen.copies),
            format!("{:?}", expected.copies),
        )
    } else if seen.passed_up != expected.passed_up {
        difference(
            "passed up",
            format!("{:?}", seen.passed_up),
            format!("{:?}", expected.passed_up),
        )
    } else if seen.counters != expected.counters {
        difference(
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
