//! Figures that others published for their relays, on their machines, quoted and never measured
//! here: a 20-core machine, Linux 6.17, an AF_PACKET and io_uring relay ("the reference"), reports
//! of November 2025.

use std::collections::BTreeMap;

/// A quoted figure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Published {
    /// Scenario it belongs to.
    pub(super) scenario: u8,
    /// Parameters of the case, as the bench names them; empty for the whole scenario.
    pub(super) parameters: &'static [(&'static str, &'static str)],
    /// What the reference did.
    pub(super) reference: &'static str,
    /// What socat did there.
    pub(super) socat: &'static str,
}

/// Every quoted figure.
pub(super) const PUBLISHED: [Published; 19] = [
    one(1, &[("pps", "50000")], "0 % lost", "0 % lost"),
    one(1, &[("pps", "200000")], "0 % lost", "0 % lost"),
    one(1, &[("pps", "400000")], "0.20 % lost", "15.33 % lost"),
    one(
        2,
        &[],
        "20.37 % lost, 119,438 pps sustained",
        "22.92 % lost, 115,622 pps",
    ),
    one(
        3,
        &[("streams", "1"), ("pps", "2000")],
        "0 % lost",
        "0 % lost",
    ),
    one(
        3,
        &[("streams", "2"), ("pps", "2000")],
        "0 % lost",
        "0 % lost",
    ),
    one(
        3,
        &[("streams", "5"), ("pps", "2000")],
        "0 % lost",
        "0 % lost",
    ),
    one(
        3,
        &[("streams", "10"), ("pps", "2000")],
        "0 % lost",
        "0 % lost",
    ),
    one(
        3,
        &[("streams", "20"), ("pps", "2000")],
        "3.05 % lost",
        "0 % lost",
    ),
    one(
        3,
        &[("streams", "50"), ("pps", "2000")],
        "100 % lost: workers die with ENOBUFS",
        "0 % lost",
    ),
    one(
        3,
        &[("streams", "20"), ("pps", "5000")],
        "0 % lost, after fixes",
        "0 % lost",
    ),
    one(
        3,
        &[("streams", "100"), ("pps", "5000")],
        "a goal, not reached",
        "-",
    ),
    one(
        3,
        &[("streams", "150"), ("pps", "5000")],
        "a goal, not reached",
        "-",
    ),
    one(4, &[], "planned, never run", "100 processes planned"),
    one(5, &[("outputs", "3"), ("pps", "20000")], "0 % lost", "-"),
    one(5, &[("outputs", "50"), ("pps", "1000")], "0 % lost", "-"),
    one(5, &[("outputs", "50"), ("pps", "20000")], "88 % lost", "-"),
    one(6, &[], "434,853 pps (439,430 in an earlier run)", "-"),
    one(10, &[], "0 % lost of 1,000,000", "100 % lost"),
];

const fn one(
    scenario: u8,
    parameters: &'static [(&'static str, &'static str)],
    reference: &'static str,
    socat: &'static str,
) -> Published {
    Published {
        scenario,
        parameters,
        reference,
        socat,
    }
}

/// Finds the quoted figure for a case.
#[must_use]
pub(super) fn find(
    scenario: u8,
    parameters: &BTreeMap<String, String>,
) -> Option<&'static Published> {
    let fits = |published: &&Published| {
        let mut wanted = published.parameters.iter();
        published.scenario == scenario
            && wanted.all(|(name, value)| parameters.get(*name).is_some_and(|have| have == value))
    };
    PUBLISHED.iter().find(fits)
}
