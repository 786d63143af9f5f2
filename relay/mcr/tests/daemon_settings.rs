//! `[daemon]` in the configuration: the daemon is started with it, the command line comes first, and
//! a later change reports what has to wait for a restart.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::process::Command;

use lab::daemon::{Daemon, Options};
use lab::topology::Chain;
use lab::wait;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const RULE: &str = r#"
[[rule]]
name = "cam1"
input = "239.1.1.1%veth1:5001"
outputs = ["239.10.1.1%veth2:6001"]
"#;

/// A configuration with these lines in `[daemon]`.
fn config(daemon: &str) -> String {
    format!("version = 1\n[daemon]\n{daemon}{RULE}")
}

fn start(daemon: &str, arguments: &[&str]) -> Option<(Daemon, Chain)> {
    if !lab::demo::may_run() {
        eprintln!("skipped: needs root");
        return None;
    }
    let chain = Chain::plain().unwrap();
    let options = Options {
        config: Some(config(daemon)),
        arguments: arguments.iter().map(ToString::to_string).collect(),
        ..Options::default()
    };
    let daemon = Daemon::start(&chain.relay, options).unwrap();
    Some((daemon, chain))
}

/// Applies a configuration with these lines in `[daemon]`.
fn apply(daemon: &Daemon, lines: &str, dry_run: bool) -> (Value, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), config(lines)).unwrap();
    let mut arguments = vec!["apply", file.path().to_str().unwrap(), "--json"];
    arguments.extend(dry_run.then_some("--dry-run"));
    let finished = daemon.client(&arguments).unwrap();
    let change = serde_json::from_str(&finished.stdout);
    (change.expect(&finished.stderr), finished.stderr)
}

fn workers(daemon: &Daemon) -> usize {
    let stats: Value = serde_json::from_str(&daemon.mcr(&["stats", "--json"]).unwrap()).unwrap();
    stats["workers"].as_array().unwrap().len()
}

#[test]
fn the_file_starts_the_daemon_and_the_command_line_comes_first() {
    let lines = "path = \"userspace\"\nworkers = 1\nlog = \"json\"\nmax_rules = 1\n\
                 listen = \"127.0.0.1:9469\"\n";
    let Some((daemon, chain)) = start(lines, &[]) else {
        return;
    };
    assert_eq!(workers(&daemon), 1);
    let log = daemon.log();
    let first = log.lines().next().unwrap();
    assert!(serde_json::from_str::<Value>(first).is_ok(), "{log}");
    let rule: Value = serde_json::from_str(&daemon.mcr(&["show", "cam1", "--json"]).unwrap())
        .expect("show prints JSON");
    assert!(rule.to_string().contains("userspace"), "{rule}");
    let added = daemon
        .client(&[
            "add",
            "--name",
            "b",
            "239.1.1.2%veth1:1",
            "239.10.1.2%veth2:1",
        ])
        .unwrap();
    assert_eq!(added.status.code(), Some(69), "{}", added.stderr);
    let healthy = chain
        .relay
        .tool("curl", "-sf http://127.0.0.1:9469/healthz");
    assert_eq!(healthy.unwrap(), "ok\n");
    drop((daemon, chain));

    let arguments = ["--workers", "2", "--log", "text", "--path", "userspace"];
    let Some((daemon, _chain)) = start("workers = 1\nlog = \"json\"\n", &arguments) else {
        return;
    };
    assert_eq!(workers(&daemon), 2);
    let log = daemon.log();
    assert!(!log.lines().any(|line| line.starts_with('{')), "{log}");
    // What the command line sets, neither a file nor a restart changes.
    let (change, stderr) = apply(&daemon, "workers = 7\nlog = \"json\"\n", false);
    assert_eq!(change.get("warnings"), None, "{stderr}");
}

/// Whether the page answers at that address.
fn answers(chain: &Chain, address: &str) -> bool {
    let url = format!("-sf http://{address}/healthz");
    chain.relay.tool("curl", &url).is_ok()
}

/// Whether the daemon takes one more rule with that input.
fn takes(daemon: &Daemon, input: &str) -> bool {
    let arguments = ["add", "--name", "more", input, "239.10.1.2%veth2:1"];
    let added = daemon.client(&arguments).unwrap();
    assert!(
        matches!(added.status.code(), Some(0 | 1 | 69)),
        "{}",
        added.stderr
    );
    added.status.success()
}

#[test]
fn an_address_of_the_file_is_served_unless_the_command_line_has_another() {
    let lines = "listen = \"127.0.0.1:9469\"\n";
    for (arguments, at_file, at_option) in [
        (&[][..], true, false),
        (&["--listen", "127.0.0.1:9470"], false, true),
    ] {
        let Some((_daemon, chain)) = start(lines, arguments) else {
            return;
        };
        assert_eq!(answers(&chain, "127.0.0.1:9469"), at_file, "{arguments:?}");
        assert_eq!(
            answers(&chain, "127.0.0.1:9470"),
            at_option,
            "{arguments:?}"
        );
    }
}

