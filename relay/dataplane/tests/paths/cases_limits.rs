//! Rate limits and the budget, in the two ways that do not depend on time: a packet that costs more than the burst
//! never passes, one that costs as much as the burst passes a fresh limit. Each case has a rule of
//! its own, so that its limit is fresh.

use compile::table::{Egress, LinkHeader, RateLimit, RateUnit};
use packet::craft::Craft;
use packet::verdict::{DropReason, Verdict};
use rules::net::{Mac, Ports, Prefix};

use crate::case::{
    A, B, C, Case, Outlet, address, changed, copy_of, craft_super_packet, egress_mac, input,
    output, plain, socket, to, with,
};

pub(crate) fn cases() -> Vec<Case> {
    let bytes = input().payload.len() as u64;
    let bits = |burst| limit(RateUnit::Bits, burst);
    let packets = |burst| limit(RateUnit::Packets, burst);
    let cases = vec![
        on_rule("a rule's limit in bits holds", bits(bytes * 8), true),
        on_rule("a rule's limit in bits drops", bits(bytes * 8 - 1), false),
        on_rule("a rule's limit in packets holds", packets(1), true),
        super_packet(
            "a super-packet costs its segments and passes",
            packets(10),
            true,
        ),
        in_part(
            "a super-packet passes a rule's limit as far as the burst goes",
            packets(9),
            9,
        ),
        in_part(
            "a super-packet passes a rule's limit in bits as far as the burst goes",
            bits(8000 * 4 - 1),
            3,
        ),
        super_packet(
            "a super-packet whose segments are above the burst drops",
            bits(7999),
            false,
        ),
        in_part_by_an_output(
            "a super-packet passes an output's limit in part",
            packets(4),
            4,
        ),
        on_output(
            "an output's limit drops only its own copies",
            bits(bytes * 8 - 1),
            false,
        ),
        on_output("an output's limit holds", bits(bytes * 8), true),
    ];
    let cases = cases.into_iter().chain(budgets());
    let numbered = cases.enumerate();
    numbered
        .map(|(n, case)| under(case, format!("limited{n}")))
        .collect()
}

fn limit(unit: RateUnit, burst: u64) -> RateLimit {
    RateLimit {
        unit,
        rate: 1,
        burst,
    }
}

fn under(mut case: Case, rule: String) -> Case {
    case.routes[0].1.rule.clone_from(&rule);
    case.expected.rule = Some(rule);
    case
}

fn on_rule(name: &'static str, limit: RateLimit, passes: bool) -> Case {
    let case = Case::relayed(name, input(), [plain(&input(), A), plain(&input(), B)]);
    limited(case, limit, passes)
}

fn super_packet(name: &'static str, limit: RateLimit, passes: bool) -> Case {
    let (craft, packet) = craft_super_packet();
    limited(
        Case::relayed(name, packet, [plain(&craft, A)]),
        limit,
        passes,
    )
}

/// A super-packet of ten, of which the first pass the rule's limit.
fn in_part(name: &'static str, limit: RateLimit, passed: u64) -> Case {
    let (craft, packet) = craft_super_packet();
    let outputs = [plain(&craft, A), plain(&craft, B)];
    let outputs = outputs.map(|(output, outlet)| (output, first(outlet, passed, None)));
    let mut case = Case::relayed(name, packet, outputs);
    case.routes[0].1.limit = Some(limit);
    case.expected.limited = 10 - passed;
    case
}

/// The same where the limit is that of the first output and of the last.
fn in_part_by_an_output(name: &'static str, limit: RateLimit, passed: u64) -> Case {
    let (craft, packet) = craft_super_packet();
    let rest = Some(DropReason::RateLimited);
    let [a, b, c] = [A, B, C].map(|interface| plain(&craft, interface));
    let part = |(output, outlet)| (output, first(outlet, passed, rest));
    let mut case = Case::relayed(name, packet, [part(a), b, part(c)]);
    for output in [0, 2] {
        case.routes[0].1.outputs[output].limit = Some(limit);
    }
    case
}

fn first(outlet: Outlet, packets: u64, rest: Option<DropReason>) -> Outlet {
    match outlet {
        Outlet::Sent { interface, frame } => Outlet::First {
            interface,
            frame,
            packets,
            bytes: packets * 1000,
            rest,
        },
        other => other,
    }
}

fn limited(mut case: Case, limit: RateLimit, passes: bool) -> Case {
    case.routes[0].1.limit = Some(limit);
    if !passes {
        case.expected.verdict = Verdict::Dropped(DropReason::RateLimited);
        case.expected.outputs.clear();
    }
    case
}

fn on_output(name: &'static str, limit: RateLimit, passes: bool) -> Case {
    let dropped = to(B, Outlet::Dropped(DropReason::RateLimited));
    let second = if passes { plain(&input(), B) } else { dropped };
    let mut case = Case::relayed(
        name,
        input(),
        [plain(&input(), A), second, plain(&input(), C)],
    );
    case.routes[0].1.outputs[1].limit = Some(limit);
    case
}

/// The budget is one for all cases, so its rate is such that it is full again for the next: a
/// bucket's time is whole nanoseconds, a token each.
fn budget(unit: RateUnit, burst: u64) -> RateLimit {
    RateLimit {
        unit,
        rate: 1_000_000_000,
        burst,
    }
}

fn budgets() -> Vec<Case> {
    let bits = input().payload.len() as u64 * 8;
    let packet = budget(RateUnit::Packets, 1);
    vec![
        with_budget("a budget holds", budget(RateUnit::Bits, bits), true),
        with_budget(
            "a budget drops unicast copies alone",
            budget(RateUnit::Bits, bits - 1),
            false,
        ),
        with_budget("a budget in packets holds", packet, true),
        against_super_packet("a budget below a segment", budget(RateUnit::Bits, 7999)),
    ]
}

/// A unicast copy between two to groups.
fn with_budget(name: &'static str, budget: RateLimit, passes: bool) -> Case {
    let copy = Craft {
        destination: socket("10.9.9.9", 7000),
        macs: ([2, 0, 0, 0, 9, 9], egress_mac(B)),
        ..copy_of(&input(), B)
    };
    let (output, outlet) = changed(B, to_neighbour, copy);
    let over = Outlet::Dropped(DropReason::OverBudget);
    let unicast = (output, if passes { outlet } else { over });
    let outputs = [plain(&input(), A), unicast, plain(&input(), C)];
    let mut case = Case::relayed(name, input(), outputs);
    case.budget = Some(budget);
    case
}

fn against_super_packet(name: &'static str, budget: RateLimit) -> Case {
    let (craft, packet) = craft_super_packet();
    let unicast = with(output(B), to_neighbour);
    let over = (unicast, Outlet::Dropped(DropReason::OverBudget));
    let mut case = Case::relayed(name, packet, [over, plain(&craft, A)]);
    case.budget = Some(budget);
    case
}

fn to_neighbour(egress: &mut Egress) {
    egress.destination = Prefix::host(address("10.9.9.9"));
    egress.ports = Ports::single(7000);
    egress.link = LinkHeader::Neighbour {
        source: Mac(egress_mac(B)),
        destination: Mac([2, 0, 0, 0, 9, 9]),
    };
}
