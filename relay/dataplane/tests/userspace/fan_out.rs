//! Many outputs, rate limits, relays in a row, and streams spread over workers.

use std::time::Duration;

use anyhow::Result;
use compile::table::{RateLimit, RateUnit};
use lab::socket::{Receiver, Sender};
use lab::topology::{Chain, Pipeline};
use packet::verdict::DropReason;

use crate::bed::Bed;
use crate::load::Load;

const PATIENCE: Duration = Duration::from_secs(10);

#[test]
fn relays_one_stream_to_fifty_outputs() -> Result<()> {
    let mut bed = Bed::new(2)?;
    let outputs = (0..50).map(|n| bed.output(n, "239.10.1.1", 6001 + n as u16));
    let outputs: Vec<_> = outputs.collect();
    let rule = bed.rule("cam1", "239.1.1.1", 5001, outputs);
    bed.apply([rule])?;
    let sink = bed.address("239.10.1.1");
    let first = Receiver::join((&bed.chain.sink, "veth3"), sink, 6001)?;
    let last = Receiver::join((&bed.chain.sink, "veth3"), sink, 6050)?;
    let sender = Sender::open((&bed.chain.sender, "veth0"), bed.address("10.0.0.1"))?;
    for round in 1..=100 {
        // Fifty times ten copies fit in the backlog queue between relay and sink.
        for n in (round - 1) * 10..round * 10 {
            let group = bed.address("239.1.1.1");
            sender.send(group, 5001, &lab::socket::payload(n, 500))?;
        }
        bed.wait_for("the copies have left", |counters| {
            let outputs = &counters.rules["cam1"].outputs;
            outputs
                .values()
                .map(|o| o.sent.packets + o.dropped.total())
                .sum::<u64>()
                == round * 500
        })?;
    }
    first.expect(1000, PATIENCE)?;
    last.expect(1000, PATIENCE)?;
    let counters = bed.settled("cam1", 1000)?;
    assert!(counters.outputs.values().all(|o| o.sent.packets == 1000));
    Ok(())
}

#[test]
fn rate_limits_hold_over_all_workers() -> Result<()> {
    let mut bed = Bed::new(2)?;
    let mut load = Load::new(&mut bed, 2, 200)?;
    let limit = |rate, burst| {
        let unit = RateUnit::Packets;
        Some(RateLimit { unit, rate, burst })
    };
    let mut rules: Vec<_> = bed.rules().collect();
    rules[0].1.limit = limit(1, 10);
    rules[1].1.outputs[0].limit = limit(1, 20);
    bed.apply(rules)?;
    load.send_open_loop(2_000, Duration::from_millis(500))?;
    let sent = load.sent();
    bed.wait_for("everything is counted", |counters| {
        let received = counters.rules.values().map(|rule| rule.received.packets);
        received.sum::<u64>() == sent
    })?;
    let counters = bed.counters()?;
    let limited = DropReason::RateLimited as usize;
    let rule = &counters.rules["s0"];
    let passed = rule.outputs[&0].sent.packets;
    assert!((10..=11).contains(&passed), "{rule:?}");
    assert_eq!(rule.dropped.0[limited], rule.received.packets - passed);
    let rule = &counters.rules["s1"];
    let passed = rule.outputs[&0].sent.packets;
    assert!((20..=21).contains(&passed), "{rule:?}");
    let dropped = rule.outputs[&0].dropped.0[limited];
    assert_eq!(dropped, rule.received.packets - passed);
    load.finish()
}

/// Where whole packets and fragments went different ways they changed places.
#[test]
fn one_worker_has_all_packets_of_a_flow_whole_or_in_fragments() -> Result<()> {
    let mut bed = Bed::new(2)?;
    let rules = (1..=16).map(|n| {
        let output = bed.output(0, "239.10.1.1", 6001);
        let (name, group) = (format!("s{n}"), format!("239.1.1.{n}"));
        bed.rule(&name, &group, 5001, vec![output])
    });
    let rules: Vec<_> = rules.collect();
    bed.apply(rules)?;
    let sender = Sender::open((&bed.chain.sender, "veth0"), bed.address("10.0.0.1"))?;
    let received = |bed: &mut Bed| -> Result<Vec<u64>> {
        let workers = bed.counters()?.workers;
        Ok(workers.iter().map(|worker| worker.received).collect())
    };
    let mut flows = [0; 2];
    for n in 1..=16 {
        let before = received(&mut bed)?;
        for number in 0..10 {
            let size = if number == 5 { 3000 } else { 200 };
            let payload = lab::socket::payload(number, size);
            sender.send(bed.address(&format!("239.1.1.{n}")), 5001, &payload)?;
        }
        // Nine whole packets and three fragments.
        bed.settled(&format!("s{n}"), 12)?;
        let after = received(&mut bed)?;
        let grown: Vec<u64> = after.iter().zip(before).map(|(a, b)| a - b).collect();
        assert!(matches!(grown[..], [12, 0] | [0, 12]), "s{n}: {grown:?}");
        flows[usize::from(grown[0] == 0)] += 1;
    }
    assert!(flows.iter().all(|flows| *flows >= 5), "{flows:?}");
    Ok(())
}

#[test]
fn three_relays_in_a_row_lose_nothing() -> Result<()> {
    let Pipeline {
        sender,
        relays,
        sink,
    } = Pipeline::new(3)?;
    let mut beds = Vec::new();
    for (hop, relay) in (1u8..).zip(relays) {
        let chain = Chain {
            sender: sender.clone(),
            relay,
            sink: sink.clone(),
            switch: None,
        };
        let mut bed = Bed::on(chain, 1)?;
        let output = bed.output(0, &format!("239.{}.1.1", hop + 1), 5001);
        let rule = bed.rule("cam1", &format!("239.{hop}.1.1"), 5001, vec![output]);
        bed.apply([rule])?;
        beds.push(bed);
    }
    let receiver = Receiver::join((&sink, "veth3"), beds[0].address("239.4.1.1"), 5001)?;
    let from = Sender::open((&sender, "veth0"), beds[0].address("10.0.0.1"))?;
    for round in 1..=20 {
        for n in (round - 1) * 100..round * 100 {
            let group = beds[0].address("239.1.1.1");
            from.send(group, 5001, &lab::socket::payload(n, 1400))?;
        }
        beds[2].wait_for("the packets are through", |counters| {
            counters.rules["cam1"].outputs[&0].sent.packets == round * 100
        })?;
    }
    receiver.expect(2000, PATIENCE)?;
    Ok(())
}
