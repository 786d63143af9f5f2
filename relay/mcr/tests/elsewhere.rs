//! A relay that is steered from another host: by certificates and tokens, by each as far as its role
//! goes, and by nobody else.

#![expect(clippy::unwrap_used, reason = "tests")]

mod capture;
mod commands;
mod crowd;
mod hosts;
mod keys;
mod page;
mod page_access;
mod page_attacks;
mod page_tasks;
mod properties;
mod telling;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use lab::daemon::{Daemon, Options};
use lab::namespace::Namespace;
use lab::process::{self, Finished, Process};
use lab::topology::Chain;
use lab::wait;
use serde_json::Value;

use crate::bed::{INPUT, OUTPUT, can_run};
use keys::Keys;

const RELAY: &str = "10.0.1.1:9471";
const PATIENCE: Duration = Duration::from_secs(30);
/// What the clients of the tests show.
const TOKENS: [(&str, &str); 3] = [
    ("view", "mcr_view-0123456789"),
    ("operate", "mcr_operate-0123456789"),
    ("change", "mcr_change-0123456789"),
];

/// A relay that listens, and another host: the sink.
struct Bed {
    daemon: Daemon,
    chain: Chain,
    keys: Keys,
}

impl Bed {
    fn new(more: &str) -> Option<Self> {
        if !lab::demo::may_run() {
            eprintln!("skipped: needs root");
            return None;
        }
        for tool in ["openssl", "curl"] {
            if let Err(reason) = can_run(tool) {
                eprintln!("skipped: {reason}");
                return None;
            }
        }
        let chain = Chain::plain().unwrap();
        let keys = Keys::new();
        keys.sign(
            "ci",
            "clients",
            "subjectAltName=DNS:ci.example,URI:spiffe://mcr/ci",
            "-days 30",
        );
        let options = Options {
            config: Some(config(&keys, more)),
            ..Options::default()
        };
        let daemon = Daemon::start(&chain.relay, options).unwrap();
        let bed = Self {
            daemon,
            chain,
            keys,
        };
        bed.write_hosts();
        bed.wait_for("it listens", |api| api["state"] == "up");
        Some(bed)
    }

    /// The other host's `hosts.toml`: each token is a host, and so is the certificate `ci`.
    fn write_hosts(&self) {
        let mut hosts = String::new();
        for (name, token) in TOKENS.into_iter().chain([("nobody", "mcr_nobody")]) {
            self.secret(&format!("{name}.token"), token);
            hosts += &format!(
                "[{name}]\naddress = \"{RELAY}\"\nca = \"../servers.pem\"\ntoken_file = \"../{name}.token\"\n"
            );
        }
        for name in ["ci", "stranger", "ended", "unlisted"] {
            hosts += &format!(
                "[{name}]\naddress = \"10.0.1.1\"\nca = \"../servers.pem\"\ncertificate = \"../{name}.pem\"\n\
                 key = \"../{name}.key\"\n"
            );
        }
        hosts += "[gone]\naddress = \"10.0.1.1:1\"\nca = \"../servers.pem\"\ntoken_file = \"../view.token\"\n";
        hosts += "[misnamed]\naddress = \"10.0.1.1\"\nserver_name = \"other.example\"\nca = \"../servers.pem\"\n\
                  token_file = \"../view.token\"\n";
        hosts += "[mistaken]\naddress = \"10.0.1.1:9471\"\nca = \"../clients.pem\"\ntoken_file = \"../view.token\"\n";
        fs::create_dir_all(self.keys.path("mcr")).unwrap();
        fs::write(self.keys.path("mcr/hosts.toml"), hosts).unwrap();
    }

