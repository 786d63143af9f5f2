//! Packets from a real sender to a real receiver.

use std::time::Duration;

use anyhow::Result;
use compile::table::Path;
use lab::link;
use lab::socket::{Receiver, Sender};
use packet::latency;

use crate::bed::Bed;

const PATIENCE: Duration = Duration::from_secs(5);

/// A bed whose rule `cam1` has one output.
fn one_to_one() -> Result<Bed> {
    let mut bed = Bed::new(1)?;
    let rule = bed.rule(
        "cam1",
        "239.1.1.1",
        5001,
        vec![bed.output(0, "239.10.1.1", 6001)],
    );
    bed.apply([rule])?;
    Ok(bed)
}

#[test]
fn relays_datagrams_with_the_egress_source() -> Result<()> {
    let mut bed = one_to_one()?;
    let receiver = Receiver::join((&bed.chain.sink, "veth3"), bed.address("239.10.1.1"), 6001)?;
    let sender = Sender::open((&bed.chain.sender, "veth0"), bed.address("10.0.0.1"))?;
    sender.send_numbered(bed.address("239.1.1.1"), 5001, 100, 1024)?;
    let sources = receiver.expect(100, PATIENCE)?;
    assert!(
        sources
            .iter()
            .all(|source| source.ip() == bed.address("10.0.1.1"))
    );
    let counters = bed.settled("cam1", 100)?;
    assert_eq!(counters.received.packets, 100);
    assert_eq!(counters.received.bytes, 102_400);
    assert_eq!(counters.outputs[&0].sent.packets, 100);
    assert_eq!(counters.outputs[&0].sent.bytes, 102_400);
    Ok(())
}

/// The dataplane is not notified, as when messages of the links are lost.
#[test]
fn relays_from_an_interface_that_was_made_anew_with_its_number() -> Result<()> {
    for workers in [1, 2] {
        let mut bed = Bed::new(workers)?;
        let outputs = vec![bed.output(0, "239.10.1.1", 6001)];
        let rule = bed.rule("cam1", "239.1.1.1", 5001, outputs);
        bed.apply([rule])?;
        let (relay, far) = (bed.chain.relay.clone(), bed.chain.sender.clone());
        let (input, sender) = ((&relay, "veth1"), (&far, "veth0"));
        link::delete(input)?;
        // The sender's end was removed with it.
        link::veth_with_index(input, sender, bed.ingress.0)?;
        link::address(input, "10.0.0.254/24")?;
        link::address(sender, "10.0.0.1/24")?;
        link::multicast_route(sender)?;
        let group = bed.address("239.1.1.1");
        let sending = Sender::open(sender, bed.address("10.0.0.1"))?;
        bed.wait_for("packets of the new one are relayed", |counters| {
            let sent = sending.send_numbered(group, 5001, 10, 100);
            sent.is_ok() && counters.rules["cam1"].outputs[&0].sent.packets >= 10
        })?;
    }
    Ok(())
}

#[test]
fn counts_how_long_packets_wait_for_a_worker() -> Result<()> {
    let mut bed = one_to_one()?;
    let sender = Sender::open((&bed.chain.sender, "veth0"), bed.address("10.0.0.1"))?;
    let waited = Duration::from_millis(200);
    let group = bed.address("239.1.1.1");
    bed.while_workers_sleep(|| {
        sender.send_numbered(group, 5001, 100, 1024)?;
        std::thread::sleep(waited);
        Ok(())
    })?;
    bed.settled("cam1", 100)?;
    bed.wait_for("some are looked at", |counters| {
        !counters.rules["cam1"].latency.is_empty()
    })?;
    let seen = bed.rule_counters("cam1")?.latency[&Path::Userspace];
    let long: u64 = seen.buckets[latency::bucket(waited.as_nanos() as u64)..]
        .iter()
        .sum();
    assert!(long > 0 && long <= 16, "{seen:?}");
    assert_eq!((long, seen.stamped), (seen.samples(), long), "{seen:?}");
    assert!(seen.sum_ns >= long * waited.as_nanos() as u64);
    Ok(())
}

#[test]
fn passes_super_packets_whole() -> Result<()> {
    let mut bed = one_to_one()?;
    let receiver = Receiver::join((&bed.chain.sink, "veth3"), bed.address("239.10.1.1"), 6001)?;
    let sender = Sender::open((&bed.chain.sender, "veth0"), bed.address("10.0.0.1"))?;
    sender.send_segmented(bed.address("239.1.1.1"), 5001, 0, 40, 1400)?;
    receiver.expect(40, PATIENCE)?;
    let counters = bed.settled("cam1", 40)?;
    assert_eq!(counters.received.packets, 40);
    assert_eq!(counters.outputs[&0].sent.bytes, 56_000);
    Ok(())
}
