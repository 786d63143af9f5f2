//! `mcr fleet`: the answers of a daemon that is in no fleet, of one that cannot reach etcd, and of
//! one that is alone in its fleet and forwards its rules.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::Write;
use std::process::{Command, Stdio};

use lab::process::Process;
use lab::wait;

use crate::bed::{Bed, can_run};

const CONFIG: &str = "version = 1\n[fleet]\nname = \"plant\"\nendpoints = [\"http://127.0.0.1:2379\"]\n\
                      relay = \"relay-a\"\npeer = \"127.0.0.1:9470\"\n\
                      interfaces = { red = \"veth1\", out = \"veth2\" }\n";

const RULES: &str = r#"version = 1

[[rule]]
name = "cam1"
input = "239.1.1.1%red:5001"
outputs = ["239.10.1.1%out:6001"]
"#;

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn path(file: &tempfile::NamedTempFile) -> &str {
    file.path().to_str().unwrap()
}

/// Starts a member of etcd with its data in `data`.
fn etcd(bed: &Bed, data: &std::path::Path) -> Process {
    let mut command: Command = bed.chain.relay.command("etcd");
    command.arg("--data-dir").arg(data);
    command.args(["--log-level", "error"]);
    Process::start(command).unwrap()
}

#[test]
fn a_daemon_in_no_fleet_says_what_to_do() {
    let Some(bed) = Bed::new(None, &[]) else {
        return;
    };
    let rules = file(RULES);
    for arguments in [&["fleet", "status"][..], &["fleet", "apply", path(&rules)]] {
        bed.refuses(arguments, 3, &["this daemon is in no fleet", "[fleet]"]);
    }
}

#[test]
fn a_relay_says_that_etcd_is_away_and_is_not_ready() {
    let Some(bed) = Bed::new(Some(CONFIG), &[]) else {
        return;
    };
    let status = bed.daemon.mcr(&["fleet", "status"]).unwrap();
    assert!(
        status.contains("etcd             cannot be used"),
        "{status}"
    );
    let rules = file(RULES);
    bed.refuses(&["fleet", "apply", path(&rules)], 69, &["etcd"]);
    let socket = bed.daemon.socket();
    let arguments = format!("-s --unix-socket {} http://mcr/readyz", socket.display());
    let ready = bed.chain.relay.tool("curl", &arguments).unwrap();
    assert!(
        ready.contains("the fleet is not joined (starting)"),
        "{ready}"
    );
    // Errors of a file are reported before the daemon is asked.
    let wrong = file(&RULES.replace("[[rule]]", "[daemon]\nworkers = 1\n[[rule]]"));
    let words = ["3: [daemon]: is not a fleet's to say"];
    bed.refuses(&["fleet", "apply", path(&wrong)], 78, &words);
    let shared = file(&format!("{RULES}share = \"a\"\n"));
    let words = ["only rules of a fleet have a share"];
    bed.refuses(&["apply", path(&shared)], 78, &words);
    bed.refuses(&["check", path(&shared)], 78, &words);
}

/// As a host that boots before its network is there.
#[test]
fn a_daemon_starts_before_there_is_a_way_to_etcd_and_takes_part_when_there_is() {
    if let Err(reason) = can_run("etcd") {
        eprintln!("skipped: {reason}");
        return;
    }
    let with_peer = CONFIG.replace("127.0.0.1:2379", "10.99.0.1:2379");
    let config = with_peer.replace("peer = \"127.0.0.1:9470\"\n", "");
    let Some(bed) = Bed::new(Some(&config), &[]) else {
        return;
    };
    let status = bed.daemon.mcr(&["fleet", "status"]).unwrap();
    assert!(status.contains("relay-a: starting"), "{status}");
    let relay = &bed.chain.relay;
    relay.tool("ip", "address add 10.99.0.1/32 dev lo").unwrap();
    let data = tempfile::tempdir().unwrap();
    let mut command: Command = relay.command("etcd");
    command.arg("--data-dir").arg(data.path());
    let at = "http://10.99.0.1:2379";
    command.args(["--listen-client-urls", at, "--advertise-client-urls", at]);
    let _etcd = Process::start(command).unwrap();
    wait::some_within(wait::PATIENCE, "it takes part", || {
        let status = bed.json(&["fleet", "status", "--json"]);
        (status["phase"] == "joined").then_some(())
    })
    .unwrap();
}

