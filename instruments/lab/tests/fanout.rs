//! One input to many outputs.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use lab::daemon::{Daemon, Options};
use lab::socket::{Receiver, Sender, udp_counters};
use lab::topology::Chain;

const PATIENCE: Duration = Duration::from_secs(10);

/// Copies in flight at once. The sink's backlog holds 1,000 (`net.core.netdev_max_backlog`) and fills
/// on a busy machine; a loss there is not the relay's.
const WINDOW: u64 = 400;

lab::on_both_paths!(one_to_fifty, one_to_two_hundred);

fn one_to_fifty(path: &str) {
    one_to(path, 50, 200);
}

fn one_to_two_hundred(path: &str) {
    one_to(path, 200, 50);
}

fn one_to(path: &str, outputs: u8, packets: u64) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let groups: Vec<IpAddr> = (1..=outputs)
        .map(|number| Ipv4Addr::new(239, 10, 1, number).into())
        .collect();
    let output = |group: &IpAddr| format!("{group}%veth2:6001");
    let texts: Vec<String> = groups.iter().map(output).collect();
    let destinations: Vec<&str> = texts.iter().map(String::as_str).collect();
    daemon
        .add("wide", "239.1.1.1%veth1:5001", &destinations)
        .unwrap();
    let end = (&chain.sink, "veth3");
    let receivers: Vec<_> = groups
        .iter()
        .map(|group| Receiver::join(end, *group, 6001).unwrap())
        .collect();

    let sender = Sender::open((&chain.sender, "veth0"), "10.0.0.1".parse().unwrap()).unwrap();
    let group = "239.1.1.1".parse().unwrap();
    let burst = WINDOW / u64::from(outputs);
    for start in (0..packets).step_by(usize::try_from(burst).unwrap()) {
        let numbers = start..packets.min(start + burst);
        for number in numbers.clone() {
            let payload = lab::socket::payload(number, 300);
            sender.send(group, 5001, &payload).unwrap();
        }
        for receiver in &receivers {
            receiver.expect_these(numbers.clone(), PATIENCE).unwrap();
        }
    }
    let rule = daemon.settled("wide", packets).unwrap();
    assert_eq!(rule.outputs.len(), usize::from(outputs));
    assert!(
        rule.outputs
            .iter()
            .all(|output| output.sent.packets == packets)
    );
    assert_eq!(udp_counters(&chain.sink).unwrap().bad_checksums, 0);
}
