//! Captures at a relay for a remote operator, and the process that makes them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use lab::process::{self, Finished, Process};
use lab::wait;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{Bed, PATIENCE, RELAY, TOKENS};
use crate::bed::{INPUT, OUTPUT, can_run};

fn bed() -> Option<Bed> {
    let bed = Bed::new("")?;
    bed.mcr("change", &["add", INPUT, OUTPUT, "--name", "cam1"]);
    Some(bed)
}

/// Starts a long stream.
fn stream(bed: &Bed, more: &[&str]) -> Process {
    let mut command = bed.chain.sender.command(lab::binary::mcr().unwrap());
    command.args(["send", "239.1.1.1%veth0:5001", "--duration", "600"]);
    Process::start({
        command.args(more);
        command
    })
    .unwrap()
}

/// Starts a capture, and returns it with its file.
fn capture(bed: &Bed, arguments: &[&str]) -> (Process, PathBuf) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let file = bed.keys.path(&format!("{number}.pcapng"));
    let mut command = bed.command("operate", &["tap", "cam1"]);
    command.args(arguments).arg("--write").arg(&file);
    let tap = Process::start(command).unwrap();
    wait::until("the capture begins", || {
        file.metadata().is_ok_and(|about| about.len() > 0)
    })
    .unwrap();
    (tap, file)
}

/// The capturing processes of the daemon, including those that have ended and are not reaped yet.
fn capturing(bed: &Bed) -> Vec<u32> {
    let socket = bed.daemon.socket().display().to_string();
    let daemon = format!("PPid:\t{}\n", bed.daemon.id());
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let read = |what: &str| fs::read_to_string(format!("/proc/{pid}/{what}")).ok();
        let (status, line) = (read("status")?, read("cmdline")?);
        let captures = line.contains(&socket) && line.contains("--lent");
        let is_dead = status.contains("State:\tZ") && status.contains("\nThreads:\t1");
        (status.contains(&daemon) && (captures || is_dead)).then_some(pid)
    });
    processes.collect()
}

#[track_caller]
fn wait_for_none(bed: &Bed) {
    wait::until("no process is left", || capturing(bed).is_empty()).unwrap();
}

/// The number of packets to this destination in a file.
fn packets(file: &Path, destination: &str) -> usize {
    let mut command = Command::new("tshark");
    command
        .args(["-T", "fields", "-e", "ip.dst", "-r"])
        .arg(file);
    let shown = process::run(command, PATIENCE).unwrap().success().unwrap();
    shown
        .lines()
        .filter(|line| line.contains(destination))
        .count()
}

#[test]
fn what_arrives_and_leaves_there_is_captured_from_here() {
    let Some(bed) = bed() else { return };
    if let Err(reason) = can_run("tshark") {
        eprintln!("skipped: {reason}");
        return;
    }
    let _stream = stream(&bed, &["--rate", "200"]);
    let file = bed.keys.path("cam1.pcapng");
    let name = file.to_str().unwrap();
    let tap = |more: &[&str]| {
        bed.run(
            "operate",
            &[&["tap", "cam1", "--write", name][..], more].concat(),
        )
    };
    let Finished { status, stderr, .. } = tap(&["--count", "50", "--output", "1"]);
    assert!(status.success(), "{stderr}");
    assert_eq!(
        (packets(&file, "239.10.1.1"), packets(&file, "239.1.1.1")),
        (50, 0)
    );
    // The remote messages are printed here.
    let message = "mcr tap: rule cam1, output 1: 239.10.1.1%veth2:6001 on veth2: 50 packets, ";
    assert!(stderr.contains(message), "{stderr}");
    let Finished { status, stderr, .. } =
        tap(&["--duration", "500ms", "inbound", "and", "port", "5001"]);
    assert!(status.success(), "{stderr}");
    assert!(
        packets(&file, "239.1.1.1") > 0 && packets(&file, "239.10.1.1") == 0,
        "{stderr}"
    );
    // Into a pipe that the reader closes.
    let mut command = bed.chain.sink.command("sh");
    command
        .env("XDG_CONFIG_HOME", bed.keys.directory())
        .env_remove("MCR_SOCKET");
    command.args([
        "-c",
        "\"$0\" --host operate tap cam1 | head -c 4 | od -An -tx1",
    ]);
    command.arg(lab::binary::mcr().unwrap());
    let piped = process::run(command, PATIENCE).unwrap();
    assert_eq!(
        (piped.stdout.trim(), piped.stderr.as_str()),
        ("0a 0d 0d 0a", "")
    );
    wait_for_none(&bed);
    for (host, words, status, message) in [
        ("view", &["tap", "cam1"][..], 77, "operate"),
        ("operate", &["tap", "cam2"], 3, "cam2"),
        ("operate", &["tap", "cam1", "tcp"], 2, "no such filter"),
        (
            "operate",
            &["tap", "cam1", "--output", "7"],
            2,
            "no output 7",
        ),
        (
            "operate",
            &["tap", "cam1", "--duration", "61"],
            2,
            "60 at most",
        ),
        ("operate,view", &["tap", "cam1"], 2, "one host at a time"),
        ("view", &["discover"], 77, "operate"),
        ("operate", &["discover", "veth7"], 69, "no interface veth7"),
    ] {
        let words = [
            words,
            if words[0] == "tap" {
                &["--write", "/dev/null"][..]
            } else {
                &[]
            },
        ]
        .concat();
        bed.refuses(host, &words, status, message);
    }
}