#[test]
fn a_relay_that_is_alone_forwards_the_rules_of_its_fleet() {
    if let Err(reason) = can_run("etcd") {
        eprintln!("skipped: {reason}");
        return;
    }
    let Some(bed) = Bed::new(Some(CONFIG), &[]) else {
        return;
    };
    let data = tempfile::tempdir().unwrap();
    let _etcd = etcd(&bed, data.path());
    let rules = file(RULES);
    let apply = || bed.daemon.mcr(&["fleet", "apply", path(&rules)]).ok();
    let applied = wait::some_within(wait::PATIENCE, "the rules are taken", apply).unwrap();
    assert!(applied.contains("generation 1"), "{applied}");
    wait::some_within(wait::PATIENCE, "the share is open", || {
        let status = bed.json(&["fleet", "status", "--json"]);
        (status["shares"][0]["state"] == "open").then_some(())
    })
    .unwrap();
    bed.send(100);
    wait::some_within(wait::PATIENCE, "all are relayed", || {
        let stats = bed.json(&["stats", "--json"]);
        (stats["rules"][0]["outputs"][0]["sent"]["packets"] == 100).then_some(())
    })
    .unwrap();
    // The log of changes records who applied them, and where.
    let changes = bed.json(&["log", "changes", "--json"]);
    let by: Vec<&serde_json::Value> = changes
        .as_array()
        .unwrap()
        .iter()
        .map(|change| &change["by"])
        .filter(|by| by["via"] == "fleet")
        .collect();
    let user = by[0]["user"].as_str().unwrap();
    assert!(
        user.starts_with("root (uid 0, mcr") && user.ends_with(" at relay-a"),
        "{changes}"
    );
    assert_eq!(by[0]["name"], "plant");
    let log = bed.daemon.mcr(&["log", "changes"]).unwrap();
    assert!(log.contains("fleet plant by root (uid 0"), "{log}");
    let list = bed.daemon.mcr(&["fleet", "list"]).unwrap();
    assert!(list.contains("cam1  cam1   relay-a"), "{list}");
    assert_eq!(
        bed.daemon.mcr(&["fleet", "diff", path(&rules)]).unwrap(),
        "1 unchanged, generation 1\n"
    );
    assert_eq!(bed.daemon.mcr(&["fleet", "export"]).unwrap(), RULES);
    // Completion offers relays, shares and rules.
    let socket = bed.daemon.socket().display().to_string();
    let offers = |words: &[&str]| {
        let typed = [&["complete", "--", "--socket", &socket], words].concat();
        bed.daemon.mcr(&typed).unwrap()
    };
    for verb in ["drain", "undrain", "fence"] {
        assert_eq!(offers(&["fleet", verb, "re"]), "relay-a\n");
    }
    assert_eq!(offers(&["fleet", "move", "ca"]), "cam1\n");
    assert_eq!(offers(&["fleet", "move", "cam1", "re"]), "relay-a\n");
    let stats = bed.json(&["stats", "--json"]);
    assert_eq!(stats["rules"][0]["share"], "cam1");
    let events = bed.daemon.mcr(&["fleet", "events"]).unwrap();
    assert!(events.contains("share_opened"), "{events}");
    // It is the fleet's, not the host's.
    bed.refuses(&["remove", "cam1"], 1, &["mcr fleet apply"]);
    bed.refuses(&["disable", "cam1"], 1, &["is the fleet's"]);
    bed.daemon.mcr(&["fleet", "drain", "relay-a"]).unwrap();
    wait::some_within(wait::PATIENCE, "the relay is drained", || {
        let status = bed.json(&["fleet", "status", "--json"]);
        (status["relays"][0]["state"] == "drained").then_some(())
    })
    .unwrap();
    let words = ["relay \"relay-a\" is drained", "mcr fleet undrain relay-a"];
    bed.refuses(&["fleet", "move", "cam1", "relay-a"], 1, &words);
    bed.daemon.mcr(&["fleet", "undrain", "relay-a"]).unwrap();
    assert!(!bed.daemon.mcr(&["export"]).unwrap().contains("cam1"));
    let none = file("version = 1\n");
    bed.daemon.mcr(&["fleet", "apply", path(&none)]).unwrap();
    wait::some_within(wait::PATIENCE, "the rule is gone", || {
        let rules = bed.json(&["list", "--json"]);
        rules["rules"].as_array()?.is_empty().then_some(())
    })
    .unwrap();
}

