//! What outlives the process: forwarding, counters, and the next process's take-over.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use compile::table::{Path, Route};
use dataplane::{Capacity, Close, Dataplane};
use lab::link;
use rules::health::Inspect;

use crate::bed::{Bed, route, table};

const IN: Ipv4Addr = Ipv4Addr::new(239, 1, 1, 1);
const OUT: Ipv4Addr = Ipv4Addr::new(239, 10, 1, 1);
const PATIENCE: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_millis(100);

#[test]
fn forwards_and_counts_while_no_process_runs_and_is_adopted() {
    let bed = Bed::new();
    let sender = bed.sender();
    let sink = bed.sink(OUT, 6001);
    let old = table([(
        bed.key(IN, 5001),
        route("cam1", vec![bed.output(0, OUT, 6001)]),
    )]);
    let mut dataplane = bed.open(Capacity::default());
    bed.sync(&mut dataplane, &old);
    sender.send_numbered(IN.into(), 5001, 10, 100).unwrap();
    sink.expect(10, PATIENCE).unwrap();
    drop(dataplane);
    // As left by former versions, which did not have all of the maps.
    let maps = bed.pins().join(format!("maps-{}", bpf::layout::HASH));
    fs::remove_file(maps.join("opened")).unwrap();
    fs::remove_dir_all(programs(&bed)).unwrap();

    sender.send_numbered(IN.into(), 5001, 20, 100).unwrap();
    sink.expect(20, PATIENCE).unwrap();

    let mut dataplane = bed.open(Capacity::default());
    sender.send_numbered(IN.into(), 5001, 30, 100).unwrap();
    sink.expect(30, PATIENCE).unwrap();
    bed.sync(&mut dataplane, &old);
    let counters = dataplane.counters().unwrap();
    assert_eq!(counters.rules["cam1"].received.packets, 60);
    assert_eq!(counters.rules["cam1"].outputs[&0].sent.packets, 60);

    let new = table([(
        bed.key(IN, 5002),
        route("cam2", vec![bed.output(0, OUT, 6001)]),
    )]);
    bed.sync(&mut dataplane, &new);
    sender.send_numbered(IN.into(), 5001, 10, 100).unwrap();
    sink.expect_nothing(SILENCE).unwrap();
    sender.send_numbered(IN.into(), 5002, 10, 100).unwrap();
    sink.expect(10, PATIENCE).unwrap();
}

/// The one directory of verified programs.
fn programs(bed: &Bed) -> PathBuf {
    let names = fs::read_dir(bed.pins()).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut programs = names.filter(|name| name.starts_with("programs-"));
    let one = programs.next().unwrap();
    assert_eq!(programs.next(), None);
    bed.pins().join(one)
}

#[test]
fn programs_are_verified_once_for_all_processes_that_follow() {
    let bed = Bed::new();
    let sender = bed.sender();
    let sink = bed.sink(OUT, 6001);
    let rules = table([(
        bed.key(IN, 5001),
        route("cam1", vec![bed.output(0, OUT, 6001)]),
    )]);
    let program = || {
        let mut dataplane = bed.open(Capacity::default());
        bed.sync(&mut dataplane, &rules);
        sender.send_numbered(IN.into(), 5001, 10, 100).unwrap();
        sink.expect(10, PATIENCE).unwrap();
        let attached = bed.inside(|| bpf::attached::tcx_ingress("veth1").unwrap());
        let [program] = attached.as_slice() else {
            panic!("{attached:?}");
        };
        program.id
    };
    let pinned = || programs(&bed);
    let first = program();
    assert_eq!(program(), first);
    // The program for bare IP was not needed here.
    assert!(!pinned().join("relay_bare").exists());
    fs::remove_file(pinned().join("relay")).unwrap();
    let missing = program();
    assert_ne!(missing, first);
    // Programs left by another build.
    fs::rename(pinned(), bed.pins().join("programs-0123")).unwrap();
    let second = program();
    assert_ne!(second, missing);
    assert!(!pinned().ends_with("programs-0123"));
    assert_eq!(program(), second);
    // Programs that use other maps are not reused.
    let maps = format!("maps-{}", bpf::layout::HASH);
    fs::rename(bed.pins().join(maps), bed.pins().join("maps-other")).unwrap();
    let third = program();
    assert_ne!(third, second);
    assert_eq!(program(), third);
}

