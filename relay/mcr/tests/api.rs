//! The control API as a client meets it: compare-and-set by `curl`, and schemathesis, which makes
//! requests of the OpenAPI document and checks every answer against it.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lab::process::{self, Process};
use lab::wait;
use serde_json::{Value, json};

use crate::bed::Bed;
use crate::schemathesis;

const RULES: &str = r#"version = 1
[[rule]]
name = "cam1"
input = "239.1.1.1%veth1:5001"
outputs = ["239.10.1.1%veth2:6001"]
"#;

/// Where bootstrap installs Python's tools.
pub(crate) fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target")
}

/// An answer: its status, its ETag, its body.
struct Answer {
    status: u16,
    tag: String,
    body: Value,
}

impl Bed {
    fn curl(&self, method: &str, path: &str, tag: Option<&str>, body: Option<&Value>) -> Answer {
        let mut command = self.chain.relay.command("curl");
        command.args(["--silent", "--include", "--request", method]);
        command.arg("--unix-socket").arg(self.daemon.socket());
        if let Some(tag) = tag {
            command.args(["--header", &format!("If-Match: {tag}")]);
        }
        if let Some(body) = body {
            command.args(["--data", &body.to_string()]);
        }
        let output = command.arg(format!("http://mcr{path}")).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let tag = head.lines().find_map(|line| line.strip_prefix("etag: "));
        Answer {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            tag: tag.unwrap_or_default().to_owned(),
            body: serde_json::from_str(body).unwrap(),
        }
    }

    fn names(&self) -> Vec<String> {
        let stats = self.daemon.stats().unwrap();
        stats.rules.into_iter().map(|rule| rule.name).collect()
    }
}

fn rule(name: &str, group: u8) -> Value {
    json!({
        "name": name,
        "inputs": [format!("239.1.2.{group}%veth1:5001")],
        "outputs": [format!("239.10.2.{group}%veth2:6001")],
    })
}

#[test]
fn a_change_made_for_another_generation_is_refused_whichever_way_it_says_so() {
    let Some(bed) = Bed::new(Some(RULES), &[]) else {
        return;
    };
    let read = bed.curl("GET", "/v1/rules", None, None);
    let generation = read.body["generation"].as_u64().unwrap();
    assert_eq!(read.tag, format!("\"{generation}\""));
    let stale = read.tag;

    let add = json!({"rules": [rule("a", 1)]});
    let added = bed.curl("POST", "/v1/rules", Some(&stale), Some(&add));
    assert_eq!((added.status, &added.body["added"]), (200, &json!(["a"])));
    assert_eq!(added.tag, format!("\"{}\"", generation + 1));

    let more = json!({"rules": [rule("b", 2)]});
    let swap = json!({"add": [rule("b", 2)], "remove": ["a"]});
    let insisting = json!({"generation": generation, "rules": []});
    let disable = json!({"enabled": false});
    let withdraw = json!({"acknowledged": false});
    let input = json!({"input": "239.1.2.1%veth1:5001"});
    let last = json!({});
    for (method, path, tag, body) in [
        ("POST", "/v1/rules", Some(stale.as_str()), Some(&more)),
        ("POST", "/v1/transaction", Some(&stale), Some(&swap)),
        ("PUT", "/v1/rules", Some(&stale), Some(&more)),
        ("PUT", "/v1/rules", None, Some(&insisting)),
        ("DELETE", "/v1/rules/a", Some(&stale), None),
        ("PUT", "/v1/rules/a/enabled", Some(&stale), Some(&disable)),
        (
            "PUT",
            "/v1/rules/a/acknowledged",
            Some(&stale),
            Some(&withdraw),
        ),
        ("PUT", "/v1/rules/a/active", Some(&stale), Some(&input)),
        ("POST", "/v1/reload", Some(&stale), None),
        ("POST", "/v1/rollback", Some(&stale), Some(&last)),
        ("POST", "/v1/save", Some(&stale), None),
        ("POST", "/v1/confirm", Some(&stale), None),
    ] {
        let refused = bed.curl(method, path, tag, body);
        let code = &refused.body["code"];
        assert_eq!(
            (refused.status, code),
            (409, &json!("conflict")),
            "{method} {path}"
        );
        assert!(
            refused.body["message"]
                .as_str()
                .unwrap()
                .contains("of generation")
        );
        assert_eq!(bed.names(), ["cam1", "a"], "{method} {path}");
    }
    for wrong in ["seven", "\"1\", \"2\""] {
        let refused = bed.curl("DELETE", "/v1/rules/a", Some(wrong), None);
        assert_eq!(
            (refused.status, &refused.body["code"]),
            (400, &json!("usage"))
        );
    }
    let both = json!({"generation": generation + 1, "rules": []});
    let refused = bed.curl("PUT", "/v1/rules", Some(&stale), Some(&both));
    assert_eq!(refused.status, 409, "{}", refused.body);

    let fresh = added.tag;
    let removed = bed.curl("DELETE", "/v1/rules/a", Some(&fresh), None);
    assert_eq!(removed.status, 200, "{}", removed.body);
    let any = bed.curl("DELETE", "/v1/rules/cam1", Some("*"), None);
    assert_eq!(any.status, 200, "{}", any.body);
    assert!(bed.names().is_empty());
}

