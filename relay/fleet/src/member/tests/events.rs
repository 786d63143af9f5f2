//! Single events: restarts, hostile values, deleted keys, restored backups.

use std::collections::BTreeMap;

use config::OnIsolation;

use super::sim::{MS, Sim};
use super::{HOLD, holders, settings};
use crate::keys::SessionNumber;
use crate::member::{Fitness, FleetEvent, Input, PhaseName, Question};

/// A fleet that has settled.
pub(super) fn fleet(seed: u64) -> Sim {
    let mut sim = Sim::new(seed, settings(OnIsolation::Peers));
    sim.run_until(4000 * MS);
    holders(&sim).unwrap();
    sim
}

/// cam0 is served badly.
fn down(why: &str) -> Fitness {
    Fitness {
        down: BTreeMap::from([("cam0".to_owned(), why.to_owned())]),
        ..Fitness::default()
    }
}

pub(super) fn was_reported(sim: &Sim, is_it: impl Fn(&FleetEvent) -> bool) -> bool {
    sim.reported.iter().any(|(_, _, event)| is_it(event))
}

pub(super) fn sessions(sim: &Sim) -> Vec<SessionNumber> {
    let statuses = (0..sim.hosts.len()).map(|host| {
        let member = sim.hosts[host].member.as_ref().unwrap();
        member.status(sim.local(host))
    });
    statuses.map(|status| status.session).collect()
}

/// Runs on, and asserts that no share changes hands or is shut for even a millisecond.
pub(super) fn stays(sim: &mut Sim, ms: u64) {
    let before = holders(sim).unwrap();
    for _ in 0..ms {
        sim.run_until(sim.now + MS);
        assert_eq!(holders(sim).as_ref(), Ok(&before), "at {} ms", sim.now / MS);
    }
    assert_eq!(sim.violation, None);
}

#[test]
fn a_restarted_process_takes_up_its_session() {
    for seed in 0..4 {
        let mut sim = fleet(seed);
        let before = sessions(&sim);
        let holder = holders(&sim).unwrap()[0];
        sim.kill(holder, false, 200 * MS);
        stays(&mut sim, 3000);
        assert_eq!(sessions(&sim), before);
    }
}

#[test]
fn a_new_process_on_a_new_boot_gets_a_new_session() {
    let mut sim = fleet(1);
    let before = sessions(&sim);
    sim.kill(0, true, 100 * MS);
    sim.run_until(sim.now + 3 * HOLD);
    holders(&sim).unwrap();
    let after = sessions(&sim);
    assert!(after[0] > before[0]);
    assert_eq!(after[1..], before[1..]);
    assert_eq!(sim.violation, None);
}

#[test]
fn a_calendar_that_was_set_dates_what_comes_after() {
    const SET: u64 = 1_700_000_000_000;
    let mut sim = fleet(4);
    let holder = holders(&sim).unwrap()[0];
    (0..3).for_each(|host| sim.input(host, Input::Calendar(SET)));
    sim.kill(holder, true, 60_000 * MS);
    sim.run_until(sim.now + 4 * HOLD);
    let next = (holder + 1) % 3;
    let member = sim.hosts[next].member.as_ref().unwrap();
    let share = &member.status(sim.local(next)).shares["cam0"];
    let since = share.since_ms.unwrap();
    let passed_ms = (0..3).map(|host| sim.local(host)).max().unwrap() / MS;
    assert!((SET..=SET + passed_ms).contains(&since), "{since}");
    assert_eq!(sim.violation, None);
}

#[test]
fn both_at_once_come_back() {
    let mut sim = fleet(2);
    (0..3).for_each(|host| sim.kill(host, true, 50 * MS));
    sim.run_until(sim.now + 4 * HOLD);
    holders(&sim).unwrap();
    assert_eq!(sim.violation, None);
}

