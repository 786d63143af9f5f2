//! Source-specific and any-source rules: the most specific wins.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::IpAddr;
use std::time::Duration;

use lab::daemon::{Daemon, Options};
use lab::link;
use lab::socket::{Receiver, Sender};
use lab::topology::Chain;

const PATIENCE: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_millis(200);

lab::on_both_paths!(
    the_most_specific_rule_wins,
    a_source_specific_rule_alone_ignores_other_senders,
    an_include_list_beyond_the_kernels_limit_is_joined,
);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn sender(chain: &Chain, source: &str) -> Sender {
    let end = (&chain.sender, "veth0");
    if source != "10.0.0.1" {
        link::address(end, &format!("{source}/32")).unwrap();
    }
    Sender::open(end, ip(source)).unwrap()
}

fn sink(chain: &Chain, group: &str) -> Receiver {
    Receiver::join((&chain.sink, "veth3"), ip(group), 6001).unwrap()
}

fn the_most_specific_rule_wins(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let any = ["239.10.1.1%veth2:6001"];
    daemon.add("any", "232.1.1.1%veth1:5001", &any).unwrap();
    let five = ["239.10.1.5%veth2:6001"];
    daemon
        .add("five", "10.0.0.5@232.1.1.1%veth1:5001", &five)
        .unwrap();
    let pair = ["239.10.1.6%veth2:6001"];
    daemon
        .add("pair", "10.0.0.6,10.0.0.7@232.1.1.1%veth1:5001", &pair)
        .unwrap();
    let sinks = ["239.10.1.1", "239.10.1.5", "239.10.1.6"].map(|group| sink(&chain, group));
    let [first, fifth, sixth, seventh] =
        ["10.0.0.1", "10.0.0.5", "10.0.0.6", "10.0.0.7"].map(|source| sender(&chain, source));
    first.send_numbered(ip("232.1.1.1"), 5001, 10, 100).unwrap();
    fifth.send_numbered(ip("232.1.1.1"), 5001, 20, 100).unwrap();
    sixth.send_numbered(ip("232.1.1.1"), 5001, 30, 100).unwrap();
    sinks[0].expect(10, PATIENCE).unwrap();
    sinks[1].expect(20, PATIENCE).unwrap();
    sinks[2].expect(30, PATIENCE).unwrap();
    seventh
        .send_numbered(ip("232.1.1.1"), 5001, 5, 100)
        .unwrap();
    sinks[2].expect(5, PATIENCE).unwrap();
    for (name, count) in [("any", 10), ("five", 20), ("pair", 35)] {
        daemon.settled(name, count).unwrap();
    }
    // Without the specific rule, the general one relays its sender.
    daemon.mcr(&["remove", "five"]).unwrap();
    fifth.send_numbered(ip("232.1.1.1"), 5001, 10, 100).unwrap();
    sinks[0].expect(10, PATIENCE).unwrap();
    daemon.settled("any", 20).unwrap();
}

fn a_source_specific_rule_alone_ignores_other_senders(path: &str) {
    let chain = Chain::snooping().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let output = ["239.10.1.1%veth2:6001"];
    daemon
        .add("cam1", "10.0.0.5@232.1.1.1%veth1:5001", &output)
        .unwrap();
    let switch = chain.switch.as_ref().unwrap();
    link::wait_for_member((switch, "br0"), "232.1.1.1").unwrap();
    let sink = sink(&chain, "239.10.1.1");
    let (wrong, right) = (sender(&chain, "10.0.0.1"), sender(&chain, "10.0.0.5"));
    wrong.send_numbered(ip("232.1.1.1"), 5001, 10, 100).unwrap();
    sink.expect_nothing(SILENCE).unwrap();
    right.send_numbered(ip("232.1.1.1"), 5001, 10, 100).unwrap();
    sink.expect(10, PATIENCE).unwrap();
    daemon.settled("cam1", 10).unwrap();
}

/// `igmp_max_msf` is 10 by default. The bridge, with IGMPv3, forwards only requested sources.
fn an_include_list_beyond_the_kernels_limit_is_joined(path: &str) {
    const SOURCES: u64 = 25;
    let chain = Chain::snooping().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let sources: Vec<String> = (11..11 + SOURCES).map(|n| format!("10.0.0.{n}")).collect();
    let input = format!("{}@232.1.1.1%veth1:5001", sources.join(","));
    daemon
        .add("cam1", &input, &["239.10.1.1%veth2:6001"])
        .unwrap();
    let rule = daemon.rule("cam1").unwrap();
    assert!(rule.inputs.iter().all(|input| input.joined), "{rule:?}");
    let switch = chain.switch.as_ref().unwrap();
    lab::wait::until("the bridge knows every source", || {
        let shown = switch.tool("bridge", "-d mdb show dev br0").unwrap();
        let known = |source: &String| shown.contains(&format!("{source}/"));
        sources.iter().all(known)
    })
    .unwrap_or_else(|error| {
        let shown = switch.tool("bridge", "-d mdb show dev br0").unwrap();
        panic!("{error:#}: {shown}")
    });
    let sink = sink(&chain, "239.10.1.1");
    let stranger = sender(&chain, "10.0.0.99");
    stranger
        .send_numbered(ip("232.1.1.1"), 5001, 5, 100)
        .unwrap();
    for source in &sources {
        let sender = sender(&chain, source);
        sender.send_numbered(ip("232.1.1.1"), 5001, 4, 100).unwrap();
        sink.expect(4, PATIENCE).unwrap();
    }
    daemon.settled("cam1", 4 * SOURCES).unwrap();
}
