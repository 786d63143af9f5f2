//! One thing after another: restarts, hostile values, deleted keys, restored backups.

use std::collections::BTreeMap;

use super::sim::{MS, Sim};
use super::{HOLD, holders, settings};
use crate::keys::{Policy, SessionNumber};
use crate::member::{Fitness, FleetEvent, Input, PhaseName, Question};

/// A fleet that has come to rest.
fn fleet(seed: u64) -> Sim {
    let mut sim = Sim::new(seed, settings(Policy::Peers));
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

/// cam0 comes, does no more, or has never come.
fn hears(sim: &mut Sim, host: usize, what: Option<bool>) {
    let cam0 = || "cam0".to_owned();
    let silent = (what == Some(false)).then(|| (cam0(), "nothing comes any more".to_owned()));
    let fitness = Fitness {
        silent: silent.into_iter().collect(),
        heard: BTreeMap::from([(cam0(), u32::from(what == Some(true)))]),
        ..Fitness::default()
    };
    sim.input(host, Input::Fitness(fitness));
}

fn was_told(sim: &Sim, wanted: impl Fn(&FleetEvent) -> bool) -> bool {
    sim.told.iter().any(|(_, _, event)| wanted(event))
}

fn sessions(sim: &Sim) -> Vec<SessionNumber> {
    let statuses = (0..sim.hosts.len()).map(|host| {
        let member = sim.hosts[host].member.as_ref().unwrap();
        member.status(sim.local(host))
    });
    statuses.map(|status| status.session).collect()
}

/// Runs on, and holds that nothing changes hands and nothing is shut for even a millisecond.
fn stays(sim: &mut Sim, ms: u64) {
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
    assert!(was_told(&sim, refused));
    let status = sim.hosts[0].member.as_ref().unwrap().status(sim.local(0));
    assert!(
        status.refused.contains_key("/mcr/plant/shares/../../x"),
        "{:?}",
        status.refused
    );
}

/// Its session lives on: the key is what it was, but for its value.
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
            assert!(was_told(&sim, refused), "{key}");
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

/// A key that nobody has seen make sense keeps its relay out for the longest hold.
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

/// The very case in which nobody forwards.
#[test]
fn a_gate_that_runs_out_is_told_and_told_again_when_it_opens() {
    for policy in [Policy::Peers, Policy::Stop] {
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
        for (_, host, event) in &sim.told {
            let (share, is_open) = match event {
                FleetEvent::ShareOpened { share } => (share, true),
                FleetEvent::ShareShut { share, why } => {
                    let named = policy == Policy::Stop || why.contains("nor relay-");
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

#[test]
fn two_processes_of_a_name_are_told_of_by_both_for_as_long_as_they_are_there() {
    let mut sim = fleet(4);
    let wrong = |sim: &Sim, host: usize| {
        let status = sim.hosts[host]
            .member
            .as_ref()
            .unwrap()
            .status(sim.local(host));
        status
            .wrong
            .iter()
            .any(|wrong| wrong.contains("another process"))
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
    let kept = |key: &&String| !key.contains("/beats/");
    for key in keys.iter().filter(kept) {
        sim.etcd.operator_delete(key);
    }
    sim.run_until(sim.now + 1000 * MS);
    assert_eq!(holders(&sim), Ok(before));
    assert_eq!(sim.violation, None);
    let status = sim.hosts[0].member.as_ref().unwrap().status(sim.local(0));
    let told = status
        .wrong
        .iter()
        .any(|wrong| wrong.contains("rules/current has gone"));
    assert!(told, "{:?}", status.wrong);
}

#[test]
fn a_restored_backup_shuts_all_for_a_hold() {
    for seed in 5..9 {
        let mut sim = fleet(seed);
        let backup = sim.etcd.clone();
        sim.run_until(sim.now + 3000 * MS);
        sim.etcd = backup;
        sim.run_until(sim.now + 700 * MS);
        assert!(was_told(&sim, |event| *event == FleetEvent::Restored));
        assert!(sim.shares().iter().all(|share| sim.open(share).is_empty()));
        sim.run_until(sim.now + 4 * HOLD);
        holders(&sim).unwrap();
        assert_eq!(sim.violation, None);
    }
}

/// Whoever sees the other etcd rests for a hold, joins anew and takes what it had.
/// What it sends arrives: it asks for promises that it never gets.
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
        let silent = relays.filter_map(|(name, relay)| relay.unanswered_ms.map(|_| name));
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
        assert!(was_told(&sim, |event| *event == FleetEvent::Restored));
        assert!(!was_told(&sim, |event| *event == FleetEvent::Fenced));
        assert_eq!(sim.violation, None);
        assert!(
            sessions(&sim).iter().all(|session| *session > 0),
            "seed {seed}"
        );
        assert_eq!(holders(&sim), Ok(before), "seed {seed}");
        stays(&mut sim, 3000);
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
                let holders = shares.map(|(name, share)| (name, share.holder, share.since));
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

/// Whoever has recorded a question keeps nobody from taking over by sending it again and again.
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
    assert!(!was_told(&sim, fenced), "it went in order");
}

#[test]
fn status_tells_who_holds_what() {
    let sim = fleet(8);
    let holders = holders(&sim).unwrap();
    let status = sim.hosts[1].member.as_ref().unwrap().status(sim.local(1));
    assert_eq!(status.phase, PhaseName::Joined);
    assert_eq!(status.relays.len(), 3);
    for (share, holder) in sim.shares().iter().zip(holders) {
        let told = &status.shares[share];
        assert_eq!(told.holder, Some(format!("relay-{holder}")));
        assert_ne!(told.standby, told.holder);
        assert_eq!((told.sole, &told.wrong), (false, &None));
    }
    let held: usize = status.relays.values().map(|relay| relay.holds).sum();
    assert_eq!(held, sim.settings.shares);
}

/// A relay whose input never delivers anything, on its own, is neither fit nor unfit: it gets nothing
/// because the others fall silent with the source.
#[test]
fn a_relay_that_never_heard_gets_nothing_in_a_pause_of_the_source() {
    for seed in 0..6 {
        let mut sim = fleet(seed);
        let holder = holders(&sim).unwrap()[0];
        let set = |sim: &mut Sim, what| {
            for host in 0..3 {
                let what = if host == (holder + 1) % 3 {
                    None
                } else {
                    Some(what)
                };
                hears(sim, host, what);
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
        let next = status.shares["cam0"].standby.clone().unwrap();
        let next: usize = next.strip_prefix("relay-").unwrap().parse().unwrap();
        hears(&mut sim, deaf, None);
        sim.run_until(sim.now + 2000 * MS);
        assert_eq!(holders(&sim).unwrap()[0], deaf, "nobody hears anything");
        hears(&mut sim, next, Some(true));
        sim.run_until(sim.now + 600 * MS);
        for host in 0..3 {
            let status = sim.hosts[host]
                .member
                .as_ref()
                .unwrap()
                .status(sim.local(host));
            let wrong = status.shares["cam0"].wrong.clone().unwrap_or_default();
            let named = format!("relay-{deaf} receives nothing of it, and relay-{next} does");
            assert_eq!(wrong, named, "at relay-{host}");
        }
        assert_eq!(holders(&sim).unwrap()[0], deaf, "not yet");
        sim.run_until(sim.now + 1000 * MS);
        assert_eq!(holders(&sim).unwrap()[0], next);
        // It is the last in line from then on, and known to be.
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
        hears(&mut sim, third, Some(true));
        sim.run_until(sim.now + 500 * MS);
        sim.kill(next, true, 60_000 * MS);
        sim.run_until(sim.now + 3 * HOLD);
        assert_eq!(sim.open("cam0"), [third]);
    }
}

/// Whoever hears a source first that starts again has no cause to be given anything.
#[test]
fn a_source_that_starts_again_moves_nothing() {
    for seed in 0..6 {
        let mut sim = fleet(seed);
        let holder = holders(&sim).unwrap()[0];
        (0..3).for_each(|host| hears(&mut sim, host, Some(true)));
        sim.run_until(sim.now + 2000 * MS);
        (0..3).for_each(|host| hears(&mut sim, host, Some(false)));
        stays(&mut sim, 10_000);
        for host in (0..3).filter(|host| *host != holder) {
            hears(&mut sim, host, Some(true));
        }
        stays(&mut sim, 800);
        hears(&mut sim, holder, Some(true));
        stays(&mut sim, 3000);
    }
}