#[test]
fn each_input_counts_on_while_no_process_runs_and_others_come_and_go() {
    let bed = Bed::new();
    let sender = bed.sender();
    let sink = bed.sink(OUT, 6001);
    let relayed = |port, count| {
        sender.send_numbered(IN.into(), port, count, 100).unwrap();
        sink.expect(count, PATIENCE).unwrap();
    };
    let input = |port: u16, input: Option<&str>| {
        let route = Route {
            input: input.map(str::to_owned),
            ..route("cam1", vec![bed.output(0, OUT, 6001)])
        };
        (bed.key(IN, port), route)
    };
    let alone = table([input(5001, None)]);
    let both = table([input(5001, Some("a")), input(5002, Some("b"))]);
    let mut dataplane = bed.open(Capacity::default());
    bed.sync(&mut dataplane, &alone);
    relayed(5001, 7);
    assert_eq!(counted(&dataplane), (7, vec![]));
    bed.sync(&mut dataplane, &both);
    relayed(5001, 10);
    relayed(5002, 20);
    assert_eq!(counted(&dataplane), (37, vec![("a", 10), ("b", 20)]));
    drop(dataplane);

    relayed(5001, 1);
    relayed(5002, 2);
    let mut dataplane = bed.open(Capacity::default());
    relayed(5002, 3);
    bed.sync(&mut dataplane, &both);
    relayed(5001, 4);
    assert_eq!(counted(&dataplane), (47, vec![("a", 15), ("b", 25)]));

    // One input is removed, and its counts wait for it.
    bed.sync(&mut dataplane, &alone);
    relayed(5001, 5);
    bed.sync(&mut dataplane, &both);
    relayed(5001, 1);
    relayed(5002, 1);
    assert_eq!(counted(&dataplane), (54, vec![("a", 16), ("b", 26)]));

    // Not so when the rule was removed.
    bed.sync(&mut dataplane, &table([]));
    dataplane.forget(["cam1"]);
    bed.sync(&mut dataplane, &both);
    relayed(5002, 1);
    assert_eq!(counted(&dataplane), (1, vec![("a", 0), ("b", 1)]));
}

