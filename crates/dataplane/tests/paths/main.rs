//! Two paths, one truth: one table of cases {rules, packet in, packets out, verdict, counters} runs
//! through `packet`'s reference, the kernel path and the userspace path.
//!
//! A case added to a `cases_*` file is a case for all three.

mod case;
mod cases_fields;
mod cases_hostile;
mod cases_routes;
mod cases_sizes;
mod reference;

use case::Case;

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
