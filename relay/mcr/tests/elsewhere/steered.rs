//! A relay that is controlled from another host, as far as each role permits, and several at once.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::thread;

use lab::process::{self, Finished, Process};
use lab::wait;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{Bed, PATIENCE, RELAY, TOKENS, address, left_behind};
use crate::bed::{INPUT, OUTPUT, can_run};

#[test]
fn a_relay_is_steered_from_another_host() {
    let Some(bed) = Bed::new("") else { return };
    let added = bed.mcr(
        "change",
        &["add", INPUT, OUTPUT, "--name", "cam1", "--json"],
    );
    assert!(added.contains("cam1"), "{added}");
    for host in ["view", "operate", "change", "ci"] {
        assert!(bed.mcr(host, &["list"]).contains("cam1"), "{host}");
        let rules: Value = serde_json::from_str(&bed.mcr(host, &["stats", "--json"])).unwrap();
        assert_eq!(rules["rules"][0]["name"], "cam1");
        for command in [
            &["status"][..],
            &["show", "cam1"],
            &["export"],
            &["log"],
            &["history"],
        ] {
            bed.mcr(host, command);
        }
    }
    let exported = bed.mcr("ci", &["export"]);
    let path = bed.keys.path("new.toml");
    fs::write(&path, exported.replace("6001", "6002")).unwrap();
    let file = path.to_str().unwrap();
    let differs = bed.run("view", &["diff", file]);
    assert_eq!(
        differs.status.code(),
        Some(77),
        "a view changes nothing: {}",
        differs.stderr
    );
    assert_eq!(bed.run("ci", &["diff", file]).status.code(), Some(1));
    bed.mcr("ci", &["apply", file]);
    assert!(bed.mcr("view", &["export"]).contains("6002"));
    // So is what a daemon reads of its own files alone; what is as it runs is nothing to tell.
    let own = fs::read_to_string(bed.daemon.config_file()).unwrap();
    let target = "[[notify.target]]\nurl = \"http://10.0.1.2:9/x\"\n";
    let other = own.replace("0.0.0.0:9471", "0.0.0.0:9472") + target;
    for (text, is_told) in [(own, false), (other, true)] {
        fs::write(&path, text).unwrap();
        let Finished { stderr, .. } = bed.daemon.client(&["diff", file]).unwrap();
        for table in ["[api]: stays", "[[notify.target]]: stays"] {
            assert_eq!(stderr.contains(table), is_told, "{stderr}");
        }
    }
    // What only files of that host say stays, and is told.
    let foreign = "[daemon]\nwatch = true\n[notify]\nwebhook = \"http://10.0.1.2:9/x\"\n";
    fs::write(&path, format!("{}\n{foreign}", bed.mcr("ci", &["export"]))).unwrap();
    for command in [&["diff", file][..], &["apply", file, "--yes"]] {
        let Finished { stderr, .. } = bed.run("ci", command);
        for key in ["daemon watch: true", "notify webhook: http://10.0.1.2:9"] {
            assert!(stderr.contains(key), "{command:?}: {stderr}");
        }
    }
    // The role operate may disable a rule, but not change one.
    bed.refuses("view", &["disable", "cam1"], 77, "view");
    bed.mcr("operate", &["disable", "cam1"]);
    assert!(bed.mcr("view", &["export"]).contains("enabled = false"));
    bed.mcr("operate", &["enable", "cam1"]);
    let spare = [
        "add",
        "239.1.1.7%veth1:5007",
        "239.10.1.7%veth2:6007",
        "--name",
        "cam7",
    ];
    bed.mcr("change", &spare);
    bed.refuses("operate", &["disable", "cam1", "cam8"], 3, "cam8");
    assert!(!bed.mcr("view", &["export"]).contains("enabled = false"));
    bed.mcr("operate", &["disable", "cam1", "cam7", "cam1"]);
    assert_eq!(
        bed.mcr("view", &["export"])
            .matches("enabled = false")
            .count(),
        2
    );
    bed.mcr("operate", &["enable", "cam7", "cam1"]);
    assert!(!bed.mcr("view", &["export"]).contains("enabled = false"));
    bed.mcr("change", &["remove", "cam7"]);
    bed.refuses("operate", &["remove", "cam1"], 77, "operate");
    bed.mcr("ci", &["reload"]);
    // The remote daemon saves, if the role permits it.
    let file = || fs::read_to_string(bed.daemon.config_file()).unwrap();
    bed.refuses("operate", &["disable", "cam1", "--save"], 77, "saving");
    let saved = bed.mcr(
        "change",
        &["add", INPUT, OUTPUT, "--name", "cam2", "--save", "--json"],
    );
    assert!(file().contains("cam2"), "{saved}");
    bed.mcr("change", &["remove", "cam2"]);
    bed.mcr("change", &["save"]);
    let file = file();
    assert!(!file.contains("cam2"), "{file}");
    assert!(file.contains(&tls::token::hash(TOKENS[0].1)), "{file}");
    let mut following =
        Process::start(bed.command("view", &["events", "--json", "-n", "1", "--recent", "1"]))
            .unwrap();
    wait::until("an event comes", || {
        following.stdout().contains("kind") || !following.is_running()
    })
    .unwrap();
    for command in ["run", "stop", "doctor", "demo", "receive", "bench"] {
        let arguments: &[&str] = match command {
            "receive" => &["receive", INPUT],
            command => &[command],
        };
        bed.refuses("ci", arguments, 2, command);
    }
    bed.refuses("ci", &["send", INPUT], 2, "send");
    bed.refuses("gone", &["stats"], 4, "gone");
    let untrusted = "the daemon's certificate is not accepted: UnknownIssuer; see ca, and";
    bed.refuses("mistaken", &["stats"], 4, untrusted);
    bed.refuses("misnamed", &["stats"], 4, "is only valid for");
    bed.refuses("empty", &["stats"], 78, "empty.token: it is empty");
    bed.refuses(
        "url",
        &["stats"],
        78,
        "\"https://10.0.1.1\" is no HOST:PORT",
    );
    let plain = bed.web_server(9480);
    bed.refuses("untls", &["stats"], 4, "does not speak TLS");
    plain.stop(Signal::SIGTERM).unwrap();
    bed.refuses("unknown", &["stats"], 2, "unknown");
    bed.refuses("nobody", &["stats"], 77, "nobody");
    let clients: Value =
        serde_json::from_str(&bed.mcr("ci", &["token", "list", "--json"])).unwrap();
    let viewer = clients
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["name"] == "viewr")
        .unwrap();
    assert_eq!(
        (&viewer["role"], &viewer["last_from"]),
        (&"view".into(), &"10.0.1.2".into())
    );
    fs::set_permissions(
        bed.keys.path("view.token"),
        fs::Permissions::from_mode(0o644),
    )
    .unwrap();
    bed.refuses("view", &["stats"], 78, "others can read it");
}

