//! Rate limits of rules and outputs, each with its own count.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::IpAddr;

use lab::daemon::{Daemon, Options};
use lab::socket::Sender;
use lab::topology::Chain;

lab::on_both_paths!(
    an_output_beyond_its_limit_drops_and_counts,
    a_rule_beyond_its_limit_drops_and_counts
);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn start(path: &str, rule: &str) -> (Chain, Daemon) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon
        .apply(&format!("version = 1\n[[rule]]\nname = \"cam1\"\n{rule}\n"))
        .unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 1000, 100)
        .unwrap();
    (chain, daemon)
}

fn an_output_beyond_its_limit_drops_and_counts(path: &str) {
    let (_chain, daemon) = start(
        path,
        "input = \"239.1.1.1%veth1:5001\"\n\
         outputs = [{ to = \"239.10.1.1%veth2:6001\", limit = \"100pps\", burst = 10 }, \
         \"239.10.1.2%veth2:6002\"]",
    );
    let rule = daemon.settled("cam1", 1000).unwrap();
    let limited = rule.outputs[0].dropped["rate_limited"];
    assert!((500..=990).contains(&limited), "{limited}");
    assert_eq!(rule.outputs[1].sent.packets, 1000);
}

fn a_rule_beyond_its_limit_drops_and_counts(path: &str) {
    let (_chain, daemon) = start(
        path,
        "input = \"239.1.1.1%veth1:5001\"\noutputs = [\"239.10.1.1%veth2:6001\"]\n\
         limit = \"100pps\"\nburst = 10",
    );
    let rule = daemon.settled("cam1", 1000).unwrap();
    let limited = rule.dropped["rate_limited"];
    assert!((500..=990).contains(&limited), "{limited}");
}
