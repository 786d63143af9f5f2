//! Fragments of a group that rules of both paths take on different ports: one that arrives before its datagram's first
//! leaves by neither, and is counted once.

use std::net::IpAddr;

use anyhow::Result;
use compile::table::{Path, Table};
use lab::frame::FrameSender;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use packet::craft::Craft;
use packet::verdict::DropReason;

use crate::bed::{Bed, Rule};

const GROUP: &str = "239.1.1.1";

/// A packet of 10.0.0.1's to the group.
fn packet(port: u16) -> Craft {
    let from = "10.0.0.1:4000".parse().unwrap();
    Craft::new(
        from,
        format!("{GROUP}:{port}").parse().unwrap(),
        vec![0; 100],
    )
}

fn rules(bed: &Bed, ports: (u16, u16)) -> [Rule; 2] {
    let output = |number: u16| vec![bed.output(0, &format!("239.10.1.{number}"), 6001)];
    let mut kernel = bed.rule("kernel", GROUP, ports.0, output(1));
    kernel.1.path = Path::Kernel;
    [kernel, bed.rule("user", GROUP, ports.1, output(2))]
}

/// Sends a later piece whose first has not arrived, and then a datagram to each of `ports`; returns the total counts of
/// both rules: received, sent, and dropped as unknown.
fn counted(bed: &mut Bed, id: u16, ports: &[(&str, u16)]) -> Result<[(u64, u64, u64); 2]> {
    let read = |bed: &mut Bed, rule: &str| -> Result<(u64, u64, u64)> {
        let Some(rule) = bed.counters()?.rules.get(rule).cloned() else {
            return Ok((0, 0, 0));
        };
        let sent = rule.outputs.values().map(|o| o.sent.packets).sum();
        let unknown = rule.dropped.0[DropReason::FragmentUnknown as usize];
        Ok((rule.received.packets, sent, unknown))
    };
    let both = |bed: &mut Bed| Ok::<_, anyhow::Error>([read(bed, "kernel")?, read(bed, "user")?]);
    let before = both(bed)?;
    let wire = FrameSender::open((&bed.chain.sender, "veth0"))?;
    let orphan = Craft {
        id,
        fragment: 0x2005,
        ..packet(0)
    };
    wire.send(&orphan.frame())?;
    for (_, port) in ports {
        wire.send(&packet(*port).frame())?;
    }
    // The datagrams after it have been counted: so has it.
    for (rule, _) in ports {
        let at = usize::from(*rule == "user");
        bed.settled(rule, before[at].0 + 1)?;
    }
    let after = both(bed)?;
    let difference = |at: usize| {
        let (after, before): ((u64, u64, u64), (u64, u64, u64)) = (after[at], before[at]);
        (after.0 - before.0, after.1 - before.1, after.2 - before.2)
    };
    Ok([difference(0), difference(1)])
}

#[test]
fn a_piece_that_rules_of_both_paths_might_take_leaves_by_neither() -> Result<()> {
    let mut bed = Bed::with_kernel_path(1)?;
    // Counted where the lower port is.
    for (ports, counts) in [
        ((5001, 5002), [(2, 1, 1), (1, 1, 0)]),
        ((5002, 5001), [(1, 1, 0), (2, 1, 1)]),
    ] {
        let both = rules(&bed, ports);
        let names = [("kernel", ports.0), ("user", ports.1)];
        bed.apply(both.clone())?;
        assert_eq!(counted(&mut bed, ports.0, &names)?, counts, "{ports:?}");
        let [kernel, user] = both;
        bed.apply([user.clone()])?;
        let alone = counted(&mut bed, ports.0 + 10, &names[1..])?;
        assert_eq!(
            alone[1],
            (2, 2, 0),
            "without the other rule it is this one's"
        );
        bed.apply([kernel.clone()])?;
        let alone = counted(&mut bed, ports.0 + 20, &names[..1])?;
        assert_eq!(
            alone[0],
            (2, 2, 0),
            "without the other rule it is this one's"
        );
        // In both orders: the later one has to be published.
        bed.apply([kernel, user])?;
        assert_eq!(
            counted(&mut bed, ports.0 + 30, &names)?,
            counts,
            "{ports:?}"
        );
    }
    Ok(())
}

#[test]
fn a_worker_that_is_started_again_knows_of_the_other_path() -> Result<()> {
    let mut bed = Bed::with_kernel_path(1)?;
    let both = rules(&bed, (5002, 5001));
    bed.apply(both)?;
    let victim = bed.counters()?.workers[0].pid;
    // To signal process 0 is to signal oneself.
    anyhow::ensure!(victim > 0, "the worker has died before");
    kill(Pid::from_raw(victim as i32), Signal::SIGKILL)?;
    let wire = FrameSender::open((&bed.chain.sender, "veth0"))?;
    lab::wait::until("another worker relays", || {
        let sent = wire.send(&packet(5001).frame());
        let received = bed.rule_counters("user").map(|rule| rule.received.packets);
        sent.is_ok() && received.is_ok_and(|packets| packets > 0)
    })?;
    // Some of what was sent meanwhile may be counted later.
    let names = [("kernel", 5002), ("user", 5001)];
    let [kernel, user] = counted(&mut bed, 1, &names)?;
    assert_eq!((kernel, user.2), ((1, 1, 0), 1), "{user:?}");
    assert_eq!(user.0, user.1 + user.2);
    Ok(())
}

#[test]
fn workers_that_a_later_rule_starts_know_the_addresses_of_this_host() -> Result<()> {
    let mut bed = Bed::with_kernel_path(1)?;
    let [kernel, user] = rules(&bed, (5002, 5001));
    let mut table = Table {
        routes: [kernel].into(),
        own_addresses: [IpAddr::from([10, 0, 0, 1])].into_iter().collect(),
        ..Table::default()
    };
    bed.apply_table(table.clone())?;
    table.routes.extend([user]);
    bed.apply_table(table)?;
    let wire = FrameSender::open((&bed.chain.sender, "veth0"))?;
    wire.send(&packet(5001).frame())?;
    bed.settled("user", 1)?;
    let dropped = bed.rule_counters("user")?.dropped;
    assert_eq!(dropped.0[DropReason::OwnSource as usize], 1, "{dropped:?}");
    Ok(())
}