#[test]
fn a_parameter_that_a_route_does_not_take_is_refused_and_nothing_changed() {
    let Some(bed) = Bed::new(Some(RULES), &[]) else {
        return;
    };
    let add = json!({"rules": [rule("a", 1)]});
    let disable = json!({"enabled": false});
    for (method, path, body) in [
        ("DELETE", "/v1/rules/cam1?dry_run=true", None),
        ("POST", "/v1/rules?dry_run=true", Some(&add)),
        ("POST", "/v1/rules?confirn=60s", Some(&add)),
        ("POST", "/v1/transaction?dry_rum=true", Some(&add)),
        ("PUT", "/v1/rules/cam1/enabled?dry_run=true", Some(&disable)),
        ("PUT", "/v1/rules/cam1/active?confirm=60s", None),
        ("POST", "/v1/reload?dry_run=true", None),
        ("PUT", "/v1/log?confirm=60s", None),
        ("GET", "/v1/status?brief=true", None),
        ("GET", "/v1/stats?limits=1", None),
    ] {
        let refused = bed.curl(method, path, None, body);
        let name = path.split_once('?').unwrap().1.split_once('=').unwrap().0;
        assert_eq!(
            (refused.status, &refused.body["code"]),
            (400, &json!("usage")),
            "{method} {path}: {}",
            refused.body
        );
        let message = refused.body["message"].as_str().unwrap();
        assert!(
            message.contains(&format!("no parameter {name:?}")),
            "{message}"
        );
    }
    assert_eq!(bed.names(), ["cam1"]);
    assert!(!bed.daemon.mcr(&["export"]).unwrap().contains("enabled"));
    let confirm = "/v1/rules/cam1/enabled?confirm=60s";
    let waits = bed.curl("PUT", confirm, None, Some(&disable));
    assert_eq!(waits.status, 200, "{}", waits.body);
}

#[test]
fn a_dry_run_of_a_transaction_says_where_rules_would_run_and_what_is_missing() {
    let Some(bed) = Bed::new(Some(RULES), &[]) else {
        return;
    };
    let lost =
        json!({"name": "lost", "input": "239.1.1.7%veth1:5001", "outputs": ["239.1.1.7%veth9:1"]});
    let body = json!({"add": [rule("a", 1), lost], "remove": ["cam1"]});
    let before = bed.curl("GET", "/v1/rules", None, None).body;
    let dry_run = bed.curl("POST", "/v1/transaction?dry_run=true", None, Some(&body));
    assert_eq!(dry_run.status, 200, "{}", dry_run.body);
    assert_eq!(dry_run.body["added"], json!(["a", "lost"]));
    assert_eq!(dry_run.body["removed"], json!(["cam1"]));
    assert_eq!(dry_run.body["generation"], before["generation"]);
    let warnings = dry_run.body["warnings"].to_string();
    assert!(warnings.contains("no interface veth9"), "{warnings}");
    let placements = dry_run.body["placements"].as_array().unwrap();
    let placed: Vec<&Value> = placements.iter().map(|one| &one["rule"]).collect();
    assert_eq!(placed, ["a", "lost"]);
    assert_eq!(bed.curl("GET", "/v1/rules", None, None).body, before);
    let done = bed.curl("POST", "/v1/transaction", None, Some(&body));
    assert_eq!((done.status, &done.body["placements"]), (200, &Value::Null));
}

