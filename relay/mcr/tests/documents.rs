//! Every command of the guides runs, and every configuration is good, in a lab where `eth0`, `eth1`
//! and `eth2` are there and a daemon answers.
//!
//! A block of `toml` whose first line is a comment with a file name is written to that file, as is one
//! whose fence names a file behind its language; lines of a `console` block that begin with `$` are run
//! in its directory.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};

use lab::daemon::{Daemon, Options};
use lab::link;
use lab::namespace::Namespace;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(file: &str) -> String {
    let text = fs::read_to_string(root().join(file));
    text.unwrap_or_else(|error| panic!("{file}: {error}"))
}

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

/// Runs the commands of documents in one bed, one document after the other.
fn run_documents(names: &[&str]) {
    if !lab::demo::may_run() {
        eprintln!("skipped: needs root");
        return;
    }
    let (relay, _world) = bed();
    let daemon = Daemon::start(&relay, Options::default()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_mcr")).parent().unwrap();
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", binary.display());
    let mut ran = 0;
    let all = names
        .iter()
        .flat_map(|name| blocks(&read(name)).into_iter().map(move |it| (name, it)));
    for (name, (language, body)) in all {
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
                    let stderr = String::from_utf8_lossy(&output.stderr);
                    assert!(output.status.success(), "{name}: {command}: {stderr}");
                    ran += 1;
                }
            }
            "text" => {}
            other if other.contains(' ') => {
                let name = other.split(' ').nth(1).unwrap();
                fs::write(directory.path().join(name), &body).unwrap();
            }
            other => panic!("{name}: a block of {other:?} is neither run nor checked"),
        }
    }
    assert!(ran > 5, "{names:?}: only {ran} commands ran");
}

#[test]
fn the_guides_run() {
    run_documents(&[
        "docs/install.md",
        "docs/run.md",
        "docs/watch.md",
        "docs/trouble.md",
    ]);
}

/// A heading as a link names it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let name = text.chars().map(|at| if at == ' ' { '-' } else { at });
    name.filter(|at| at.is_alphanumeric() || matches!(at, '-' | '_'))
        .collect()
}

/// Every Markdown file of a folder.
fn documents(folder: &str) -> Vec<String> {
    let files = fs::read_dir(root().join(folder)).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let documents = names.filter(|name| name.ends_with(".md"));
    documents.map(|name| format!("{folder}/{name}")).collect()
}

#[test]
fn every_link_of_the_documents_leads_somewhere() {
    let folders = [".", "docs", "docs/decisions", "docs/measurements"];
    let mut seen = 0;
    for name in folders.map(documents).concat() {
        let text = read(&name);
        let links = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split_once(')'));
        for (link, _) in links.filter(|(link, _)| !link.contains(":/")) {
            let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
            let folder = Path::new(&name).parent().unwrap();
            let file = if file.is_empty() {
                Path::new(&name).into()
            } else {
                folder.join(file)
            };
            assert!(root().join(&file).exists(), "{name}: {link}");
            if !fragment.is_empty() {
                let target = read(&file.display().to_string());
                let mut headings = target.lines().filter(|line| line.starts_with('#'));
                assert!(
                    headings.any(|line| anchor(line) == fragment),
                    "{name}: {link}"
                );
            }
            seen += 1;
        }
    }
    assert!(seen > 50, "{seen} links");
}

/// The table of faults promises nothing that is not there: tests, events, metrics and checks.
#[test]
fn every_fault_names_a_test_that_exists_and_who_tells() {
    let guide = read("docs/trouble.md");
    let (_, faults) = guide.split_once("\n## Faults, and who tells\n").unwrap();
    let faults = faults.split("\n## ").next().unwrap();
    let sources = |folder: &str| {
        let entries = fs::read_dir(root().join(folder)).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let files = paths.filter(|path| path.extension().is_some_and(|end| end == "rs"));
        let texts = files.map(|file| fs::read_to_string(file).unwrap());
        texts.collect::<String>()
    };
    let events = read("relay/config/src/event_kind.rs");
    let metrics = [
        "relay/api/src/reply",
        "relay/counters/src",
        "relay/observe/src/stats",
    ]
    .map(sources)
    .concat()
        + &sources("relay/observe/src/stats/metrics");
    let checks = read("relay/mcr/src/doctor.rs");
    let mut rows = 0;
    for row in faults.lines().filter(|line| line.contains(".rs`")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" |").map(str::trim).collect();
        let [_, message, event, metric, doctor, test] = cells[..] else {
            panic!("six cells: {row}");
        };
        let named = |cell: &str| -> Vec<String> {
            cell.split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect()
        };
        let [file, function] = &named(test)[..] else {
            panic!("a file and a test: {row}");
        };
        let source = read(file);
        assert!(
            source.contains(&format!("fn {function}(")),
            "{file} has no {function}"
        );
        for kind in named(event) {
            assert!(events.contains(&format!("\"{kind}\"")), "no event {kind}");
        }
        for name in named(metric) {
            assert!(metrics.contains(&format!("\"{name}\"")), "no metric {name}");
        }
        for check in named(doctor) {
            assert!(
                checks.contains(&format!("\"{check}\": \"")),
                "no check {check}"
            );
        }
        assert!(
            [message, event, metric, doctor]
                .iter()
                .any(|cell| !cell.is_empty()),
            "{row}"
        );
        rows += 1;
    }
    assert!(rows > 20, "{rows} faults");
}

#[test]
fn the_cookbook_runs() {
    run_documents(&["docs/cookbook.md"]);
}

#[test]
fn the_readme_runs() {
    run_documents(&["README.md"]);
}
