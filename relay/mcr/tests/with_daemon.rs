//! The command line against a running daemon: what it prints, what it refuses, how it exits.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::bed::{Bed, INPUT, OUTPUT};

const RULES: &str = r#"version = 1
[[rule]]
name = "cam1"
input = "239.1.1.1%veth1:5001"
outputs = ["239.10.1.1%veth2:6001", { to = "10.0.1.2:7000", ttl = 32 }]
[[rule]]
name = "cam2"
input = "10.0.0.1@232.1.1.2%veth1:5002"
outputs = ["239.10.1.2%veth2:6002,dscp=34"]
"#;

/// A serial console, and `ssh -tt` without a window.
#[test]
fn tables_are_whole_on_a_terminal_that_says_0_columns() {
    let Some(bed) = Bed::new(Some(RULES), &[]) else {
        return;
    };
    let socket = bed.daemon.socket().display().to_string();
    let mcr = lab::binary::mcr().unwrap().display().to_string();
    let on_terminal = |command: &str| {
        let mut socat = Command::new("socat");
        // A terminal without a size.
        let run = format!("EXEC:\"{command}\",pty,setsid,ctty,raw,echo=0");
        socat.args(["-t", "5", &run, "STDIO"]).env("NO_COLOR", "1");
        socat.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = socat.spawn().unwrap();
        // Kept open: at its end socat would hang up the terminal.
        let held = running.stdin.take();
        let mut text = String::new();
        running
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        drop(held);
        running.wait().unwrap();
        text.replace('\r', "")
    };
    assert_eq!(on_terminal("stty size").trim(), "0 0");
    for arguments in ["list -o wide", "list"] {
        let words: Vec<&str> = arguments.split(' ').collect();
        let plain = bed.daemon.mcr(&words).unwrap();
        let shown = on_terminal(&format!("{mcr} --socket {socket} {arguments}"));
        assert_eq!(shown, plain, "{arguments}");
    }
}

#[test]
fn status_shows_paths_features_and_rules_by_state() {
    let Some(bed) = Bed::new(Some(RULES), &[]) else {
        return;
    };
    let status = bed.json(&["status", "--json"]);
    assert_eq!(status["rules"], 2);
    let states = status["rules_by_state"].as_object().unwrap();
    let rules = states.values().filter_map(Value::as_u64).sum::<u64>();
    assert_eq!(rules, 2);
    let features = status["features"].as_array().unwrap();
    assert!(
        features
            .iter()
            .any(|feature| feature["name"] == "packet_udp_gso")
    );
    for feature in features {
        let is_missing = feature["present"] == false;
        assert_eq!(feature["meaning"].is_string(), is_missing, "{feature}");
    }
    let screen = bed.daemon.mcr(&["status"]).unwrap();
    assert!(screen.contains("userspace path   available\n"), "{screen}");
    assert!(screen.contains("\nrules            2: "), "{screen}");
}

#[test]
fn a_rule_is_added_shown_and_removed() {
    let Some(bed) = Bed::new(None, &[]) else {
        return;
    };
    let name = bed.daemon.mcr(&["add", INPUT, OUTPUT]).unwrap();
    assert_eq!(name, "veth1-239.1.1.1-5001\n");
    let added = bed.json(&[
        "add",
        "239.1.1.2%veth1:5001",
        OUTPUT,
        "--name",
        "b",
        "--json",
    ]);
    assert_eq!(added["added"], json!(["b"]));
    let table = bed.daemon.mcr(&["list"]).unwrap();
    assert!(
        table.contains("veth1-239.1.1.1-5001") && table.contains(OUTPUT),
        "{table}"
    );
    let shown = bed.daemon.mcr(&["show", "b"]).unwrap();
    assert!(
        shown.contains("239.1.1.2%veth1:5001") && shown.contains("joined"),
        "{shown}"
    );
    let stats = bed.daemon.mcr(&["stats", "b"]).unwrap();
    assert!(stats.contains("→ 239.10.1.1%veth2:6001"), "{stats}");
    bed.daemon
        .mcr(&["remove", "b", "veth1-239.1.1.1-5001"])
        .unwrap();
    assert_eq!(bed.json(&["list", "--json"])["rules"], json!([]));
}

