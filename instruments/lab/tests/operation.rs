//! The daemon as a service: what it starts with, reloads, refuses and leaves behind, and how it
//! follows changes of its host.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use api::reply::State;
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::namespace::Namespace;
use lab::socket::{Receiver, Sender};
use lab::topology::Chain;
use lab::wait;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const PATIENCE: Duration = Duration::from_secs(5);
const INPUT: &str = "239.1.1.1%veth1:5001";
const OUTPUT: &str = "239.10.1.1%veth2:6001";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn config(rules: &[&str]) -> String {
    let mut text = "version = 1\n".to_owned();
    for (number, name) in rules.iter().enumerate() {
        text += &format!(
            "[[rule]]\nname = {name:?}\ninput = \"239.1.2.{number}%veth1:5001\"\n\
             outputs = [\"239.10.2.{number}%veth2:6001\"]\n"
        );
    }
    text
}

fn names(daemon: &Daemon) -> Vec<String> {
    let stats = daemon.stats().unwrap();
    stats.rules.into_iter().map(|rule| rule.name).collect()
}

/// Whether a group is joined on some interface, as the kernel lists them.
fn joined(namespace: &Namespace, group: &str) -> bool {
    let list = namespace.ip("maddr show").unwrap();
    list.split_whitespace().any(|word| word == group)
}

#[test]
fn a_crash_keeps_the_running_rules_and_a_clean_stop_forgets_them() {
    let chain = Chain::plain().unwrap();
    let options = Options {
        config: Some(config(&["a", "b"])),
        ..Options::default()
    };
    let mut daemon = Daemon::start(&chain.relay, options).unwrap();
    assert_eq!(names(&daemon), ["a", "b"]);
    daemon.mcr(&["remove", "b"]).unwrap();
    daemon.add("c", INPUT, &[OUTPUT]).unwrap();
    daemon.kill().unwrap();
    assert!(joined(&chain.relay, "239.1.1.1"), "the keeper holds it");
    daemon.start_again().unwrap();
    assert_eq!(names(&daemon), ["a", "c"]);
    assert!(daemon.rule("c").unwrap().inputs[0].joined);
    daemon.stop(Signal::SIGTERM).unwrap();
    assert!(!joined(&chain.relay, "239.1.1.1"), "left at the end");
    let state = Path::new("/run/mcr").join(daemon.instance());
    assert!(!state.exists(), "nothing is left behind");
    daemon.start_again().unwrap();
    assert_eq!(names(&daemon), ["a", "b"]);
}

#[test]
fn a_signal_reloads_the_configuration_and_a_bad_one_changes_nothing() {
    let chain = Chain::plain().unwrap();
    let options = Options {
        config: Some(config(&["a"])),
        ..Options::default()
    };
    let daemon = Daemon::start(&chain.relay, options).unwrap();
    let hangup = || kill(Pid::from_raw(daemon.id() as i32), Signal::SIGHUP).unwrap();
    fs::write(daemon.config_file(), config(&["a", "b"])).unwrap();
    hangup();
    wait::until("the rules are reloaded", || names(&daemon) == ["a", "b"]).unwrap();
    fs::write(daemon.config_file(), "version = 1\nnonsense = 2\n").unwrap();
    hangup();
    wait::until("the bad file is refused", || {
        daemon.log().contains("configuration not used")
    })
    .unwrap();
    assert_eq!(names(&daemon), ["a", "b"]);
}

#[test]
fn a_second_daemon_of_the_same_name_is_refused() {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::default()).unwrap();
    let refused = daemon.client(&["run"]).unwrap();
    assert_eq!(refused.status.code(), Some(69));
    let expected = format!("is run by process {} already", daemon.id());
    assert!(refused.stderr.contains(&expected), "{}", refused.stderr);
    assert!(names(&daemon).is_empty(), "the first one goes on");
}

#[test]
fn a_deleted_interface_comes_back_under_another_number() {
    let chain = Chain::plain().unwrap();
    let far = Namespace::new("far").unwrap();
    let make = || {
        link::veth((&chain.relay, "in0"), (&far, "in1")).unwrap();
        link::address((&chain.relay, "in0"), "10.0.7.1/24").unwrap();
        link::address((&far, "in1"), "10.0.7.2/24").unwrap();
    };
    make();
    let daemon = Daemon::start(&chain.relay, Options::default()).unwrap();
    daemon.add("cam1", "239.1.1.1%in0:5001", &[OUTPUT]).unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    for round in 1..=3 {
        let up = |rule: &api::reply::RuleStats| rule.state == State::Up && rule.inputs[0].joined;
        daemon.wait_for("cam1", "the rule is up", up).unwrap();
        assert!(joined(&chain.relay, "239.1.1.1"));
        let sender = Sender::open((&far, "in1"), ip("10.0.7.2")).unwrap();
        sender
            .send_numbered(ip("239.1.1.1"), 5001, 20, 100)
            .unwrap();
        sink.expect(20, PATIENCE).unwrap();
        daemon.settled("cam1", 20 * round).unwrap();
        link::delete((&chain.relay, "in0")).unwrap();
        let waits = |rule: &api::reply::RuleStats| rule.state == State::Down;
        daemon.wait_for("cam1", "the rule waits", waits).unwrap();
        make();
    }
}

