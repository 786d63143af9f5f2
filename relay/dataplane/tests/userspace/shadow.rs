//! Whether the host itself gets packets that are relayed in user space.

use std::time::Duration;

use anyhow::Result;
use compile::table::LocalDelivery;
use lab::socket::{Receiver, Sender};

use crate::bed::Bed;

const PATIENCE: Duration = Duration::from_secs(5);

/// Relays 50 packets; returns whether a socket on the relay itself got them too.
fn reaches_the_host(bed: &mut Bed, local: LocalDelivery, bound: bool) -> Result<bool> {
    let mut rule = bed.rule(
        "cam1",
        "239.1.1.1",
        5001,
        vec![bed.output(0, "239.10.1.1", 6001)],
    );
    rule.1.local = local;
    bed.apply([rule])?;
    let sink = bed.address("239.10.1.1");
    let receiver = Receiver::join((&bed.chain.sink, "veth3"), sink, 6001)?;
    let group = bed.address("239.1.1.1");
    let port = if bound { 5001 } else { 5002 };
    let here = Receiver::join((&bed.chain.relay, "veth1"), group, port)?;
    let sender = Sender::open((&bed.chain.sender, "veth0"), bed.address("10.0.0.1"))?;
    sender.send_numbered(group, 5001, 50, 300)?;
    receiver.expect(50, PATIENCE)?;
    let counters = bed.settled("cam1", 50)?;
    assert_eq!(counters.received.packets, counters.outputs[&0].sent.packets);
    Ok(here.collect(1, Duration::from_millis(200))?.len() == 1)
}

#[test]
fn without_bpf_the_host_sees_relayed_packets_too() -> Result<()> {
    let mut bed = Bed::new(1)?;
    assert!(reaches_the_host(&mut bed, LocalDelivery::No, true)?);
    Ok(())
}

#[test]
fn with_bpf_relayed_packets_are_consumed_behind_the_tap() -> Result<()> {
    let mut bed = Bed::with_kernel_path(1)?;
    assert!(!reaches_the_host(&mut bed, LocalDelivery::No, true)?);
    Ok(())
}

#[test]
fn with_bpf_a_bound_socket_still_gets_its_copy() -> Result<()> {
    let mut bed = Bed::with_kernel_path(1)?;
    assert!(reaches_the_host(&mut bed, LocalDelivery::Auto, true)?);
    assert!(!reaches_the_host(&mut bed, LocalDelivery::Auto, false)?);
    assert!(reaches_the_host(&mut bed, LocalDelivery::Yes, true)?);
    Ok(())
}
