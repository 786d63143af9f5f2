//! The parts of a round: a stream recorded packet by packet, an etcd whose members stop and start.

use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use lab::bed::{INPUT, OUTPUT, RULE};
use lab::daemon::{Daemon, Options};
use lab::fleet::bed::{Bed, member_port};
use lab::fleet::history;
use lab::fleet::traffic::{Plan, Traffic, now_ns};
use lab::topology::Chain;
use lab::wait;
use nix::sys::signal::Signal;

use crate::is_skipped;

#[test]
fn a_stream_is_told_packet_by_packet() {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path("kernel")).unwrap();
    daemon.add(RULE, INPUT, &[OUTPUT]).unwrap();
    let plan = Plan {
        rate_pps: 1000,
        input: (Ipv4Addr::new(239, 1, 1, 1), 5001),
        output: (Ipv4Addr::new(239, 10, 1, 1), 6001),
    };
    let source = ((&chain.sender, "veth0"), Ipv4Addr::new(10, 0, 0, 1));
    let begin = now_ns();
    let traffic = Traffic::start(plan, source, (&chain.sink, "veth3")).unwrap();
    let relay = Ipv4Addr::new(10, 0, 1, 1);
    let relayed = || traffic.forwarder(Duration::from_millis(100)) == Some(relay);
    wait::until("it is relayed", relayed).unwrap();
    thread::sleep(Duration::from_millis(200));
    daemon.mcr(&["remove", RULE]).unwrap();
    let silent = || traffic.forwarder(Duration::from_millis(100)).is_none();
    wait::until("it is relayed no more", silent).unwrap();
    let record = traffic.finish().unwrap();
    let packets = &record.packets;
    assert_eq!(record.overflowed, 0);
    assert!(packets.iter().all(|packet| packet.relay == relay));
    assert!(
        packets
            .iter()
            .all(|packet| (begin..now_ns()).contains(&packet.sent_ns))
    );
    assert!(
        packets
            .iter()
            .all(|packet| packet.sent_ns <= packet.arrived_ns)
    );
    assert_eq!(history::tenures(packets).len(), 1);
    let lost = history::lost(packets, record.sent);
    assert!(
        lost >= 50 && lost < record.sent,
        "{lost} of {}",
        record.sent
    );
    let silence = history::longest_silence_ns(packets, begin, now_ns());
    assert!(silence >= 100_000_000, "{silence}");
}

#[test]
fn etcd_goes_on_without_one_of_its_members() {
    if is_skipped() {
        return;
    }
    let mut bed = Bed::without_relays().unwrap();
    let first = bed.etcd.leader().unwrap();
    bed.etcd.kill(first).unwrap();
    let second = bed.etcd.wait_for_leader().unwrap();
    assert_ne!(first, second);
    bed.etcd.start_member(first).unwrap();
    let has_leader = || bed.etcd.metric(first, "etcd_server_has_leader").ok() == Some(1.0);
    wait::until("the member is back", has_leader).unwrap();
    bed.etcd.signal(second, Signal::SIGSTOP).unwrap();
    let others_lead = || bed.etcd.leader().is_some_and(|leader| leader != second);
    wait::until("another leads", others_lead).unwrap();
    bed.etcd.signal(second, Signal::SIGCONT).unwrap();
    let processes = bed.etcd.processes();
    assert_eq!(processes.len(), 3);
    drop(bed);
    for process in processes {
        assert!(!std::path::Path::new(&format!("/proc/{process}")).exists());
    }
}

#[test]
fn a_port_that_is_cut_lets_nothing_pass_until_it_is_healed() {
    if is_skipped() {
        return;
    }
    let bed = Bed::without_relays().unwrap();
    let has_leader = || bed.etcd.metric(0, "etcd_server_has_leader").ok();
    assert_eq!(has_leader(), Some(1.0));
    bed.cut_port(&member_port(0)).unwrap();
    wait::until("it is cut off", || has_leader() == Some(0.0)).unwrap();
    assert!(bed.etcd.wait_for_leader().unwrap() != 0);
    bed.heal_port(&member_port(0)).unwrap();
    wait::until("it is back", || has_leader() == Some(1.0)).unwrap();
}
