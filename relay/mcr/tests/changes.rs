//! Who changed what, and back again.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};

use lab::wait;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::bed::{Bed, INPUT, OUTPUT};

const FILE: &str = r#"version = 1
# on the roof
[[rule]]
name = "cam1"
input = "239.1.1.1%veth1:5001"
outputs = ["239.10.1.1%veth2:6001"]
"#;
const CAM2: [&str; 5] = [
    "add",
    "239.1.1.2%veth1:5002",
    "239.10.1.2%veth2:6002",
    "--name",
    "cam2",
];

fn bed() -> Option<Bed> {
    Bed::new(Some(FILE), &[])
}

impl Bed {
    fn changes(&self) -> Vec<Value> {
        let changes = self.json(&["log", "changes", "--json"]);
        changes.as_array().unwrap().clone()
    }

    /// Where the daemon keeps what outlives it.
    fn state(&self) -> PathBuf {
        Path::new("/var/lib/mcr").join(self.daemon.instance())
    }
}

#[test]
fn a_change_says_who_made_it_and_why_and_a_restart_forgets_nothing() {
    let Some(mut bed) = bed() else { return };
    let why = "new camera, ticket 7";
    bed.daemon
        .mcr(&[&CAM2[..], &["--message", why]].concat())
        .unwrap();
    let change = bed.changes().pop().unwrap();
    assert_eq!(change["by"]["via"], "client", "{change}");
    assert_eq!(change["by"]["user"], "root", "{change}");
    assert_eq!(change["by"]["uid"], 0, "{change}");
    assert!(change["by"]["pid"].as_u64().unwrap() > 1, "{change}");
    assert_eq!(change["by"]["process"], "mcr", "{change}");
    assert_eq!(change["message"], why);
    assert_eq!(change["what"], "+ cam2\n");
    assert_eq!(change["rules"], 2);
    let (before, after) = (&change["before"], &change["generation"]);
    assert_eq!(before.as_u64().unwrap() + 1, after.as_u64().unwrap());
    assert!(change["at_ms"].as_u64().unwrap() > 1_700_000_000_000);

    let text = bed.daemon.mcr(&["log", "changes", "--last", "1"]).unwrap();
    assert!(text.contains("root (uid 0, mcr, pid "), "{text}");
    assert!(
        text.contains("\n    \"new camera, ticket 7\"\n    + cam2\n"),
        "{text}"
    );
    let events = bed
        .daemon
        .mcr(&["events", "--recent", "200", "--count", "1", "cam2"])
        .unwrap();
    assert!(
        events.contains("rule \"cam2\" added by root (uid 0"),
        "{events}"
    );
    assert!(events.contains(why), "{events}");
    let log = bed.daemon.log();
    let line = log
        .lines()
        .find(|line| line.contains("rule \"cam2\" added"));
    let line = line.unwrap();
    assert!(
        line.contains("by=\"root (uid 0") && line.contains("ticket 7"),
        "{line}"
    );

    let generation = after.as_u64().unwrap();
    let said = bed.changes();
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        bed.daemon.stop(signal).unwrap();
        bed.daemon.start_again().unwrap();
        let now = bed.changes();
        assert_eq!(now[..said.len()], said[..], "{signal}");
        let status = bed.json(&["status", "--json"]);
        assert!(
            status["generation"].as_u64().unwrap() > generation,
            "{status}"
        );
    }
}

#[test]
fn each_way_to_change_rules_is_told_with_its_author() {
    let Some(mut bed) = bed() else { return };
    let file = bed.daemon.config_file();
    fs::write(&file, FILE.replace("6001", "6009")).unwrap();
    bed.daemon.signal(Signal::SIGHUP).unwrap();
    let is_told = |bed: &Bed, via: &str, what: &str| {
        let changes = bed.changes();
        let told = changes.last().unwrap().clone();
        (told["by"]["via"] == via && told["what"].as_str().unwrap().contains(what)).then_some(told)
    };
    let hung_up = wait::some_within(wait::PATIENCE, "the signal's reload is told", || {
        is_told(
            &bed,
            "reload",
            "~ cam1\n    - output 239.10.1.1%veth2:6001\n",
        )
    });
    let hung_up = hung_up.unwrap();
    assert_eq!(hung_up["by"]["pid"], std::process::id(), "{hung_up}");
    fs::write(&file, FILE).unwrap();
    bed.daemon
        .mcr(&["reload", "--message", "as it was"])
        .unwrap();
    let reloaded = is_told(&bed, "reload", "+ output 239.10.1.1%veth2:6001\n").unwrap();
    assert_eq!(reloaded["by"]["process"], "mcr");
    assert_eq!(reloaded["message"], "as it was");
    for (words, what) in [
        (
            &["change", "cam1", "--set", "limit=20Mbit"][..],
            "+ limit 20Mbit",
        ),
        (&["disable", "cam1"], "cam1"),
        (&["enable", "cam1"], "cam1"),
        (&["join", "239.7.7.7%veth1"], "239.7.7.7"),
        (&["leave", "239.7.7.7%veth1"], "239.7.7.7"),
        (&["remove", "cam1"], "- cam1\n"),
        (&["apply", file.to_str().unwrap()], "+ cam1\n"),
    ] {
        bed.daemon.mcr(words).unwrap();
        assert!(
            is_told(&bed, "client", what).is_some(),
            "{words:?}: {:?}",
            bed.changes().last()
        );
    }
    bed.chain.relay.tool("ip", "link set veth2 down").unwrap();
    wait::until("the lost link is told", || {
        is_told(&bed, "link", "veth2").is_some()
    })
    .unwrap();
    let pending = bed.changes().len();
    bed.refuses(&["remove", "cam9"], 3, &["cam9"]);
    assert_eq!(
        bed.changes().len(),
        pending,
        "what is refused changes nothing"
    );
}

#[test]
fn a_message_is_one_line_and_short() {
    let Some(bed) = bed() else { return };
    let long = "x".repeat(1025);
    bed.refuses(
        &["remove", "cam1", "--message", &long],
        2,
        &["at most 1024 bytes"],
    );
    bed.refuses(&["remove", "cam1", "--message", "a\nb"], 2, &["one line"]);
    let socket = bed.daemon.socket();
    let ask = format!(
        "-s --unix-socket {} -X DELETE -H X-MCR-Message:{long} http://mcr/v1/rules/cam1",
        socket.display()
    );
    let refused = bed.chain.relay.tool("curl", &ask).unwrap();
    assert!(refused.contains("1025 bytes, of at most 1024"), "{refused}");
    assert_eq!(
        bed.json(&["list", "--json"])["rules"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn a_torn_end_of_the_log_is_cut_off_and_told() {
    let Some(mut bed) = bed() else { return };
    bed.daemon.mcr(&CAM2).unwrap();
    let said = bed.changes();
    bed.daemon.kill().unwrap();
    let log = bed.state().join("changes.log");
    let text = fs::read_to_string(&log).unwrap();
    fs::write(&log, format!("{text}{{\"at_ms\":17")).unwrap();
    bed.daemon.start_again().unwrap();
    assert_eq!(bed.changes()[..said.len()], said[..]);
    let words = "changes.log: the last change was not written to its end; cut off";
    assert!(bed.daemon.log().contains(words));
    bed.daemon
        .add("cam3", INPUT.replace("5001", "5003").as_str(), &[OUTPUT])
        .unwrap();
    assert_eq!(bed.changes().last().unwrap()["what"], "+ cam3\n");
}
