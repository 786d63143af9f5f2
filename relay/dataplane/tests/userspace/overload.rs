//! More than queues and rings hold: every datagram, also of super-packets, is relayed and seen at the sink, or counted
//! as lost.

use anyhow::{Context, Result};
use dataplane::counters::Counters;
use lab::link;
use lab::namespace::Namespace;
use lab::socket::Sender;
use packet::verdict::DropReason;

use crate::bed::Bed;

/// More than the socket's queue holds, each of 40 datagrams.
const LARGE: (u64, u64) = (900, 40);
/// More than a ring has frames.
const SMALL: (u64, u64) = (17_500, 3);

#[test]
fn super_packets_that_find_no_room_count_as_their_datagrams() -> Result<()> {
    let mut bed = Bed::new(1)?;
    let output = bed.output(0, "239.10.1.1", 6001);
    let rule = bed.rule("cam1", "239.1.1.1", 5001, vec![output]);
    bed.apply([rule])?;
    let egress = (&bed.chain.relay.clone(), "veth2");
    let dropped_before = link::statistics(egress)?.transmit_dropped;
    count_at(&bed.chain.sink, "veth3")?;
    let sender = Sender::open((&bed.chain.sender, "veth0"), bed.address("10.0.0.1"))?;
    let group = bed.address("239.1.1.1");
    let mut sent = 0;
    for (packets, datagrams) in [LARGE, SMALL] {
        bed.while_workers_sleep(|| {
            for _ in 0..packets {
                sender.send_segmented(group, 5001, sent, datagrams, 1000)?;
                sent += datagrams;
            }
            Ok(())
        })?;
        bed.wait_for("every datagram is counted", |counters| {
            accounted(counters) >= sent
        })?;
        // Double counts would show by now.
        for _ in 0..3 {
            assert_eq!(accounted(&bed.counters()?), sent);
        }
    }
    let counters = bed.counters()?;
    let rule = &counters.rules["cam1"];
    let counted = rule.dropped.0[DropReason::BufferExhausted as usize];
    let lost: u64 = counters.workers.iter().map(|w| w.buffer_exhausted).sum();
    assert!(counted > 0, "the queue held all: {counters:#?}");
    assert!(lost > counted, "the ring held all: {counters:#?}");
    let output = &rule.outputs[&0];
    let judged = output.sent.packets + output.dropped.total();
    assert_eq!(rule.received.packets, rule.dropped.total() + judged);
    // Its device passes single datagrams on, and counts those that the sink's queue has no room for; if it was the last
    // one of a super-packet, all of them count as refused.
    let dropped = link::statistics(egress)?.transmit_dropped - dropped_before;
    let arrived = arrived_at(&bed.chain.sink)?;
    let refused = output.dropped.0[DropReason::EgressFull as usize];
    let sent = output.sent.packets;
    assert!(
        (sent.saturating_sub(dropped)..=sent + refused).contains(&arrived),
        "{arrived} arrived, {dropped} dropped behind the relay: {counters:#?}"
    );
    Ok(())
}

/// Datagrams that are relayed, dropped, or lost before their rule was determined.
fn accounted(counters: &Counters) -> u64 {
    let rule = &counters.rules["cam1"];
    let counted = rule.dropped.0[DropReason::BufferExhausted as usize];
    let lost: u64 = counters.workers.iter().map(|w| w.buffer_exhausted).sum();
    rule.received.packets + lost - counted
}

/// Counts what arrives, without a socket that could lose it.
fn count_at(sink: &Namespace, interface: &str) -> Result<()> {
    for rule in [
        "add table netdev count".to_owned(),
        "add counter netdev count arrived".to_owned(),
        format!(
            "add chain netdev count {interface} {{ type filter hook ingress device {interface} \
             priority 0; }}"
        ),
        format!("add rule netdev count {interface} udp dport 6001 counter name arrived drop"),
    ] {
        sink.tool("nft", &rule)?;
    }
    Ok(())
}

fn arrived_at(sink: &Namespace) -> Result<u64> {
    let shown = sink.tool("nft", "list counter netdev count arrived")?;
    let mut words = shown.split_whitespace();
    words.find(|word| *word == "packets");
    let packets = words.next().context("nft shows no packets")?;
    Ok(packets.parse()?)
}