/// Packets that `cam1` received, and by which input.
fn counted(dataplane: &Dataplane) -> (u64, Vec<(&'static str, u64)>) {
    let counters = dataplane.counters().unwrap();
    let rule = &counters.rules["cam1"];
    let inputs = ["a", "b"].into_iter();
    let inputs = inputs.filter_map(|at| Some((at, rule.inputs.get(at)?.received.packets)));
    (rule.received.packets, inputs.collect())
}

#[test]
fn what_was_found_in_a_rules_packets_outlives_its_route_and_the_process() {
    let bed = Bed::new();
    let sender = bed.sender();
    let sink = bed.sink(OUT, 6001);
    let watched = || Route {
        inspect: Some(Inspect::default()),
        ..route("cam1", vec![bed.output(0, OUT, 6001)])
    };
    let old = table([(bed.key(IN, 5001), watched())]);
    let mut dataplane = bed.open(Capacity::default());
    bed.sync(&mut dataplane, &old);
    // None of them is of the form looked for.
    sender.send_numbered(IN.into(), 5001, 10, 100).unwrap();
    sink.expect(10, PATIENCE).unwrap();
    bed.sync(&mut dataplane, &table([]));
    drop(dataplane);

    let mut dataplane = bed.open(Capacity::default());
    bed.sync(&mut dataplane, &old);
    sender.send_numbered(IN.into(), 5001, 5, 100).unwrap();
    sink.expect(5, PATIENCE).unwrap();
    let counters = dataplane.counters().unwrap();
    assert_eq!(counters.rules["cam1"].received.packets, 15);
    assert_eq!(
        counters.rules["cam1"].health.as_ref().unwrap().unrecognised,
        15
    );
    assert!(counters.rules["cam1"].latency[&Path::Kernel].samples() > 0);

    // A rule of the same name that is added after its removal begins anew.
    bed.sync(&mut dataplane, &table([]));
    dataplane.forget(["cam1"]);
    bed.sync(&mut dataplane, &old);
    let counters = dataplane.counters().unwrap();
    assert_eq!(counters.rules["cam1"].health, None);
    assert_eq!(counters.rules["cam1"].latency, [].into());
}

#[test]
fn a_rule_that_comes_after_a_forgotten_one_and_a_restart_starts_from_zero() {
    let bed = Bed::new();
    let sender = bed.sender();
    let sink = bed.sink(OUT, 6001);
    let of = |rule| {
        table([(
            bed.key(IN, 5001),
            route(rule, vec![bed.output(0, OUT, 6001)]),
        )])
    };
    let mut dataplane = bed.open(Capacity::default());
    bed.sync(&mut dataplane, &of("cam1"));
    sender.send_numbered(IN.into(), 5001, 10, 100).unwrap();
    sink.expect(10, PATIENCE).unwrap();
    bed.sync(&mut dataplane, &table([]));
    dataplane.forget(["cam1"]);
    drop(dataplane);

    let mut dataplane = bed.open(Capacity::default());
    bed.sync(&mut dataplane, &of("cam2"));
    sender.send_numbered(IN.into(), 5001, 3, 100).unwrap();
    sink.expect(3, PATIENCE).unwrap();
    let counters = dataplane.counters().unwrap();
    assert_eq!(counters.rules["cam2"].received.packets, 3);
    assert_eq!(counters.rules["cam2"].outputs[&0].sent.packets, 3);
}

#[test]
fn detaches_on_request_and_leaves_nothing_behind() {
    let bed = Bed::new();
    let mut dataplane = bed.open(Capacity::default());
    let key = bed.key(IN, 5001);
    bed.sync(
        &mut dataplane,
        &table([(key, route("cam1", vec![bed.output(0, OUT, 6001)]))]),
    );
    assert!(bed.pins().join(format!("link-{}", bed.ingress)).exists());
    bed.inside(|| dataplane.close(Close::Detach).unwrap());
    assert!(!bed.pins().exists());
    let sink = bed.sink(OUT, 6001);
    bed.sender()
        .send_numbered(IN.into(), 5001, 10, 100)
        .unwrap();
    sink.expect_nothing(SILENCE).unwrap();
}

#[test]
fn replaces_maps_of_another_layout_without_detaching() {
    let bed = Bed::new();
    let mut dataplane = bed.open(Capacity::default());
    let wanted = table([(
        bed.key(IN, 5001),
        route("cam1", vec![bed.output(0, OUT, 6001)]),
    )]);
    bed.sync(&mut dataplane, &wanted);
    drop(dataplane);
    let maps = fs::read_dir(bed.pins())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.is_dir())
        .unwrap();
    let foreign = bed.pins().join("maps-0123456789abcdef");
    fs::create_dir(&foreign).unwrap();
    for pin in fs::read_dir(&maps).unwrap() {
        let pin = pin.unwrap();
        fs::rename(pin.path(), foreign.join(pin.file_name())).unwrap();
    }

    let mut dataplane = bed.open(Capacity::default());
    bed.sync(&mut dataplane, &wanted);
    assert!(!foreign.exists());
    let sink = bed.sink(OUT, 6001);
    bed.sender()
        .send_numbered(IN.into(), 5001, 10, 100)
        .unwrap();
    sink.expect(10, PATIENCE).unwrap();
    assert_eq!(
        dataplane.counters().unwrap().rules["cam1"].received.packets,
        10
    );
}

#[test]
fn attaches_again_when_an_interface_comes_back_with_its_index() {
    let bed = Bed::new();
    let mut dataplane = bed.open(Capacity::default());
    bed.sync(
        &mut dataplane,
        &table([(
            bed.key(IN, 5001),
            route("cam1", vec![bed.output(0, OUT, 6001)]),
        )]),
    );
    let (sender, relay) = (&bed.chain.sender, &bed.chain.relay);
    link::delete((relay, "veth1")).unwrap();
    bed.inside(|| dataplane.tick().unwrap());
    relay
        .ip(&format!(
            "link add veth1 index {} type veth peer name veth0 netns {}",
            bed.ingress,
            sender.name()
        ))
        .unwrap();
    for end in [(relay, "veth1"), (sender, "veth0")] {
        link::up(end).unwrap();
    }
    link::address((sender, "veth0"), "10.0.0.1/24").unwrap();
    link::multicast_route((sender, "veth0")).unwrap();
    bed.inside(|| dataplane.tick().unwrap());
    let sink = bed.sink(OUT, 6001);
    bed.sender()
        .send_numbered(IN.into(), 5001, 10, 100)
        .unwrap();
    sink.expect(10, PATIENCE).unwrap();
}

/// Each word is of a kind that an index, a length or a flag may be.
fn nonsense(seed: u64) -> impl FnMut() -> u32 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        match state >> 61 {
            0 => u32::MAX,
            1 => 1 << (state % 32),
            2 => (state % 100_000) as u32,
            3 => state as u32,
            _ => (state % 8) as u32,
        }
    }
}

