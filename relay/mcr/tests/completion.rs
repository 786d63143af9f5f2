//! Completion as the shells do it, with the names of a running daemon.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::Path;
use std::process::Command;

use lab::daemon::{Daemon, Options};
use lab::topology::Chain;
use tempfile::TempDir;

struct Bed {
    daemon: Daemon,
    directory: TempDir,
    chain: Chain,
}

fn bed(shell: &str) -> Option<Bed> {
    if !lab::demo::may_run() {
        eprintln!("skipped: needs root");
        return None;
    }
    if Command::new(shell).arg("--version").output().is_err() {
        eprintln!("skipped: needs {shell}");
        return None;
    }
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::default()).unwrap();
    for (name, group) in [("cam1", 1), ("cam2", 2), ("studio:a", 3)] {
        let input = format!("239.1.1.{group}%veth1:5001");
        daemon
            .add(name, &input, &["239.10.1.1%veth2:6001"])
            .unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    let script = Command::new(env!("CARGO_BIN_EXE_mcr"))
        .args(["completions", shell])
        .output()
        .unwrap();
    fs::write(directory.path().join("script"), script.stdout).unwrap();
    Some(Bed {
        daemon,
        directory,
        chain,
    })
}

impl Bed {
    /// What a shell that runs `program` with the typed `line` offers.
    fn offers(&self, shell: &str, program: &str, line: &str) -> Vec<String> {
        let binary = Path::new(env!("CARGO_BIN_EXE_mcr")).parent().unwrap();
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", binary.display());
        let mut command = self.chain.relay.command(shell);
        let output = command
            .args(["-c", program])
            .current_dir(self.directory.path())
            .env("PATH", path)
            .env("LINE", line)
            .env("HOME", self.directory.path())
            .env("MCR_SOCKET", self.daemon.socket())
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{line}");
        let text = String::from_utf8(output.stdout).unwrap();
        let mut offers: Vec<String> = text.lines().map(str::to_owned).collect();
        offers.sort();
        offers
    }
}

const BASH: &str = r#"
    source ./script
    COMP_WORDBREAKS=$' \t\n"\'><=;|&(:'
    COMP_LINE=$LINE COMP_POINT=${#LINE}
    compopt() { :; }
    _mcr
    printf '%s\n' "${COMPREPLY[@]}"
"#;

#[test]
fn bash_offers_rules_interfaces_options_and_subcommands() {
    let Some(bed) = bed("bash") else { return };
    let offers = |line: &str| bed.offers("bash", BASH, line);
    assert_eq!(offers("mcr show c"), ["cam1", "cam2"]);
    assert_eq!(offers("mcr --json stats cam1 cam"), ["cam1", "cam2"]);
    // Readline replaces only what follows the colon.
    assert_eq!(offers("mcr remove studio:"), ["a"]);
    assert_eq!(
        offers("mcr add 239.1.1.9%ve"),
        ["239.1.1.9%veth1:", "239.1.1.9%veth2:"]
    );
    assert_eq!(
        offers("mcr add 239.1.1.9%veth1:5001 239.10.1.9%veth2"),
        ["239.10.1.9%veth2:"]
    );
    assert_eq!(offers("mcr li"), ["list"]);
    assert_eq!(offers("mcr list --output w"), ["wide"]);
    assert!(offers("mcr run --").contains(&"--keep-forwarding".to_owned()));
    assert!(!offers("mcr ").contains(&"keeper".to_owned()));
    let both = ["239.1.1.8%veth1:5001", "239.2.1.8%veth2:5001"];
    let legs = [
        "--input",
        both[1],
        "--failover",
        "500ms",
        "--label",
        "site=y",
    ];
    let rule = [
        &["add", both[0], "10.0.1.2:7000", "--name", "legs"][..],
        &legs,
    ]
    .concat();
    bed.daemon.mcr(&rule).unwrap();
    bed.daemon.mcr(&["join", "239.7.7.7%veth1"]).unwrap();
    assert_eq!(offers("mcr switch legs 239"), both);
    assert_eq!(offers("mcr change legs --remove-input 239"), both);
    assert_eq!(
        offers("mcr change legs --remove-output "),
        ["10.0.1.2:7000"]
    );
    assert_eq!(offers("mcr list -l s"), ["site", "site=y"]);
    assert_eq!(
        offers("mcr join 239.7.7.8%ve"),
        ["239.7.7.8%veth1", "239.7.7.8%veth2"]
    );
    assert_eq!(offers("mcr leave 239"), ["239.7.7.7%veth1"]);
    // Another daemon, which does not answer, has no rules.
    assert_eq!(offers("mcr --socket /nonexistent show c"), [""]);
}

#[test]
fn zsh_offers_the_same() {
    let Some(bed) = bed("zsh") else { return };
    // Stands in for the parts of zsh's completion system that a script cannot use.
    let zsh = r#"
        compdef() { :; }
        source ./script
        compadd() { while [[ $1 != -- ]]; do shift; done; shift; print -l -- "$@"; }
        _files() { :; }
        words=("${(@s: :)LINE}") CURRENT=$#words
        _mcr
    "#;
    let offers = |line: &str| bed.offers("zsh", zsh, line);
    assert_eq!(offers("mcr show c"), ["cam1", "cam2"]);
    assert_eq!(offers("mcr remove studio"), ["studio:a"]);
    assert_eq!(
        offers("mcr add 239.1.1.9%ve"),
        ["239.1.1.9%veth1:", "239.1.1.9%veth2:"]
    );
}

#[test]
fn fish_offers_the_same() {
    let Some(bed) = bed("fish") else { return };
    let fish = "source ./script; complete --do-complete \"$LINE\"";
    let offers = |line: &str| {
        let described = bed.offers("fish", fish, line);
        let values = described.iter().filter_map(|line| line.split('\t').next());
        values.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(offers("mcr show c"), ["cam1", "cam2"]);
    assert_eq!(offers("mcr rollback 1"), ["1"]);
    assert_eq!(
        offers("mcr add 239.1.1.9%ve"),
        ["239.1.1.9%veth1:", "239.1.1.9%veth2:"]
    );
}

#[test]
fn keys_of_a_rule_and_their_words_are_offered() {
    let offered = |word: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mcr"));
        let output = command.args(["complete", "--", "change", "cam1", "--set", word]);
        let offered = String::from_utf8(output.output().unwrap().stdout).unwrap();
        offered.lines().map(str::to_owned).collect::<Vec<String>>()
    };
    assert_eq!(
        offered("path="),
        ["path=auto", "path=kernel", "path=userspace"]
    );
    assert_eq!(offered("health.s"), ["health.silence="]);
    assert_eq!(offered("enabled"), ["enabled=yes", "enabled=no"]);
}
