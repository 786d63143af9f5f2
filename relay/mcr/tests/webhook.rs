//! Events posted to a web server: in order, again where it failed, and without holding up anything
//! while it is away.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::Path;

use lab::daemon::{Daemon, Options};
use lab::link;
use lab::process::Process;
use lab::topology::Chain;
use lab::wait;
use serde_json::Value;

const CONFIG: &str = "version = 1\n[notify]\nwebhook = \"http://127.0.0.1:8099/hook?a=b\"\n";

/// Answers the first request with 503 and the others with 200, whose bodies it records.
const SERVER: &str = r#"
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

failed = False

class Hook(BaseHTTPRequestHandler):
    def do_POST(self):
        global failed
        body = self.rfile.read(int(self.headers["Content-Length"]))
        good = failed and self.path == "/hook?a=b" and self.headers["Content-Type"] == "application/json"
        failed = True
        if good:
            with open(sys.argv[1], "ab") as file:
                file.write(body + b"\n")
        self.send_response(200 if good else 503)
        self.end_headers()

HTTPServer.allow_reuse_address = True
HTTPServer(("127.0.0.1", 8099), Hook).serve_forever()
"#;

fn serve(chain: &Chain, file: &Path) -> Process {
    let mut command = chain.relay.command("python3");
    command.args(["-c", SERVER]).arg(file);
    Process::start(command).unwrap()
}

fn posted(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn has_posted(file: &Path, kind: &str, subject: &str) -> bool {
    posted(file)
        .iter()
        .any(|event| event["kind"] == kind && event["subject"] == subject)
}

fn metric(daemon: &Daemon, chain: &Chain, name: &str) -> u64 {
    let arguments = format!(
        "-s --unix-socket {} http://mcr/metrics",
        daemon.socket().display()
    );
    let page = chain.relay.tool("curl", &arguments).unwrap();
    let line = page.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().trim().parse().unwrap()
}

#[test]
fn events_reach_a_web_server_in_order_and_wait_for_it_in_bounded_memory() {
    if !lab::demo::may_run() {
        eprintln!("skipped: needs root");
        return;
    }
    let chain = Chain::plain().unwrap();
    link::up((&chain.relay, "lo")).unwrap();
    let options = Options {
        config: Some(CONFIG.to_owned()),
        ..Options::default()
    };
    let daemon = Daemon::start(&chain.relay, options).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("told");
    let server = serve(&chain, &file);
    let (input, output) = ("239.1.1.1%veth1:5001", "239.10.1.1%veth2:6001");
    daemon.add("cam1", input, &[output]).unwrap();
    daemon.mcr(&["remove", "cam1"]).unwrap();
    wait::until("both are told", || {
        has_posted(&file, "rule_removed", "cam1")
    })
    .unwrap();
    let events = posted(&file);
    let at = |kind: &str| {
        events
            .iter()
            .position(|event| event["kind"] == kind)
            .unwrap()
    };
    assert!(at("rule_added") < at("rule_removed"), "{events:?}");
    assert_eq!(events[0]["instance"], daemon.instance());
    assert!(events[0]["at_ms"].as_u64().unwrap() > 0);
    assert_eq!(
        metric(&daemon, &chain, "mcr_webhook_dropped_events_total"),
        0
    );

    server.stop(nix::sys::signal::Signal::SIGTERM).unwrap();
    for round in 0..100 {
        let name = format!("gone{round}");
        daemon.add(&name, input, &[output]).unwrap();
        daemon.mcr(&["remove", &name]).unwrap();
    }
    let dropped = metric(&daemon, &chain, "mcr_webhook_dropped_events_total");
    assert!(dropped > 0, "three events a round, and 256 wait");
    daemon.add("last", input, &[output]).unwrap();
    let _server = serve(&chain, &file);
    wait::until_within(4 * wait::PATIENCE, "the newest is told", || {
        has_posted(&file, "rule_added", "last")
    })
    .unwrap();
    assert!(
        !has_posted(&file, "rule_added", "gone0"),
        "the oldest made room"
    );
    let sent = metric(&daemon, &chain, "mcr_webhook_sent_events_total");
    assert!(sent as usize >= posted(&file).len() - 1, "{sent}");
}

#[test]
fn trouble_from_before_a_target_reaches_it_once() {
    if !lab::demo::may_run() {
        eprintln!("skipped: needs root");
        return;
    }
    let chain = Chain::plain().unwrap();
    link::up((&chain.relay, "lo")).unwrap();
    chain.relay.ip("link set veth2 down").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("told");
    let _server = serve(&chain, &file);
    let rule = "[[rule]]\nname = \"cam1\"\ninput = \"239.1.1.1%veth1:5001\"\n\
                outputs = [\"239.10.1.1%veth2:6001\"]\n";
    let options = Options {
        config: Some(format!("{CONFIG}{rule}")),
        ..Options::default()
    };
    let daemon = Daemon::start(&chain.relay, options).unwrap();
    wait::until("what is down from the start is told", || {
        has_posted(&file, "rule_down", "cam1")
    })
    .unwrap();
    let target = "[[notify.target]]\nurl = \"http://127.0.0.1:8099/hook?a=b\"\n\
                  labels = { added = \"later\" }\nkinds = [\"rule_down\", \"rule_added\", \"reload_failed\"]\n";
    let added = |kind: &str| {
        let all = posted(&file);
        let is_one = |event: &&Value| event["kind"] == kind && event["labels"]["added"] == "later";
        all.iter().filter(is_one).count()
    };
    fs::write(daemon.config_file(), "version = 0\n").unwrap();
    assert!(!daemon.client(&["reload"]).unwrap().status.success());
    fs::write(daemon.config_file(), format!("{CONFIG}{target}{rule}")).unwrap();
    daemon.mcr(&["reload"]).unwrap();
    wait::until("a new target is told, too", || added("rule_down") == 1).unwrap();
    daemon.mcr(&["reload"]).unwrap();
    daemon
        .add("cam2", "239.1.1.2%veth1:5001", &["239.10.1.2%veth1:6001"])
        .unwrap();
    wait::until("the next event is told", || added("rule_added") == 1).unwrap();
    assert_eq!(added("rule_down"), 1);
    assert_eq!(added("reload_failed"), 0, "that was over when it was added");
}
