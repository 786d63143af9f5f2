//! Inputs that never received, sources that pause and sources that end.

use std::collections::BTreeMap;

use super::events::{fleet, stays};
use super::sim::{MS, Sim};
use super::{HOLD, holders};
use crate::member::{Fitness, Input};

/// The host reports that it receives cam0, no longer does, or (`None`) never has.
pub(super) fn receives(sim: &mut Sim, host: usize, state: Option<bool>) {
    let cam0 = || "cam0".to_owned();
    let silent = (state == Some(false)).then(|| (cam0(), "nothing comes any more".to_owned()));
    let fitness = Fitness {
        silent: silent.into_iter().collect(),
        heard: BTreeMap::from([(cam0(), u32::from(state == Some(true)))]),
        ..Fitness::default()
    };
    sim.input(host, Input::Fitness(fitness));
}

/// A relay whose input has never received anything is neither fit nor unfit: it gets no share just because
/// the others fall silent with the source.
#[test]
fn a_relay_that_never_heard_gets_nothing_in_a_pause_of_the_source() {
    for seed in 0..6 {
        let mut sim = fleet(seed);
        let holder = holders(&sim).unwrap()[0];
        let set = |sim: &mut Sim, state| {
            for host in 0..3 {
                let has_never = host == (holder + 1) % 3;
                receives(sim, host, (!has_never).then_some(state));
            }
        };
        set(&mut sim, true);
        sim.run_until(sim.now + 3000 * MS);
        set(&mut sim, false);
        stays(&mut sim, 5000);
        set(&mut sim, true);
        stays(&mut sim, 3000);
        assert_eq!(holders(&sim).unwrap()[0], holder);
    }
}

#[test]
fn a_holder_that_never_heard_what_another_hears_gives_it_away_and_is_named() {
    for seed in 0..6 {
        let mut sim = fleet(seed);
        let deaf = holders(&sim).unwrap()[0];
        let status = sim.hosts[deaf]
            .member
            .as_ref()
            .unwrap()
            .status(sim.local(deaf));
        let standby = status.shares["cam0"].standby.clone().unwrap();
        let next: usize = standby.strip_prefix("relay-").unwrap().parse().unwrap();
        receives(&mut sim, deaf, None);
        sim.run_until(sim.now + 2000 * MS);
        assert_eq!(holders(&sim).unwrap()[0], deaf, "nobody hears anything");
        receives(&mut sim, next, Some(true));
        sim.run_until(sim.now + 600 * MS);
        for host in 0..3 {
            let status = sim.hosts[host]
                .member
                .as_ref()
                .unwrap()
                .status(sim.local(host));
            let wrong = status.shares["cam0"].problem.clone().unwrap_or_default();
            let named = format!("relay-{deaf} receives nothing of it, and relay-{next} does");
            assert_eq!(wrong, named, "at relay-{host}");
        }
        assert_eq!(holders(&sim).unwrap()[0], deaf, "not yet");
        sim.run_until(sim.now + 1000 * MS);
        assert_eq!(holders(&sim).unwrap()[0], next);
        // From then on it is the last in the order, and all relays show that.
        let third = 3 - deaf - next;
        let status = sim.hosts[next]
            .member
            .as_ref()
            .unwrap()
            .status(sim.local(next));
        assert_eq!(
            status.shares["cam0"].standby,
            Some(format!("relay-{third}"))
        );
        receives(&mut sim, third, Some(true));
        sim.run_until(sim.now + 500 * MS);
        sim.kill(next, true, 60_000 * MS);
        sim.run_until(sim.now + 3 * HOLD);
        assert_eq!(sim.open("cam0"), [third]);
    }
}

/// Of cam0 nothing comes to this host for now, as in an earlier pause.
fn pauses(sim: &mut Sim, host: usize) {
    let one = || BTreeMap::from([("cam0".to_owned(), 1)]);
    let fitness = Fitness {
        heard: one(),
        pausing: one(),
        ..Fitness::default()
    };
    sim.input(host, Input::Fitness(fitness));
}

/// One relay has learnt of longer pauses than the other: a source that ends moves nothing, and one that goes
/// on with long pauses is followed to the relay that receives it.
#[test]
fn a_relay_that_waits_for_a_longer_pause_gets_nothing_before_a_packet() {
    for (seed, goes_on) in (0..6).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut sim = fleet(seed);
        let holder = holders(&sim).unwrap()[0];
        let member = sim.hosts[holder].member.as_ref().unwrap();
        let standby = member.status(sim.local(holder)).shares["cam0"]
            .standby
            .clone();
        let next = standby
            .unwrap()
            .strip_prefix("relay-")
            .unwrap()
            .parse()
            .unwrap();
        receives(&mut sim, holder, Some(true));
        receives(&mut sim, next, Some(true));
        sim.run_until(sim.now + 3000 * MS);
        receives(&mut sim, holder, Some(false));
        sim.run_until(sim.now + 400 * MS);
        pauses(&mut sim, next);
        stays(&mut sim, 2000);
        if goes_on {
            receives(&mut sim, next, Some(true));
            sim.run_until(sim.now + 500 * MS);
            pauses(&mut sim, next);
            sim.run_until(sim.now + 1000 * MS);
            assert_eq!(holders(&sim).unwrap()[0], next, "seed {seed}");
        } else {
            stays(&mut sim, 4000);
            receives(&mut sim, next, Some(false));
        }
        stays(&mut sim, 3000);
    }
}

/// The relay that first receives a source that starts again has no cause to be given anything.
#[test]
fn a_source_that_starts_again_moves_nothing() {
    for seed in 0..6 {
        let mut sim = fleet(seed);
        let holder = holders(&sim).unwrap()[0];
        (0..3).for_each(|host| receives(&mut sim, host, Some(true)));
        sim.run_until(sim.now + 2000 * MS);
        (0..3).for_each(|host| receives(&mut sim, host, Some(false)));
        stays(&mut sim, 10_000);
        for host in (0..3).filter(|host| *host != holder) {
            receives(&mut sim, host, Some(true));
        }
        stays(&mut sim, 800);
        receives(&mut sim, holder, Some(true));
        stays(&mut sim, 3000);
    }
}
