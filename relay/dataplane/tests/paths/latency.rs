//! Latency: each path samples some packets, the first of a rule among them, and counts a packet that waited in its
//! bucket.

use std::time::Duration;

use compile::table::{DownReason, Table};
use lab::wait;
use packet::craft::Craft;
use packet::latency::{KERNEL_EVERY, Latency, bound_ns};
use packet::verdict::DropReason;

use crate::case::{A, INGRESS, Packet, down, input, key, output, route};
use crate::reference::Reference;
use crate::relayed::{Relay, Sum};

/// How long the packet waited.
const WAITED: Duration = Duration::from_millis(200);

/// Relays packets of a rule and then of another one, which begins anew.
pub(crate) fn demand(relay: &mut Relay<'_>) {
    for (rule, packets) in [("stays", 200), ("stays too", 1)] {
        let table = Table {
            routes: [(key(), route(rule, vec![output(A)]))].into(),
            ..Table::default()
        };
        relay.apply(&Table::default());
        relay.apply(&table);
        let mut reference = Reference::of(&table);
        let packet = packet();
        let mut expected = Sum::default();
        for _ in 0..packets {
            expected.expect(&packet, &reference.execute(INGRESS, &packet, |_| false));
        }
        let seen = relay.forward(std::iter::repeat_n(&packet, packets), &expected);
        assert_eq!(seen.counters, expected.counters, "rule {rule}");
        // A worker writes latency right after its other counts.
        let is_in_bounds = |seen: &Latency| (1..=packets as u64).contains(&seen.samples());
        let _ = wait::until_within(Duration::from_secs(2), "samples", || {
            is_in_bounds(&relay.latency(rule))
        });
        let seen = relay.latency(rule);
        if rule == "stays" {
            assert!(is_in_bounds(&seen), "{seen:?}");
            assert!(seen.sum_ns > 0);
        }
        assert!(seen.samples() <= packets as u64, "{seen:?}");
    }
}

/// The latency of a packet with an earlier receive timestamp begins then.
pub(crate) fn demand_stamped(relay: &mut Relay<'_>) {
    let (nowhere, _) = down(DownReason::NoRoute, DropReason::NoRoute);
    relay.apply(&Table {
        routes: [(key(), route("stamped", vec![nowhere]))].into(),
        ..Table::default()
    });
    let packet = packet();
    let received = sys::clock::realtime_ns() - WAITED.as_nanos() as u64;
    relay.test_run_received(&packet, received);
    let waited = relay.latency("stamped");
    assert_eq!((waited.samples(), waited.stamped), (1, 1));
    assert_eq!(long(&waited), 1, "{waited:?}");
    assert!(waited.sum_ns >= WAITED.as_nanos() as u64);
    // Of as many again one is sampled; without a timestamp, or with one in the future, its time begins with the
    // program.
    let future = received + 1_000_000_000_000;
    for received in [0, future] {
        for _ in 0..KERNEL_EVERY {
            relay.test_run_received(&packet, received);
        }
    }
    let seen = relay.latency("stamped").since(&waited);
    assert_eq!((seen.samples(), seen.stamped), (2, 0));
    let most = KERNEL_EVERY * 2 * 1_000_000_000;
    assert!(seen.sum_ns < most, "{seen:?}");
}

/// Samples in the bucket of those that waited and above.
fn long(seen: &Latency) -> u64 {
    let ends_before =
        |bucket: usize| bound_ns(bucket).is_some_and(|end| end <= WAITED.as_nanos() as u64);
    let buckets = seen.buckets.iter().enumerate();
    buckets
        .filter(|(bucket, _)| !ends_before(*bucket))
        .map(|(_, count)| count)
        .sum()
}

fn packet() -> Packet {
    Packet::from(Craft {
        payload: vec![1; 100],
        ..input()
    })
}
