//! Outages that once stopped streams: one-way links, an etcd that came back empty.

use std::collections::BTreeMap;

use config::OnIsolation;

use super::etcd::Etcd;
use super::events::{fleet, sessions, stays, was_reported};
use super::sim::{MS, Sim};
use super::{HOLD, Settings, holders, settings};
use crate::member::{Fitness, FleetEvent, Input};

/// Its own messages arrive: it asks for promises that it never gets.
#[test]
fn a_relay_that_nothing_reaches_is_fenced_after_a_hold() {
    for seed in 0..12 {
        let mut sim = fleet(seed);
        let deaf = holders(&sim).unwrap()[0];
        sim.hosts[deaf].deaf_until = sim.now + 60_000 * MS;
        let mut shut = None;
        while sim.now < sim.hosts[deaf].deaf_until {
            sim.run_until(sim.now + 5 * MS);
            match sim.open("cam0")[..] {
                [] => shut = shut.or(Some(sim.now)),
                [host] if host != deaf => break,
                _ => {}
            }
        }
        let gap = sim.now - shut.unwrap_or(sim.now);
        assert!(gap < HOLD / 2, "seed {seed}: {} ms", gap / MS);
        assert_eq!(sim.violation, None);
    }
}

/// Its engine runs on: it sends no beats, and must not ask for promises either.
#[test]
fn a_relay_whose_data_plane_hangs_is_fenced_after_a_hold() {
    for seed in 0..6 {
        let mut sim = fleet(seed);
        let holder = holders(&sim).unwrap()[0];
        sim.hosts[holder].odd.numb_until = sim.now + 60_000 * MS;
        sim.run_until(sim.now + 2 * HOLD);
        let open = sim.open("cam0");
        assert!(open.len() == 1 && open != [holder], "seed {seed}: {open:?}");
        assert_eq!(sim.violation, None);
    }
}

#[test]
fn a_relay_that_does_not_answer_is_named_before_it_is_needed() {
    let mut sim = fleet(1);
    let unanswered = |sim: &Sim, host: usize| {
        let status = sim.hosts[host]
            .member
            .as_ref()
            .unwrap()
            .status(sim.local(host));
        let relays = status.relays.into_iter();
        let silent = relays.filter_map(|(name, relay)| relay.reported.unanswered_ms.map(|_| name));
        silent.collect::<Vec<_>>()
    };
    stays(&mut sim, 12_000);
    assert!((0..3).all(|host| unanswered(&sim, host).is_empty()));
    sim.hosts[2].peers_cut_until = sim.now + 30_000 * MS;
    stays(&mut sim, 12_000);
    assert_eq!(unanswered(&sim, 0), ["relay-2"]);
    assert_eq!(unanswered(&sim, 1), ["relay-2"]);
    assert_eq!(unanswered(&sim, 2), ["relay-0", "relay-1"]);
    sim.hosts[2].peers_cut_until = 0;
    stays(&mut sim, 4000);
    assert!((0..3).all(|host| unanswered(&sim, host).is_empty()));
}

#[test]
fn an_etcd_that_comes_back_empty_is_joined_anew() {
    for seed in 0..12 {
        let mut sim = fleet(seed);
        let before = holders(&sim).unwrap();
        sim.run_until(sim.now + seed * 3000 * MS);
        sim.etcd_down_until = sim.now + seed * 300 * MS;
        sim.run_until(sim.now + seed * 300 * MS);
        sim.etcd = Default::default();
        sim.run_until(sim.now + 2 * HOLD);
        assert!(was_reported(&sim, |event| *event == FleetEvent::Restored));
        assert!(!was_reported(&sim, |event| *event == FleetEvent::Fenced));
        assert_eq!(sim.violation, None);
        assert!(
            sessions(&sim).iter().all(|session| *session > 0),
            "seed {seed}"
        );
        assert_eq!(holders(&sim), Ok(before), "seed {seed}");
        stays(&mut sim, 3000);
    }
}