#[test]
fn what_files_of_the_host_say_stays_whoever_goes_back() {
    let Some(bed) = Bed::new("") else { return };
    bed.mcr("change", &["add", INPUT, OUTPUT, "--name", "cam1"]);
    let export = || bed.daemon.mcr(&["export"]).unwrap();
    let (plain, posting) = (bed.keys.path("plain.toml"), bed.keys.path("posting.toml"));
    let secret = "path-that-is-a-secret";
    let webhook = &format!("[notify]\nwebhook = \"http://10.0.1.2:9/{secret}\"\n");
    fs::write(&plain, export()).unwrap();
    fs::write(&posting, export() + "\n" + webhook).unwrap();
    let (plain, posting) = (plain.to_str().unwrap(), posting.to_str().unwrap());
    bed.daemon.mcr(&["apply", posting]).unwrap();
    assert!(export().contains("webhook"));
    let with_webhook = bed.status()["generation"].to_string();
    bed.secret(
        "view.header",
        &format!("Authorization: Bearer {}\n", TOKENS[0].1),
    );
    let reads = [
        "rules",
        "export",
        "status",
        "changes",
        "unsaved",
        "events?follow=false&recent=200",
    ];
    let replies = reads.map(|path| {
        bed.curl(&format!("-H @view.header https://{RELAY}/v1/{path}"))
            .1
    });
    let visible = replies.concat() + &bed.daemon.log();
    assert!(
        visible.contains("http://10.0.1.2:9") && !visible.contains(secret),
        "{visible}"
    );
    bed.daemon.mcr(&["apply", plain]).unwrap();
    bed.mcr("ci", &["rollback", &with_webhook, "--yes"]);
    assert!(!export().contains("webhook"), "{}", export());
    // What differs in that alone is nothing to go back to from there.
    bed.daemon.mcr(&["remove", "cam1"]).unwrap();
    fs::write(posting, export() + "\n" + webhook).unwrap();
    bed.daemon.mcr(&["apply", posting]).unwrap();
    bed.mcr("ci", &["rollback", "--last", "--yes"]);
    assert!(
        export().contains("cam1") && export().contains("webhook"),
        "{}",
        export()
    );
    bed.daemon.mcr(&["apply", plain]).unwrap();
    fs::write(posting, export() + "\n" + webhook).unwrap();
    // Nor by undoing a change before it is confirmed.
    let waits = ["apply", posting, "--confirm", "60s", "--yes"];
    bed.daemon.mcr(&waits).unwrap();
    bed.refuses("view", &["rollback", "--last", "--yes"], 77, "view");
    bed.mcr("ci", &["rollback", "--last", "--yes"]);
    assert!(export().contains("webhook"), "{}", export());
    // Only the client that made a change confirms it; nobody changes anything meanwhile.
    let waits = ["disable", "cam1", "--confirm", "60s", "--yes"];
    bed.mcr("operate", &waits);
    bed.refuses("change", &["confirm"], 77, "operater");
    bed.refuses("operate", &["enable", "cam1"], 1, "waits");
    bed.mcr("operate", &["confirm"]);
    assert!(export().contains("enabled = false"));
}

