//! Rate limits of rules and outputs, each with its own count.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::IpAddr;
use std::time::Instant;

use api::reply::{RuleStats, State};
use lab::daemon::{Daemon, Options};
use lab::socket::Sender;
use lab::topology::Chain;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

lab::on_both_paths!(
    an_output_beyond_its_limit_drops_and_counts,
    a_rule_beyond_its_limit_drops_and_counts,
    a_budget_caps_what_all_unicast_outputs_send_together,
    apply_brings_a_budget_and_takes_it_away,
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

/// Over a restart, a bucket that takes 100 seconds to fill gains what the elapsed time adds, and is
/// not full.
#[test]
fn an_adopted_limit_goes_on_with_the_bucket_it_had() {
    let (chain, mut daemon) = start(
        "kernel",
        "input = \"239.1.1.1%veth1:5001\"\noutputs = [\"239.10.1.1%veth2:6001\"]\n\
         limit = \"1pps\"\nburst = 100",
    );
    let begin = Instant::now();
    let before = daemon.settled("cam1", 1000).unwrap().dropped["rate_limited"];
    daemon.kill().unwrap();
    daemon.start_again().unwrap();
    assert_eq!(daemon.taken_over("found").unwrap(), 1);
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 1000, 100)
        .unwrap();
    let after = daemon.settled("cam1", 2000).unwrap().dropped["rate_limited"];
    let passed = 1000 - (after - before);
    // What was sent within the first second may have left a token, and one may be begun.
    let gained = begin.elapsed().as_secs() + 2;
    assert!(passed <= gained, "{passed} passed, {gained} tokens since");
}

/// A daemon with its own configuration: two rules that send the same stream to hosts, one of them
/// also to a group.
fn a_budget_caps_what_all_unicast_outputs_send_together(path: &str) {
    let config = |budget: &str| {
        format!(
            "version = 1\n{budget}[[rule]]\nname = \"cam1\"\ninput = \"239.1.1.1%veth1:5001\"\n\
             outputs = [\"10.0.1.2:7000\", \"239.10.1.1%veth2:6001\"]\n\
             [[rule]]\nname = \"cam2\"\ninput = \"239.1.1.2%veth1:5001\"\n\
             outputs = [\"10.0.1.2:7001\"]\n"
        )
    };
    let chain = Chain::plain().unwrap();
    let options = Options {
        config: Some(config("[budget]\nunicast = \"100pps\"\nburst = 10\n")),
        ..Options::path(path)
    };
    let daemon = Daemon::start(&chain.relay, options).unwrap();
    for name in ["cam1", "cam2"] {
        daemon
            .wait_for(name, "the neighbour is known", |rule| {
                rule.outputs[0].state == State::Up
            })
            .unwrap();
    }
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    let send = |count| {
        for group in ["239.1.1.1", "239.1.1.2"] {
            sender.send_numbered(ip(group), 5001, count, 100).unwrap();
        }
    };
    send(1000);
    let first = daemon.settled("cam1", 1000).unwrap();
    let second = daemon.settled("cam2", 1000).unwrap();
    let sent = first.outputs[0].sent.packets + second.outputs[0].sent.packets;
    assert!((10..=1000).contains(&sent), "{sent}");
    let over = |rule: &RuleStats| rule.outputs[0].dropped.get("over_budget").copied();
    assert_eq!(
        over(&first).unwrap_or(0) + over(&second).unwrap_or(0),
        2000 - sent
    );
    assert_eq!(first.outputs[1].sent.packets, 1000);

    // Without a budget from now on; a third rule shows when.
    let third = "[[rule]]\nname = \"cam3\"\ninput = \"239.1.1.3%veth1:5001\"\n\
                 outputs = [\"239.10.1.3%veth2:6001\"]\n";
    std::fs::write(daemon.config_file(), config("") + third).unwrap();
    kill(Pid::from_raw(daemon.id() as i32), Signal::SIGHUP).unwrap();
    lab::wait::until("the configuration is read again", || {
        daemon.stats().unwrap().rules.len() == 3
    })
    .unwrap();
    send(500);
    let after = daemon.settled("cam2", 1500).unwrap();
    assert_eq!(over(&after), over(&second));
}

fn apply_brings_a_budget_and_takes_it_away(path: &str) {
    let rules = "[[rule]]\nname = \"cam1\"\ninput = \"239.1.1.1%veth1:5001\"\n\
                 outputs = [\"10.0.1.2:7000\"]\n";
    let budget = "[budget]\nunicast = \"100pps\"\nburst = 10\n";
    let without = format!("version = 1\n{rules}");
    let with = format!("version = 1\n{budget}{rules}");
    let chain = Chain::plain().unwrap();
    let mut daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon.apply(&without).unwrap();
    let up = |rule: &RuleStats| rule.outputs[0].state == State::Up;
    daemon.wait_for("cam1", "the output is up", up).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    let mut sent = 0;
    let mut over_budget = |daemon: &Daemon| {
        sender
            .send_numbered(ip("239.1.1.1"), 5001, 500, 100)
            .unwrap();
        sent += 500;
        let rule = daemon.settled("cam1", sent).unwrap();
        let dropped = rule.outputs[0].dropped.get("over_budget");
        dropped.copied().unwrap_or(0)
    };
    assert_eq!(over_budget(&daemon), 0);

    daemon.apply(&with).unwrap();
    assert!(
        daemon
            .mcr(&["export"])
            .unwrap()
            .contains("unicast = \"100pps\"")
    );
    let first = over_budget(&daemon);
    assert!(first > 0, "{first}");
    // A rule more and one less ask for no other look at the budget; it stays what it is.
    daemon
        .add("cam2", "239.1.1.2%veth1:5001", &["239.10.1.2%veth2:6002"])
        .unwrap();
    let second = over_budget(&daemon);
    assert!(second > first, "{second}");
    // After a crash, the daemon continues with what was applied.
    daemon.kill().unwrap();
    daemon.start_again().unwrap();
    daemon.wait_for("cam1", "the output is up", up).unwrap();
    let third = over_budget(&daemon);
    assert!(third > second, "{third}");

    let exported = daemon.mcr(&["export"]).unwrap();
    assert!(exported.contains("unicast = \"100pps\""), "{exported}");
    daemon.apply(&without).unwrap();
    assert_eq!(over_budget(&daemon), third);
}