#[test]
fn a_deleted_interface_comes_back_under_the_same_number() {
    let chain = Chain::plain().unwrap();
    let far = Namespace::new("far").unwrap();
    let make = || {
        link::veth_with_index((&chain.relay, "in0"), (&far, "in1"), 77).unwrap();
        link::address((&far, "in1"), "10.0.7.2/24").unwrap();
    };
    make();
    let daemon = Daemon::start(&chain.relay, Options::default()).unwrap();
    daemon.add("cam1", "239.1.1.1%in0:5001", &[OUTPUT]).unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    // At once, so that the daemon may see the deletion and the new link as one change.
    link::delete((&chain.relay, "in0")).unwrap();
    make();
    wait::until("the group is joined again", || {
        joined(&chain.relay, "239.1.1.1")
    })
    .unwrap();
    let sender = Sender::open((&far, "in1"), ip("10.0.7.2")).unwrap();
    let relayed = wait::until("packets are relayed again", || {
        sender.send_numbered(ip("239.1.1.1"), 5001, 1, 100).unwrap();
        sink.expect(1, Duration::from_millis(200)).is_ok()
    });
    relayed.unwrap_or_else(|error| panic!("{error}: {:?}", daemon.rule("cam1")));
}

#[test]
fn a_neighbour_that_changes_its_address_is_followed() {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::default()).unwrap();
    let addresses = chain.sink.ip("-4 -o addr show veth3").unwrap();
    let prefix = addresses.split_whitespace().nth(3).unwrap();
    let address = prefix.split('/').next().unwrap();
    daemon
        .add("cam1", INPUT, &[&format!("{address}:7000")])
        .unwrap();
    let up = |rule: &api::reply::RuleStats| rule.outputs[0].state == State::Up;
    daemon.wait_for("cam1", "the output is up", up).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    let sink = Receiver::bind(&chain.sink, (ip(address), 7000).into()).unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 20, 100)
        .unwrap();
    sink.expect(20, PATIENCE).unwrap();
    let mac = "02:00:00:00:99:01";
    let set = format!("link set veth3 address {mac}");
    chain.sink.ip(&set).unwrap();
    let replace = format!("neigh replace {address} lladdr {mac} dev veth2 nud reachable");
    chain.relay.ip(&replace).unwrap();
    let relayed = wait::until("packets reach the new address", || {
        sender.send_numbered(ip("239.1.1.1"), 5001, 1, 100).unwrap();
        sink.expect(1, Duration::from_millis(200)).is_ok()
    });
    relayed.unwrap_or_else(|error| panic!("{error}: {:?}", daemon.rule("cam1")));
}