#[test]
fn statistics_have_the_documented_shape() {
    let Some(bed) = Bed::new(Some(RULES), &[]) else {
        return;
    };
    let waits = |rule: &api::reply::RuleStats| rule.condition() == api::reply::Condition::Waiting;
    bed.daemon.wait_for("cam1", "it waits", waits).unwrap();
    let stats = bed.json(&["stats", "--json"]);
    assert_eq!(stats["instance"], bed.daemon.instance());
    assert!(stats["version"].is_string() && stats["uptime_seconds"].is_f64());
    assert!(stats["workers"].is_array());
    let rule = &stats["rules"][0];
    assert_eq!(rule["name"], "cam1");
    assert_eq!(rule["state"], "up");
    assert!(rule["path"].is_string() && rule["path_reason"].is_string());
    let received = json!({"packets": 0, "bytes": 0});
    let mut input =
        json!({"at": INPUT, "condition": "waiting", "joined": true, "received": received});
    if rule["path"] == "kernel" {
        let why = &rule["inputs"][0]["hook_reason"];
        assert!(why.as_str().is_some_and(|why| why.contains("xdp")), "{why}");
        input["hook"] = json!("tc");
        input["hook_reason"] = why.clone();
        input["xdp_asked"] = json!(false);
    }
    assert_eq!(rule["inputs"], json!([input]));
    assert_eq!(rule["received"], received);
    assert_eq!(rule["dropped"], json!({}));
    let output = &rule["outputs"][0];
    assert_eq!(output["to"], OUTPUT);
    assert_eq!(output["state"], "up");
    assert_eq!(output["sent"], json!({"packets": 0, "bytes": 0}));
    assert_eq!(output["dropped"]["too_big"], 0);
    assert_eq!(rule["outputs"][1]["to"], "10.0.1.2:7000");
}