/// A relay that is cut off goes on for its own hold, which relays that see the new etcd have to wait for.
#[test]
fn a_rebuilt_etcd_doubles_nothing_where_holds_differ() {
    for (seed, restarts) in (0..12).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut sim = Sim::new(seed, settings(OnIsolation::Stop));
        sim.run_until(4000 * MS);
        let holder = holders(&sim).unwrap()[0];
        sim.set_hold(holder, 5000 * MS);
        let others: Vec<usize> = (0..3).filter(|host| *host != holder).collect();
        others.iter().for_each(|host| sim.set_hold(*host, 300 * MS));
        sim.run_until(sim.now + 8000 * MS);
        let holder = holders(&sim).unwrap()[0];
        sim.hosts[holder].etcd_cut_until = sim.now + 20_000 * MS;
        sim.hosts[holder].peers_cut_until = sim.now + 20_000 * MS;
        if restarts {
            (0..3)
                .filter(|host| *host != holder)
                .for_each(|host| sim.kill(host, false, 50 * MS));
        }
        sim.delete_all("");
        sim.run_until(sim.now + 12_000 * MS);
        assert_eq!(sim.violation, None, "seed {seed}, restarts {restarts}");
        let open = sim.open("cam0");
        assert!(open.len() == 1 && open != [holder], "seed {seed}: {open:?}");
    }
}

#[test]
fn an_empty_etcd_that_has_overtaken_the_old_one_is_joined_anew() {
    for seed in 0..12 {
        let mut sim = fleet(seed);
        let away = seed as usize % 3;
        sim.hosts[away].etcd_cut_until = sim.now + 20_000 * MS;
        sim.etcd = Default::default();
        sim.run_until(sim.now + 4 * HOLD);
        // A busy cluster.
        sim.etcd.revision += 10_000;
        sim.run_until(sim.now + 16_000 * MS);
        sim.run_until(sim.now + 3 * HOLD);
        holders(&sim).unwrap();
        assert_eq!(sim.violation, None);
        let views: Vec<_> = (0..3)
            .map(|host| {
                let status = sim.hosts[host]
                    .member
                    .as_ref()
                    .unwrap()
                    .status(sim.local(host));
                let shares = status.shares.into_iter();
                let holders = shares.map(|(name, share)| (name, share.relay, share.since_ms));
                (
                    holders.collect::<Vec<_>>(),
                    status
                        .relays
                        .into_iter()
                        .map(|(n, r)| (n, r.session))
                        .collect::<Vec<_>>(),
                )
            })
            .collect();
        assert_eq!(views[0], views[1], "seed {seed}");
        assert_eq!(views[1], views[2], "seed {seed}");
    }
}

#[test]
fn an_etcd_that_is_emptied_again_and_again_is_joined_anew() {
    for seed in 0..6 {
        let mut sim = fleet(seed);
        for _ in 0..4 {
            sim.etcd = Default::default();
            let pause = sim.random.range(10, 2000);
            sim.run_until(sim.now + pause * MS);
        }
        sim.run_until(sim.now + 5 * HOLD);
        holders(&sim).unwrap();
        assert_eq!(sim.violation, None);
    }
}

