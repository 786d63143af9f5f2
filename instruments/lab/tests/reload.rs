//! Unchanged rules lose no packet while a thousand others are added, changed and removed.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fmt::Write;
use std::fs;
use std::time::Duration;

use lab::daemon::{Daemon, Options};
use lab::link::{self, End};
use lab::process::Process;
use lab::topology::Chain;
use lab::wait;
use nix::sys::signal::Signal;
use serde_json::Value;

const OTHERS: usize = 1_000;
/// Length of a change of a thousand rules on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn a_stream_goes_on_while_a_thousand_other_rules_change() {
    reload_under(5_000, 3);
}

/// `make reload`.
#[test]
#[ignore = "long: offers 300,000 packets a second"]
fn a_fast_stream_goes_on_while_a_thousand_other_rules_change() {
    reload_under(300_000, 20);
}

/// Replaces all other rules `rounds` times while a stream of `rate_pps` passes.
fn reload_under(rate_pps: u32, rounds: u8) {
    let chain = Chain::plain().unwrap();
    link::features((&chain.sender, "veth0"), "tso off tx-udp-segmentation off").unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path("kernel")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let files = [16, 17].map(|ttl| {
        let file = directory.path().join(format!("{ttl}.toml"));
        fs::write(&file, config(ttl)).unwrap();
        file.to_str().unwrap().to_owned()
    });
    daemon.mcr(&["apply", &files[0]]).unwrap();
    let mcr = lab::binary::mcr().unwrap();
    let mut receive = chain.sink.command(mcr);
    receive.args([
        "receive",
        "239.10.9.9%veth3:6001",
        "--json",
        "--method",
        "bpf",
    ]);
    let receiver = Process::start(receive).unwrap();
    wait::until("the group is joined at the sink", || {
        let joined = chain.sink.ip("maddress show dev veth3").unwrap();
        joined.contains("239.10.9.9")
    })
    .unwrap();
    // At a higher priority than the daemon, whose changes would take the cores that the rate needs.
    let mut send = chain.sender.command("nice");
    send.args(["-n", "-20"]).arg(mcr);
    send.args(["send", "239.9.9.9%veth0:5001", "--json", "--size", "200"]);
    // A sender that is kept from its core for a moment catches up by a few sends; its device cuts
    // them into packets, so the relay meets none but single ones.
    send.args(["--rate", &rate_pps.to_string()]);
    send.args(["--method", "gso", "--burst", "32"]);
    let sender = Process::start(send).unwrap();
    let flows = |rule: &api::reply::RuleStats| rule.received.packets > 0;
    daemon.wait_for("kept", "the stream flows", flows).unwrap();
    for round in 1..=usize::from(rounds) {
        let output = daemon.mcr(&["apply", &files[round % 2], "--json"]).unwrap();
        let change: Value = serde_json::from_str(&output).unwrap();
        let changed = change["changed"].as_array().unwrap().len();
        assert_eq!((changed, &change["unchanged"]), (OTHERS, &1.into()));
    }
    let report = |process: Process| -> Value {
        let finished = process.stop(Signal::SIGINT).unwrap();
        serde_json::from_str(&finished.stdout).unwrap()
    };
    let sending = report(sender);
    let sent = sending["sent"]["packets"].as_u64().unwrap();
    // What the bed itself loses, its devices count.
    let arrived = sent - tx_dropped((&chain.sender, "veth0"));
    let settled = wait::until_within(PATIENCE, "the relay has seen them", || {
        daemon.rule("kept").unwrap().received.packets == arrived
    });
    let rule = daemon.rule("kept").unwrap();
    settled.unwrap_or_else(|error| panic!("{error}: {arrived} of {sent} arrived, {rule:?}"));
    assert_eq!(rule.dropped.values().sum::<u64>(), 0, "{rule:?}");
    assert_eq!(rule.outputs[0].sent.packets, arrived, "{rule:?}");
    let delivered = arrived - tx_dropped((&chain.relay, "veth2"));
    let received = report(receiver)["total"]["packets"].as_u64().unwrap();
    assert_eq!(received, delivered, "of {sent} sent");
    println!(
        "{sent} sent at {} pps, {arrived} arrived at the relay, {received} received; {rounds} \
         changes of {OTHERS} rules",
        sending["pps"]
    );
}

fn config(ttl: u8) -> String {
    let mut text = "version = 1\n".to_owned();
    let mut rule = |name: &str, input: &str, output: &str| {
        writeln!(
            text,
            "[[rule]]\nname = {name:?}\ninput = {input:?}\noutputs = [{output:?}]"
        )
        .unwrap();
    };
    rule("kept", "239.9.9.9%veth1:5001", "239.10.9.9%veth2:6001");
    for number in 0..OTHERS {
        let (high, low) = (number / 250, number % 250);
        rule(
            &format!("other{number}"),
            &format!("239.1.{high}.{low}%veth1:5001"),
            &format!("239.10.{high}.{low}%veth2:6001,ttl={ttl}"),
        );
    }
    text
}

/// Packets that the other end of a veth could not take.
fn tx_dropped((namespace, interface): End<'_>) -> u64 {
    let shown = namespace
        .ip(&format!("-s -j link show {interface}"))
        .unwrap();
    let links: Value = serde_json::from_str(&shown).unwrap();
    links[0]["stats64"]["tx"]["dropped"].as_u64().unwrap()
}
