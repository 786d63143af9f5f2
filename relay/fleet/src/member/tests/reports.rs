//! The status that relays report of themselves and of each other is current.

use std::collections::BTreeMap;

use api::reply::{FleetRelayState, FleetShareState};
use config::OnIsolation;

use super::events::fleet;
use super::reception::receives;
use super::sim::{MS, Sim};
use super::{HOLD, holders, settings};
use crate::member::{Fitness, Input, Status};

/// The status that a relay reports.
fn status(sim: &Sim, host: usize) -> Status {
    let member = sim.hosts[host].member.as_ref().unwrap();
    member.status(sim.local(host))
}

/// A relay that stepped aside while nobody received the source is not called unfit once another receives it,
/// for it has no longer joined; one that received nothing while another did is.
#[test]
fn a_source_that_starts_makes_no_relay_unfit_that_has_not_joined() {
    for (seed, was_received) in (0..6).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut sim = fleet(seed);
        let standby = |sim: &Sim, host: usize| {
            let status = status(sim, host);
            let next = status.shares["cam0"].standby.as_deref().unwrap();
            next.strip_prefix("relay-").unwrap().parse().unwrap()
        };
        let holder = holders(&sim).unwrap()[0];
        let next: usize = standby(&sim, holder);
        let silent = was_received.then_some(false);
        for host in [holder, next] {
            receives(&mut sim, host, was_received.then_some(true));
        }
        sim.run_until(sim.now + 3000 * MS);
        for host in [holder, next] {
            receives(&mut sim, host, silent);
        }
        sim.run_until(sim.now + 1000 * MS);
        let third = 3 - holder - next;
        assert_eq!(standby(&sim, holder), third, "another tries");
        sim.input(next, Input::Fitness(Fitness::default()));
        sim.run_until(sim.now + 3000 * MS);
        for host in [holder, third] {
            receives(&mut sim, host, Some(true));
        }
        sim.run_until(sim.now + 1000 * MS);
        for host in 0..3 {
            let status = status(&sim, host);
            assert_eq!(
                status.relays[&format!("relay-{next}")].reported.unfit,
                BTreeMap::new(),
                "at relay-{host}, heard before: {was_received}"
            );
        }
        // Compared with one that receives it is unfit, and stays so.
        receives(&mut sim, third, None);
        sim.run_until(sim.now + 1000 * MS);
        sim.input(third, Input::Fitness(Fitness::default()));
        sim.run_until(sim.now + 10_000 * MS);
        let status = status(&sim, holder);
        let unfit = &status.relays[&format!("relay-{third}")].reported.unfit;
        let why = format!("receives nothing of it, and relay-{holder} does");
        assert_eq!(unfit.get("cam0"), Some(&why));
    }
}

/// While etcd is away, what was read last is no news: only a relay that answers is known to be there.
#[test]
fn what_neither_etcd_nor_a_relay_says_is_unknown() {
    for (policy, seed) in [(OnIsolation::Peers, 1), (OnIsolation::Stop, 2)] {
        let mut sim = Sim::new(seed, settings(policy));
        sim.run_until(6000 * MS);
        let all = holders(&sim).unwrap();
        let (me, other) = (all[0], *all.iter().find(|host| **host != all[0]).unwrap());
        let share = format!("cam{}", all.iter().position(|host| *host == other).unwrap());
        let seen = |sim: &Sim| {
            let status = status(sim, me);
            assert_eq!(
                status.relays[&format!("relay-{me}")].reported.state,
                FleetRelayState::Up
            );
            let relay = status.relays[&format!("relay-{other}")].reported.state;
            (relay, status.shares[&share].state)
        };
        let known = (FleetRelayState::Up, FleetShareState::Elsewhere);
        let unknown = (FleetRelayState::Unknown, FleetShareState::Unknown);
        assert_eq!(seen(&sim), known);
        sim.etcd_down_until = sim.now + 20_000 * MS;
        sim.input(me, Input::EtcdReachable(false));
        sim.run_until(sim.now + 3 * HOLD);
        let answers = policy == OnIsolation::Peers;
        assert_eq!(
            seen(&sim),
            if answers { known } else { unknown },
            "{policy:?}"
        );
        sim.kill(other, true, 60_000 * MS);
        sim.run_until(sim.now + 2 * HOLD);
        assert_eq!(seen(&sim), unknown, "{policy:?}");
    }
}

/// The second process of a name shows the shares of the first, and reports no problem of them.
#[test]
fn who_waits_for_its_name_calls_nothing_vacant_that_the_other_process_holds() {
    let mut sim = fleet(1);
    let holder = holders(&sim).unwrap()[0];
    let second = (holder + 1) % 3;
    let name = format!("relay-{holder}");
    sim.kill(second, true, 100 * MS);
    sim.name(second, &name);
    sim.run_until(sim.now + 15_000 * MS);
    let status = status(&sim, second);
    assert!(
        status
            .wrong
            .iter()
            .any(|why| why.starts_with("another process"))
    );
    let share = &status.shares["cam0"];
    assert_eq!(share.relay.as_deref(), Some(&*name));
    assert_eq!(share.problem, None);
    assert_eq!(status.relays[&name].reported.unanswered_ms, None);
    assert_eq!(status.relays[&name].reported.unfit, BTreeMap::new());
}

/// The cause is the relay that did not answer at that time: others fall silent afterwards for the same cause.
#[test]
fn a_share_that_is_shut_names_who_did_not_answer_then() {
    for seed in 0..6 {
        let mut sim = fleet(seed);
        let holder = holders(&sim).unwrap()[0];
        let mute = (holder + 1) % 3;
        sim.hosts[mute].peers_cut_until = sim.now + 60_000 * MS;
        sim.etcd_down_until = sim.now + 60_000 * MS;
        sim.run_until(sim.now + 6000 * MS);
        let status = status(&sim, holder);
        let why = format!("neither etcd answers nor relay-{mute}");
        assert_eq!(status.shares["cam0"].problem.as_deref(), Some(&*why));
    }
}

/// Peers give no more promises to a relay that is cut off from etcd for long: that is no fault of the link.
#[test]
fn a_peer_that_promises_no_more_is_not_called_unreachable() {
    for seed in 0..6 {
        let mut sim = fleet(seed);
        let cut = holders(&sim).unwrap()[0];
        sim.hosts[cut].etcd_cut_until = sim.now + 60_000 * MS;
        sim.run_until(sim.now + 40_000 * MS);
        let status = status(&sim, cut);
        let named = status
            .relays
            .iter()
            .filter(|(_, relay)| relay.reported.unanswered_ms.is_some());
        assert_eq!(named.map(|(name, _)| name).collect::<Vec<_>>(), [""; 0]);
        assert_ne!(holders(&sim).unwrap()[0], cut, "it is relieved");
    }
}
