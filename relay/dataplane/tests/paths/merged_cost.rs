//! What merging costs the kernel path's program on one packet, by the kernel's own measure.

use compile::table::{DownReason, Table};
use packet::verdict::DropReason;
use rules::merge::By;

use crate::case::{Packet, down};
use crate::merged::rtp;
use crate::merged_bed::{craft, table};
use crate::relayed::Relay;

const ROUNDS: usize = 15;
const RUNS: u16 = 2_000;

/// Prints the time of a single run without copies: of a rule with one input, of one with two, and of one that merges
/// them, of first copies and of second ones. Interleaved, because the machine's speed varies.
pub(crate) fn print(relay: &mut Relay<'_>) {
    let cases = ["one input", "two inputs", "merged, first", "merged, second"];
    let mut times = [const { Vec::new() }; 4];
    let mut number = 0u16;
    for _ in 0..ROUNDS {
        for (case, times) in times.iter_mut().enumerate() {
            let table = outputless(case);
            relay.apply(&table);
            for _ in 0..RUNS {
                number = number.wrapping_add(1);
                if case == 3 {
                    relay.test_run_alone(&packet_of(&table, 1, number));
                }
                let packet = packet_of(&table, 0, number);
                times.push(relay.test_run_alone(&packet).duration_ns);
            }
        }
    }
    for (case, times) in cases.iter().zip(&mut times) {
        times.sort_unstable();
        let at = |percent: usize| times[times.len() * percent / 100];
        println!(
            "{case}: least {}, 10 % {}, median {} ns",
            times[0],
            at(10),
            at(50)
        );
    }
}

fn outputless(case: usize) -> Table {
    let mut table = table("cost", By::Rtp, 2, false);
    for route in table.routes.values_mut() {
        route.outputs = vec![down(DownReason::NoRoute, DropReason::NoRoute).0];
        if case < 2 {
            route.merge = None;
        }
        if case == 0 {
            route.input = None;
        }
    }
    table
}

fn packet_of(table: &Table, line: usize, number: u16) -> Packet {
    Packet::from(craft(table, line, &rtp(number)))
}