#[test]
fn several_hosts_are_asked_side_by_side() {
    let Some(bed) = Bed::new("") else { return };
    bed.mcr("change", &["add", INPUT, OUTPUT, "--name", "cam1"]);
    let lines = bed.mcr("view,ci", &["list"]);
    assert!(
        lines.contains("view: ") && lines.contains("ci: ") && lines.contains("cam1"),
        "{lines}"
    );
    let both: Value = serde_json::from_str(&bed.mcr("view,ci", &["stats", "--json"])).unwrap();
    for host in ["view", "ci"] {
        assert_eq!(both["hosts"][host]["rules"][0]["name"], "cam1", "{both}");
    }
    // A failure at one host does not affect the others, and the exit status is the worst.
    let Finished {
        status,
        stdout,
        stderr,
    } = bed.run("gone,view,nobody", &["stats", "--json"]);
    assert_eq!(status.code(), Some(77), "{stderr}");
    let all: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(all["hosts"]["view"]["rules"][0]["name"], "cam1", "{all}");
    assert_eq!(all["hosts"]["gone"]["error"]["status"], 4, "{all}");
    assert_eq!(bed.run("gone,view", &["stats"]).status.code(), Some(4));
    // Endless output is printed line by line.
    let events = bed.mcr("view,ci", &["events", "--json", "-n", "1", "--recent", "1"]);
    for (line, host) in events.lines().zip([0, 1]) {
        let line: Value = serde_json::from_str(line).unwrap();
        let hosts = line["hosts"].as_object().unwrap();
        assert!(
            hosts.len() == 1 && hosts.values().all(|event| event["kind"].is_string()),
            "{host}: {line}"
        );
    }
    assert_eq!(events.lines().count(), 2, "{events}");
    // Standard input is passed to all of them.
    let exported = bed.mcr("view", &["export"]);
    let file = bed.keys.path("all.toml");
    fs::write(&file, exported).unwrap();
    let mut command = bed.chain.sink.command("sh");
    let line = format!("exec \"$0\" --host ci,change apply - < {}", file.display());
    command.args(["-c", &line]).arg(lab::binary::mcr().unwrap());
    command.env("XDG_CONFIG_HOME", bed.keys.directory());
    let applied = process::run(command, PATIENCE).unwrap();
    assert!(applied.status.success(), "{}", applied.stderr);
    assert_eq!(
        applied.stdout.matches("1 unchanged").count(),
        2,
        "{}",
        applied.stdout
    );
}