#[test]
fn lists_and_shows_rules_as_configured() {
    let Some(bed) = Bed::new(Some(RULES), &[]) else {
        return;
    };
    let list = bed.json(&["--json", "list"]);
    assert!(list["generation"].is_u64());
    let names: Vec<_> = list["rules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| &rule["name"])
        .collect();
    assert_eq!(names, ["cam1", "cam2"]);
    let shown = bed.json(&["show", "cam2", "--json"]);
    assert_eq!(shown["rule"]["name"], "cam2");
    assert_eq!(shown["stats"]["inputs"][0]["joined"], true);
}

#[test]
fn names_that_are_not_there_or_taken_are_status_3() {
    let Some(bed) = Bed::new(Some(RULES), &[]) else {
        return;
    };
    bed.refuses(&["show", "cam9"], 3, &["cam9"]);
    bed.refuses(&["remove", "cam9"], 3, &["cam9"]);
    bed.refuses(&["stats", "cam9"], 3, &["cam9", "cam1"]);
    bed.refuses(&["remove", "cam1", "cam9"], 3, &["cam9"]);
    let again = ["add", "239.1.1.9%veth1:5009", OUTPUT, "--name", "cam1"];
    bed.refuses(&again, 3, &["cam1"]);
    assert_eq!(
        bed.json(&["list", "--json"])["rules"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn what_contradicts_the_running_rules_is_refused() {
    let Some(bed) = Bed::new(Some(RULES), &[]) else {
        return;
    };
    // The input is taken.
    bed.refuses(
        &["add", INPUT, "239.10.9.9%veth2:9", "--name", "twin"],
        1,
        &["twin", "cam1"],
    );
    // cam1's output would come back as cam1's input.
    bed.refuses(
        &["add", "239.10.1.1%veth2:6001", INPUT, "--name", "back"],
        1,
        &["back", "loop"],
    );
    bed.refuses(
        &["add", "224.0.0.5%veth1:5001", OUTPUT, "--name", "local"],
        1,
        &["224.0.0.5"],
    );
}

#[test]
fn a_rule_for_an_unknown_interface_waits_and_says_so() {
    let Some(bed) = Bed::new(None, &[]) else {
        return;
    };
    let arguments = ["add", INPUT, "239.10.1.1%eth9:6001", "--name", "a"];
    let added = bed.daemon.client(&arguments).unwrap();
    assert!(added.status.success(), "{}", added.stderr);
    for word in ["eth9", "have", "veth2"] {
        assert!(
            added.stderr.contains(word),
            "no {word:?} in: {}",
            added.stderr
        );
    }
    let rule = bed.daemon.rule("a").unwrap();
    let reason = rule.outputs[0].reason.as_deref().unwrap();
    assert!(reason.contains("no interface eth9"), "{reason}");
}

/// Runs `mcr` with `text` as its standard input.
fn piped(bed: &Bed, arguments: &[&str], text: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mcr"));
    command.arg("--socket").arg(bed.daemon.socket());
    let mut child = command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(text.as_bytes()).unwrap();
    drop(input);
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn many_rules_are_added_and_removed_through_standard_input_all_or_none() {
    let Some(bed) = Bed::new(None, &[]) else {
        return;
    };
    let lines = "# from a script\n\n\
                 239.1.1.1%veth1:5001 239.10.1.1%veth2:6001 --name a --limit 5000pps  # capped\n\
                 239.1.1.2%veth1:5001 239.10.1.2%veth2:6001,ttl=9 10.0.1.2:7000 --name b\n";
    let added = piped(&bed, &["add", "-"], lines);
    assert_eq!(text(&added.stderr), "");
    assert_eq!(text(&added.stdout), "a\nb\n");
    let rules = bed.json(&["list", "--json"]);
    assert_eq!(rules["rules"][0]["limit"], "5000pps");
    assert_eq!(
        rules["rules"][1]["outputs"][0],
        "239.10.1.2%veth2:6001,ttl=9"
    );

    let wrong = "239.1.1.3%veth1:5001 239.10.1.3%veth2:6001 --name c\n\
                 239.1.1.4%veth1:0 239.10.1.4%veth2:6001\n\
                 239.1.1.5%veth1:5001\n\
                 239.1.1.6%veth1:5001 239.10.1.6%veth2:6001 --nmae x\n";
    let refused = piped(&bed, &["add", "-"], wrong);
    assert_eq!(refused.status.code(), Some(2));
    for words in [
        "line 2: ",
        "port 0",
        "line 3: ",
        "no OUTPUT",
        "line 4: ",
        "--nmae",
    ] {
        assert!(
            text(&refused.stderr).contains(words),
            "{}",
            text(&refused.stderr)
        );
    }
    for beside in [&["--path", "kernel"][..], &["extra"], &["--limit", "5pps"]] {
        let arguments = [&["add", "-"], beside].concat();
        let refused = piped(&bed, &arguments, lines);
        assert_eq!(refused.status.code(), Some(2), "{beside:?}");
        let error = text(&refused.stderr);
        assert!(error.contains("beside -: write it on the lines"), "{error}");
    }
    let none = piped(&bed, &["add", "-"], "# nothing\n");
    assert_eq!(none.status.code(), Some(2));
    assert_eq!(bed.daemon.mcr(&["list", "-o", "name"]).unwrap(), "a\nb\n");

    let there = piped(&bed, &["add", "-"], lines);
    assert_eq!(there.status.code(), Some(3), "{}", text(&there.stderr));
    let removed = piped(&bed, &["remove", "-"], "b\na\n");
    assert!(removed.status.success(), "{}", text(&removed.stderr));
    assert_eq!(bed.json(&["list", "--json"])["rules"], json!([]));

    let applied = piped(&bed, &["apply", "-"], RULES);
    assert_eq!(text(&applied.stdout), "+ cam1\n+ cam2\n0 unchanged\n");
    let unknown = piped(&bed, &["diff", "-"], "version = 1\nrules = 1\n");
    assert_eq!(unknown.status.code(), Some(78));
    assert!(text(&unknown.stderr).contains("standard input:2"));
}

#[test]
fn forms_of_lists_are_for_people_scripts_and_wide_screens() {
    let Some(bed) = Bed::new(Some(RULES), &[]) else {
        return;
    };
    let waits = |rule: &api::reply::RuleStats| rule.condition() == api::reply::Condition::Waiting;
    bed.daemon.wait_for("cam1", "it waits", waits).unwrap();
    let wide = bed.daemon.mcr(&["list", "-o", "wide"]).unwrap();
    assert!(wide.starts_with("RULE  STATE    PATH"), "{wide}");
    assert!(wide.contains(" waiting "), "{wide}");
    let wide = bed.daemon.mcr(&["stats", "-o", "wide"]).unwrap();
    assert!(wide.contains("JOINED") && wide.contains(" yes "), "{wide}");
    let json = bed.json(&["stats", "-o", "json"]);
    assert_eq!(json["rules"][0]["name"], "cam1");
    let names = bed.daemon.mcr(&["stats", "cam2", "-o", "name"]).unwrap();
    assert_eq!(names, "cam2\n");
}

#[test]
fn tables_fit_the_terminal_and_watching_draws_them_again() {
    let long = RULES.replace(
        "cam1",
        "a-rule-with-a-name-of-a-length-that-nobody-expects-61-letters",
    );
    let Some(bed) = Bed::new(Some(&long), &[]) else {
        return;
    };
    let binary = env!("CARGO_BIN_EXE_mcr");
    for subcommand in [
        "list",
        "stats",
        "stats --watch --interval 0.2",
        "show cam2 -w",
    ] {
        let path = bed.daemon.socket();
        let socket = path.display();
        let line = format!("stty cols 80; exec timeout 2 {binary} --socket {socket} {subcommand}");
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
        let output = script.stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("cam2"), "{subcommand}: {text}");
        if subcommand == "list" || subcommand == "stats" {
            let widest = text.lines().map(|line| visible(line.trim_end())).max();
            assert!(widest <= Some(80), "{subcommand}: {widest:?}: {text}");
        }
        let redraws = text.matches("\x1b[2J").count();
        if subcommand.contains("-w") {
            assert!(redraws >= 2, "{subcommand}: {redraws} looks");
        }
    }
}

/// The columns of a line without its colours.
fn visible(line: &str) -> usize {
    let parts = line.split('\x1b').enumerate();
    let widths = parts.map(|(number, part)| match number {
        0 => part.chars().count(),
        _ => part
            .split_once('m')
            .map_or(0, |(_, rest)| rest.chars().count()),
    });
    widths.sum()
}

#[test]
fn export_is_a_configuration_that_applies_unchanged() {
    let Some(bed) = Bed::new(Some(RULES), &[]) else {
        return;
    };
    let text = bed.daemon.mcr(&["export"]).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &text).unwrap();
    let path = file.path().to_str().unwrap();
    let diff = bed.json(&["diff", path, "--json"]);
    assert_eq!(
        (
            &diff["added"],
            &diff["removed"],
            &diff["changed"],
            &diff["unchanged"]
        ),
        (&json!([]), &json!([]), &json!([]), &json!(2))
    );
    bed.daemon.mcr(&["apply", path]).unwrap();
    assert_eq!(bed.daemon.mcr(&["export"]).unwrap(), text);
}

#[test]
fn apply_makes_the_difference_and_a_dry_run_does_not() {
    let Some(bed) = Bed::new(Some(RULES), &[]) else {
        return;
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    let other = RULES
        .replace("ttl = 32", "ttl = 33")
        .replace("cam2", "cam3");
    std::fs::write(file.path(), other).unwrap();
    let path = file.path().to_str().unwrap();
    let expected = |change: &Value| {
        assert_eq!(change["added"], json!(["cam3"]));
        assert_eq!(change["removed"], json!(["cam2"]));
        assert_eq!(change["changed"], json!(["cam1"]));
        assert_eq!(change["unchanged"], 0);
    };
    expected(&bed.json(&["apply", path, "--dry-run", "--json"]));
    let diff = |arguments: &[&str]| {
        let ran = bed.daemon.client(&[&["diff"], arguments].concat()).unwrap();
        assert_eq!(ran.status.code(), Some(1), "{arguments:?}: {}", ran.stderr);
        ran.stdout
    };
    let change = serde_json::from_str(&diff(&[path, "--json"])).unwrap();
    expected(&change);
    let lines = [
        "- cam2",
        "+ cam3",
        "~ cam1",
        "    - output 10.0.1.2:7000,ttl=32",
        "    + output 10.0.1.2:7000,ttl=33",
        "0 unchanged",
    ];
    assert_eq!(diff(&[path]).lines().collect::<Vec<_>>(), lines);
    expected(&bed.json(&["apply", path, "--json"]));
    assert_eq!(bed.daemon.mcr(&["diff", path]).unwrap(), "2 unchanged\n");
    std::fs::write(file.path(), "version = 1\nrules = []\n").unwrap();
    bed.refuses(&["apply", path], 78, &[path, "rules", "2"]);
    assert_eq!(
        bed.json(&["list", "--json"])["rules"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn a_second_daemon_of_the_same_name_is_refused_by_name_and_process() {
    let Some(bed) = Bed::new(None, &[]) else {
        return;
    };
    let id = bed.daemon.id().to_string();
    bed.refuses(&["run"], 69, &[bed.daemon.instance(), &id]);
}