    fn secret(&self, name: &str, text: &str) {
        let path = self.keys.path(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// Has the daemon read another configuration.
    fn configure(&self, more: &str) {
        fs::write(self.daemon.config_file(), config(&self.keys, more)).unwrap();
        self.daemon.mcr(&["reload"]).unwrap();
    }

    fn command(&self, host: &str, arguments: &[&str]) -> Command {
        let mut command = self.chain.sink.command(lab::binary::mcr().unwrap());
        command.env("XDG_CONFIG_HOME", self.keys.directory());
        command
            .env_remove("MCR_SOCKET")
            .args(["--host", host])
            .args(arguments);
        command
    }

    /// Runs `mcr --host` on the other host.
    fn run(&self, host: &str, arguments: &[&str]) -> Finished {
        process::run(self.command(host, arguments), PATIENCE).unwrap()
    }

    #[track_caller]
    fn mcr(&self, host: &str, arguments: &[&str]) -> String {
        let Finished {
            status,
            stdout,
            stderr,
        } = self.run(host, arguments);
        assert!(status.success(), "{host} {arguments:?}: {stdout}{stderr}");
        stdout
    }

    #[track_caller]
    fn refuses(&self, host: &str, arguments: &[&str], code: i32, word: &str) {
        let Finished {
            status,
            stdout,
            stderr,
        } = self.run(host, arguments);
        assert_eq!(
            status.code(),
            Some(code),
            "{host} {arguments:?}: {stdout}{stderr}"
        );
        assert!(
            stderr.contains(word),
            "{host} {arguments:?}: no {word:?} in {stderr}"
        );
    }

    /// Asks by curl on the other host: status and body.
    fn curl(&self, arguments: &str) -> (u16, String) {
        let ca = self.keys.path("servers.pem");
        let mut command = self.chain.sink.command("curl");
        command
            .args([
                "-sS",
                "--max-time",
                "20",
                "-w",
                "\n%{http_code}",
                "--cacert",
            ])
            .arg(ca);
        command
            .args(arguments.split(' '))
            .current_dir(self.keys.directory());
        let answer = process::run(command, PATIENCE).unwrap();
        let (body, status) = answer.stdout.rsplit_once('\n').unwrap_or(("", "0"));
        (
            status.parse().unwrap_or_default(),
            format!("{body}{}", answer.stderr),
        )
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.daemon.mcr(&["status", "--json"]).unwrap()).unwrap()
    }

    fn wait_for(&self, what: &str, is_so: impl Fn(&Value) -> bool) {
        wait::until(what, || is_so(&self.status()["api"])).unwrap();
    }
}

/// All that a daemon has written below its own directories.
fn left_behind(instance: &str) -> String {
    let mut text = String::new();
    let mut folders = vec![
        format!("/run/mcr/{instance}").into(),
        format!("/var/lib/mcr/{instance}").into(),
    ];
    while let Some(folder) = folders.pop() {
        let folder: std::path::PathBuf = folder;
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => folders.push(entry.path()),
                kind if kind.is_file() => {
                    text += &String::from_utf8_lossy(&fs::read(entry.path()).unwrap_or_default());
                }
                _ => {}
            }
        }
    }
    text
}

/// The last word of what curl is to ask for.
fn address(asked: &str) -> &str {
    asked.rsplit(' ').next().unwrap()
}

