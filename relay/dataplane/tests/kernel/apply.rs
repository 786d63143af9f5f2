//! What `apply` promises: atomic for every packet, all or nothing, fast.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use compile::diff::TableDiff;
use compile::table::Table;
use dataplane::{Capacity, CounterScan, Error};

use crate::bed::{Bed, route, table};

const IN: Ipv4Addr = Ipv4Addr::new(239, 1, 1, 1);
const OUT: Ipv4Addr = Ipv4Addr::new(239, 10, 1, 1);
const PATIENCE: Duration = Duration::from_secs(5);

fn group(base: Ipv4Addr, i: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(base.to_bits() + i)
}

fn many(bed: &Bed, rules: u32, first_port: u16) -> Table {
    table((0..rules).map(|i| {
        let outputs = vec![bed.output(0, group(OUT, i), first_port)];
        (
            bed.key(group(IN, i), 5001),
            route(&format!("rule{i}"), outputs),
        )
    }))
}

#[test]
fn sets_changes_and_removes_ten_thousand_routes() {
    let bed = Bed::new();
    let mut dataplane = bed.open(Capacity::default());
    let (first, second) = (many(&bed, 10_000, 6001), many(&bed, 10_000, 7001));
    let none = Table::default();
    // The durations are only printed; load makes them longer, not wrong.
    for (what, from, to) in [
        ("add", &none, &first),
        ("change", &first, &second),
        ("change back", &second, &first),
        ("remove", &first, &none),
    ] {
        let diff = TableDiff::between(from, to);
        let start = Instant::now();
        bed.inside(|| dataplane.apply(&diff).unwrap());
        eprintln!("{what} 10,000 routes: {:?}", start.elapsed());
        let start = Instant::now();
        let counters = dataplane.counters().unwrap();
        eprintln!("read the counters: {:?}", start.elapsed());
        assert_eq!(
            counters.rules.len(),
            10_000,
            "counters outlive their routes"
        );
    }
}

/// Between two parts a rule that has counted is removed, and another is added that gets its counters.
#[test]
fn a_reading_attributes_counts_to_their_rules_while_rules_change() {
    const RULES: u32 = 2048;
    let bed = Bed::new();
    let mut dataplane = bed.open(Capacity {
        routes: RULES + 1,
        outputs: RULES + 1,
    });
    let mut now = many(&bed, RULES, 6001);
    bed.sync(&mut dataplane, &now);
    let sender = bed.sender();
    for i in [0, 1, 2, 3, RULES - 1] {
        let sink = bed.sink(group(OUT, i), 6001);
        let to = group(IN, i).into();
        sender.send_numbered(to, 5001, 10, 100).unwrap();
        sink.expect(10, PATIENCE).unwrap();
    }
    let mut reading = CounterScan::default();
    let mut changes = 0;
    while reading.go_on(&dataplane).unwrap() {
        changes += 1;
        let mut next = now.clone();
        next.routes.remove(&bed.key(group(IN, changes), 5001));
        let added = route(&format!("come{changes}"), vec![bed.output(0, OUT, 7001)]);
        let key = bed.key(group(IN, RULES + changes), 5001);
        next.routes.insert(key, added);
        bed.inside(|| dataplane.apply(&TableDiff::between(&now, &next)).unwrap());
        dataplane.forget([format!("rule{changes}").as_str()]);
        now = next;
    }
    assert!(changes >= 3, "{changes} changes between the parts");
    let (read, whole) = (reading.finish(), dataplane.counters().unwrap());
    for i in [0, RULES - 1] {
        let name = format!("rule{i}");
        assert_eq!(read.rules[&name].received.packets, 10, "{name}");
        assert_eq!(read.rules[&name], whole.rules[&name], "{name}");
    }
    for number in 1..=changes {
        let added = read.rules.get(&format!("come{number}"));
        let packets = added.map_or(0, |added| added.received.packets);
        assert_eq!(packets, 0, "come{number} counted nothing");
    }
}