/// Ends the session of a relay, as another one does that has not seen it beat.
fn fence(bed: &Bed, relay: &str) {
    let key = format!("/mcr/plant/relays/{relay}");
    let get = format!("get --print-value-only {key}");
    let entry = bed.chain.relay.tool("etcdctl", &get).unwrap();
    let fenced = entry.trim().replace("\"fenced\":false", "\"fenced\":true");
    let mut etcdctl = bed.chain.relay.command("etcdctl");
    etcdctl
        .arg("txn")
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    let mut child = etcdctl.spawn().unwrap();
    let txn = format!("\nput {key} '{fenced}'\ndel /mcr/plant/beats/{relay}\n\n\n");
    child
        .stdin
        .take()
        .unwrap()
        .write_all(txn.as_bytes())
        .unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_relay_that_is_fenced_counts_on_and_lists_its_rules_while_etcd_is_away() {
    if let Err(reason) = can_run("etcd") {
        eprintln!("skipped: {reason}");
        return;
    }
    let Some(bed) = Bed::new(Some(CONFIG), &[]) else {
        return;
    };
    let data = tempfile::tempdir().unwrap();
    let etcd = etcd(&bed, data.path());
    let rules = file(RULES);
    let apply = || bed.daemon.mcr(&["fleet", "apply", path(&rules)]).ok();
    wait::some_within(wait::PATIENCE, "the rules are taken", apply).unwrap();
    let is_open = || {
        let status = bed.json(&["fleet", "status", "--json"]);
        let since = status["relays"][0]["since_ms"].as_u64()?;
        (status["shares"][0]["state"] == "open").then_some(since)
    };
    let before = wait::some_within(wait::PATIENCE, "the share is open", is_open).unwrap();
    bed.send(100);
    let sent = |expected: u64| {
        wait::some_within(wait::PATIENCE, "all are relayed", || {
            let stats = bed.json(&["stats", "--json"]);
            (stats["rules"][0]["outputs"][0]["sent"]["packets"] == expected).then_some(())
        })
        .unwrap();
    };
    sent(100);
    fence(&bed, "relay-a");
    let again = || is_open().filter(|since| *since != before);
    wait::some_within(wait::PATIENCE, "it has joined again", again).unwrap();
    bed.send(100);
    sent(200);
    assert!(
        bed.daemon
            .mcr(&["fleet", "events"])
            .unwrap()
            .contains("relay_fenced")
    );
    drop(etcd);
    wait::some_within(wait::PATIENCE, "etcd is away", || {
        let etcd = &bed.json(&["fleet", "status", "--json"])["etcd"];
        (etcd["reachable"] == false && etcd["last_answer_ms"].is_u64()).then_some(())
    })
    .unwrap();
    let status = bed.daemon.mcr(&["fleet", "status"]).unwrap();
    assert!(status.contains("; last answered "), "{status}");
    // Scripts see that these may not be the fleet's rules any more.
    for (arguments, shown) in [
        (&["fleet", "list"][..], "cam1  cam1   relay-a"),
        (&["fleet", "list", "--json"], "\"problem\""),
        (&["fleet", "export"], ""),
    ] {
        let stdout = bed.fails(arguments, 69, &["etcd"]);
        assert!(stdout.contains(shown), "{arguments:?}: {stdout}");
    }
}
