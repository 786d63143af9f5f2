//! Every command of the guides runs, and every configuration is good, in a lab where `eth0`, `eth1`
//! and `eth2` are there and a daemon answers.
//!
//! A block of `toml` whose first line is a comment with a file name is written to that file; lines
//! of a `console` block that begin with `$` are run in its directory.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::Path;

use lab::daemon::{Daemon, Options};
use lab::link;
use lab::namespace::Namespace;

/// A fenced block: its language and its lines.
fn blocks(text: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in text.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(language)) => open = Some((language.to_owned(), String::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some((_, body)), None) => {
                body.push_str(line);
                body.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}

/// A relay with three interfaces and what lies behind them.
fn bed() -> (Namespace, Namespace) {
    let relay = Namespace::new("relay").unwrap();
    let world = Namespace::new("world").unwrap();
    for number in 0..3 {
        let (near, far) = (format!("eth{number}"), format!("far{number}"));
        link::veth((&relay, &near), (&world, &far)).unwrap();
        link::address((&relay, &near), &format!("10.0.{number}.1/24")).unwrap();
        link::address((&world, &far), &format!("10.0.{number}.2/24")).unwrap();
    }
    (relay, world)
}

fn run_document(name: &str) {
    if !lab::demo::may_run() {
        eprintln!("skipped: needs root");
        return;
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(name);
    let text = fs::read_to_string(file).unwrap();
    let (relay, _world) = bed();
    let daemon = Daemon::start(&relay, Options::default()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_mcr")).parent().unwrap();
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", binary.display());
    let mut ran = 0;
    for (language, body) in blocks(&text) {
        match language.as_str() {
            "toml" => {
                let name = body.lines().next().and_then(|line| line.strip_prefix("# "));
                fs::write(directory.path().join(name.unwrap()), &body).unwrap();
            }
            "console" => {
                for command in body.lines().filter_map(|line| line.strip_prefix("$ ")) {
                    let mut shell = relay.command("sh");
                    shell.args(["-euc", command]).current_dir(directory.path());
                    shell.env("PATH", &path).env("MCR_SOCKET", daemon.socket());
                    let output = shell.output().unwrap();
                    let said = String::from_utf8_lossy(&output.stderr);
                    assert!(output.status.success(), "{name}: {command}: {said}");
                    ran += 1;
                }
            }
            "text" => {}
            other => panic!("{name}: a block of {other:?} is neither run nor checked"),
        }
    }
    assert!(ran > 5, "{name}: only {ran} commands ran");
}

#[test]
fn the_operations_guide_runs() {
    run_document("docs/operations.md");
}

#[test]
fn the_cookbook_runs() {
    run_document("docs/cookbook.md");
}

#[test]
fn the_readme_runs() {
    run_document("README.md");
}