#[test]
fn refuses_what_does_not_fit_and_changes_nothing() {
    let bed = Bed::new();
    let mut dataplane = bed.open(Capacity {
        routes: 4,
        outputs: 8,
    });
    let first = many(&bed, 4, 6001);
    bed.sync(&mut dataplane, &first);
    let before = dataplane.counters().unwrap();

    let diff = TableDiff::between(&first, &many(&bed, 5, 6001));
    let error = bed.inside(|| dataplane.apply(&diff).unwrap_err());
    assert!(
        matches!(
            error,
            Error::Capacity {
                what: "routes",
                wanted: 5,
                limit: 4
            }
        ),
        "{error}"
    );

    let mut wide = first.clone();
    let outputs = (0..5).map(|i| bed.output(i, group(OUT, i), 6001)).collect();
    wide.routes
        .insert(bed.key(IN, 5001), route("rule0", outputs));
    let diff = TableDiff::between(&first, &wide);
    let error = bed.inside(|| dataplane.apply(&diff).unwrap_err());
    assert!(matches!(error, Error::Capacity { limit: 4, .. }), "{error}");
    assert_eq!(dataplane.counters().unwrap(), before);

    bed.sync(&mut dataplane, &many(&bed, 4, 7001));
    bed.sync(&mut dataplane, &many(&bed, 4, 8001));
}

#[test]
fn more_own_addresses_than_fit_leave_nothing_behind() {
    let bed = Bed::new();
    let mut dataplane = bed.open(Capacity::default());
    let mut wanted = many(&bed, 1, 6001);
    let own = (0..=65_536).map(|i| group(Ipv4Addr::new(10, 0, 0, 0), i));
    wanted.own_addresses = own.map(Into::into).collect();
    let diff = TableDiff::between(&Table::default(), &wanted);
    for refused in [
        bed.inside(|| dataplane.apply(&diff).unwrap_err()),
        bed.inside(|| dataplane.sync(&wanted).unwrap_err()),
    ] {
        let text = refused.to_string();
        assert!(text.contains("own addresses"), "{text}");
        let rules = dataplane.counters().unwrap().rules;
        assert!(rules.is_empty(), "nothing of it is there: {rules:?}");
    }
    wanted.own_addresses.addresses.pop_last();
    bed.sync(&mut dataplane, &wanted);
    bed.sync(&mut dataplane, &Table::default());
}

#[test]
fn no_packet_is_lost_doubled_or_misled_while_routes_change() {
    let bed = Bed::new();
    let mut dataplane = bed.open(Capacity::default());
    let variant = |count: u32| {
        let outputs = (0..count)
            .map(|i| bed.output(i, group(OUT, i), 6001))
            .collect();
        table([(bed.key(IN, 5001), route("cam1", outputs))])
    };
    let tables: Vec<Table> = [1, 3, 2, 8].map(variant).into();
    bed.sync(&mut dataplane, &tables[0]);

    let stop = AtomicBool::new(false);
    let sender = bed.sender();
    let sent = thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let mut sent = 0u64;
            while !stop.load(Ordering::Relaxed) {
                sender.send(IN.into(), 5001, &sent.to_be_bytes()).unwrap();
                sent += 1;
            }
            sent
        });
        for round in 0..400 {
            let (old, new) = (&tables[round % 4], &tables[(round + 1) % 4]);
            let diff = TableDiff::between(old, new);
            bed.inside(|| dataplane.apply(&diff).unwrap());
        }
        stop.store(true, Ordering::Relaxed);
        traffic.join().unwrap()
    });
    lab::wait::until("every packet was counted", || {
        dataplane.counters().unwrap().rules["cam1"].received.packets == sent
    })
    .unwrap();
    let counters = dataplane.counters().unwrap();
    let rule = &counters.rules["cam1"];
    let copies: Vec<u64> = (0..8).map(|i| rule.outputs[&i].sent.packets).collect();
    eprintln!("{sent} packets, copies per output {copies:?}");
    assert_eq!(copies[0], sent, "the first output is in every table");
    assert!(copies.is_sorted_by(|a, b| a >= b), "{copies:?}");
    assert_eq!(
        copies[3], copies[7],
        "outputs of one table are seen together"
    );
    assert_eq!(rule.dropped.total(), 0);
}
