//! The program as a clsact filter, as kernels before Linux 6.6 get it.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use compile::table::Table;
use dataplane::{Capacity, Close};
use lab::link;

use crate::bed::{Bed, route, table};

const IN: Ipv4Addr = Ipv4Addr::new(239, 1, 1, 1);
const OUT: Ipv4Addr = Ipv4Addr::new(239, 10, 1, 1);
const PATIENCE: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_millis(100);

fn one_rule(bed: &Bed) -> Table {
    let outputs = vec![bed.output(0, OUT, 6001)];
    table([(bed.key(IN, 5001), route("cam1", outputs))])
}

fn tc(bed: &Bed, arguments: &str) -> String {
    let mut tc = bed.chain.relay.command("tc");
    let output = tc.args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "tc {arguments}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn forwards_without_a_process_and_is_adopted_and_replaced_without_a_gap() {
    let bed = Bed::with_clsact();
    let sender = bed.sender();
    let sink = bed.sink(OUT, 6001);
    let wanted = one_rule(&bed);
    let mut dataplane = bed.open(Capacity::default());
    bed.sync(&mut dataplane, &wanted);
    assert!(tc(&bed, "filter show dev veth1 ingress").contains("mcr/default"));
    // As after kill -9: nothing is shut down, all descriptors are closed.
    drop(dataplane);
    sender.send_numbered(IN.into(), 5001, 20, 100).unwrap();
    sink.expect(20, PATIENCE).unwrap();

    let done = AtomicBool::new(false);
    let sent = thread::scope(|scope| {
        let replacing = scope.spawn(|| {
            for _ in 0..5 {
                let mut dataplane = bed.open(Capacity::default());
                bed.sync(&mut dataplane, &wanted);
            }
            done.store(true, Ordering::Release);
        });
        let mut sent = 0;
        while !done.load(Ordering::Acquire) {
            sender.send_numbered(IN.into(), 5001, 10, 100).unwrap();
            sink.expect(10, PATIENCE).unwrap();
            sent += 10;
        }
        replacing.join().unwrap();
        sent
    });
    let filters = tc(&bed, "filter show dev veth1 ingress");
    assert_eq!(filters.matches("mcr/default").count(), 1, "{filters}");
    let mut dataplane = bed.open(Capacity::default());
    bed.sync(&mut dataplane, &wanted);
    let counters = dataplane.counters().unwrap();
    assert_eq!(counters.rules["cam1"].received.packets, 20 + sent);
    assert_eq!(counters.rules["cam1"].outputs[&0].sent.packets, 20 + sent);
}

#[test]
fn a_killed_process_s_filter_is_detached_by_the_next() {
    let bed = Bed::with_clsact();
    let mut killed = bed.open(Capacity::default());
    bed.sync(&mut killed, &one_rule(&bed));
    drop(killed);
    let mut next = bed.open(Capacity::default());
    bed.sync(&mut next, &table([]));
    assert_eq!(tc(&bed, "filter show dev veth1 ingress"), "");
    let sink = bed.sink(OUT, 6001);
    let sender = bed.sender();
    sender.send_numbered(IN.into(), 5001, 10, 100).unwrap();
    sink.expect_nothing(SILENCE).unwrap();
}

#[test]
fn leaves_nothing_behind() {
    let bed = Bed::with_clsact();
    let mut dataplane = bed.open(Capacity::default());
    bed.sync(&mut dataplane, &one_rule(&bed));
    bed.inside(|| dataplane.close(Close::Detach).unwrap());
    assert!(!bed.pins().exists());
    assert!(!tc(&bed, "qdisc show dev veth1").contains("clsact"));
}

#[test]
fn leaves_the_filters_and_disciplines_of_others_alone() {
    let bed = Bed::with_clsact();
    tc(&bed, "qdisc add dev veth1 clsact");
    let mut dataplane = bed.open(Capacity::default());
    bed.sync(&mut dataplane, &one_rule(&bed));
    bed.inside(|| dataplane.close(Close::Detach).unwrap());
    assert!(tc(&bed, "qdisc show dev veth1").contains("clsact"));
}

#[test]
fn attaches_again_when_an_interface_comes_back_with_its_index() {
    let bed = Bed::with_clsact();
    let mut dataplane = bed.open(Capacity::default());
    bed.sync(&mut dataplane, &one_rule(&bed));
    let (sender, relay) = (&bed.chain.sender, &bed.chain.relay);
    link::delete((relay, "veth1")).unwrap();
    bed.inside(|| dataplane.tick().unwrap());
    let (index, name) = (bed.ingress, sender.name());
    let add = format!("link add veth1 index {index} type veth peer name veth0 netns {name}");
    relay.ip(&add).unwrap();
    bed.inside(|| dataplane.tick().unwrap());
    assert!(tc(&bed, "filter show dev veth1 ingress").contains("mcr/default"));
}