#[test]
fn a_path_of_the_file_is_taken_unless_the_command_line_has_another() {
    let lines = "path = \"userspace\"\nworkers = 1\n";
    for (arguments, path) in [(&[][..], "userspace"), (&["--path", "kernel"], "kernel")] {
        let Some((daemon, _chain)) = start(lines, arguments) else {
            return;
        };
        let shown = daemon.mcr(&["stats", "--json"]).unwrap();
        let stats: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(stats["rules"][0]["path"], path, "{arguments:?}");
    }
}

#[test]
fn a_limit_of_the_file_holds_unless_the_command_line_has_another() {
    for (arguments, room) in [(&[][..], false), (&["--max-rules", "2"], true)] {
        let Some((daemon, _chain)) = start("max_rules = 1\n", arguments) else {
            return;
        };
        assert_eq!(takes(&daemon, "239.1.1.2%veth1:1"), room, "{arguments:?}");
    }
}

#[test]
fn link_local_inputs_are_permitted_by_the_file_unless_the_command_line_forbids_them() {
    for (lines, arguments, permitted) in [
        ("", &[][..], false),
        ("allow_link_local = true\n", &[], true),
        (
            "allow_link_local = true\n",
            &["--allow-link-local=false"],
            false,
        ),
        ("allow_link_local = false\n", &["--allow-link-local"], true),
    ] {
        let Some((daemon, _chain)) = start(lines, arguments) else {
            return;
        };
        assert_eq!(
            takes(&daemon, "224.0.0.251%veth1:5353"),
            permitted,
            "{lines:?} {arguments:?}"
        );
    }
}

#[test]
fn the_file_says_what_goes_on_after_the_end_unless_the_command_line_does() {
    for (lines, arguments, goes_on) in [
        ("", &[][..], false),
        ("keep_forwarding = true\n", &[], true),
        (
            "keep_forwarding = true\n",
            &["--keep-forwarding=false"],
            false,
        ),
        ("keep_forwarding = false\n", &["--keep-forwarding"], true),
    ] {
        let Some((mut daemon, _chain)) = start(lines, arguments) else {
            return;
        };
        let finished = daemon.stop(Signal::SIGTERM).unwrap();
        assert!(finished.status.success(), "{finished:?}");
        assert_eq!(daemon.pins().exists(), goes_on, "{lines:?} {arguments:?}");
    }
}

#[test]
fn a_check_knows_every_option_and_finds_what_is_wrong_with_each() {
    let check = |lines: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), config(lines)).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_mcr"))
            .arg("check")
            .arg(file.path())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), stderr)
    };
    for (good, bad) in [
        ("listen = \"[::1]:9469\"", "listen = \"9469\""),
        ("path = \"kernel\"", "path = \"fast\""),
        ("workers = 3", "workers = 0"),
        ("log = \"json\"", "log = \"xml\""),
        ("max_rules = 7", "max_rules = -1"),
        ("allow_link_local = true", "allow_link_local = \"yes\""),
        ("keep_forwarding = true", "keep_forwarding = 1"),
    ] {
        assert_eq!(check(&format!("{good}\n")), (Some(0), String::new()));
        let (status, stderr) = check(&format!("{bad}\n"));
        assert_eq!(status, Some(78), "{bad}: {stderr}");
        // In its line of the file, and by its name or by what it should be.
        assert!(stderr.contains(":3: daemon: "), "{bad}: {stderr}");
    }
    let (status, stderr) = check("keep_forwardin = true\n");
    assert_eq!(status, Some(78));
    assert!(stderr.contains("keep_forwardin"), "{stderr}");
}

#[test]
fn a_change_says_what_has_to_wait_for_a_restart() {
    let Some((mut daemon, _chain)) = start("path = \"userspace\"\nworkers = 1\n", &[]) else {
        return;
    };
    let waits = "[daemon] workers: 2 takes effect when the daemon is started again; until then 1";
    let lines = "path = \"userspace\"\nworkers = 2\n";
    for dry_run in [true, false, false] {
        let (change, stderr) = apply(&daemon, lines, dry_run);
        assert_eq!(change["warnings"], json!([waits]));
        assert!(stderr.contains(waits), "{stderr}");
    }
    assert_eq!(workers(&daemon), 1);
    let (change, _) = apply(&daemon, "path = \"userspace\"\nworkers = 1\n", false);
    assert_eq!(change["settings"], json!(["daemon workers: 1 (was 2)"]));
    assert_eq!(change.get("warnings"), None);
    let exported = daemon.mcr(&["export"]).unwrap();
    assert!(exported.contains("[daemon]\npath = \"userspace\"\nworkers = 1\n"));

    std::fs::write(daemon.config_file(), config(lines)).unwrap();
    let process = Pid::from_raw(i32::try_from(daemon.id()).unwrap());
    kill(process, Signal::SIGHUP).unwrap();
    wait::until("the reload says so", || {
        daemon.log().contains("WARN") && daemon.log().contains(waits)
    })
    .unwrap();
    daemon
        .mcr(&[
            "add",
            "--name",
            "b",
            "239.1.1.2%veth1:1",
            "239.10.1.2%veth2:1",
        ])
        .unwrap();
    daemon.kill().unwrap();
    daemon.start_again().unwrap();
    assert_eq!(workers(&daemon), 2);
    let names = daemon.mcr(&["list", "-o", "name"]).unwrap();
    assert_eq!(
        names, "cam1\nb\n",
        "an edit of [daemon] alone takes no rule away"
    );
}