#[test]
fn hostile_values_are_refused_by_name_and_change_nothing() {
    let mut sim = fleet(3);
    for key in [
        "shares/cam0",
        "shares/cam1",
        "relays/relay-1",
        "moves/cam2",
        "rules/current",
    ] {
        let key = format!("/mcr/plant/{key}");
        sim.etcd.operator_put(&key, br#"{"relay":"../x"}"#.to_vec());
    }
    sim.etcd
        .operator_put("/mcr/plant/shares/../../x", b"1".to_vec());
    stays(&mut sim, 3000);
    let refused = |event: &FleetEvent| matches!(event, FleetEvent::Refused { key, .. } if key == "/mcr/plant/shares/cam0");
    assert!(was_reported(&sim, refused));
    let status = sim.hosts[0].member.as_ref().unwrap().status(sim.local(0));
    assert!(
        status.refused.contains_key("/mcr/plant/shares/../../x"),
        "{:?}",
        status.refused
    );
}

/// Its session goes on: only the value of the key has changed.
#[test]
fn a_relay_mends_its_own_keys_and_loses_nothing() {
    for seed in 0..6 {
        let mut sim = fleet(seed);
        let before = sessions(&sim);
        for key in [
            "beats/relay-0",
            "relays/relay-1",
            "shares/cam0",
            "beats/relay-2",
        ] {
            let key = format!("/mcr/plant/{key}");
            sim.etcd.operator_put(&key, b"garbage".to_vec());
            stays(&mut sim, 2000);
            let refused = |event: &FleetEvent| matches!(event, FleetEvent::Refused { key: refused, problem } if *refused == key && problem.contains("anew"));
            assert!(was_reported(&sim, refused), "{key}");
            assert_ne!(sim.etcd.keys[&key].value, b"garbage", "{key}");
        }
        for host in 0..3 {
            let status = sim.hosts[host]
                .member
                .as_ref()
                .unwrap()
                .status(sim.local(host));
            assert!(status.refused.is_empty(), "{:?}", status.refused);
        }
        assert_eq!(sessions(&sim), before);
    }
}

#[test]
fn a_dead_relay_whose_keys_make_no_sense_is_followed() {
    for seed in 0..6 {
        let mut sim = fleet(seed);
        let dead = holders(&sim).unwrap()[0];
        sim.kill(dead, true, 60_000 * MS);
        sim.etcd
            .operator_put("/mcr/plant/shares/cam0", b"garbage".to_vec());
        let key = format!("/mcr/plant/beats/relay-{dead}");
        sim.etcd.operator_put(&key, b"garbage".to_vec());
        sim.run_until(sim.now + 2 * HOLD);
        let after = holders(&sim).unwrap();
        assert!(!after.contains(&dead), "seed {seed}");
        assert_eq!(sim.violation, None);
    }
}

/// A key that nobody has seen valid keeps its relay out for the longest hold.
#[test]
fn a_relay_joins_over_a_key_that_never_made_sense() {
    let mut sim = fleet(3);
    sim.kill(1, true, 500 * MS);
    sim.run_until(sim.now + 100 * MS);
    sim.etcd.operator_delete("/mcr/plant/beats/relay-1");
    sim.etcd
        .operator_put("/mcr/plant/beats/relay-1", b"garbage".to_vec());
    sim.run_until(sim.now + 8000 * MS);
    assert!(sessions(&sim)[1] > 0);
    stays(&mut sim, 3000);
}

/// Dead, alive, or cut off from etcd alone: in each case its session ends, and no share is open twice.
#[test]
fn a_relay_whose_beat_key_is_deleted_holds_nothing_for_ever() {
    for seed in 0..12 {
        let mut sim = fleet(seed);
        let holder = holders(&sim).unwrap()[0];
        let before = sessions(&sim)[holder];
        let until = sim.now + 60_000 * MS;
        match seed % 3 {
            0 => sim.kill(holder, true, 60_000 * MS),
            1 => sim.hosts[holder].etcd_cut_until = until,
            _ => {}
        }
        sim.run_until(sim.now + 100 * MS);
        sim.delete("beats", holder);
        sim.run_until(sim.now + 4 * HOLD);
        let after = holders(&sim).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        assert_eq!(sim.violation, None);
        if seed % 3 == 2 {
            assert!(sessions(&sim)[holder] > before, "seed {seed}");
        } else {
            assert!(!after.contains(&holder), "seed {seed}");
        }
    }
}

/// A relay that starts after the deletion has seen no beat of it, and waits for the longest hold.
#[test]
fn a_relay_of_which_nobody_has_seen_a_beat_is_fenced_without_a_beat_key() {
    is_fenced_without(&["beats"]);
}

/// Asserts that a dead relay whose keys are deleted, too, is fenced after the longest hold, and no later.
pub(super) fn is_fenced_without(keys: &[&str]) {
    for seed in 0..6 {
        let mut sim = fleet(seed);
        let dead = holders(&sim).unwrap()[0];
        (0..3).for_each(|host| sim.kill(host, true, 100 * MS));
        sim.hosts[dead].down_until = sim.now + 60_000 * MS;
        keys.iter().for_each(|key| sim.delete(key, dead));
        sim.run_until(sim.now + 5000 * MS);
        assert!(sim.open("cam0").is_empty(), "seed {seed}");
        sim.run_until(sim.now + 2 * HOLD);
        let after = holders(&sim).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        assert!(!after.contains(&dead), "seed {seed}");
        assert_eq!(sim.violation, None);
    }
}

/// The very case in which nobody forwards.
#[test]
fn a_gate_that_runs_out_is_reported_and_again_when_it_opens() {
    for policy in [OnIsolation::Peers, OnIsolation::Stop] {
        let mut sim = Sim::new(2, settings(policy));
        sim.run_until(4000 * MS);
        for _ in 0..3 {
            sim.etcd_down_until = sim.now + 3000 * MS;
            (0..3).for_each(|host| sim.hosts[host].peers_cut_until = sim.now + 3000 * MS);
            sim.run_until(sim.now + 3 * HOLD);
            sim.run_until(sim.now + 3 * HOLD);
        }
        let mut open: BTreeMap<(usize, String), bool> = BTreeMap::new();
        let mut ran_out = 0;
        for (_, host, event) in &sim.reported {
            let (share, is_open) = match event {
                FleetEvent::ShareOpened { share } => (share, true),
                FleetEvent::ShareShut { share, why } => {
                    let named = policy == OnIsolation::Stop || why.contains("nor relay-");
                    ran_out += usize::from(why.contains("etcd") && named);
                    (share, false)
                }
                _ => continue,
            };
            let before = open.insert((*host, share.clone()), is_open);
            assert_ne!(before.unwrap_or(false), is_open, "{event:?}");
        }
        assert_eq!(ran_out, 15, "each of five shares, three times");
    }
}

/// Its gates were shut, or ran out long ago: nothing happens to them.
#[test]
fn a_standby_that_restarts_shuts_nothing() {
    let mut sim = fleet(2);
    let before = holders(&sim).unwrap()[0];
    sim.move_share("cam0", (before + 1) % 3);
    sim.run_until(sim.now + 2 * HOLD);
    assert_ne!(holders(&sim).unwrap()[0], before);
    sim.reported.clear();
    sim.kill(before, false, 100 * MS);
    stays(&mut sim, 3000);
    let is_shut = |event: &FleetEvent| matches!(event, FleetEvent::ShareShut { .. });
    assert!(!was_reported(&sim, is_shut), "{:?}", sim.reported);
}

/// Its gates are shut, and its rules stay with their counters.
#[test]
fn a_relay_that_was_fenced_keeps_its_rules_in_the_data_plane() {
    let two = super::Settings {
        relays: 2,
        ..settings(OnIsolation::Peers)
    };
    for seed in 0..6 {
        let mut sim = Sim::new(seed, two);
        sim.run_until(6000 * MS);
        let before = sessions(&sim);
        let fenced = holders(&sim).unwrap()[0];
        sim.hosts[fenced].stopped_until = sim.now + 3 * HOLD;
        for _ in 0..8000 {
            sim.run_until(sim.now + MS);
            assert_eq!(sim.hosts[fenced].install.len(), 5, "seed {seed}");
        }
        assert!(sessions(&sim)[fenced] > before[fenced]);
        assert!(!holders(&sim).unwrap().contains(&fenced));
    }
}

#[test]
fn two_processes_of_a_name_are_reported_by_both_for_as_long_as_they_run() {
    let mut sim = fleet(4);
    let wrong = |sim: &Sim, host: usize| {
        let member = sim.hosts[host].member.as_ref().unwrap();
        let problems = member.status(sim.local(host)).wrong;
        problems.iter().any(|it| it.contains("another process"))
    };
    sim.kill(2, true, 100 * MS);
    sim.name(2, "relay-1");
    sim.run_until(sim.now + 8000 * MS);
    assert_eq!([0, 1, 2].map(|host| wrong(&sim, host)), [false, true, true]);
    sim.kill(2, true, 60_000 * MS);
    sim.run_until(sim.now + 11_000 * MS);
    assert!(!wrong(&sim, 1));
    assert_eq!(sim.violation, None);
}

#[test]
fn an_emptied_prefix_takes_no_rules_away() {
    let mut sim = fleet(4);
    let before = holders(&sim).unwrap();
    sim.etcd.operator_put("/mcr/plant/settings", b"{}".to_vec());
    let keys: Vec<String> = sim.etcd.keys.keys().cloned().collect();
    for key in keys.iter().filter(|key| !key.contains("/beats/")) {
        sim.etcd.operator_delete(key);
    }
    sim.run_until(sim.now + 1000 * MS);
    assert_eq!(holders(&sim), Ok(before));
    assert_eq!(sim.violation, None);
    let status = sim.hosts[0].member.as_ref().unwrap().status(sim.local(0));
    let is_reported = status
        .wrong
        .iter()
        .any(|wrong| wrong.contains("rules/current has gone"));
    assert!(is_reported, "{:?}", status.wrong);
}

#[test]
fn a_restored_backup_shuts_all_for_a_hold() {
    for seed in 5..9 {
        let mut sim = fleet(seed);
        let backup = sim.etcd.clone();
        sim.run_until(sim.now + 3000 * MS);
        sim.etcd = backup;
        sim.run_until(sim.now + 700 * MS);
        assert!(was_reported(&sim, |event| *event == FleetEvent::Restored));
        assert!(sim.shares().iter().all(|share| sim.open(share).is_empty()));
        sim.run_until(sim.now + 4 * HOLD);
        holders(&sim).unwrap();
        assert_eq!(sim.violation, None);
    }
}

/// It deletes its key of a backup, and receives nothing any more: no key is left to be fenced.
#[test]
fn what_a_backup_says_that_a_relay_holds_is_free_once_its_key_is_discarded() {
    for seed in 5..11 {
        let mut sim = fleet(seed);
        let holder = holders(&sim).unwrap()[0];
        let key = format!("/mcr/plant/beats/relay-{holder}");
        let backup = sim.etcd.clone();
        sim.run_until(sim.now + 3000 * MS);
        sim.etcd = backup;
        while sim.etcd.keys.contains_key(&key) {
            sim.run_until(sim.now + MS / 10);
        }
        sim.hosts[holder].deaf_until = sim.now + 60_000 * MS;
        sim.run_until(sim.now + 3 * HOLD);
        let open = sim.open("cam0");
        assert!(open.len() == 1 && open != [holder], "seed {seed}: {open:?}");
        assert_eq!(sim.violation, None);
    }
}

/// It never learns that it holds the share, and its peers would promise not to fence it.
#[test]
fn what_is_given_to_a_relay_that_etcd_no_longer_reaches_is_soon_taken_again() {
    for seed in 0..6 {
        let mut sim = fleet(seed);
        let holder = holders(&sim).unwrap()[0];
        let cut = (holder + 1) % 3;
        sim.hosts[cut].etcd_cut_until = sim.now + 60_000 * MS;
        sim.run_until(sim.now + 50 * MS);
        sim.move_share("cam0", cut);
        sim.run_until(sim.now + HOLD);
        assert!(sim.open("cam0").is_empty(), "it was given away");
        sim.run_until(sim.now + 3 * HOLD);
        let open = sim.open("cam0");
        assert!(open.len() == 1 && open != [cut], "seed {seed}: {open:?}");
        assert_eq!(sim.violation, None);
    }
}

#[test]
fn an_unfit_holder_hands_over_after_half_a_second() {
    let mut sim = fleet(6);
    let holder = holders(&sim).unwrap()[0];
    sim.input(holder, Input::Fitness(down("output eth2 is down")));
    sim.run_until(sim.now + 400 * MS);
    assert_eq!(holders(&sim).unwrap()[0], holder);
    sim.run_until(sim.now + 400 * MS);
    assert_ne!(holders(&sim).unwrap()[0], holder);
}

#[test]
fn others_get_the_whole_reason_or_a_mark_that_there_is_more() {
    for (reason, published) in [
        ("r".repeat(120), "r".repeat(120)),
        ("r".repeat(121), "r".repeat(120) + "…"),
    ] {
        let mut sim = fleet(6);
        sim.input(0, Input::Fitness(down(&reason)));
        sim.run_until(sim.now + 600 * MS);
        let other = sim.hosts[1].member.as_ref().unwrap();
        let status = other.status(sim.local(1));
        assert_eq!(status.relays["relay-0"].reported.unfit["cam0"], published);
    }
}

#[test]
fn a_share_that_nobody_is_fit_for_stays_and_is_taken_all_the_same() {
    let mut sim = fleet(6);
    let holder = holders(&sim).unwrap()[0];
    for host in 0..3 {
        sim.input(host, Input::Fitness(down("no link")));
    }
    sim.run_until(sim.now + 4 * HOLD);
    assert_eq!(holders(&sim).unwrap()[0], holder);
    sim.kill(holder, true, 100 * HOLD);
    sim.run_until(sim.now + 3 * HOLD);
    assert_eq!(sim.open("cam0").len(), 1);
    assert_ne!(sim.open("cam0"), [holder]);
}

/// A recorded question that is sent again and again keeps nobody from taking over.
#[test]
fn a_question_that_is_repeated_is_answered_once() {
    let mut sim = fleet(9);
    let dead = holders(&sim).unwrap()[0];
    let sessions = sessions(&sim);
    sim.kill(dead, true, 60_000 * MS);
    let end = sim.now + 3 * HOLD;
    while sim.now < end {
        for host in (0..sessions.len()).filter(|host| *host != dead) {
            let question = Question {
                from: format!("relay-{dead}"),
                session: sessions[dead],
                to: format!("relay-{host}"),
                to_session: sessions[host],
                hold_ms: HOLD / MS,
                nonce: 1,
            };
            sim.input(host, Input::Question(question));
        }
        sim.run_until(sim.now + 100 * MS);
    }
    assert!(!holders(&sim).unwrap().contains(&dead));
    assert_eq!(sim.violation, None);
}

#[test]
fn who_leaves_gives_everything_away_first() {
    let mut sim = fleet(7);
    let holder = holders(&sim).unwrap()[0];
    let before = sim.now;
    sim.leave(holder);
    sim.run_until(before + 600 * MS);
    assert!(!holders(&sim).unwrap().contains(&holder));
    let fenced = |event: &FleetEvent| matches!(event, FleetEvent::RelayFenced { .. });
    assert!(!was_reported(&sim, fenced), "it went in order");
}

#[test]
fn status_shows_who_holds_what() {
    let sim = fleet(8);
    let holders = holders(&sim).unwrap();
    let status = sim.hosts[1].member.as_ref().unwrap().status(sim.local(1));
    assert_eq!(status.phase, PhaseName::Joined);
    assert_eq!(status.relays.len(), 3);
    for (share, holder) in sim.shares().iter().zip(holders) {
        let share = &status.shares[share];
        assert_eq!(share.relay, Some(format!("relay-{holder}")));
        assert_ne!(share.standby, share.relay);
        assert_eq!(share.problem, None);
    }
    let held: usize = status
        .relays
        .values()
        .map(|relay| relay.reported.shares)
        .sum();
    assert_eq!(held, sim.settings.shares);
}
