//! Outputs on demand, as `compile` divides their routes: what nobody listens to, the groups that
//! somebody does, and sources that receivers chose.

use compile::table::{DownReason, Output, RouteKey};
use packet::craft::Craft;
use packet::verdict::DropReason;
use rules::net::{Ports, Prefix};

use crate::case::{
    A, B, Case, Outlet, PORT, RULE, address, copy_of, input, key, output, route, sent, socket, with,
};

/// One that a host listens to, and one that nobody does.
const WANTED: &str = "239.1.1.7";
const UNWANTED: &str = "239.1.1.8";

pub(crate) fn cases() -> Vec<Case> {
    let not_wanted = || Outlet::Dropped(DropReason::NotWanted);
    let packet = |group: &str, source: &str| Craft {
        source: socket(source, 4000),
        destination: socket(group, PORT),
        macs: (packet::craft::group_mac(address(group)), input().macs.1),
        ..input()
    };
    let copy = |packet: &Craft, link, group: &str| {
        let plain = copy_of(packet, link);
        Craft {
            destination: socket(group, 6001),
            macs: (packet::craft::group_mac(address(group)), plain.macs.1),
            ..plain
        }
    };
    let mixed = |name, source: &str, group: &str, last: u8, wanted: bool| {
        let packet = packet(group, source);
        let on_demand = if wanted {
            sent(A, copy(&packet, A, &format!("239.9.9.{last}")))
        } else {
            not_wanted()
        };
        let always = sent(B, copy(&packet, B, &format!("239.8.8.{last}")));
        divided(Case::relayed(
            name,
            packet,
            [(output(A), on_demand), (output(B), always)],
        ))
    };
    let nobody = Case::relayed(
        "a rule whose only output nobody listens to",
        input(),
        [crate::case::down(
            DownReason::NotWanted,
            DropReason::NotWanted,
        )],
    );
    vec![
        nobody,
        mixed(
            "a group of a range that nobody listens to",
            "10.0.0.5",
            UNWANTED,
            8,
            false,
        ),
        mixed(
            "a group of a range that a host listens to",
            "10.0.0.5",
            WANTED,
            7,
            true,
        ),
        mixed(
            "its source that the host does not listen to",
            "10.0.0.6",
            WANTED,
            7,
            false,
        ),
    ]
}

/// Gives a case the routes of a rule with an output on demand and an ordinary one, of a range each.
fn divided(mut case: Case) -> Case {
    let range = |address: &str| Prefix::new(address.parse().expect("an address"), 24);
    let groups =
        |output: Output, groups: Prefix| with(output, |egress| egress.destination = groups);
    let down = || crate::case::down(DownReason::NotWanted, DropReason::NotWanted).0;
    let whole = RouteKey {
        groups: range("239.1.1.0"),
        ports: Ports::single(PORT),
        ..key()
    };
    let wanted = RouteKey {
        groups: Prefix::host(address(WANTED)),
        ..whole
    };
    let excluded = RouteKey {
        source: Some(Prefix::host(address("10.0.0.6"))),
        ..wanted
    };
    let of_group = |text: &str| Prefix::host(address(text));
    let always = || groups(output(B), of_group("239.8.8.7"));
    case.routes = vec![
        (
            whole,
            route(RULE, vec![down(), groups(output(B), range("239.8.8.0"))]),
        ),
        (
            wanted,
            route(
                RULE,
                vec![groups(output(A), of_group("239.9.9.7")), always()],
            ),
        ),
        (excluded, route(RULE, vec![down(), always()])),
    ];
    case
}