#[test]
fn what_is_written_is_checked_by_key_and_line_and_what_people_have_becomes_rules() {
    let Some(bed) = Bed::new(None, &[]) else {
        return;
    };
    let check = |body: &Value| bed.curl("POST", "/v1/check", None, Some(body)).body;
    let toml =
        "[[rule]]\nname = \"a\"\ninput = \"239.1.1.1%veth1:1\"\noutputs = [\"10.0.1.2:1\"]\n";
    let read = check(&json!({ "toml": toml }));
    assert_eq!(
        (&read["problems"], &read["rules"][0]["name"]),
        (&json!([]), &json!("a"))
    );
    assert_eq!(check(&json!({ "rules": read["rules"] })), read);
    let wrong = check(&json!({"rules": [{"name": "a", "path": "fast", "outputs": ["x"]}]}));
    let at = |key: &str| {
        let problems = wrong["problems"].as_array().unwrap();
        problems
            .iter()
            .any(|one| one["key"] == key && one["rule"] == 0)
    };
    assert!(at("path"), "{wrong}");
    let wrong = check(&json!({ "toml": format!("{toml}limti = 1\n") }));
    assert_eq!(wrong["problems"][0]["line"], 5, "{wrong}");
    let made = |body: &Value| bed.curl("POST", "/v1/import", None, Some(body));
    let list = json!({"text": "#EXTM3U\n#EXTINF:-1,News\nudp://@239.1.1.7:5000\n"});
    let missing = made(&list);
    assert_eq!(missing.status, 422, "{}", missing.body);
    let list = json!({"text": list["text"], "interfaces": ["veth1"], "to": ["%veth2"]});
    assert_eq!(made(&list).body["rules"][0]["name"], "News");
    let file = json!({"text": "/etc/passwd", "interfaces": ["veth1"], "to": ["%veth2"]});
    assert_eq!(made(&file).status, 422, "a name of a file is a text");
    let schema = bed.curl("GET", "/v1/schema", None, None).body;
    assert!(schema["definitions"]["RuleDocument"]["properties"]["limit"].is_object());
}

#[test]
fn of_thousands_of_rules_as_many_are_returned_as_are_requested() {
    let Some(bed) = Bed::new(None, &[]) else {
        return;
    };
    let mut config = "version = 1\n".to_owned();
    for n in 0..3000 {
        let (high, low) = (n / 250, n % 250 + 1);
        let link = if n == 2500 { "veth9" } else { "veth2" };
        config += &format!(
            "[[rule]]\nname = \"r{n}\"\ninput = \"239.1.{high}.{low}%veth1:5001\"\n\
             outputs = [\"239.10.{high}.{low}%{link}:6001\"]\n\
             labels = {{ rack = \"{}\" }}\n",
            n % 10
        );
    }
    bed.daemon.apply(&config).unwrap();
    let read = |path: &str| bed.curl("GET", path, None, None).body;
    let length = |body: &Value| body.to_string().len();
    let names = |body: &Value| {
        let rules = body["rules"].as_array().unwrap().iter();
        let names: Vec<String> = rules
            .map(|rule| rule["name"].as_str().unwrap().to_owned())
            .collect();
        names.join(" ")
    };
    let whole = read("/v1/stats");
    assert!(whole.get("selection").is_none() && length(&whole) > 1_000_000);

    let worst = read("/v1/stats?order=state&limit=3&rules=r7,r2500,gone");
    assert_eq!(names(&worst), "r2500 r0 r1 r7");
    assert!(length(&worst) < 5000, "{worst}");
    let selection = &worst["selection"];
    for (name, expected) in [
        ("offset", 0),
        ("count", 3),
        ("matching", 3000),
        ("total", 3000),
    ] {
        assert_eq!(selection[name], expected, "{name}");
    }
    assert_eq!(
        (
            &selection["states"]["down"],
            &selection["states"]["waiting"]
        ),
        (&json!(1), &json!(2999)),
        "{selection}"
    );
    let around = read("/v1/stats?label=rack%3D5&filter=KERNEL&around=r2005&limit=4");
    assert_eq!(names(&around), "r1985 r1995 r2005 r2015");
    assert_eq!(around["selection"]["offset"], 198);

    let rules = read("/v1/rules?label=rack%3D5&offset=298&limit=10");
    assert_eq!(names(&rules), "r2985 r2995");
    assert_eq!(rules["selection"]["matching"], 300);
    let refused = bed.curl("PUT", "/v1/rules", None, Some(&rules));
    assert_eq!(refused.status, 400, "{}", refused.body);

    for (command, expected) in [
        ("list -o name --offset 2998 --limit 5", "r2998\nr2999\n"),
        ("list -o name -l rack=5 --limit 2", "r5\nr15\n"),
        ("stats -o name --sort state --limit 2", "r2500\nr0\n"),
        ("stats -o name r9 r3", "r3\nr9\n"),
    ] {
        let arguments: Vec<&str> = command.split(' ').collect();
        assert_eq!(bed.daemon.mcr(&arguments).unwrap(), expected, "{command}");
    }
    let wide = bed
        .daemon
        .mcr(&["list", "-o", "wide", "--offset", "2500", "--limit", "1"]);
    let wide = wide.unwrap();
    assert!(
        wide.contains("r2500") && wide.contains("no interface veth9"),
        "{wide}"
    );
}

