//! Figures that others published for their relays, on their machines, quoted and never measured
//! here: a 20-core machine, Linux 6.17, an AF_PACKET and io_uring relay ("the reference"), reports
//! of November 2025.

use crate::bench::results::CaseResult;

/// Every quoted figure: scenario, parameters, the reference, socat.
const PUBLISHED: [(u8, &str, &str, &str); 19] = [
    (1, "pps=50000", "0 % lost", "0 % lost"),
    (1, "pps=200000", "0 % lost", "0 % lost"),
    (1, "pps=400000", "0.20 % lost", "15.33 % lost"),
    (
        2,
        "",
        "20.37 % lost, 119,438 pps sustained",
        "22.92 % lost, 115,622 pps",
    ),
    (3, "streams=1,pps=2000", "0 % lost", "0 % lost"),
    (3, "streams=2,pps=2000", "0 % lost", "0 % lost"),
    (3, "streams=5,pps=2000", "0 % lost", "0 % lost"),
    (3, "streams=10,pps=2000", "0 % lost", "0 % lost"),
    (3, "streams=20,pps=2000", "3.05 % lost", "0 % lost"),
    (
        3,
        "streams=50,pps=2000",
        "100 % lost: workers die with ENOBUFS",
        "0 % lost",
    ),
    (
        3,
        "streams=20,pps=5000",
        "0 % lost, after fixes",
        "0 % lost",
    ),
    (3, "streams=100,pps=5000", "a goal, not reached", "-"),
    (3, "streams=150,pps=5000", "a goal, not reached", "-"),
    (4, "", "planned, never run", "100 processes planned"),
    (5, "outputs=3,pps=20000", "0 % lost", "-"),
    (5, "outputs=50,pps=1000", "0 % lost", "-"),
    (5, "outputs=50,pps=20000", "88 % lost", "-"),
    (6, "", "434,853 pps (439,430 in an earlier run)", "-"),
    (10, "", "0 % lost of 1,000,000", "100 % lost"),
];

/// The figures quoted for a case, the reference's and socat's; one without parameters is for its whole
/// scenario.
pub(super) fn find(case: &CaseResult) -> Option<[&'static str; 2]> {
    let mut published = PUBLISHED.into_iter();
    let (.., reference, socat) = published.find(|(of, wanted, ..)| case.is_of(*of, wanted))?;
    Some([reference, socat])
}