fn config(keys: &Keys, more: &str) -> String {
    let at = |name: &str| keys.path(name).display().to_string();
    let mut config = format!(
        "version = 1\n[api]\nlisten = \"0.0.0.0:9471\"\ncertificate = \"{}\"\nkey = \"{}\"\n\
         client_ca = \"{}\"\n{more}\n\
         [[api.client]]\nname = \"ci\"\nrole = \"change\"\ncertificate = \"ci.example\"\n",
        at("relay.pem"),
        at("relay.key"),
        at("clients.pem"),
    );
    for (role, token) in TOKENS {
        let hash = tls::token::hash(token);
        config +=
            &format!("[[api.client]]\nname = \"{role}r\"\nrole = \"{role}\"\ntoken = \"{hash}\"\n");
    }
    config
}

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
    let file = bed.keys.path("new.toml");
    fs::write(&file, exported.replace("6001", "6002")).unwrap();
    let file = file.to_str().unwrap();
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
    // To operate is enough to disable a rule, and for nothing that changes one.
    bed.refuses("view", &["disable", "cam1"], 77, "view");
    bed.mcr("operate", &["disable", "cam1"]);
    assert!(bed.mcr("view", &["export"]).contains("enabled = false"));
    bed.mcr("operate", &["enable", "cam1"]);
    bed.refuses("operate", &["remove", "cam1"], 77, "operate");
    bed.mcr("ci", &["reload"]);
    // The daemon over there saves, where the role goes as far.
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
    bed.refuses("mistaken", &["stats"], 4, "mistaken");
    bed.refuses("misnamed", &["stats"], 4, "misnamed");
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
    let webhook = "[notify]\nwebhook = \"http://10.0.1.2:9/\"\n";
    fs::write(&plain, export()).unwrap();
    fs::write(&posting, export() + "\n" + webhook).unwrap();
    let (plain, posting) = (plain.to_str().unwrap(), posting.to_str().unwrap());
    bed.daemon.mcr(&["apply", posting]).unwrap();
    assert!(export().contains("webhook"));
    let with_webhook = bed.status()["generation"].to_string();
    bed.daemon.mcr(&["apply", plain]).unwrap();
    bed.mcr("ci", &["rollback", &with_webhook, "--yes"]);
    assert!(!export().contains("webhook"), "{}", export());
    // Nor by what is taken back before it is confirmed.
    let waits = ["apply", posting, "--confirm", "60s", "--yes"];
    bed.daemon.mcr(&waits).unwrap();
    bed.refuses("view", &["rollback", "--last", "--yes"], 77, "view");
    bed.mcr("ci", &["rollback", "--last", "--yes"]);
    assert!(export().contains("webhook"), "{}", export());
    // Who made a change confirms it, and no other client; nobody changes anything meanwhile.
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
    let told: Value = serde_json::from_str(&bed.mcr("view,ci", &["stats", "--json"])).unwrap();
    for host in ["view", "ci"] {
        assert_eq!(told["hosts"][host]["rules"][0]["name"], "cam1", "{told}");
    }
    // One that fails stops no other, and the status is the worst.
    let Finished {
        status,
        stdout,
        stderr,
    } = bed.run("gone,view,nobody", &["stats", "--json"]);
    assert_eq!(status.code(), Some(77), "{stderr}");
    let told: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(told["hosts"]["view"]["rules"][0]["name"], "cam1", "{told}");
    assert_eq!(told["hosts"]["gone"]["error"]["status"], 4, "{told}");
    assert_eq!(bed.run("gone,view", &["stats"]).status.code(), Some(4));
    // What stands on standard input is for all of them.
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
    let Some(bed) = Bed::new("") else { return };
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
    let rank = |role: &str| ranks.iter().position(|known| *known == role).unwrap();
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
    // Each waits longer than the one before, so all at once.
    thread::scope(|scope| {
        for (asked, least) in &routes {
            let bed = &bed;
            scope.spawn(move || {
                let (status, body) = bed.curl(asked);
                assert_eq!(status == 401, least != "none", "{asked}: {status} {body}");
            });
        }
    });
    let mut seen = 0;
    for (asked, least) in &routes {
        for (role, _) in TOKENS.iter().filter(|(role, _)| rank(role) < rank(least)) {
            let (status, body) = bed.curl(&format!("-H @{role}.header {asked}"));
            assert_eq!(status, 403, "{role}: {asked}: {body}");
            assert!(body.contains(least), "{body}");
            seen += 1;
        }
    }
    assert!(seen > 15, "{seen}");
    // A method that a route does not have is not a matter of who asks.
    let mut paths: Vec<&str> = routes.iter().map(|(asked, _)| address(asked)).collect();
    paths.dedup();
    for address in paths {
        let has = |method: &str| {
            let asked = format!("-X {method} {address}");
            routes.iter().any(|(route, _)| *route == asked)
        };
        for method in ["TRACE", "PATCH", "DELETE"] {
            for who in ["", "-H @view.header "].iter().filter(|_| !has(method)) {
                let (status, body) = bed.curl(&format!("-i {who}-X {method} {address}"));
                assert_eq!(status, 405, "{method} {address}: {body}");
                let allowed = body.lines().find_map(|line| line.strip_prefix("allow: "));
                let mut allowed = allowed.unwrap_or_default().trim().split(',');
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
    // What a client may not change stays as files of the host have it.
    let rules = bed.keys.path("rules.json");
    let (_, told) = bed.curl(&format!("-H @change.header https://{RELAY}/v1/rules"));
    let mut told: Value = serde_json::from_str(&told).unwrap();
    told["settings"] = serde_json::json!({ "notify": { "webhook": "http://10.9.9.9/" }, "daemon": { "workers": 7 } });
    fs::write(&rules, told.to_string()).unwrap();
    let (status, body) = bed.curl(&format!(
        "-H @change.header -X PUT -d @rules.json https://{RELAY}/v1/rules"
    ));
    assert_eq!(status, 200, "{body}");
    let exported = bed.daemon.mcr(&["export"]).unwrap();
    assert!(
        !exported.contains("webhook") && !exported.contains("workers"),
        "{exported}"
    );
    // Nobody is told what others show.
    let mut told = bed.daemon.log() + &exported;
    let read = routes
        .iter()
        .filter(|(asked, _)| asked.starts_with("-X GET"));
    let mut answers = 0;
    let lasts = |asked: &str| {
        let lasting = ["/v1/events", "/v1/discover", "/tap"];
        lasting.iter().any(|end| asked.ends_with(end))
    };
    for (asked, _) in read.filter(|(asked, _)| !lasts(asked)) {
        told += &bed.curl(&format!("-H @change.header {asked}")).1;
        answers += 1;
    }
    assert!(answers > 15, "{answers}");
    let recent = format!("https://{RELAY}/v1/events?follow=false&recent=200");
    told += &bed.curl(&format!("-H @change.header {recent}")).1;
    told += &left_behind(bed.daemon.instance());
    for (_, token) in TOKENS {
        for secret in [token.to_owned(), tls::token::hash(token)] {
            assert!(!told.contains(&secret), "{secret}");
        }
    }
    let key = fs::read_to_string(bed.keys.path("relay.key")).unwrap();
    assert!(!told.contains(key.lines().nth(1).unwrap()), "the key");
}

#[test]
fn nobody_else_is_let_in() {
    let Some(bed) = Bed::new("") else { return };
    let keys = &bed.keys;
    keys.sign(
        "stranger",
        "strangers",
        "subjectAltName=DNS:ci.example",
        "-days 30",
    );
    keys.sign(
        "ended",
        "clients",
        "subjectAltName=DNS:ci.example",
        "-days -1",
    );
    keys.sign(
        "unlisted",
        "clients",
        "subjectAltName=DNS:other.example",
        "-days 30",
    );
    for host in ["stranger", "ended", "unlisted"] {
        bed.refuses(host, &["stats"], 77, host);
    }
    let (status, body) = bed.curl(&format!("--tlsv1.1 --tls-max 1.1 https://{RELAY}/healthz"));
    assert_eq!(status, 0, "{body}");
    // Of curl's own library that may have been: this one speaks what it is told.
    let mut old = bed.chain.sink.command("openssl");
    let line = format!("s_client -connect {RELAY} -tls1_1 -cipher DEFAULT@SECLEVEL=0");
    old.args(line.split(' '));
    let old = process::run(old, PATIENCE).unwrap();
    assert!(
        !old.status.success() && old.stderr.contains("alert"),
        "{}",
        old.stderr
    );
    let (status, body) = bed.curl(&format!("--tlsv1.2 --tls-max 1.2 https://{RELAY}/healthz"));
    assert_eq!(status, 0, "{body}");
    let (status, body) = bed.curl(&format!("http://{RELAY}/healthz"));
    assert_eq!(status, 0, "{body}");
    // No credentials are needed for one word.
    assert_eq!(
        bed.curl(&format!("https://{RELAY}/healthz")),
        (200, "ok\n".to_owned())
    );
    assert_eq!(
        bed.curl(&format!("https://{RELAY}/readyz")),
        (200, "ready\n".to_owned())
    );
    assert!(bed.status()["api"]["refused"].as_u64().unwrap() >= 5);
    let events = bed
        .daemon
        .mcr(&["events", "-n", "1", "--recent", "200", "api"])
        .unwrap();
    assert!(events.contains("api_"), "{events}");
    bed.configure("tls = \"1.2\"");
    wait::until("TLS 1.2 is spoken", || {
        bed.curl(&format!("--tls-max 1.2 https://{RELAY}/healthz"))
            .0
            == 200
    })
    .unwrap();
}

#[test]
fn who_is_a_client_no_more_is_cut_off_within_a_second() {
    let Some(bed) = Bed::new("") else { return };
    bed.keys.revoke(&[]);
    let crl = format!(
        "client_crl = \"{}\"",
        bed.keys.path("clients.crl").display()
    );
    bed.configure(&crl);
    let mut following: Vec<Process> = ["view", "operate", "ci"]
        .map(|host| Process::start(bed.command(host, &["events", "--json"])).unwrap())
        .into();
    let heard = |following: &Process, what: &str| following.stdout().contains(what);
    wait::until("all follow", || {
        bed.daemon.mcr(&["log", "debug"]).unwrap();
        bed.daemon.add("x", INPUT, &[OUTPUT]).ok();
        bed.daemon.mcr(&["remove", "x"]).ok();
        following.iter().all(|one| heard(one, "rule_"))
    })
    .unwrap();
    // The one is taken out of the configuration, the others stay.
    let path = bed.daemon.config_file();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replace(&tls::token::hash(TOKENS[0].1), &tls::token::hash("other")),
    )
    .unwrap();
    bed.daemon.mcr(&["reload"]).unwrap();
    let reloaded = Instant::now();
    wait::until("the stream of the first ends", || {
        !following[0].is_running()
    })
    .unwrap();
    assert!(
        reloaded.elapsed() < wait::scaled(Duration::from_millis(1500)),
        "{:?}",
        reloaded.elapsed()
    );
    assert!(following[1].is_running() && following[2].is_running());
    bed.refuses("view", &["stats"], 77, "nobody's");
    // A certificate that is revoked ends its connections too, by the file alone.
    bed.keys.revoke(&["ci"]);
    wait::until("the stream of the revoked ends", || {
        !following[2].is_running()
    })
    .unwrap();
    bed.refuses("ci", &["stats"], 77, "ci");
    assert!(following[1].is_running());
    bed.mcr("operate", &["stats"]);
}

#[test]
fn files_are_read_anew_and_wrong_ones_are_told() {
    let Some(bed) = Bed::new("") else { return };
    let ends = |api: &Value| api["certificate_expires"].as_u64().unwrap_or_default();
    let first = ends(&bed.status()["api"]);
    // Swapped as certificate managers do it: a link that leads elsewhere.
    let pem = bed.keys.path("relay.pem");
    let good = fs::read(&pem).unwrap();
    fs::write(bed.keys.path("wrong.pem"), "nonsense").unwrap();
    fs::rename(bed.keys.path("wrong.pem"), &pem).unwrap();
    bed.wait_for("the wrong file is told", |api| {
        api["state"] == "degraded" && api["reason"].as_str().unwrap().contains("stays in use")
    });
    assert_eq!(bed.status()["state"], "degraded");
    bed.mcr("view", &["stats"]);
    fs::write(&pem, good).unwrap();
    bed.wait_for("all is well again", |api| api["state"] == "up");
    bed.keys
        .sign("relay", "servers", "subjectAltName=IP:10.0.1.1", "-days 5");
    bed.wait_for("the new one is in use", |api| {
        ends(api) < first && api["state"] == "up"
    });
    bed.mcr("view", &["stats"]);
    // As a link that leads elsewhere then.
    let fifth = ends(&bed.status()["api"]);
    bed.keys
        .sign("next", "servers", "subjectAltName=IP:10.0.1.1", "-days 4");
    for kind in ["pem", "key"] {
        let link = bed.keys.path("link");
        std::os::unix::fs::symlink(format!("next.{kind}"), &link).unwrap();
        fs::rename(link, bed.keys.path(&format!("relay.{kind}"))).unwrap();
    }
    bed.wait_for("the link is followed", |api| {
        ends(api) < fifth && api["state"] == "up"
    });
    bed.mcr("view", &["stats"]);
    let soon = |api: &Value| api["expiring"].to_string().contains("certificate");
    assert!(soon(&bed.status()["api"]), "{}", bed.status());
    let events = bed.daemon.log();
    for kind in ["api_degraded", "api_up", "expires_soon"] {
        assert!(events.contains(kind), "{kind}: {events}");
    }
}

#[test]
fn without_what_it_takes_nothing_listens_and_the_reason_is_told() {
    let Some(bed) = Bed::new("") else { return };
    let path = bed.daemon.config_file();
    for (text, why) in [
        ("[api]\nlisten = \":9471\"\n", "no certificate"),
        (
            "[api]\nlisten = \":9471\"\ncertificate = \"/c\"\nkey = \"/k\"\n",
            "names no client",
        ),
    ] {
        fs::write(&path, format!("version = 1\n{text}")).unwrap();
        bed.daemon.mcr(&["reload"]).unwrap();
        bed.wait_for(why, |api| {
            api["state"] == "degraded" && api["reason"].as_str().unwrap().contains(why)
        });
        assert_eq!(bed.curl(&format!("https://{RELAY}/healthz")).0, 0, "{why}");
    }
    fs::write(&path, "version = 1\n").unwrap();
    bed.daemon.mcr(&["reload"]).unwrap();
    let status = bed.status();
    assert_eq!(
        (&status["api"], &status["state"]),
        (&Value::Null, &"up".into())
    );
    let sockets = bed.chain.relay.tool("ss", "-Hltn").unwrap();
    assert!(!sockets.contains("9471"), "{sockets}");
}

#[test]
fn a_crowd_of_the_wrong_keeps_no_operator_out() {
    let Some(bed) = Bed::new("") else { return };
    let rules = 20;
    let opened = |from: &Namespace, count: usize, at: &str| {
        let half_open = from.run(|| {
            let streams = (0..count).map(|_| {
                let mut stream = TcpStream::connect(at)?;
                stream.write_all(&[22, 3, 1])?;
                Ok(stream)
            });
            streams.collect::<anyhow::Result<Vec<TcpStream>>>()
        });
        half_open.unwrap()
    };
    // Also from where the operator is.
    let half_open = opened(&bed.chain.sender, 512, "10.0.0.2:9471");
    let _beside = opened(&bed.chain.sink, 256, RELAY);
    let (_, token) = TOKENS[2];
    bed.secret("change.header", &format!("Authorization: Bearer {token}\n"));
    let slow = "for i in $(seq 32); do sleep 60 | curl -sk -T - -X PUT -o /dev/null -H @change.header \
                https://10.0.1.1:9471/v1/rules & done; wait";
    let mut command = bed.chain.sink.command("bash");
    command.args(["-c", slow]).current_dir(bed.keys.directory());
    let slow = Process::start(command).unwrap();
    let wrong = "for i in $(seq 100); do curl -sk --max-time 9 -o /dev/null -H 'Authorization: Bearer wrong' \
                 https://10.0.0.2:9471/v1/stats & done; wait";
    let mut command = bed.chain.sender.command("bash");
    command.args(["-c", wrong]);
    let wrong = Process::start(command).unwrap();
    for number in 0..rules {
        let name = format!("cam{number}");
        let began = Instant::now();
        bed.mcr("change", &["add", INPUT, OUTPUT, "--name", &name]);
        bed.mcr("change", &["remove", &name]);
        assert!(
            began.elapsed() < wait::scaled(Duration::from_secs(8)),
            "{:?}",
            began.elapsed()
        );
    }
    drop((wrong, slow));
    let mut first = &half_open[0];
    first
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let mut rest = Vec::new();
    // Whether by an end or by a reset: within the time of a handshake.
    let _ = first.read_to_end(&mut rest);
    assert!(
        bed.status()["api"]["refused"].as_u64().unwrap() > 20,
        "{}",
        bed.status()
    );
}

#[test]
fn tokens_are_made_here_and_known_there() {
    let Some(bed) = Bed::new("") else { return };
    let made = bed.daemon.mcr(&[
        "token",
        "create",
        "--name",
        "noc",
        "--role",
        "operate",
        "--expires",
        "90d",
    ]);
    let made = made.unwrap();
    let (token, client) = made.split_once("\n\n").unwrap();
    assert!(
        token.starts_with("mcr_") && client.contains(&tls::token::hash(token)),
        "{made}"
    );
    let path = bed.daemon.config_file();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{text}\n{client}from = [\"10.0.0.0/24\"]\n")).unwrap();
    bed.daemon.mcr(&["check", path.to_str().unwrap()]).unwrap();
    bed.daemon.mcr(&["reload"]).unwrap();
    bed.secret("noc.header", &format!("Authorization: Bearer {token}\n"));
    let (status, body) = bed.curl(&format!("-H @noc.header https://{RELAY}/v1/status"));
    assert_eq!(status, 403, "it comes from elsewhere: {body}");
    fs::write(&path, format!("{text}\n{client}from = [\"10.0.1.0/24\"]\n")).unwrap();
    bed.daemon.mcr(&["reload"]).unwrap();
    let (status, body) = bed.curl(&format!("-H @noc.header https://{RELAY}/v1/status"));
    assert_eq!(status, 200, "{body}");
    assert!(bed.status()["api"]["expiring"].is_null());
    // Of what ends within 14 days is told, and of nothing else.
    let create = "token create --name soon --role view --expires 13d";
    let made = { bed.daemon.mcr(&create.split(' ').collect::<Vec<_>>()) }.unwrap();
    let (_, soon) = made.split_once("\n\n").unwrap();
    fs::write(&path, format!("{text}\n{client}\n{soon}")).unwrap();
    bed.daemon.mcr(&["reload"]).unwrap();
    bed.wait_for("it is told of", |api| {
        api["expiring"] == serde_json::json!(["client soon"])
    });
    assert!(bed.daemon.log().contains("client soon ends in"));
}

