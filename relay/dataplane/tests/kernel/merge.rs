//! Merged lines: what they delivered outlives the process, and a change without room changes nothing.

use std::net::Ipv4Addr;
use std::time::Duration;

use compile::diff::TableDiff;
use compile::table::{MergeLegs, Route, RouteKey, Table};
use dataplane::counters::LineStats;
use dataplane::{Capacity, Dataplane, Error};
use rules::merge::{By, ByteOrder, Field, Merge, Sequence};

use crate::bed::{Bed, route, table};

const IN: Ipv4Addr = Ipv4Addr::new(239, 1, 1, 1);
const OUT: Ipv4Addr = Ipv4Addr::new(239, 10, 1, 1);
const PATIENCE: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_millis(100);

/// A rule whose lines are ports, merged by the number that `send_numbered` puts after four bytes.
fn merged(bed: &Bed, rule: &str, ports: &[u16]) -> Vec<(RouteKey, Route)> {
    let by = By::Sequence(Sequence {
        number: Field {
            offset: 4,
            bytes: 8,
        },
        order: ByteOrder::Big,
        session: None,
        count: None,
    });
    let merge = MergeLegs {
        how: Merge {
            by,
            window: Duration::from_secs(60),
            ..Merge::default()
        },
        lines: ports.iter().map(u16::to_string).collect(),
    };
    let line = |port: &u16| {
        let route = Route {
            input: Some(port.to_string()),
            merge: Some(Box::new(merge.clone())),
            ..route(rule, vec![bed.output(0, OUT, 6001)])
        };
        (bed.key(IN, *port), route)
    };
    ports.iter().map(line).collect()
}

/// Sends numbers from 0 to a port, of which the last ones are new and pass.
fn sending(bed: &Bed) -> impl Fn(u16, u64, u64) {
    let (sender, sink) = (bed.sender(), bed.sink(OUT, 6001));
    move |port, count, new| {
        sender.send_numbered(IN.into(), port, count, 100).unwrap();
        if new > 0 {
            sink.expect_these(count - new..count, PATIENCE).unwrap();
        }
        sink.expect_nothing(SILENCE).unwrap();
    }
}

fn counted(dataplane: &Dataplane) -> Vec<LineStats> {
    let counters = dataplane.counters().unwrap();
    let merge = counters.rules["cam1"].merge.as_ref().unwrap();
    merge.lines.values().copied().collect()
}

#[test]
fn lines_merge_on_while_no_process_runs_and_are_adopted() {
    let bed = Bed::new();
    let send = sending(&bed);
    let wanted = table(merged(&bed, "cam1", &[5001, 5002]));
    let mut dataplane = bed.open(Capacity::default());
    bed.sync(&mut dataplane, &wanted);
    send(5001, 5, 5);
    send(5002, 5, 0);
    drop(dataplane);

    // Fewer packets than a restart needs are repeated. Number 0 is identified by its payload.
    send(5002, 6, 1);
    let mut dataplane = bed.open(Capacity::default());
    send(5001, 6, 0);
    bed.sync(&mut dataplane, &wanted);
    send(5002, 6, 0);
    send(5001, 7, 1);
    let [a, b] = counted(&dataplane)[..] else {
        panic!("two lines");
    };
    assert_eq!((a.first, a.duplicate, a.repeated), (6, 3, 9));
    assert_eq!((b.first, b.duplicate, b.repeated), (1, 7, 9));
    // A line that is added after another was removed has its position, and begins without counts.
    bed.sync(&mut dataplane, &table(merged(&bed, "cam1", &[5002, 5003])));
    send(5003, 8, 1);
    let [b, c] = counted(&dataplane)[..] else {
        panic!("two lines");
    };
    assert_eq!((b.first, c.first, c.duplicate), (1, 1, 7));
    let counters = dataplane.counters().unwrap();
    assert_eq!(
        counters.rules["cam1"].merge.as_ref().unwrap().together.lost,
        0
    );
}

#[test]
fn what_there_is_no_room_for_changes_nothing() {
    let bed = Bed::new();
    let capacity = Capacity {
        routes: 4,
        outputs: 64,
    };
    let mut dataplane = bed.open(capacity);
    let of = |rules: &[u16]| {
        let rule = |port: &u16| merged(&bed, &format!("rule{port}"), &[*port]);
        table(rules.iter().flat_map(rule))
    };
    let mut apply = |from: &Table, to: &Table| {
        let diff = TableDiff::between(from, to);
        bed.inside(|| dataplane.apply(&diff))
    };
    let (none, two) = (table([]), of(&[5001, 5002]));
    apply(&none, &two).unwrap();
    for _ in 0..3 {
        let error = apply(&two, &of(&[5001, 5002, 5003])).unwrap_err();
        let is_named = matches!(&error, Error::MergeRoom { rule, .. } if rule == "rule5003");
        assert!(is_named, "{error}");
    }
    // Without a merge it has room, and a removed merge makes room.
    let mut plain = of(&[5001, 5002, 5003]);
    let third = plain.routes.get_mut(&bed.key(IN, 5003)).unwrap();
    third.merge = None;
    apply(&two, &plain).unwrap();
    plain.routes.get_mut(&bed.key(IN, 5001)).unwrap().merge = None;
    let before = of(&[5001, 5002]);
    apply(&before, &plain).unwrap();
    apply(&plain, &of(&[5002, 5003])).unwrap();
    let sender = bed.sender();
    let sink = bed.sink(OUT, 6001);
    for (port, new) in [(5003, 7), (5002, 7)] {
        sender.send_numbered(IN.into(), port, 7, 100).unwrap();
        sink.expect(new, PATIENCE).unwrap();
        sender.send_numbered(IN.into(), port, 7, 100).unwrap();
        sink.expect_nothing(SILENCE).unwrap();
    }
}

/// It is off before the process ends, while none runs, and when the next one begins.
#[test]
fn a_rule_that_is_off_keeps_its_counts_while_no_process_runs() {
    let bed = Bed::new();
    let send = sending(&bed);
    let (off, on) = (table([]), table(merged(&bed, "cam1", &[5001, 5002])));
    let mut dataplane = bed.open(Capacity::default());
    bed.sync(&mut dataplane, &on);
    send(5001, 5, 5);
    send(5002, 5, 0);
    bed.sync(&mut dataplane, &off);
    send(5001, 5, 0);
    drop(dataplane);

    let mut dataplane = bed.open(Capacity::default());
    bed.sync(&mut dataplane, &off);
    bed.sync(&mut dataplane, &on);
    // Number 0 is identified by its payload.
    send(5002, 6, 1);
    let [a, b] = counted(&dataplane)[..] else {
        panic!("two lines");
    };
    assert_eq!((a.first, a.duplicate, a.repeated, a.missed), (5, 0, 0, 0));
    assert_eq!((b.first, b.duplicate, b.repeated, b.missed), (1, 6, 4, 0));
}