/// An etcd that lost everything and is restored later: its sessions have the same numbers as those of the
/// backup, and the backup's revision may be the greater.
#[test]
fn a_backup_whose_sessions_have_the_same_numbers_doubles_nothing() {
    for seed in 0..60 {
        let mut sim = fleet(seed);
        sim.run_until(sim.now + 20_000 * MS);
        let backup = sim.etcd.clone();
        sim.wipe();
        sim.run_until(sim.etcd_down_until + 3 * HOLD);
        for share in sim.shares() {
            let host = sim.random.range(0, 3) as usize;
            sim.move_share(&share, host);
        }
        sim.run_until(sim.now + 3 * HOLD);
        assert_eq!(sim.violation, None, "seed {seed}");
        if seed % 2 == 0 {
            sim.etcd_full_until = sim.now + 2 * HOLD;
            sim.run_until(sim.etcd_full_until);
        }
        sim.replace_etcd(backup);
        let away = sim.random.range(0, 3) as usize;
        sim.hosts[away].etcd_cut_until = sim.now + seed % 5 * 700 * MS;
        sim.run_until(sim.now + 7 * HOLD);
        assert_eq!(sim.violation, None, "seed {seed}");
        holders(&sim).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// Restores a backup at once; all hosts but the first reach it later, depending on the seed.
fn put_back(sim: &mut Sim, backup: Etcd, (first, seed): (usize, u64)) {
    sim.replace_etcd(backup);
    sim.etcd_down_until = sim.now;
    for host in (0..3).filter(|host| *host != first) {
        sim.hosts[host].etcd_cut_until = sim.now + seed % 6 * 200 * MS;
    }
    sim.run_until(sim.now + 7 * HOLD);
}

/// A process that comes back after others took its shares, to an etcd that has forgotten that.
#[test]
fn a_process_that_comes_back_to_a_restored_etcd_doubles_nothing() {
    for seed in 0..30 {
        let mut sim = fleet(seed);
        let backup = sim.etcd.clone();
        let first = holders(&sim).unwrap()[0];
        sim.kill(first, false, 3 * HOLD);
        sim.run_until(sim.now + 3 * HOLD - 20 * MS);
        assert_ne!(holders(&sim).unwrap()[0], first);
        put_back(&mut sim, backup, (first, seed));
        assert_eq!(sim.violation, None, "seed {seed}");
        holders(&sim).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// A relay that stood still, or was cut off, while a backup was taken and put back finds nothing changed.
#[test]
fn who_slept_from_a_backup_to_its_return_doubles_nothing() {
    let policies = [OnIsolation::Peers, OnIsolation::Stop];
    for (seed, policy) in (0..30).flat_map(|seed| policies.map(|policy| (seed, policy))) {
        let mut sim = Sim::new(seed, settings(policy));
        sim.run_until(4000 * MS + 2 * HOLD);
        let first = holders(&sim).unwrap()[0];
        let returns = sim.now + 4 * HOLD;
        if seed % 2 == 0 {
            sim.hosts[first].stopped_until = returns;
        } else {
            sim.hosts[first].etcd_cut_until = returns;
            sim.hosts[first].peers_cut_until = returns;
        }
        sim.run_until(sim.now + 50 * MS);
        let backup = sim.etcd.clone();
        sim.run_until(returns - 20 * MS);
        assert_ne!(holders(&sim).unwrap()[0], first, "seed {seed}, {policy:?}");
        put_back(&mut sim, backup, (first, seed));
        assert_eq!(sim.violation, None, "seed {seed}, {policy:?}");
        holders(&sim).unwrap_or_else(|wrong| panic!("seed {seed}, {policy:?}: {wrong}"));
    }
}

/// A jump that looks like a late tick counts as time that has passed: several within a hold add up.
#[test]
fn small_jumps_of_a_clock_within_a_hold_double_nothing() {
    for (seed, jumps, hold) in (0..6).flat_map(|seed| {
        [
            (seed, 3, 1200),
            (seed, 4, 1200),
            (seed, 4, 300),
            (seed, 3, 5000),
        ]
    }) {
        let hold = hold * MS;
        let mut sim = Sim::new(
            seed,
            Settings {
                hold,
                ..settings(OnIsolation::Peers)
            },
        );
        sim.run_until(4000 * MS + 2 * hold);
        let holder = holders(&sim).unwrap()[0];
        sim.hosts[holder].etcd_cut_until = sim.now + 10 * hold;
        sim.hosts[holder].peers_cut_until = sim.now + 10 * hold;
        let size = (hold / 24).max(30 * MS) * (5 + seed % 5) / 10;
        for _ in 0..jumps {
            sim.run_until(sim.now + hold / 6);
            (0..3)
                .filter(|host| *host != holder)
                .for_each(|host| sim.jump(host, size));
        }
        sim.run_until(sim.now + 2 * hold);
        assert_eq!(
            sim.violation, None,
            "seed {seed}, {jumps} jumps, hold {hold}"
        );
        let open = sim.open("cam0");
        assert!(open.len() == 1 && open != [holder], "seed {seed}: {open:?}");
    }
}

/// The report of a relay that is cut off from etcd is outdated, and it does not learn that it is given a share.
#[test]
fn nothing_is_given_to_a_relay_that_etcd_does_not_reach() {
    for (seed, relays) in (0..8).flat_map(|seed| [(seed, 3), (seed, 10)]) {
        let mut sim = Sim::new(
            seed,
            Settings {
                relays,
                ..settings(OnIsolation::Peers)
            },
        );
        sim.run_until(6000 * MS);
        let holder = holders(&sim).unwrap()[0];
        let status = |sim: &Sim| {
            let member = sim.hosts[holder].member.as_ref().unwrap();
            member.status(sim.local(holder)).shares["cam0"].clone()
        };
        let standby = status(&sim).standby.unwrap();
        let next: usize = standby.trim_start_matches("relay-").parse().unwrap();
        sim.hosts[next].etcd_cut_until = sim.now + 20_000 * MS;
        sim.run_until(sim.now + HOLD + 500 * MS);
        let down = BTreeMap::from([("cam0".to_owned(), "no link".to_owned())]);
        let fitness = Fitness {
            down,
            ..Fitness::default()
        };
        sim.input(holder, Input::Fitness(fitness));
        sim.run_until(sim.now + 3 * HOLD);
        let open = sim.open("cam0");
        assert!(
            open.len() == 1 && open != [holder] && open != [next],
            "seed {seed}: {open:?}"
        );
        assert_eq!(sim.violation, None);
    }
}

/// Nobody knows who held it: once all sessions of that time have ended, somebody takes it.
#[test]
fn a_share_whose_key_makes_no_sense_to_anybody_is_taken() {
    for seed in 0..8 {
        let mut sim = fleet(seed);
        (0..3).for_each(|host| sim.kill(host, true, 500 * MS));
        sim.etcd
            .operator_put("/mcr/plant/shares/cam0", b"garbage".to_vec());
        sim.run_until(sim.now + 5 * HOLD);
        holders(&sim).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        assert_eq!(sim.violation, None);
    }
}

/// Its holder may forward, and cannot be asked: the others wait until its session has ended.
#[test]
fn a_share_whose_key_makes_no_sense_is_left_to_who_may_hold_it() {
    for seed in 0..8 {
        let mut sim = fleet(seed);
        let holder = holders(&sim).unwrap()[0];
        sim.hosts[holder].etcd_cut_until = sim.now + 30_000 * MS;
        sim.run_until(sim.now + 200 * MS);
        sim.etcd
            .operator_put("/mcr/plant/shares/cam0", b"garbage".to_vec());
        for host in (0..3).filter(|host| *host != holder) {
            sim.kill(host, true, 10 * MS);
            sim.run_until(sim.now + 3 * HOLD);
        }
        sim.run_until(sim.now + 14_000 * MS);
        assert_eq!(sim.violation, None, "seed {seed}");
        holders(&sim).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// Nobody has read the key's former value, the others have sessions of that time, and the holder is dead: once
/// the others have reported that they do not hold it, somebody takes it.
#[test]
fn a_share_whose_unread_key_was_a_dead_relays_is_taken() {
    for (seed, entry) in (0..8).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut sim = fleet(seed);
        let holder = holders(&sim).unwrap()[0];
        let rest = (0..3).filter(|host| *host != holder);
        rest.clone()
            .for_each(|host| sim.hosts[host].watch_stalled_until = sim.now + 300 * MS);
        sim.etcd
            .operator_put("/mcr/plant/shares/cam0", b"garbage".to_vec());
        sim.kill(holder, true, 60_000 * MS);
        if entry {
            // A relay that starts now cannot read the holder's entry either.
            let key = format!("/mcr/plant/relays/relay-{holder}");
            sim.etcd.operator_put(&key, b"garbage".to_vec());
            rest.clone()
                .take(1)
                .for_each(|host| sim.kill(host, true, 10 * MS));
        }
        sim.run_until(sim.now + 100 * MS);
        sim.etcd.compacted = sim.etcd.revision;
        let other = rest.clone().next().unwrap();
        if !entry {
            // A relay that cannot report that it does not hold it is named meanwhile.
            sim.hosts[other].etcd_cut_until = sim.now + 3 * HOLD;
        }
        let last = rest.clone().next_back().unwrap();
        let (end, mut is_named) = (sim.now + 6 * HOLD, entry);
        while sim.now < end {
            sim.run_until(sim.now + 10 * MS);
            let member = sim.hosts[last].member.as_ref().unwrap();
            let problem = member.status(sim.local(last)).shares["cam0"]
                .problem
                .clone();
            let named = format!("relay-{other} may hold it");
            is_named |= problem.is_some_and(|why| why.contains(&named));
        }
        assert!(is_named, "seed {seed}");
        assert_eq!(sim.violation, None, "seed {seed}");
        let open = sim.open("cam0");
        assert!(
            open.len() == 1 && open != [holder],
            "seed {seed}, {entry}: {open:?}"
        );
        stays(&mut sim, 3000);
    }
}

/// The process that held it has ended, and the next one cannot read whose it is.
#[test]
fn a_process_that_cannot_read_what_it_holds_begins_anew() {
    for seed in 0..8 {
        let mut sim = fleet(seed);
        let holder = holders(&sim).unwrap()[0];
        sim.etcd_full_until = sim.now + 700 * MS;
        sim.etcd
            .operator_put("/mcr/plant/shares/cam0", b"garbage".to_vec());
        sim.kill(holder, false, 100 * MS);
        sim.run_until(sim.now + 5 * HOLD);
        holders(&sim).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        assert_eq!(sim.violation, None);
    }
}