#[test]
fn nothing_that_pinned_maps_hold_is_believed() {
    let bed = Bed::new();
    let (sender, sink) = (bed.sender(), bed.sink(OUT, 6001));
    let (one, range) = (bed.key(IN, 5001), bed.key(IN, 5002));
    let range = compile::table::RouteKey {
        ports: rules::net::Ports {
            first: 5002,
            last: 5010,
        },
        ..range
    };
    let specific = compile::table::RouteKey {
        source: Some(IpAddr::from([10, 0, 0, 1]).into()),
        ..bed.key(IN, 5020)
    };
    let two = |rule| {
        let outputs = vec![bed.output(0, OUT, 6001), bed.output(1, IN, 6002)];
        route(rule, outputs)
    };
    let wanted = table([(one, two("a")), (range, two("b")), (specific, two("c"))]);
    bed.sync(&mut bed.open(Capacity::default()), &wanted);
    let entries = fs::read_dir(bed.pins()).unwrap();
    let mut paths = entries.map(|entry| entry.unwrap().path());
    let maps = paths.find(|path| path.is_dir()).unwrap();
    for seed in 1..=12 {
        let mut word = nonsense(seed);
        for pin in fs::read_dir(&maps).unwrap() {
            dataplane::corrupt::scribble(&pin.unwrap().path(), &mut word).unwrap();
        }
        println!("seed {seed}");
        let mut dataplane = bed.open(Capacity::default());
        bed.sync(&mut dataplane, &wanted);
        dataplane.counters().unwrap();
        for port in [5001, 5004, 5020] {
            sender.send_numbered(IN.into(), port, 5, 100).unwrap();
            let relayed = sink.expect(5, PATIENCE);
            relayed.unwrap_or_else(|error| panic!("seed {seed}, port {port}: {error}"));
        }
        bed.sync(&mut dataplane, &table([]));
        bed.sync(&mut dataplane, &wanted);
    }
}

#[test]
fn a_gate_stays_as_it_is_while_no_process_runs_and_for_the_next_one() {
    let bed = Bed::new();
    let sender = bed.sender();
    let sink = bed.sink(OUT, 6001);
    let of = |share: Option<&str>| {
        let route = Route {
            share: share.map(str::to_owned),
            ..route("cam1", vec![bed.output(0, OUT, 6001)])
        };
        table([(bed.key(IN, 5001), route)])
    };
    let relayed = |is_open: bool| {
        sender.send_numbered(IN.into(), 5001, 10, 100).unwrap();
        if is_open {
            drop(sink.expect(10, PATIENCE).unwrap())
        } else {
            sink.expect_nothing(SILENCE).unwrap()
        }
    };
    let mut dataplane = bed.open(Capacity::default());
    bed.sync(&mut dataplane, &of(Some("x")));
    relayed(false);
    dataplane.gates().set("x", u64::MAX);
    relayed(true);
    drop(dataplane);
    relayed(true);

    let mut dataplane = bed.open(Capacity::default());
    assert_eq!(dataplane.gates().until("x"), u64::MAX);
    relayed(true);
    bed.sync(&mut dataplane, &of(Some("x")));
    relayed(true);
    let until = sys::clock::boottime_ns() + 200_000_000;
    dataplane.gates().set("x", until);
    drop(dataplane);
    // No process is there to shut it.
    while sys::clock::boottime_ns() <= until {
        std::thread::sleep(Duration::from_millis(10));
    }
    relayed(false);

    let mut dataplane = bed.open(Capacity::default());
    assert!(dataplane.gates().until("x").abs_diff(until) < 1_000_000);
    bed.sync(&mut dataplane, &of(Some("x")));
    relayed(false);
    // Of another share; and of none at last.
    dataplane.gates().set("x", u64::MAX);
    relayed(true);
    bed.sync(&mut dataplane, &of(Some("y")));
    relayed(false);
    drop(dataplane);
    let mut dataplane = bed.open(Capacity::default());
    assert_eq!(dataplane.gates().until("x"), 0, "nobody has it any more");
    bed.sync(&mut dataplane, &of(None));
    relayed(true);
    let counters = dataplane.counters().unwrap();
    let rule = &counters.rules["cam1"];
    let standby = rule.dropped.0[packet::verdict::DropReason::Standby as usize];
    assert_eq!((rule.received.packets, standby), (100, 40));
}
