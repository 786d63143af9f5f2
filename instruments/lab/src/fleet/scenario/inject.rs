//! How each fault is injected, and how it ends.

use anyhow::Result;
use nix::sys::signal::Signal;

use super::super::bed::{Bed, RULE, member_port, rules};
use super::super::traffic::now_ns;
use super::Fault;
use crate::wait;

/// A fault in progress.
#[derive(Debug)]
pub struct ActiveFault {
    pub(super) fault: Fault,
    /// When it began.
    pub at_ns: u64,
    /// The affected relay.
    relay: usize,
    /// etcd's leader, if that is affected.
    leader: Option<usize>,
}

/// Injects a fault at a relay, or at etcd.
///
/// # Errors
/// When it cannot be injected.
pub fn inject(bed: &mut Bed, fault: Fault, holder: usize) -> Result<ActiveFault> {
    let mut active = ActiveFault {
        fault,
        at_ns: 0,
        relay: holder,
        leader: None,
    };
    match fault {
        Fault::LeaderKilled | Fault::LeaderCut | Fault::LeaderStopped | Fault::HostAndLeader => {
            active.leader = Some(bed.etcd.wait_for_leader()?);
        }
        Fault::StandbyDeath => active.relay = (holder + 1) % bed.relays.len(),
        _ => {}
    }
    active.at_ns = now_ns();
    if let Some(leader) = active.leader {
        inject_at_leader(bed, fault, leader)?;
    }
    inject_at_relay(bed, fault, active.relay)?;
    Ok(active)
}

fn inject_at_leader(bed: &mut Bed, fault: Fault, leader: usize) -> Result<()> {
    match fault {
        Fault::LeaderCut => bed.cut_port(&member_port(leader)),
        Fault::LeaderStopped => bed.etcd.signal(leader, Signal::SIGSTOP),
        _ => bed.etcd.kill(leader),
    }
}

fn inject_at_relay(bed: &mut Bed, fault: Fault, index: usize) -> Result<()> {
    let other = bed.relays[(index + 1) % bed.relays.len()].name().to_owned();
    let relay = &mut bed.relays[index];
    let name = relay.name().to_owned();
    match fault {
        Fault::HostDeath | Fault::HostAndLeader | Fault::StandbyDeath => relay.die(),
        Fault::Kill => relay.kill(),
        Fault::Stop => relay.signal(Signal::SIGSTOP),
        Fault::Cut => {
            let port = relay.management_port();
            bed.cut_port(&port)
        }
        Fault::CutFromEtcd => relay.filter(&["in tcp sport 2379", "out tcp dport 2379"]),
        Fault::NothingArrives => relay.filter(&["in iifname mg0"]),
        Fault::PeersBlocked => relay.filter(&["in udp dport 9470", "out udp dport 9470"]),
        Fault::EtcdAway => (0..bed.etcd.len()).try_for_each(|member| bed.etcd.kill(member)),
        Fault::EtcdEmptied => empty_etcd(bed),
        Fault::InputSilent => {
            let port = relay.input_port();
            bed.cut_port(&port)
        }
        Fault::OutputDown => relay.set_output("down"),
        Fault::BeatGarbled => bed.etcd.garble(&format!("/mcr/lab/beats/{name}")),
        Fault::BeatDeleted => bed.etcd.delete(&format!("/mcr/lab/beats/{name}")),
        Fault::BeatDeletedAndDeath => {
            relay.die()?;
            bed.etcd.delete(&format!("/mcr/lab/beats/{name}"))
        }
        Fault::EntryDeleted => bed.etcd.delete(&format!("/mcr/lab/relays/{name}")),
        Fault::KeysDeleted | Fault::KeysDeletedAndDeath => {
            if fault == Fault::KeysDeletedAndDeath {
                relay.die()?;
            }
            bed.etcd.delete(&format!("/mcr/lab/relays/{name}"))?;
            bed.etcd.delete(&format!("/mcr/lab/beats/{name}"))
        }
        Fault::ShareGarbled => bed.etcd.garble(&format!("/mcr/lab/shares/{RULE}")),
        Fault::ShareGarbledAndDeath => {
            relay.die()?;
            bed.etcd.garble(&format!("/mcr/lab/shares/{RULE}"))
        }
        Fault::Terminated => relay.end(Signal::SIGTERM),
        Fault::Drained => relay.mcr(&["fleet", "drain", &name]).map(drop),
        Fault::Moved => relay.mcr(&["fleet", "move", RULE, &other]).map(drop),
        Fault::Upgraded => {
            relay.end(Signal::SIGUSR1)?;
            relay.start_again()
        }
        Fault::LeaderKilled | Fault::LeaderCut | Fault::LeaderStopped => Ok(()),
    }
}

/// Kills all members, and starts them empty.
fn empty_etcd(bed: &mut Bed) -> Result<()> {
    let members = 0..bed.etcd.len();
    members
        .clone()
        .try_for_each(|member| bed.etcd.kill(member))?;
    members
        .clone()
        .try_for_each(|member| bed.etcd.wipe(member))?;
    members
        .into_iter()
        .try_for_each(|member| bed.etcd.start_member(member))
}

/// Ends a fault.
///
/// # Errors
/// When a part does not recover.
pub fn end(bed: &mut Bed, active: &ActiveFault) -> Result<()> {
    if let Some(leader) = active.leader {
        match active.fault {
            Fault::LeaderCut => bed.heal_port(&member_port(leader))?,
            Fault::LeaderStopped => bed.etcd.signal(leader, Signal::SIGCONT)?,
            _ => bed.etcd.start_member(leader)?,
        }
    }
    let relay = &mut bed.relays[active.relay];
    let name = relay.name().to_owned();
    match active.fault {
        Fault::HostDeath
        | Fault::HostAndLeader
        | Fault::StandbyDeath
        | Fault::BeatDeletedAndDeath
        | Fault::KeysDeletedAndDeath
        | Fault::ShareGarbledAndDeath => relay.boot(),
        Fault::Kill | Fault::Terminated => relay.start_again(),
        Fault::Stop => relay.signal(Signal::SIGCONT),
        Fault::Cut => {
            let port = relay.management_port();
            bed.heal_port(&port)
        }
        Fault::CutFromEtcd | Fault::NothingArrives | Fault::PeersBlocked => relay.unfilter(),
        Fault::InputSilent => {
            let port = relay.input_port();
            bed.heal_port(&port)
        }
        Fault::OutputDown => relay.set_output("up"),
        // The rules were only in etcd, so they are applied again.
        Fault::EtcdEmptied => {
            bed.etcd.wait_for_leader()?;
            wait::until("the rules are taken again", || {
                bed.relays.iter().any(|relay| relay.apply(&rules()).is_ok())
            })
        }
        Fault::EtcdAway => (0..bed.etcd.len()).try_for_each(|member| bed.etcd.start_member(member)),
        Fault::Drained => relay.mcr(&["fleet", "undrain", &name]).map(drop),
        _ => Ok(()),
    }
}
