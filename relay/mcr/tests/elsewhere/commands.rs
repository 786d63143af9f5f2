//! Every command, as `mcr --help` lists them, with `--host`: those that ask a daemon ask the one over
//! there, and none is forgotten.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::thread;

use lab::process::{self, Finished};
use serde_json::Value;

use super::{Bed, PATIENCE};
use crate::bed::{INPUT, OUTPUT};

/// Those that ask a daemon, in an order in which they can, and how they end.
const ASKING: [(&str, i32); 48] = [
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
    // Nobody is to be told, and there is no fleet.
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

/// Those that ask none.
const ASKING_NONE: [&str; 6] = [
    "check DIR/rules.toml",
    "config schema",
    "completions bash",
    "man",
    "import DIR/list.m3u --input-interface veth1 --to %veth2",
    "token create --name x --role view",
];

/// Those that concern the host that they run on; `top` needs a terminal, and has a test of its own.
const OWN: [&str; 7] = [
    "run",
    "stop",
    "doctor",
    "demo",
    "send INPUT",
    "receive INPUT",
    "bench run",
];

/// The commands, with those below them, that the help lists.
fn commands(above: &str, into: &mut BTreeSet<String>) {
    let mut command = Command::new(lab::binary::mcr().unwrap());
    command.args(above.split_whitespace()).arg("--help");
    let help = process::run(command, PATIENCE).unwrap().success().unwrap();
    let listed = help.split_once("\nCommands:\n").map(|(_, rest)| rest);
    let listed = listed.unwrap_or_default().split("\n\n").next().unwrap();
    let names = listed.lines().filter_map(|line| line.strip_prefix("  "));
    let names = names.filter(|line| !line.starts_with(' '));
    for name in names.filter_map(|line| line.split(' ').next()) {
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
    let known: Vec<&str> = ASKING
        .iter()
        .map(|(line, _)| *line)
        .chain(ASKING_NONE)
        .chain(OWN)
        .chain(["top"])
        .collect();
    let is_own = |command: &str| {
        let first = command.split(' ').next();
        OWN.iter().any(|own| own.split(' ').next() == first)
    };
    for command in listed.iter().filter(|command| !is_own(command)) {
        let is_it = |line: &&str| {
            let rest = line.strip_prefix(command.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        assert!(known.iter().any(is_it), "{command} is tried by no test");
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
        let words = line.replace("DIR", &directory);
        let words = words.replace("INPUT", INPUT).replace("OUTPUT", OUTPUT);
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
    // Nothing comes of them, so all at once: who is refused is answered late.
    let check = &check;
    thread::scope(|scope| {
        for (line, _) in ASKING {
            scope.spawn(move || check("gone", line, 4, "gone (10.0.1.1:1)"));
            scope.spawn(move || check("nobody", line, 77, "nobody: the token is nobody's"));
        }
        for line in ASKING_NONE {
            scope.spawn(move || check("gone", line, 0, ""));
        }
        for line in OWN {
            scope.spawn(move || check("gone", line, 2, "concerns the host that it runs on alone"));
        }
    });
    for (line, status) in ASKING {
        // What is refused there says where.
        let word = if [0, 1].contains(&status) {
            ""
        } else {
            "change: "
        };
        check("change", line, status, word);
    }
    // And of several at once, as JSON.
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
        let told = run("view,ci", &format!("{line} --json")).stdout;
        let told: Value = serde_json::from_str(&told).unwrap();
        let hosts = told["hosts"].as_object().unwrap();
        assert_eq!(hosts.len(), 2, "{line}: {told}");
    }
}
