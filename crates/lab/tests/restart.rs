//! The kernel path goes on forwarding and counting while no process of MCR runs.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lab::daemon::{Daemon, Options};
use lab::socket::{Receiver, Sender};
use lab::topology::Chain;

const PATIENCE: Duration = Duration::from_secs(5);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn kernel_path_forwards_and_counts_while_the_daemon_is_dead() {
    let chain = Chain::plain().unwrap();
    let mut daemon = Daemon::start(&chain.relay, Options::path("kernel")).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["239.10.1.1%veth2:6001"])
        .unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 50, 100)
        .unwrap();
    sink.expect(50, PATIENCE).unwrap();
    daemon.kill().unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 50, 100)
        .unwrap();
    sink.expect(50, PATIENCE).unwrap();
    daemon.start_again().unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 50, 100)
        .unwrap();
    sink.expect(50, PATIENCE).unwrap();
    let rule = daemon.settled("cam1", 150).unwrap();
    assert_eq!(rule.outputs[0].sent.packets, 150);
}

#[test]
fn a_steady_stream_loses_nothing_in_five_crashes() {
    let chain = Chain::plain().unwrap();
    let mut daemon = Daemon::start(&chain.relay, Options::path("kernel")).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["239.10.1.1%veth2:6001"])
        .unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let sent = stream_while(&chain, || {
        for _ in 0..5 {
            daemon.kill().unwrap();
            daemon.start_again().unwrap();
        }
    });
    sink.expect(sent, PATIENCE).unwrap();
    daemon.settled("cam1", sent).unwrap();
}

/// Sends 2,000 packets a second for as long as `work` takes and hands back how many.
fn stream_while(chain: &Chain, work: impl FnOnce()) -> u64 {
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stream = scope.spawn(|| {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                let payload = lab::socket::payload(number, 200);
                sender.send(ip("239.1.1.1"), 5001, &payload).unwrap();
                number += 1;
                thread::sleep(Duration::from_micros(500));
            }
            number
        });
        work();
        stop.store(true, Ordering::Relaxed);
        stream.join().unwrap()
    })
}