#[test]
fn top_shows_the_rules_of_all_hosts_with_a_column_of_hosts() {
    if let Err(reason) = can_run("tmux") {
        eprintln!("skipped: {reason}");
        return;
    }
    let Some(bed) = Bed::new("") else { return };
    bed.mcr("change", &["add", INPUT, OUTPUT, "--name", "cam1"]);
    let hosts = fs::read_to_string(bed.keys.path("mcr/hosts.toml")).unwrap();
    let named = ["[view]", "[change]", "[gone]"].map(|name| {
        let (_, rest) = hosts.split_once(name).unwrap();
        name.to_owned() + rest.split("\n[").next().unwrap()
    });
    fs::write(bed.keys.path("mcr/hosts.toml"), named.join("\n")).unwrap();
    let net = format!("--net=/run/netns/{}", bed.chain.sink.name());
    let home = format!("XDG_CONFIG_HOME={}", bed.keys.directory().display());
    let mcr = lab::binary::mcr().unwrap().display().to_string();
    let words = ["nsenter", &net, "env", &home, &mcr, "--host", "all", "top"];
    let screen = crate::observe::Screen::start(&words.map(str::to_owned));
    let lines_of = |text: &str, host: &str| {
        let is_it = |line: &&str| line.starts_with(host) && line.contains(" cam1 ");
        text.lines().filter(is_it).count()
    };
    let shown = screen.until("each host has its line", |text| {
        lines_of(text, "view ") == 1 && lines_of(text, "change ") == 1 && text.contains("3 hosts")
    });
    assert!(
        shown.contains("HOST") && shown.contains("2 rules"),
        "{shown}"
    );
    assert!(
        shown.contains(" gone ("),
        "who does not answer is named: {shown}"
    );
    screen.press(&["Enter"]);
    screen.until("the detail is there", |text| {
        text.contains("rule change/cam1")
    });
    screen.press(&["q"]);
    bed.mcr("change", &["remove", "cam1"]);
    screen.until("the event says where", |text| {
        text.contains("view: rule \"cam1\" removed") && lines_of(text, "view ") == 0
    });
}

