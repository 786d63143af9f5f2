//! Deleted keys: a live relay is not taken for dead, and a dead one is succeeded.

use config::OnIsolation;

use super::events::{fleet, stays};
use super::sim::{MS, Sim};
use super::{HOLD, Settings, holders, settings};

/// The state of the relay whose keys are deleted.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Holder {
    Lives,
    Dead,
    Stopped,
    /// Cut off from etcd alone: its peers go on promising.
    Cut,
}

const HOLDERS: [Holder; 4] = [Holder::Lives, Holder::Dead, Holder::Stopped, Holder::Cut];

/// Brings the holder of cam0 into that state, and returns its number.
fn strike(sim: &mut Sim, what: Holder) -> usize {
    let holder = holders(sim).unwrap()[0];
    let until = sim.now + 60_000 * MS;
    match what {
        Holder::Lives => {}
        Holder::Dead => sim.kill(holder, true, 60_000 * MS),
        Holder::Stopped => sim.hosts[holder].stopped_until = until,
        Holder::Cut => sim.hosts[holder].etcd_cut_until = until,
    }
    holder
}

/// Three holds later each share is forwarded, and never was by two.
fn follows(sim: &mut Sim, what: Holder, holder: usize, case: &str) {
    sim.run_until(sim.now + 3 * HOLD);
    assert_eq!(sim.violation, None, "{case}");
    let after = holders(sim).unwrap_or_else(|wrong| panic!("{case}: {wrong}"));
    assert!(what == Holder::Lives || !after.contains(&holder), "{case}");
    stays(sim, 500);
}

#[test]
fn a_relay_of_which_nothing_stands_but_what_it_holds_is_waited_for() {
    for (seed, what) in (0..8).flat_map(|seed| HOLDERS.map(|what| (seed, what))) {
        let case = format!("seed {seed}, {what:?}");
        let mut sim = fleet(seed);
        let holder = strike(&mut sim, what);
        sim.run_until(sim.now + seed / 2 * 40 * MS);
        let kinds = [["relays", "beats"], ["beats", "relays"]][seed as usize % 2];
        sim.delete(kinds[0], holder);
        sim.run_until(sim.now + seed / 4 * 30 * MS);
        sim.delete(kinds[1], holder);
        follows(&mut sim, what, holder, &case);
    }
}

/// Its beats go on, or its beat key stays for ever.
#[test]
fn a_relay_without_an_entry_is_watched_and_fenced_as_ever() {
    for (seed, what) in (0..6).flat_map(|seed| HOLDERS.map(|what| (seed, what))) {
        let case = format!("seed {seed}, {what:?}");
        let mut sim = fleet(seed);
        let before = holders(&sim).unwrap();
        let holder = strike(&mut sim, what);
        sim.delete("relays", holder);
        match what {
            Holder::Lives => {
                stays(&mut sim, 1000);
                assert!(
                    sim.etcd
                        .keys
                        .contains_key(&format!("/mcr/plant/relays/relay-{holder}"))
                );
            }
            // It is relieved in order.
            Holder::Cut => {
                sim.run_until(sim.now + 8000 * MS);
                assert_eq!(holders(&sim), Ok(before), "{case}");
                sim.run_until(sim.now + 2000 * MS);
                follows(&mut sim, what, holder, &case);
            }
            _ => follows(&mut sim, what, holder, &case),
        }
    }
}

#[test]
fn a_whole_kind_of_keys_that_is_deleted_doubles_nothing() {
    let kinds = ["relays/", "shares/", "beats/", "moves/", ""];
    let cases = kinds
        .iter()
        .flat_map(|kind| HOLDERS.map(|what| (*kind, what)));
    for (seed, (kind, what)) in (0..4).flat_map(|seed| cases.clone().map(move |c| (seed, c))) {
        let case = format!("seed {seed}, {kind:?}, {what:?}");
        let mut sim = fleet(seed);
        let holder = strike(&mut sim, what);
        sim.run_until(sim.now + seed * 60 * MS);
        sim.delete_all(kind);
        if what == Holder::Cut && !kind.contains("beats") && !kind.is_empty() {
            sim.run_until(sim.now + 10_000 * MS);
        }
        sim.run_until(sim.now + 6000 * MS);
        follows(&mut sim, what, holder, &case);
    }
}

/// A relay that starts now knows it only by its shares, and waits for the longest hold.
#[test]
fn a_relay_that_is_known_by_what_it_holds_alone_is_fenced() {
    super::events::is_fenced_without(&["relays", "beats"]);
}

/// It goes on forwarding, as its peers promise: a relay that starts for the first time must not take its
/// share for free.
#[test]
fn a_share_without_a_key_is_its_holders() {
    for seed in 0..8 {
        let settings = Settings {
            relays: 4,
            ..settings(OnIsolation::Peers)
        };
        let mut sim = Sim::new(seed, settings);
        sim.hosts[3].down_until = 60_000 * MS;
        sim.run_until(4000 * MS);
        strike(&mut sim, Holder::Cut);
        sim.run_until(sim.now + 200 * MS);
        sim.delete_all("shares/");
        sim.hosts[3].down_until = sim.now;
        sim.run_until(sim.now + 8000 * MS);
        assert_eq!(sim.violation, None, "seed {seed}");
    }
}

