//! Packets from a real sender to a real receiver.

use std::time::Duration;

use anyhow::Result;
use lab::socket::{Receiver, Sender};

use crate::bed::Bed;

const PATIENCE: Duration = Duration::from_secs(5);

#[test]
fn relays_datagrams_with_the_egress_source() -> Result<()> {
    let mut bed = Bed::new(1)?;
    let rule = bed.rule(
        "cam1",
        "239.1.1.1",
        5001,
        vec![bed.output(0, "239.10.1.1", 6001)],
    );
    bed.apply([rule])?;
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

#[test]
fn passes_super_packets_whole() -> Result<()> {
    let mut bed = Bed::new(1)?;
    let rule = bed.rule(
        "cam1",
        "239.1.1.1",
        5001,
        vec![bed.output(0, "239.10.1.1", 6001)],
    );
    bed.apply([rule])?;
    let receiver = Receiver::join((&bed.chain.sink, "veth3"), bed.address("239.10.1.1"), 6001)?;
    let sender = Sender::open((&bed.chain.sender, "veth0"), bed.address("10.0.0.1"))?;
    sender.send_segmented(bed.address("239.1.1.1"), 5001, 0, 40, 1400)?;
    receiver.expect(40, PATIENCE)?;
    let counters = bed.settled("cam1", 40)?;
    assert_eq!(counters.received.packets, 40);
    assert_eq!(counters.outputs[&0].sent.bytes, 56_000);
    Ok(())
}
