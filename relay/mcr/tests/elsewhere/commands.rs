//! Every command that `mcr --help` lists, with `--host`: those that query a daemon query the remote one, and
//! none is forgotten.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::thread;

use lab::process::{self, Finished};
use serde_json::Value;

use super::{Bed, PATIENCE};
use crate::bed::{INPUT, OUTPUT};

/// Commands that query a daemon, in an order in which they work, each with its exit status.
const WITH_DAEMON: [(&str, i32); 48] = [
    ("add INPUT OUTPUT --name a", 0),
    ("change a --set limit=5000pps", 0),
    ("disable a", 0),
    ("enable a", 0),
    // The rule has one input and no trouble.
    ("switch a INPUT", 1),
    ("acknowledge a", 1),
    ("join 239.9.9.9%veth1", 0),
    ("join", 0),
    ("leave 239.9.9.9%veth1", 0),
    ("list", 0),
    ("show a", 0),
    ("stats", 0),
    ("history", 0),
    ("history a", 0),
    ("status", 0),
    ("events -n 1 --recent 1", 0),
    ("explain INPUT", 0),
    ("tap a --duration 1s -w DIR/a.pcapng", 0),
    ("discover veth1 --duration 1s", 0),
    ("log", 0),
    ("log debug", 0),
    ("log changes", 0),
    ("diff DIR/rules.toml", 1),
    ("apply DIR/rules.toml", 0),
    ("diff DIR/rules.toml", 0),
    ("rollback 1 --yes", 0),
    ("apply DIR/rules.toml --confirm 60s --yes", 0),
    ("confirm", 0),
    ("save", 0),
    ("reload", 0),
    ("generations", 0),
    ("export", 0),
    ("token list", 0),
    // There is no target for notifications, and no fleet.
    ("notify test", 69),
    ("fleet status", 3),
    ("fleet list", 3),
    ("fleet apply DIR/rules.toml", 3),
    ("fleet diff DIR/rules.toml", 3),
    ("fleet export", 3),
    ("fleet drain b", 3),
    ("fleet undrain b", 3),
    ("fleet move a b", 3),
    ("fleet rebalance", 3),
    ("fleet fence b", 3),
    ("fleet record DIR/record", 3),
    ("fleet events", 0),
    ("remove b", 0),
    ("list --json", 0),
];

/// Commands that query no daemon.
const WITHOUT_DAEMON: [&str; 6] = [
    "check DIR/rules.toml",
    "config schema",
    "completions bash",
    "man",
    "import DIR/list.m3u --input-interface veth1 --to %veth2",
    "token create --name x --role view",
];

/// Commands that concern the host they run on. `top` needs a terminal, and has a test of its own.
const LOCAL: [&str; 7] = [
    "run",
    "stop",
    "doctor",
    "demo",
    "send INPUT",
    "receive INPUT",
    "bench run",
];

/// Collects the commands that the help lists, with their subcommands.
fn commands(above: &str, into: &mut BTreeSet<String>) {
    let mut command = Command::new(lab::binary::mcr().unwrap());
    command.args(above.split_whitespace()).arg("--help");
    let help = process::run(command, PATIENCE).unwrap().success().unwrap();
    let list = help.split_once("\nCommands:\n").map(|(_, rest)| rest);
    let listed = list.unwrap_or_default().split("\n\n").next().unwrap();
    let lines = listed.lines().filter_map(|line| line.strip_prefix("  "));
    let first_lines = lines.filter(|line| !line.starts_with(' '));
    for name in first_lines.filter_map(|line| line.split(' ').next()) {
        if name != "help" && !name.is_empty() {
            let command = format!("{above} {name}");
            into.insert(command.trim().to_owned());
            commands(&command, into);
        }
    }
}

#[test]
fn every_command_works_from_elsewhere_or_says_why_not() {
    let mut listed = BTreeSet::new();
    commands("", &mut listed);
    assert!(listed.len() > 50, "{listed:?}");
    let tested: Vec<&str> = WITH_DAEMON
        .iter()
        .map(|(line, _)| *line)
        .chain(WITHOUT_DAEMON)
        .chain(LOCAL)
        .chain(["top"])
        .collect();
    let is_local = |command: &str| {
        let first = command.split(' ').next();
        LOCAL.iter().any(|own| own.split(' ').next() == first)
    };
    for command in listed.iter().filter(|command| !is_local(command)) {
        let covers = |line: &&str| {
            let rest = line.strip_prefix(command.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        assert!(tested.iter().any(covers), "{command} is tried by no test");
    }
    let Some(bed) = Bed::new("") else { return };
    let rule = format!(
        "version = 1\n[[rule]]\nname = \"b\"\ninput = \"{INPUT}\"\noutputs = [\"{OUTPUT}\"]\n"
    );
    fs::write(bed.keys.path("rules.toml"), rule).unwrap();
    let list = "#EXTM3U\n#EXTINF:-1,News\nudp://@239.1.1.7:5000\n";
    fs::write(bed.keys.path("list.m3u"), list).unwrap();
    let directory = bed.keys.directory().display().to_string();
    let run = |host: &str, line: &str| {
        let words = line
            .replace("DIR", &directory)
            .replace("INPUT", INPUT)
            .replace("OUTPUT", OUTPUT);
        bed.run(host, &words.split(' ').collect::<Vec<&str>>())
    };
    let check = |host: &str, line: &str, status: i32, word: &str| {
        let Finished {
            status: ended,
            stdout,
            stderr,
        } = run(host, line);
        assert_eq!(
            ended.code(),
            Some(status),
            "{host}: {line}: {stdout}{stderr}"
        );
        assert!(stderr.contains(word), "{host}: {line}: {stderr}");
    };
    // They change nothing, so all at once: refusals are answered late.
    let check = &check;
    thread::scope(|scope| {
        for (line, _) in WITH_DAEMON {
            scope.spawn(move || check("gone", line, 4, "gone (10.0.1.1:1)"));
            scope.spawn(move || check("nobody", line, 77, "nobody: the token is nobody's"));
        }
        for line in WITHOUT_DAEMON {
            scope.spawn(move || check("gone", line, 0, ""));
        }
        for line in LOCAL {
            scope.spawn(move || check("gone", line, 2, "concerns the host that it runs on alone"));
        }
    });
    for (line, status) in WITH_DAEMON {
        // A remote refusal names the host.
        let word = if [0, 1].contains(&status) {
            ""
        } else {
            "change: "
        };
        check("change", line, status, word);
    }
    // From several hosts at once, as JSON.
    bed.mcr("change", &["add", INPUT, OUTPUT, "--name", "a"]);
    for line in [
        "list",
        "show a",
        "stats",
        "history",
        "status",
        "join",
        "log",
        "log changes",
        "generations",
    ] {
        let json = run("view,ci", &format!("{line} --json")).stdout;
        let answer: Value = serde_json::from_str(&json).unwrap();
        let hosts = answer["hosts"].as_object().unwrap();
        assert_eq!(hosts.len(), 2, "{line}: {answer}");
    }
}