/// Shares that nobody can take while it leaves are free at once, though no entry names it.
#[test]
fn what_a_relay_leaves_behind_is_free_at_once() {
    for (seed, anew) in (0..6).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut sim = fleet(seed);
        (1..3).for_each(|host| sim.drain(host, true));
        sim.run_until(sim.now + 2000 * MS);
        assert_eq!(holders(&sim).unwrap(), [0; 5]);
        sim.leave(0);
        while sim.hosts[0].member.is_some() {
            sim.run_until(sim.now + MS);
        }
        sim.hosts[0].down_until = sim.now + 60_000 * MS;
        if anew {
            (1..3).for_each(|host| sim.kill(host, true, 50 * MS));
            sim.run_until(sim.now + 3 * HOLD);
        }
        (1..3).for_each(|host| sim.drain(host, false));
        sim.run_until(sim.now + 600 * MS);
        let status = sim.hosts[1].member.as_ref().unwrap().status(sim.local(1));
        assert!(!status.relays.contains_key("relay-0"), "seed {seed}");
        let after = holders(&sim).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        assert!(!after.contains(&0), "seed {seed}");
        stays(&mut sim, 1000);
    }
}

/// Four relays, of which the last has not started yet.
fn fleet_and_a_newcomer(seed: u64) -> Sim {
    let settings = Settings {
        relays: 4,
        ..settings(OnIsolation::Peers)
    };
    let mut sim = Sim::new(seed, settings);
    sim.hosts[3].down_until = 60_000 * MS;
    sim.run_until(4000 * MS);
    sim
}

/// It goes on forwarding by the promises of monitors that are cut off, too: a relay that starts for the first
/// time must not succeed it. Once one of them reaches etcd, it is succeeded as usual.
#[test]
fn a_relay_that_is_cut_off_with_all_that_it_listed_is_waited_for() {
    let ways = [None, Some("beats"), Some("relays")];
    for (seed, way) in (0..8).flat_map(|seed| ways.map(|way| (seed, way))) {
        let case = format!("seed {seed}, {way:?}");
        let mut sim = fleet_and_a_newcomer(seed);
        let holder = holders(&sim).unwrap()[0];
        (0..3).for_each(|host| sim.hosts[host].etcd_cut_until = sim.now + 60_000 * MS);
        sim.run_until(sim.now + 200 * MS);
        match way {
            None => {
                let key = format!("/mcr/plant/beats/relay-{holder}");
                sim.etcd.operator_put(&key, b"garbage".to_vec());
            }
            Some(also) => ["beats", also]
                .iter()
                .for_each(|kind| sim.delete(kind, holder)),
        }
        if seed % 2 == 0 {
            sim.hosts[3].down_until = sim.now;
            sim.run_until(sim.now + 20_000 * MS);
        }
        assert_eq!(sim.violation, None, "{case}");
        assert_eq!(sim.open("cam0"), [holder], "{case}");
        let other = (holder + 1) % 3;
        sim.hosts[other].etcd_cut_until = 0;
        sim.hosts[3].down_until = sim.now;
        sim.run_until(sim.now + 12_000 * MS);
        assert_eq!(sim.violation, None, "{case}");
        let open = sim.open("cam0");
        assert!(open.len() == 1 && open != [holder], "{case}: {open:?}");
    }
}

/// No relay that reaches etcd has read whose it is, and nothing else is left of its holder, which goes on
/// forwarding.
#[test]
fn a_share_whose_unread_key_was_a_deleted_relays_is_waited_for() {
    let ways = [0, 1, 2, 3];
    for (seed, way) in (0..8).flat_map(|seed| ways.map(|way| (seed, way))) {
        let case = format!("seed {seed}, way {way}");
        let mut sim = fleet_and_a_newcomer(seed);
        let holder = holders(&sim).unwrap()[0];
        sim.hosts[holder].etcd_cut_until = sim.now + 60_000 * MS;
        sim.run_until(sim.now + 200 * MS);
        let rest: Vec<usize> = (0..3).filter(|host| *host != holder).collect();
        for host in &rest {
            match way {
                // They come back at once, or while it is deleted.
                0 => sim.kill(*host, true, 10 * MS),
                1 => sim.kill(*host, true, 400 * MS),
                // They have never read it.
                2 => sim.hosts[*host].watch_stalled_until = sim.now + 400 * MS,
                _ => sim.hosts[*host].watch_stalled_until = sim.now + 2500 * MS,
            }
        }
        sim.etcd
            .operator_put("/mcr/plant/shares/cam0", b"garbage".to_vec());
        sim.run_until(sim.now + seed * 40 * MS);
        ["relays", "beats"]
            .iter()
            .for_each(|kind| sim.delete(kind, holder));
        sim.etcd.compacted = sim.etcd.revision;
        sim.hosts[3].down_until = sim.now + seed % 3 * 200 * MS;
        sim.run_until(sim.now + 14_000 * MS);
        assert_eq!(sim.violation, None, "{case}");
        let open = sim.open("cam0");
        assert!(open.len() == 1 && open != [holder], "{case}: {open:?}");
    }
}