#[test]
fn prometheus_reads_the_metrics_by_token_and_by_certificate() {
    let Some(bed) = Bed::new("") else { return };
    if let Err(reason) = can_run("prometheus") {
        eprintln!("skipped: {reason}");
        return;
    }
    let at = |name: &str| bed.keys.path(name).display().to_string();
    let (ca, token, certificate, key) = (
        at("servers.pem"),
        at("view.token"),
        at("ci.pem"),
        at("ci.key"),
    );
    let config = format!(
        "global: {{ scrape_interval: 500ms }}\n\
         scrape_configs:\n  \
         - job_name: mcr\n    scheme: https\n    authorization: {{ credentials_file: {token} }}\n    \
         tls_config: {{ ca_file: {ca} }}\n    static_configs: [{{ targets: [\"{RELAY}\"] }}]\n  \
         - job_name: mcr-by-certificate\n    scheme: https\n    tls_config:\n      ca_file: {ca}\n      \
         cert_file: {certificate}\n      key_file: {key}\n    static_configs: [{{ targets: [\"{RELAY}\"] }}]\n"
    );
    let file = bed.keys.path("prometheus.yml");
    fs::write(&file, config).unwrap();
    lab::link::up((&bed.chain.sink, "lo")).unwrap();
    let mut command = bed.chain.sink.command("prometheus");
    command
        .arg(format!("--config.file={}", file.display()))
        .arg(format!("--storage.tsdb.path={}", at("storage")))
        .arg("--web.listen-address=127.0.0.1:9191");
    let _prometheus = Process::start(command).unwrap();
    let ask = "-G --data-urlencode query=mcr_api_up==1 http://127.0.0.1:9191/api/v1/query";
    wait::until_within(PATIENCE, "both jobs read it", || {
        let (_, answer) = bed.curl(ask);
        answer.contains("\"mcr\"") && answer.contains("\"mcr-by-certificate\"")
    })
    .unwrap();
}