#[test]
fn the_document_is_valid() {
    let Some(bed) = Bed::new(Some(RULES), &[]) else {
        return;
    };
    let validator = target().join("python/bin/openapi-spec-validator");
    if !validator.exists() {
        eprintln!(
            "skipped: needs openapi-spec-validator, which dist/bootstrap test installs with Python"
        );
        return;
    }
    let document = bed.curl("GET", "/openapi.json", None, None).body;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), document.to_string()).unwrap();
    let mut command = Command::new(validator);
    command.arg(file.path());
    let finished = process::run(command, Duration::from_secs(60)).unwrap();
    let output = finished.success().unwrap();
    assert!(output.contains("OK"), "{output}");
}

#[test]
fn answers_keep_to_the_document_whatever_is_asked() {
    let Some(bed) = Bed::new(Some(RULES), &[]) else {
        return;
    };
    if !schemathesis::is_installed() {
        return;
    }
    // It speaks TCP only: a bridge to the socket, on the loopback of the namespace.
    let mut bridge = bed.chain.relay.command("socat");
    bridge.args(["TCP-LISTEN:8080,bind=127.0.0.1,fork,reuseaddr"]);
    bridge.arg(format!("UNIX-CONNECT:{}", bed.daemon.socket().display()));
    let _bridge = Process::start(bridge).unwrap();
    wait::until("the bridge listens", || {
        let listening = bed.chain.relay.tool("ss", "-ltnH sport = :8080").unwrap();
        !listening.is_empty()
    })
    .unwrap();
    let directory = tempfile::tempdir().unwrap();
    let document = "http://127.0.0.1:8080/openapi.json";
    let mut command = schemathesis::command(&bed.chain.relay, directory.path(), document);
    command.args(["--max-examples", "20", "--request-timeout", "30"]);
    schemathesis::finds_nothing(command, Duration::from_secs(180), "by the socket");
    assert_eq!(
        bed.curl("GET", "/v1/status", None, None).status,
        200,
        "still well"
    );
}

#[test]
fn readiness_may_forgive_interfaces_that_are_missing() {
    let Some(bed) = Bed::new(None, &[]) else {
        return;
    };
    bed.add();
    let away = ("239.1.1.2%veth9:5002", "239.10.1.2%veth2:6002");
    bed.daemon.add("away", away.0, &[away.1]).unwrap();
    let ask = |query: &str| {
        let answer = lab::control::read(&bed.daemon.socket(), &format!("/readyz{query}"));
        answer.map_err(|error| error.to_string())
    };
    let refused = ask("").unwrap_err();
    assert!(
        refused.contains(" 503 ") && refused.contains("not joined: away"),
        "{refused}"
    );
    assert_eq!(ask("?missing=ok").unwrap(), "ready\n");
    let wrong = ask("?missing=no").unwrap_err();
    assert!(wrong.contains(" 400 "), "{wrong}");
}
