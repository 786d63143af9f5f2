//! `dist/bootstrap` in each distribution: what it would install, from one table. It was run in Debian
//! only; of the others is checked that nothing is left out, of Debian's that the packages exist.

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

/// The lines of what a distribution would be told: the command, then what it has no package for.
fn told(purpose: &str, distribution: &str) -> Vec<String> {
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
fn every_distribution_is_told_what_it_needs() {
    let things = |purpose| packages(&told(purpose, "debian")[0]).len();
    for purpose in ["build", "demo", "fleet", "test", "bench", "packages"] {
        for (distribution, command) in DISTRIBUTIONS {
            let told = told(purpose, distribution);
            assert!(told[0].starts_with(command), "{told:?}");
            // A package may bring two things, and each thing has one or a line that says no.
            let named = packages(&told[0]).len() + told.len() - 1;
            assert!(named + 2 >= things(purpose), "{distribution}: {told:?}");
            for line in &told[1..] {
                assert!(line.ends_with("; what needs it skips"), "{line}");
            }
        }
    }
    assert_eq!(
        told("build", "alpine").len(),
        1,
        "nothing can be built without a compiler"
    );
    let ubuntu = told("test", "ubuntu");
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
    let told = ["test", "bench", "packages"].map(|purpose| told(purpose, "debian").remove(0));
    let choices: BTreeSet<&str> = told.iter().flat_map(|told| packages(told)).collect();
    let mut command = Command::new("apt-cache");
    command.args(["show", "--no-all-versions"]);
    command.args(choices.iter().flat_map(|choice| choice.split('/')));
    // It fails where it does not know all of them, and shows those that it knows.
    let shown = command.output().map_or(Vec::new(), |output| output.stdout);
    let shown = String::from_utf8(shown).unwrap();
    let known: BTreeSet<&str> = shown
        .lines()
        .filter_map(|line| line.strip_prefix("Package: "))
        .collect();
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    if !release.contains("\nID=debian\n") || !known.contains("gcc") {
        eprintln!("skipped: needs Debian and its package lists (apt-get update)");
        return;
    }
    for choice in choices {
        let is_known = choice.split('/').any(|package| known.contains(package));
        assert!(is_known, "Debian has no {choice}");
    }
}