#[test]
fn streams_are_discovered_remotely_as_they_are_locally() {
    let Some(bed) = bed() else { return };
    let _stream = stream(&bed, &["--rate", "100"]);
    let mut command = bed.chain.sender.command(lab::binary::mcr().unwrap());
    command.args([
        "send",
        "239.1.1.9%veth0:5009",
        "--duration",
        "600",
        "--framing",
        "ts",
    ]);
    let _other = Process::start(command).unwrap();
    let discover = ["discover", "veth1", "--duration", "2s", "--json"];
    let here: Value = serde_json::from_str(&bed.mcr("operate", &discover)).unwrap();
    let there: Value = serde_json::from_str(&bed.daemon.mcr(&discover).unwrap()).unwrap();
    let streams = |report: &Value| -> Vec<Value> {
        let list = report["streams"].as_array().unwrap().iter();
        let keys = [
            "group", "port", "source", "content", "joined", "rule", "input", "add", "ttl",
        ];
        list.map(|one| keys.map(|key| one[key].clone()).into())
            .collect()
    };
    assert_eq!(streams(&here), streams(&there), "{here} {there}");
    assert_eq!(
        (&here["streams"][0]["rule"], streams(&here).len()),
        (&"cam1".into(), 2)
    );
    // As a table, and where nothing arrives.
    let table = bed.run("operate", &["discover", "veth2", "--duration", "100ms"]);
    assert!(
        table
            .stdout
            .starts_with("no multicast arrived on veth2 within"),
        "{table:?}"
    );
    let table = bed.mcr("operate", &["discover", "--duration", "2"]);
    for word in [
        "CONTENT",
        "cam1",
        "to relay what no rule takes:\n  mcr add 239.1.1.9%veth1:5009 OUTPUT",
    ] {
        assert!(table.contains(word), "no {word} in {table}");
    }
    // On several hosts at once, and with a group that is joined meanwhile.
    let both: Value = serde_json::from_str(&bed.mcr("operate,change", &discover)).unwrap();
    assert_eq!(
        both["hosts"]["change"]["streams"][0]["group"], "239.1.1.1",
        "{both}"
    );
    let joined = Process::start(bed.command(
        "operate",
        &[
            "discover",
            "veth1",
            "--duration",
            "20",
            "--join",
            "239.7.7.7",
        ],
    ))
    .unwrap();
    let is_member = || {
        bed.chain
            .relay
            .ip("maddress show dev veth1")
            .unwrap()
            .contains("239.7.7.7")
    };
    wait::until("it is joined", is_member).unwrap();
    drop(joined);
    wait::until("it is left", || !is_member()).unwrap();
    // Through the control socket as well.
    let json = lab::control::read(
        &bed.daemon.socket(),
        "/v1/discover?interfaces=veth1&seconds=1",
    );
    let report: Value = serde_json::from_str(&json.unwrap()).unwrap();
    assert_eq!(streams(&report), streams(&there));
}

#[test]
fn whoever_captures_for_others_holds_nothing_but_its_sockets() {
    let Some(bed) = bed() else { return };
    let (_tap, _) = capture(&bed, &[]);
    let [pid] = capturing(&bed)[..] else {
        panic!("{:?}", capturing(&bed))
    };
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    for line in [
        "CapInh:\t0000000000000000",
        "CapPrm:\t0000000000000000",
        "CapEff:\t0000000000000000",
        "CapAmb:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "Threads:\t1",
    ] {
        assert!(status.contains(line), "no {line} in {status}");
    }
    assert_eq!(
        fs::read(format!("/proc/{pid}/environ")).unwrap_or_default(),
        b""
    );
    // The daemon holds no socket that captures.
    let open_files = |pid: u32| -> Vec<String> {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let links = entries.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
        links.map(|to| to.display().to_string()).collect()
    };
    let held = open_files(bed.daemon.id());
    let table = bed.chain.relay.read_proc_net("packet").unwrap();
    let taps: Vec<String> = open_files(pid)
        .into_iter()
        .filter(|to| {
            let inode = to.trim_start_matches("socket:[").trim_end_matches(']');
            table.lines().any(|line| {
                line.ends_with(&format!(" {inode}"))
                    || line.split_whitespace().last() == Some(inode)
            })
        })
        .collect();
    assert_eq!(taps.len(), 2, "an input and an output: {taps:?}");
    assert!(taps.iter().all(|tap| !held.contains(tap)), "{held:?}");
}