#[test]
fn each_role_is_answered_as_far_as_it_goes() {
    let Some(mut bed) = Bed::new("") else { return };
    bed.daemon.mcr(&["log", "trace"]).unwrap();
    bed.mcr("change", &["add", INPUT, OUTPUT, "--name", "cam1"]);
    let (status, document) = bed.curl(&format!("-H @view.header https://{RELAY}/openapi.json"));
    assert_eq!(status, 401, "{document}");
    for (name, token) in TOKENS {
        bed.secret(
            &format!("{name}.header"),
            &format!("Authorization: Bearer {token}\n"),
        );
    }
    let (_, document) = bed.curl(&format!("-H @view.header https://{RELAY}/openapi.json"));
    let document: Value = serde_json::from_str(&document).unwrap();
    let schemes = &document["components"]["securitySchemes"];
    assert_eq!(
        (&schemes["token"]["type"], &schemes["certificate"]["type"]),
        (&"http".into(), &"mutualTLS".into())
    );
    let ranks = ["none", "view", "operate", "change"];
    let rank = |role: &str| ranks.iter().position(|one| *one == role).unwrap();
    let mut routes = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let least = operation["x-mcr-role"].as_str().unwrap().to_owned();
            let path = path.replace("{name}", "cam1");
            routes.push((
                format!("-X {} https://{RELAY}{path}", method.to_uppercase()),
                least,
            ));
        }
    }
    // Each refusal waits longer than the one before, so all at once.
    thread::scope(|scope| {
        for (route, least) in &routes {
            let bed = &bed;
            scope.spawn(move || {
                let (status, body) = bed.curl(route);
                assert_eq!(status == 401, least != "none", "{route}: {status} {body}");
            });
        }
    });
    let mut seen = 0;
    for (route, least) in &routes {
        for (role, _) in TOKENS.iter().filter(|(role, _)| rank(role) < rank(least)) {
            let (status, body) = bed.curl(&format!("-H @{role}.header {route}"));
            assert_eq!(status, 403, "{role}: {route}: {body}");
            assert!(body.contains(least), "{body}");
            seen += 1;
        }
    }
    assert!(seen > 15, "{seen}");
    // The answer to a method that a route does not have is independent of the role.
    let mut paths: Vec<&str> = routes.iter().map(|(route, _)| address(route)).collect();
    paths.dedup();
    for address in paths {
        let has = |method: &str| {
            let expected = format!("-X {method} {address}");
            routes.iter().any(|(route, _)| *route == expected)
        };
        for method in ["TRACE", "PATCH", "DELETE"] {
            for who in ["", "-H @view.header "].iter().filter(|_| !has(method)) {
                let (status, body) = bed.curl(&format!("-i {who}-X {method} {address}"));
                assert_eq!(status, 405, "{method} {address}: {body}");
                let header = body.lines().find_map(|line| line.strip_prefix("allow: "));
                let mut allowed = header.unwrap_or_default().trim().split(',');
                assert!(
                    allowed.all(|method| method == "HEAD" || has(method)),
                    "{body}"
                );
            }
        }
    }
    let (status, body) = bed.curl(&format!("https://{RELAY}/readyz?missing=no"));
    assert_eq!((status, body.contains("\"usage\"")), (400, true), "{body}");
    let nonsense = "-H @view.header -X POST -d {\"rules\":[7]}";
    let (status, body) = bed.curl(&format!("{nonsense} https://{RELAY}/v1/check"));
    assert_eq!(status, 400, "a rule is an object: {body}");
    // Settings that a client may not change stay as the host's files have them.
    let rules = bed.keys.path("rules.json");
    let (_, json) = bed.curl(&format!("-H @change.header https://{RELAY}/v1/rules"));
    let mut list: Value = serde_json::from_str(&json).unwrap();
    list["settings"] = serde_json::json!({ "notify": { "webhook": "http://10.9.9.9/" }, "daemon": { "workers": 7 } });
    fs::write(&rules, list.to_string()).unwrap();
    let (status, body) = bed.curl(&format!(
        "-H @change.header -X PUT -d @rules.json https://{RELAY}/v1/rules"
    ));
    assert_eq!(status, 200, "{body}");
    let exported = bed.daemon.mcr(&["export"]).unwrap();
    assert!(
        !exported.contains("webhook") && !exported.contains("workers"),
        "{exported}"
    );
    // The credentials of clients are visible nowhere.
    let mut visible = bed.daemon.log() + &exported;
    let read = routes
        .iter()
        .filter(|(route, _)| route.starts_with("-X GET"));
    let mut answers = 0;
    let lasts = |route: &str| {
        let lasting = ["/v1/events", "/v1/discover", "/tap"];
        lasting.iter().any(|end| route.ends_with(end))
    };
    for (route, _) in read.filter(|(route, _)| !lasts(route)) {
        visible += &bed.curl(&format!("-H @change.header {route}")).1;
        answers += 1;
    }
    assert!(answers > 15, "{answers}");
    let recent = format!("https://{RELAY}/v1/events?follow=false&recent=200");
    visible += &bed.curl(&format!("-H @change.header {recent}")).1;
    // Nor with a pending change, which is stored with the settings before it.
    let waits = [
        "239.9.9.9%veth1:1",
        OUTPUT,
        "--name",
        "waits",
        "--confirm",
        "60s",
        "--yes",
    ];
    bed.mcr("change", &[&["add"], &waits[..]].concat());
    wait::until("the rule set of now is kept", || {
        left_behind(bed.daemon.instance()).matches("# {").count() > 1
    })
    .unwrap();
    let stored = left_behind(bed.daemon.instance());
    assert!(stored.contains("deadline_ns"), "{stored}");
    visible += &stored;
    visible += &bed.daemon.log();
    assert!(visible.contains(" TRACE "), "as much is logged as can be");
    for (_, token) in TOKENS {
        for secret in [token.to_owned(), tls::token::hash(token)] {
            assert!(!visible.contains(&secret), "{secret}");
        }
    }
    let key = fs::read_to_string(bed.keys.path("relay.key")).unwrap();
    assert!(!visible.contains(key.lines().nth(1).unwrap()), "the key");
    // A process that has served such clients leaves no core; another one does.
    let directory = bed.keys.directory().display().to_string();
    let under = [
        "env",
        "--chdir",
        &directory,
        "prlimit",
        "--core=1048576:1048576",
    ];
    let path = bed.daemon.config_file();
    let config = fs::read_to_string(&path).unwrap();
    let mut leaves_core = |config: &str, serves: bool| {
        bed.daemon.stop(Signal::SIGTERM).unwrap();
        fs::write(&path, config).unwrap();
        bed.daemon.start_again_under(&under).unwrap();
        if serves {
            bed.wait_for("it serves", |api| api["state"] == "up");
        }
        let ended = bed.daemon.stop(Signal::SIGABRT).unwrap().status;
        bed.daemon.start_again_under(&[]).unwrap();
        ended.core_dumped()
    };
    if leaves_core("version = 1\n", false) {
        assert!(!leaves_core(&config, true));
    } else {
        eprintln!("skipped: this host keeps no core of anything");
    }
}
