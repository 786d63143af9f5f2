//! The kernel path's program by itself: BPF_PROG_TEST_RUN tells its verdict, and shows the packet
//! after it. Copies and counters are the bed's subject.

use dataplane::{Action, Outcome};
use packet::parse::ChecksumState;
use packet::verdict::Verdict;

use crate::bed;
use crate::case::{Case, Outlet, PORT, trim};
use crate::relayed::Relay;

/// Runs every case that a test run can express: a test packet's checksum is never partial.
pub(crate) fn demand(relay: &mut Relay<'_>, cases: &[Case]) {
    for case in cases.iter().filter(is_possible) {
        relay.apply(&case.table());
        let _socket = case.socket_bound.then(|| bed::Bound::new(PORT));
        assert_outcome(case, relay.test_run(&case.packet));
    }
}

/// The kernel makes no test packet above a page, none with less than an IP header, and takes no tag off.
fn is_possible(case: &&Case) -> bool {
    let frame = &case.packet.frame;
    let least = if frame[12..14] == [0x86, 0xdd] {
        14 + 40
    } else {
        14 + 20
    };
    let tagged = frame[12..14] == [0x81, 0x00] && case.expected.verdict != Verdict::Passed;
    !tagged
        && case.packet.meta.checksum == ChecksumState::Complete
        && (least..=3000).contains(&frame.len())
}

fn assert_outcome(case: &Case, outcome: Outcome) {
    let name = case.name;
    let expected = &case.expected;
    assert_eq!(outcome.action, action(case), "case {name:?}: action");
    let mut packet = outcome.packet;
    trim(&mut packet);
    let mut frame = match (outcome.action, expected.outputs.values().last()) {
        (Action::Pass, _) => case.packet.frame.clone(),
        (_, Some(Outlet::Sent { frame, .. })) => frame.clone(),
        _ => return,
    };
    trim(&mut frame);
    assert_eq!(packet, frame, "case {name:?}: the packet after the program");
}

/// A test run's packet has a socket (`bpf_prog_test_run_skb`), so all outputs get clones, rewritten in
/// its place one after the other; it ends here unless the stack shall have it.
const fn action(case: &Case) -> Action {
    if case.expected.passed_up {
        Action::Pass
    } else {
        Action::Consume
    }
}
