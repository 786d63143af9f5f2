//! `[daemon]` in the configuration: the daemon is started with it, the command line comes first, and
//! whoever changes it later is told what has to wait for a restart.

#![expect(clippy::unwrap_used, reason = "tests")]

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
    // What the command line says, no file changes, and no restart does.
    let (change, said) = apply(&daemon, "workers = 7\nlog = \"json\"\n", false);
    assert_eq!(change.get("warnings"), None, "{said}");
}

#[test]
fn a_change_says_what_has_to_wait_for_a_restart() {
    let Some((mut daemon, _chain)) = start("path = \"userspace\"\nworkers = 1\n", &[]) else {
        return;
    };
    let waits = "[daemon] workers: 2 takes effect when the daemon is started again; until then 1";
    let lines = "path = \"userspace\"\nworkers = 2\n";
    for dry_run in [true, false, false] {
        let (change, said) = apply(&daemon, lines, dry_run);
        assert_eq!(change["warnings"], json!([waits]));
        assert!(said.contains(waits), "{said}");
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