#[test]
fn the_listener_for_metrics_reads_only() {
    let chain = Chain::plain().unwrap();
    let options = Options {
        arguments: vec!["--listen".to_owned(), "127.0.0.1:9464".to_owned()],
        config: Some(config(&["a"])),
        ..Options::default()
    };
    link::up((&chain.relay, "lo")).unwrap();
    let _daemon = Daemon::start(&chain.relay, options).unwrap();
    let curl = |arguments: &[&str]| {
        let mut command: Command = chain.relay.command("curl");
        let output = command.args(["-s"]).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let metrics = curl(&["http://127.0.0.1:9464/metrics"]);
    assert!(metrics.contains("mcr_rule_up{rule=\"a\""), "{metrics}");
    let refused = curl(&["-X", "DELETE", "http://127.0.0.1:9464/v1/rules/a"]);
    assert!(refused.contains("\"code\":\"usage\""), "{refused}");
}

#[test]
fn an_interface_that_merges_packets_is_put_back_at_the_end() {
    let chain = Chain::plain().unwrap();
    let merges = || {
        let features = chain.relay.tool("ethtool", "-k veth1").unwrap();
        let line = features
            .lines()
            .find(|line| line.trim_start().starts_with("rx-udp-gro-forwarding"));
        line.unwrap().contains(": on")
    };
    assert!(!merges());
    let options = Options {
        config: Some(config(&["a"]) + "[interface.veth1]\ngro = \"on\"\n"),
        ..Options::default()
    };
    let mut daemon = Daemon::start(&chain.relay, options).unwrap();
    assert!(merges());
    // After a crash the daemon still knows that it set this.
    daemon.kill().unwrap();
    daemon.start_again().unwrap();
    assert!(merges());
    daemon.stop(Signal::SIGTERM).unwrap();
    assert!(!merges());
}

#[test]
fn packets_are_merged_where_every_output_segments_and_the_reason_is_shown() {
    let chain = Chain::plain().unwrap();
    let relay = &chain.relay;
    let merges = || {
        let features = relay.tool("ethtool", "-k veth1").unwrap();
        features.contains("rx-udp-gro-forwarding: on")
    };
    let segment = |state: &str| {
        let features = format!("-K veth2 tx on tx-udp-segmentation {state}");
        relay.tool("ethtool", &features).unwrap();
    };
    segment("on");
    let options = Options {
        config: Some(config(&["a"]) + "[interface.veth1]\ngro = \"auto\"\n"),
        ..Options::default()
    };
    let mut daemon = Daemon::start(relay, options).unwrap();
    let reasons = |daemon: &Daemon| -> Vec<String> {
        let rules = daemon.stats().unwrap().rules.into_iter();
        let inputs = rules.flat_map(|rule| rule.inputs);
        inputs.map(|input| input.merging.unwrap()).collect()
    };
    assert!(merges());
    assert!(reasons(&daemon)[0].starts_with("on: all that is relayed from here gains"));

    // Decided anew with every change, and reported for the unchanged rules as well.
    segment("off");
    daemon
        .add("other", "239.1.9.9%veth1:5001", &["239.10.9.9%veth2:6001"])
        .unwrap();
    assert!(!merges());
    let texts = reasons(&daemon);
    assert_eq!(texts.len(), 2);
    assert!(
        texts
            .iter()
            .all(|text| text.starts_with("off: veth2 does not segment"))
    );

    segment("on");
    daemon.mcr(&["remove", "other"]).unwrap();
    assert!(merges());
    daemon.stop(Signal::SIGTERM).unwrap();
    assert!(!merges());
}

/// On a kernel whose packet sockets know no UDP GSO.
#[test]
fn nothing_is_merged_for_a_userspace_path_that_would_lose_it() {
    let chain = Chain::plain().unwrap();
    let relay = &chain.relay;
    let merges = || {
        let features = relay.tool("ethtool", "-k veth1").unwrap();
        features.contains("rx-udp-gro-forwarding: on")
    };
    let options = |path: &str| Options {
        config: Some(config(&["a"]) + "[interface.veth1]\ngro = \"on\"\n"),
        arguments: ["--without", "packet_udp_gso"].map(Into::into).to_vec(),
        ..Options::path(path)
    };
    let merging = |daemon: &Daemon| -> String {
        let rules = daemon.stats().unwrap().rules;
        rules[0].inputs[0].merging.clone().unwrap()
    };
    let daemon = Daemon::start(relay, options("userspace")).unwrap();
    assert!(!merges());
    let reason = merging(&daemon);
    assert!(reason.starts_with("off: rule \"a\""), "{reason}");
    let status = daemon.mcr(&["status"]).unwrap();
    assert!(
        status.contains("rx-udp-gro-forwarding, rx-gro-list"),
        "{status}"
    );

    // What is switched on by hand is reported soon, with the remedy, which helps.
    link::features((relay, "veth1"), "rx-udp-gro-forwarding on").unwrap();
    let remedy = "ethtool -K veth1 rx-udp-gro-forwarding off";
    wait::until("it says what is lost", || merging(&daemon).contains(remedy)).unwrap();
    assert!(merges(), "what is not the daemon's is left alone");
    link::features((relay, "veth1"), "rx-udp-gro-forwarding off").unwrap();
    wait::until("nothing is lost any more", || {
        merging(&daemon).starts_with("off: ")
    })
    .unwrap();
    drop(daemon);

    let _daemon = Daemon::start(relay, options("kernel")).unwrap();
    assert!(merges(), "the kernel path takes what was merged");
}

#[test]
fn what_is_relayed_in_user_space_stays_out_of_the_hosts_stack() {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path("userspace")).unwrap();
    let rule = format!(
        "version = 1\n[[rule]]\nname = \"a\"\ninput = {INPUT:?}\noutputs = [{OUTPUT:?}]\nlocal = \"no\"\n"
    );
    daemon.apply(&rule).unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let here = Receiver::join((&chain.relay, "veth1"), ip("239.1.1.1"), 5001).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 20, 300)
        .unwrap();
    sink.expect(20, PATIENCE).unwrap();
    here.expect_nothing(Duration::from_millis(200)).unwrap();
}
