//! A rule with several inputs counts what each of them received, whatever happens around it.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::IpAddr;

use api::reply::{RuleStats, State};
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::socket::Sender;
use lab::topology::Chain;

const ASM: &str = "239.1.1.1%veth1:5001";
const SSM: &str = "10.0.0.5@239.1.1.1%veth1:5001";
const RANGE: &str = "239.1.2.0/24%veth1:5001-5010";
const SIZE: u64 = 100;

lab::on_both_paths!(
    each_of_several_inputs_is_counted,
    an_input_is_joined_only_where_something_can_arrive,
);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The configuration of `cam1` with these inputs.
fn rule(inputs: &[&str]) -> String {
    format!(
        "version = 1\n[[rule]]\nname = \"cam1\"\ninputs = {inputs:?}\n\
         outputs = [\"239.10.1.1%veth2:6001\"]\n"
    )
}

/// Checks what each input received, and that it adds up to what the rule received.
fn assert_received(rule: &RuleStats, expected: &[(&str, u64)]) {
    let inputs = rule.inputs.iter();
    let received = inputs.map(|input| (input.at.as_str(), input.received));
    let by_input: Vec<(&str, u64)> = received.clone().map(|(at, n)| (at, n.packets)).collect();
    assert_eq!(by_input, expected, "{rule:?}");
    let bytes: u64 = received.map(|(_, n)| n.bytes).sum();
    assert_eq!(bytes, rule.received.bytes, "{rule:?}");
    let packets: u64 = by_input.iter().map(|(_, n)| n).sum();
    assert_eq!(packets, rule.received.packets, "{rule:?}");
    assert_eq!(packets * SIZE, bytes, "{rule:?}");
}

fn each_of_several_inputs_is_counted(path: &str) {
    let chain = Chain::plain().unwrap();
    let mut daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let end = (&chain.sender, "veth0");
    link::address(end, "10.0.0.5/32").unwrap();
    let [any, five] = ["10.0.0.1", "10.0.0.5"].map(|from| Sender::open(end, ip(from)).unwrap());
    let send = |sender: &Sender, group, port, count| {
        let size = SIZE as usize;
        sender.send_numbered(ip(group), port, count, size).unwrap();
    };

    daemon.apply(&rule(&[ASM, SSM, RANGE])).unwrap();
    send(&any, "239.1.1.1", 5001, 10);
    send(&five, "239.1.1.1", 5001, 20);
    send(&any, "239.1.2.7", 5003, 30);
    let counted = daemon.settled("cam1", 60).unwrap();
    assert_received(&counted, &[(ASM, 10), (SSM, 20), (RANGE, 30)]);

    // Neither a daemon that dies nor another order costs a count.
    daemon.kill().unwrap();
    send(&five, "239.1.1.1", 5001, 1);
    daemon.start_again().unwrap();
    daemon.apply(&rule(&[RANGE, SSM, ASM])).unwrap();
    send(&any, "239.1.1.1", 5001, 2);
    send(&any, "239.1.2.200", 5010, 3);
    let counted = daemon.settled("cam1", 66).unwrap();
    assert_received(&counted, &[(RANGE, 33), (SSM, 21), (ASM, 12)]);

    // One is removed: another receives its sender's packets; the rest continue.
    daemon.apply(&rule(&[ASM, RANGE])).unwrap();
    send(&five, "239.1.1.1", 5001, 4);
    let counted = daemon.settled("cam1", 70).unwrap();
    let received: Vec<u64> = counted.inputs.iter().map(|i| i.received.packets).collect();
    assert_eq!(received, [16, 33], "{counted:?}");

    // A rule's only input is the rule.
    daemon.apply(&rule(&[ASM])).unwrap();
    send(&any, "239.1.1.1", 5001, 5);
    let counted = daemon.settled("cam1", 75).unwrap();
    assert_received(&counted, &[(ASM, 75)]);

    // What was counted under a name ends with the rule.
    daemon.mcr(&["remove", "cam1"]).unwrap();
    daemon.apply(&rule(&[ASM, RANGE])).unwrap();
    send(&any, "239.1.2.7", 5001, 6);
    let counted = daemon.settled("cam1", 6).unwrap();
    assert_received(&counted, &[(ASM, 0), (RANGE, 6)]);
}

fn an_input_is_joined_only_where_something_can_arrive(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let relay = &chain.relay;
    daemon
        .add("cam4", "239.1.1.1%veth1:5001", &["239.10.1.1%veth2:6001"])
        .unwrap();
    daemon
        .add("cam6", "[ff3e::1%veth1]:5001", &["[ff3e::2%veth2]:6001"])
        .unwrap();
    let expect = |rule: &str, joined: bool, reason: &str| {
        let what = format!("joined is {joined}: {reason}");
        let state = if joined { State::Up } else { State::Down };
        daemon
            .wait_for(rule, &what, |rule| {
                let input = &rule.inputs[0];
                let actual = input.reason.as_deref().unwrap_or_default();
                input.joined == joined && actual.contains(reason) && rule.state == state
            })
            .unwrap();
    };
    let ipv6 = "net/ipv6/conf/veth1/disable_ipv6";
    for _ in 0..2 {
        expect("cam4", true, "");
        expect("cam6", true, "");
        relay.sysctl(ipv6, "1").unwrap();
        expect("cam6", false, "IPv6 is turned off");
        expect("cam4", true, "");
        relay.sysctl(ipv6, "0").unwrap();
        expect("cam6", true, "");
        link::down((relay, "veth1")).unwrap();
        expect("cam4", false, "down");
        expect("cam6", false, "down");
        link::up((relay, "veth1")).unwrap();
    }
}