#[test]
fn two_capture_at_once_and_each_ends_with_whoever_asked_for_it() {
    let Some(mut bed) = bed() else { return };
    let ((mut first, _), (second, _)) = (capture(&bed, &[]), capture(&bed, &[]));
    assert_eq!(capturing(&bed).len(), 2);
    let third = ["tap", "cam1", "--write", "/dev/null"];
    bed.refuses("operate", &third, 69, "two captures go on already");
    bed.refuses("operate", &["discover"], 69, "two captures go on already");
    // A client that is killed, and one whose file is to be complete.
    first.signal(Signal::SIGKILL).unwrap();
    wait::until("one is left", || capturing(&bed).len() == 1).unwrap();
    let finished = second.stop(Signal::SIGINT).unwrap();
    assert!(finished.status.success(), "{finished:?}");
    wait_for_none(&bed);
    // A capturing process that is killed.
    let (tap, _) = capture(&bed, &[]);
    let [pid] = capturing(&bed)[..] else {
        panic!("{:?}", capturing(&bed))
    };
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).unwrap();
    let finished = tap.wait(PATIENCE).unwrap();
    assert_eq!(finished.status.code(), Some(69), "{finished:?}");
    wait_for_none(&bed);
    // A client whose access is revoked; a reload leaves the saved rule.
    bed.mcr("change", &["save"]);
    let (tap, _) = capture(&bed, &[]);
    let path = bed.daemon.config_file();
    let text = fs::read_to_string(&path).unwrap();
    let hash = tls::token::hash(TOKENS[1].1);
    fs::write(&path, text.replace(&hash, &tls::token::hash("other"))).unwrap();
    bed.daemon.mcr(&["reload"]).unwrap();
    assert_eq!(tap.wait(PATIENCE).unwrap().status.code(), Some(4));
    wait_for_none(&bed);
    fs::write(&path, text).unwrap();
    bed.daemon.mcr(&["reload"]).unwrap();
    // A daemon that stops, and one that is killed.
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let (tap, _) = capture(&bed, &[]);
        let pids = capturing(&bed);
        assert_eq!(pids.len(), 1);
        bed.daemon.stop(signal).unwrap();
        assert_eq!(tap.wait(PATIENCE).unwrap().status.code(), Some(4));
        // A process that has ended and is not reaped has no command line.
        let is_running =
            |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty());
        wait::until("it is gone", || !pids.iter().any(is_running)).unwrap();
        bed.daemon.start_again().unwrap();
        bed.wait_for("it listens", |api| api["state"] == "up");
    }
}

#[test]
fn a_capture_ends_with_its_rule_and_with_what_it_may_come_to() {
    let Some(bed) = bed() else { return };
    let (tap, _) = capture(&bed, &[]);
    bed.mcr(
        "change",
        &[
            "add",
            "239.1.1.2%veth1:5002",
            "239.10.1.2%veth2:6002",
            "--name",
            "cam2",
        ],
    );
    bed.mcr("change", &["remove", "cam1"]);
    let finished = tap.wait(PATIENCE).unwrap();
    assert_eq!(finished.status.code(), Some(3), "{finished:?}");
    for said in [
        "input: 239.1.1.1%veth1:5001 on veth1: 0 packets, 0 lost",
        "\"cam1\" was removed",
    ] {
        assert!(finished.stderr.contains(said), "{finished:?}");
    }
    bed.mcr("change", &["add", INPUT, OUTPUT, "--name", "cam1"]);
    let (tap, file) = capture(&bed, &[]);
    // Slow enough that the capture loses little of it on a busy machine.
    let _stream = stream(&bed, &["--rate", "3000", "--size", "1400"]);
    let finished = tap.wait(wait::scaled(PATIENCE * 3)).unwrap();
    assert!(finished.status.success(), "{finished:?}");
    let size = file.metadata().unwrap().len();
    assert!((64 << 20..65 << 20).contains(&size), "{size} {finished:?}");
    assert!(
        finished
            .stderr
            .contains("64 MiB are written; the capture ends"),
        "{finished:?}"
    );
    wait_for_none(&bed);
}

#[test]
fn no_other_sites_page_has_anything_captured() {
    let Some(bed) = bed() else { return };
    bed.keys
        .sign("op", "clients", "subjectAltName=DNS:ci.example", "-days 30");
    let certificate = "--cert op.pem --key op.key";
    for route in ["rules/cam1/tap?seconds=1", "discover?seconds=1"] {
        let request = format!("{certificate} -o /dev/null https://{RELAY}/v1/{route}");
        assert_eq!(bed.curl(&request).0, 200, "{route}: no browser");
        for (site, status) in [
            ("cross-site", 403),
            ("same-site", 403),
            ("none", 401),
            ("same-origin", 401),
        ] {
            let from_site = format!("-H Sec-Fetch-Site:{site} {request}");
            assert_eq!(bed.curl(&from_site).0, status, "{route}: {site}");
        }
    }
    assert!(capturing(&bed).is_empty());
}
