//! `dist/bootstrap` in each distribution: what it would install, from one table. It was run in Debian
//! only; for the others this checks that nothing is left out, for Debian that the packages exist.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

const DISTRIBUTIONS: [(&str, &str); 6] = [
    ("debian", "apt-get install "),
    ("ubuntu", "apt-get install "),
    ("fedora", "dnf install "),
    ("arch", "pacman --sync "),
    ("opensuse", "zypper --non-interactive install "),
    ("alpine", "apk add "),
];

fn bootstrap(arguments: &[&str]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/bootstrap");
    Command::new(script).args(arguments).output().unwrap()
}

/// The lines of the plan for a distribution: the command, then what it has no package for.
fn plan(purpose: &str, distribution: &str) -> Vec<String> {
    let output = bootstrap(&[purpose, "--as", distribution]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| {
        let line = line.strip_prefix("not run: ");
        line.expect("what is not run says so").to_owned()
    });
    lines.collect()
}

/// The packages of a command.
fn packages(command: &str) -> Vec<&str> {
    let words = command.split(' ').skip(2);
    words
        .filter(|word| !word.starts_with('-') && *word != "install")
        .collect()
}

#[test]
fn every_distribution_gets_a_plan_for_what_it_needs() {
    let things = |purpose| packages(&plan(purpose, "debian")[0]).len();
    for purpose in ["build", "demo", "fleet", "test", "bench", "packages"] {
        for (distribution, command) in DISTRIBUTIONS {
            let plan = plan(purpose, distribution);
            assert!(plan[0].starts_with(command), "{plan:?}");
            // A package may bring two things, and each thing has one or a line that says no.
            let named = packages(&plan[0]).len() + plan.len() - 1;
            assert!(named + 2 >= things(purpose), "{distribution}: {plan:?}");
            for line in &plan[1..] {
                assert!(line.ends_with("; what needs it skips"), "{line}");
            }
        }
    }
    assert_eq!(
        plan("build", "alpine").len(),
        1,
        "nothing can be built without a compiler"
    );
    let ubuntu = plan("test", "ubuntu");
    assert_eq!(ubuntu[1], "chromium is a snap; what needs it skips");
}

#[test]
fn a_purpose_or_distribution_that_is_none_is_wrong_usage() {
    for arguments in [&["dance"][..], &["test", "--as", "plan9"]] {
        let output = bootstrap(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(!output.stderr.is_empty());
    }
}

#[test]
fn debian_has_every_package() {
    let commands = ["test", "bench", "packages"].map(|it| plan(it, "debian").remove(0));
    let choices: BTreeSet<&str> = commands.iter().flat_map(|it| packages(it)).collect();
    let mut command = Command::new("apt-cache");
    command.args(["show", "--no-all-versions"]);
    command.args(choices.iter().flat_map(|choice| choice.split('/')));
    // It fails unless it knows all of them, but shows those that it knows.
    let shown = command.output().map_or(Vec::new(), |output| output.stdout);
    let shown = String::from_utf8(shown).unwrap();
    let existing: BTreeSet<&str> = shown
        .lines()
        .filter_map(|line| line.strip_prefix("Package: "))
        .collect();
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    if !release.contains("\nID=debian\n") || !existing.contains("gcc") {
        eprintln!("skipped: needs Debian and its package lists (apt-get update)");
        return;
    }
    for choice in choices {
        let has_one = choice.split('/').any(|package| existing.contains(package));
        assert!(has_one, "Debian has no {choice}");
    }
}