/// A fourth process takes the name of a live relay: the holder of cam0, or the one after it.
fn fleet_and_a_namesake(seed: u64, of_holder: bool) -> (Sim, usize) {
    let mut sim = fleet_and_a_newcomer(seed);
    let holder = holders(&sim).unwrap()[0];
    let first = if of_holder { holder } else { (holder + 1) % 3 };
    sim.name(3, &format!("relay-{first}"));
    sim.hosts[3].down_until = sim.now;
    sim.run_until(sim.now + 2 * HOLD);
    (sim, first)
}

/// By its key that session has ended: the first process may forward all the same.
#[test]
fn who_waits_for_a_name_whose_key_is_deleted_takes_nothing_at_once() {
    let kinds = [&["beats"][..], &["beats", "relays"], &["relays", "beats"]];
    let cases = HOLDERS
        .iter()
        .flat_map(|what| kinds.map(|kinds| (*what, kinds)));
    for (seed, (what, kinds)) in (0..4).flat_map(|seed| cases.clone().map(move |c| (seed, c))) {
        let case = format!("seed {seed}, {what:?}, {kinds:?}");
        let (mut sim, first) = fleet_and_a_namesake(seed, true);
        strike(&mut sim, what);
        sim.run_until(sim.now + seed * 40 * MS);
        kinds.iter().for_each(|kind| sim.delete(kind, first));
        sim.run_until(sim.now + 8000 * MS);
        assert_eq!(sim.violation, None, "{case}");
        holders(&sim).unwrap_or_else(|wrong| panic!("{case}: {wrong}"));
    }
}

/// It does not know the promises of the first process of the name, not even when that has just ended.
#[test]
fn who_waits_for_a_name_fences_nobody_in_its_place() {
    for (seed, dies) in (0..8).flat_map(|seed| [(seed, false), (seed, true)]) {
        let case = format!("seed {seed}, {dies}");
        let (mut sim, first) = fleet_and_a_namesake(seed, false);
        let before = strike(&mut sim, Holder::Cut);
        sim.run_until(sim.now + 3 * HOLD);
        if dies {
            sim.kill(first, true, 60_000 * MS);
        }
        sim.run_until(sim.now + 3 * HOLD);
        assert_eq!(sim.violation, None, "{case}");
        let open = sim.open("cam0");
        assert!(
            open.len() == 1 && (open == [before]) != dies,
            "{case}: {open:?}"
        );
    }
}

/// A relay that has not read the change knows an older holder, and must not take that one for the last.
#[test]
fn a_share_that_changed_hands_unread_before_its_key_was_deleted_doubles_nothing() {
    for seed in 0..8 {
        let mut sim = fleet(seed);
        let first = holders(&sim).unwrap()[0];
        sim.hosts[first].stopped_until = sim.now + 3 * HOLD;
        sim.run_until(sim.now + 3 * HOLD - 20 * MS);
        let next = sim.open("cam0");
        assert!(next.len() == 1 && next != [first], "seed {seed}");
        for host in (0..3).filter(|host| *host != first) {
            sim.hosts[host].watch_stalled_until = sim.now + 500 * MS;
        }
        sim.delete_all("shares/");
        sim.etcd.compacted = sim.etcd.revision;
        sim.run_until(sim.now + 6 * HOLD);
        assert_eq!(sim.violation, None, "seed {seed}");
        holders(&sim).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// The outcome of a transaction that gives it away says nothing about the next one: another write came in
/// between.
#[test]
fn a_share_whose_key_is_written_while_it_is_given_away_is_open_once() {
    let key = "/mcr/plant/shares/cam0";
    for seed in 0..40 {
        let mut sim = fleet(seed);
        let holder = holders(&sim).unwrap()[0];
        let holds = format!("\"relay-{holder}\"");
        sim.drain(holder, true);
        for turn in 0..200 {
            let value = sim.etcd.keys[key].value.clone();
            if !String::from_utf8_lossy(&value).contains(&holds) {
                break;
            }
            sim.etcd.operator_put(key, value);
            sim.run_until(sim.now + (1 + (seed + turn) % 9) * MS);
        }
        sim.run_until(sim.now + 2 * HOLD);
        assert_eq!(sim.violation, None, "seed {seed}");
        let after = holders(&sim).unwrap()[0];
        assert_ne!(after, holder, "seed {seed}");
    }
}
