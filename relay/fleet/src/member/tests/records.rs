//! Faults that a fleet once handled badly, as inputs of one of its members: stored in `tests/records`, and
//! replayed.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use config::OnIsolation;

use super::sim::{MS, Sim};
use super::{HOLD, Settings, settings};
use crate::member::{Fitness, Input};
use crate::record::replay;

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/records")
}

/// A fault of a settled fleet, in which host 0 is recorded.
type Fault = fn(&mut Sim);

fn receives(sim: &mut Sim, host: usize, rules: u32) {
    let fitness = Fitness {
        heard: BTreeMap::from([("cam0".to_owned(), rules)]),
        ..Fitness::default()
    };
    sim.input(host, Input::Fitness(fitness));
}

const FAULTS: [(&str, Fault); 9] = [
    ("never-heard", |sim| {
        receives(sim, 0, 0);
        receives(sim, 1, 1);
        receives(sim, 2, 1);
    }),
    ("source-starts-again", |sim| {
        (0..3).for_each(|host| receives(sim, host, 0));
        sim.run_until(sim.now + 500 * MS);
        (0..3).rev().for_each(|host| receives(sim, host, 1));
    }),
    ("empty-etcd", |sim| {
        sim.wipe();
    }),
    ("nothing-arrives", |sim| {
        sim.hosts[0].deaf_until = sim.now + 3000 * MS;
    }),
    ("peers-blocked", |sim| {
        sim.hosts[1].peers_cut_until = sim.now + 60_000 * MS;
        sim.run_until(sim.now + 9000 * MS);
        sim.etcd_down_until = sim.now + 1500 * MS;
    }),
    ("garbled-beat", |sim| {
        sim.etcd
            .operator_put("/mcr/plant/beats/relay-0", b"garbage".to_vec());
    }),
    ("garbled-share", |sim| {
        sim.etcd
            .operator_put("/mcr/plant/shares/cam0", b"garbage".to_vec());
        sim.kill(1, true, 60_000 * MS);
    }),
    ("gate-runs-out", |sim| {
        sim.etcd_down_until = sim.now + 2000 * MS;
        sim.hosts[0].peers_cut_until = sim.now + 2000 * MS;
    }),
    ("two-of-a-name", |sim| {
        sim.kill(2, true, 100 * MS);
        sim.name(2, "relay-0");
    }),
];

fn record(fault: Fault) -> Vec<u8> {
    let settings = Settings {
        shares: 2,
        ..settings(OnIsolation::Peers)
    };
    let mut sim = Sim::new(1, settings);
    sim.run_until(3000 * MS);
    fault(&mut sim);
    sim.run_until(sim.now + 3 * HOLD);
    sim.record(0)
}

#[test]
fn records_are_replayed_unless_they_are_altered() {
    for (name, fault) in FAULTS {
        let record = record(fault);
        let inputs = replay(&record).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(inputs > 100, "{name}: {inputs}");
    }
    let record = record(FAULTS[2].1);
    let middle = record.len() / 2;
    assert!(replay(&record[..middle]).is_err() || replay(&record[1..]).is_err());
}

#[test]
fn stored_records_are_replayed() {
    for (name, _) in FAULTS {
        let file = directory().join(format!("{name}.record"));
        let record = fs::read(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
        replay(&record).unwrap_or_else(|error| {
            panic!("{name}: {error}\nwhere members are to decide otherwise: cargo test -p fleet --lib keeps_records -- --ignored")
        });
    }
}

#[test]
#[ignore = "writes tests/records anew"]
fn keeps_records() {
    fs::create_dir_all(directory()).unwrap();
    for (name, fault) in FAULTS {
        fs::write(directory().join(format!("{name}.record")), record(fault)).unwrap();
    }
}

/// A record that begins in the middle of a member's life.
#[test]
fn a_record_may_begin_with_a_member_as_it_stands() {
    let mut sim = Sim::new(5, settings(OnIsolation::Peers));
    sim.run_until(3000 * MS);
    sim.checkpoint(0);
    sim.kill(1, true, 500 * MS);
    sim.run_until(sim.now + 4 * HOLD);
    let whole = sim.record(0);
    let late = sim.recent_record(0);
    assert!(late.len() < whole.len());
    assert!(replay(&whole).unwrap() > replay(&late).unwrap());
}
