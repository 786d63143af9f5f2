//! Gates of shares over worker processes: those of the next supervisor, and stopped ones.

use std::time::Duration;

use anyhow::Result;
use compile::table::Path;
use dataplane::Gates;
use lab::socket::{Receiver, Sender};
use packet::verdict::DropReason;

use crate::bed::{Bed, Rule};

const PATIENCE: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_millis(300);

/// A bed whose rule `cam1` is of a share, with its sender and receiver.
fn of_share(workers: usize) -> Result<(Bed, Rule, Sender, Receiver)> {
    let mut bed = Bed::new(workers)?;
    let outputs = vec![bed.output(0, "239.10.1.1", 6001)];
    let (key, mut route) = bed.rule("cam1", "239.1.1.1", 5001, outputs);
    route.share = Some("x".to_owned());
    bed.apply([(key, route.clone())])?;
    let group = bed.address("239.10.1.1");
    let receiver = Receiver::join((&bed.chain.sink, "veth3"), group, 6001)?;
    let sender = Sender::open((&bed.chain.sender, "veth0"), bed.address("10.0.0.1"))?;
    Ok((bed, (key, route), sender, receiver))
}

fn send(bed: &Bed, sender: &Sender) -> Result<()> {
    sender.send_numbered(bed.address("239.1.1.1"), 5001, 50, 200)?;
    Ok(())
}

fn gates(bed: &mut Bed) -> Result<Gates> {
    bed.with(|dataplane| Ok(dataplane.gates()))
}

#[test]
fn the_next_supervisor_neither_opens_nor_shuts() -> Result<()> {
    let (mut bed, _, sender, receiver) = of_share(2)?;
    send(&bed, &sender)?;
    receiver.expect_nothing(SILENCE)?;
    gates(&mut bed)?.set("x", u64::MAX);
    send(&bed, &sender)?;
    receiver.expect(50, PATIENCE)?;
    bed.succeed()?;
    assert_eq!(gates(&mut bed)?.until("x"), u64::MAX);
    send(&bed, &sender)?;
    receiver.expect(50, PATIENCE)?;
    gates(&mut bed)?.set("x", 0);
    bed.succeed()?;
    assert_eq!(gates(&mut bed)?.until("x"), 0);
    send(&bed, &sender)?;
    receiver.expect_nothing(SILENCE)?;
    let counters = bed.settled("cam1", 200)?;
    assert_eq!(counters.dropped.0[DropReason::Standby as usize], 100);
    assert_eq!(counters.outputs[&0].sent.packets, 100);
    Ok(())
}

/// What waited in the rings of stopped workers is late.
#[test]
fn workers_that_stood_still_send_nothing_after_the_deadline() -> Result<()> {
    let (mut bed, _, sender, receiver) = of_share(2)?;
    let gates = gates(&mut bed)?;
    gates.set("x", u64::MAX);
    send(&bed, &sender)?;
    receiver.expect(50, PATIENCE)?;
    let group = bed.address("239.1.1.1");
    bed.while_workers_sleep(|| {
        sender.send_numbered(group, 5001, 50, 200)?;
        let until = sys::clock::boottime_ns() + 50_000_000;
        gates.set("x", until);
        while sys::clock::boottime_ns() <= until {
            std::thread::yield_now();
        }
        Ok(())
    })?;
    receiver.expect_nothing(SILENCE)?;
    let counters = bed.settled("cam1", 100)?;
    assert_eq!(counters.dropped.0[DropReason::Standby as usize], 50);
    Ok(())
}

/// What arrived while the gate was shut is another relay's, however late a worker takes it.
#[test]
fn workers_that_stood_still_send_nothing_of_before_the_opening() -> Result<()> {
    let (mut bed, _, sender, receiver) = of_share(2)?;
    let gates = gates(&mut bed)?;
    let group = bed.address("239.1.1.1");
    for _ in 0..2 {
        bed.while_workers_sleep(|| {
            sender.send_numbered(group, 5001, 50, 200)?;
            gates.set("x", u64::MAX);
            // A later deadline does not open an open gate again.
            gates.set("x", u64::MAX - 1);
            (50..100)
                .try_for_each(|number| sender.send(group, 5001, &lab::socket::payload(number, 200)))
        })?;
        receiver.expect_these(50..100, PATIENCE)?;
        gates.set("x", 0);
    }
    receiver.expect_nothing(SILENCE)?;
    let counters = bed.settled("cam1", 200)?;
    assert_eq!(counters.dropped.0[DropReason::Standby as usize], 100);
    Ok(())
}

#[test]
fn a_route_that_moves_to_another_path_keeps_its_gate() -> Result<()> {
    let (mut bed, (key, route), sender, receiver) = of_share(1)?;
    let gates = gates(&mut bed)?;
    if bed.with(|dataplane| Ok(dataplane.support().kernel.is_err()))? {
        eprintln!("skipped: no kernel path");
        return Ok(());
    }
    for (path, until) in [
        (Path::Kernel, 0),
        (Path::Kernel, u64::MAX),
        (Path::Userspace, u64::MAX),
        (Path::Kernel, u64::MAX),
        (Path::Kernel, 0),
        (Path::Userspace, 0),
        (Path::Userspace, u64::MAX),
    ] {
        gates.set("x", until);
        let mut route = route.clone();
        route.path = path;
        bed.apply([(key, route)])?;
        send(&bed, &sender)?;
        match until {
            0 => receiver.expect_nothing(SILENCE)?,
            _ => drop(receiver.expect(50, PATIENCE)?),
        }
    }
    Ok(())
}

#[test]
fn more_shares_than_there_are_gates_are_refused_and_change_nothing() -> Result<()> {
    let (mut bed, rule, sender, receiver) = of_share(1)?;
    gates(&mut bed)?.set("x", u64::MAX);
    let rules = (0..dataplane::SHARES as u32).map(|n| {
        let name = format!("r{n}");
        let group = format!("239.2.{}.{}", n / 256, n % 256);
        let (key, mut route) = bed.rule(&name, &group, 5001, Vec::new());
        route.share = Some(name);
        (key, route)
    });
    let rules: Vec<Rule> = rules.chain([rule]).collect();
    let error = bed.apply(rules).unwrap_err().to_string();
    assert!(
        error.contains("share \"r") && error.contains("4095"),
        "{error}"
    );
    send(&bed, &sender)?;
    receiver.expect(50, PATIENCE)?;
    Ok(())
}
