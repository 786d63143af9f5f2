//! Notifications: by https, with signatures, and with targets that do not accept them.

use std::fs;
use std::io::{Read, Write};
use std::process::Stdio;
use std::thread;

use lab::process::Process;
use lab::wait;
use serde_json::{Value, json};

use super::{Bed, PATIENCE};
use crate::bed::{INPUT, OUTPUT};

/// A server that records what is posted, with its headers. The path selects its answer.
const SERVER: &str = r#"
import json, ssl, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

lock = threading.Lock()

class Hook(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        headers = {name.lower(): value for name, value in self.headers.items()}
        with lock, open(sys.argv[1], "a") as file:
            file.write(json.dumps({"path": self.path, "body": body, "headers": headers}) + "\n")
        if self.path == "/hangs":
            time.sleep(3600)
        self.send_response({"/moved": 302, "/broken": 500}.get(self.path, 204))
        self.send_header("Location", "/followed")
        self.end_headers()

    def log_message(self, *_):
        pass

ThreadingHTTPServer.daemon_threads = True
server = ThreadingHTTPServer(("10.0.1.2", 8443), Hook)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("hook.pem", "hook.key")
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
server.serve_forever()
"#;

impl Bed {
    /// The requests that were posted to a path.
    fn posted(&self, path: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.keys.path("told")).unwrap_or_default();
        let lines = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        let requests = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
        requests.filter(|one| one["path"] == path).collect()
    }

    /// The kinds of the events that were posted to a path.
    fn kinds(&self, path: &str) -> Vec<String> {
        let kind = |one: &Value| {
            let body: Value = serde_json::from_str(one["body"].as_str().unwrap()).unwrap();
            body["kind"].as_str().unwrap().to_owned()
        };
        self.posted(path).iter().map(kind).collect()
    }

    fn sign_hook(&self) {
        let name = "subjectAltName=IP:10.0.1.2";
        self.keys.sign("hook", "servers", name, "-days 30");
    }

    fn serve(&self) -> Process {
        self.sign_hook();
        let mut command = self.chain.sink.command("python3");
        command
            .args(["-c", SERVER, "told"])
            .current_dir(self.keys.directory());
        let server = Process::start(command).unwrap();
        wait::until("the server listens", || {
            self.curl("-X POST -d x https://10.0.1.2:8443/up").0 == 204
        })
        .unwrap();
        server
    }

    fn target(&self, path: &str, ca: &str, more: &str) -> String {
        let ca = self.keys.path(ca);
        format!(
            "[[notify.target]]\nurl = \"https://10.0.1.2:8443/{path}\"\nca = \"{}\"\n{more}\n",
            ca.display()
        )
    }

    fn notify(&self, name: &str) -> Value {
        let status = self.status();
        let mut all = status["notify"].as_array().into_iter().flatten();
        all.find(|one| one["name"] == name)
            .unwrap_or_else(|| panic!("no {name}: {status}"))
            .clone()
    }
}

#[test]
fn targets_are_told_by_https_and_can_tell_by_whom() {
    let Some(bed) = Bed::new("") else { return };
    let _server = bed.serve();
    let secrets = ["a shared secret", "abc-of-the-header", "path-of-the-url"];
    bed.secret("hook.secret", "a shared secret\n");
    bed.secret(
        "hook.headers",
        "Authorization: Bearer abc-of-the-header\nX-Site: ber\n",
    );
    let options = format!(
        "secret_file = \"{}\"\nheaders_file = \"{}\"\nkinds = [\"rule_added\", \"notify_test\"]\nlabels = {{ site = \"ber\" }}",
        bed.keys.path("hook.secret").display(),
        bed.keys.path("hook.headers").display(),
    );
    let hook = "hook?path-of-the-url";
    let signed = bed.target(hook, "servers.pem", &options);
    let cloud = bed.target("cloud", "servers.pem", "format = \"cloudevents\"");
    let grave = bed.target("grave", "servers.pem", "severity = \"warning\"");
    bed.configure(&(signed.clone() + &cloud + &grave));
    // Targets are set by the host's files alone: remote changes leave them, and nobody is shown them.
    bed.mcr("change", &["add", INPUT, OUTPUT, "--name", "cam1"]);
    bed.mcr("change", &["remove", "cam1"]);
    wait::until_within(PATIENCE, "all are told", || {
        let removed = |one: &Value| one["body"].to_string().contains("rule_removed");
        bed.posted("/cloud").iter().any(removed) && !bed.posted(&format!("/{hook}")).is_empty()
    })
    .unwrap();
    let posted = bed.posted(&format!("/{hook}"));
    assert_eq!(posted.len(), 1, "of one kind alone: {posted:?}");
    let (headers, body) = (&posted[0]["headers"], posted[0]["body"].as_str().unwrap());
    let time = headers["x-mcr-time"].as_str().unwrap();
    // The receiver's check of the signature, by openssl.
    fs::write(bed.keys.path("signed"), format!("{time}.{body}")).unwrap();
    let mut openssl = bed.chain.sink.command("openssl");
    openssl.args(["dgst", "-sha256", "-hmac", secrets[0], "-r", "signed"]);
    let output = openssl.current_dir(bed.keys.directory()).output().unwrap();
    let line = String::from_utf8(output.stdout).unwrap();
    let (digest, _) = line.split_once(' ').unwrap();
    assert_eq!(headers["x-mcr-signature"], format!("sha256={digest}"));
    assert_eq!(
        (&headers["authorization"], &headers["x-site"]),
        (&json!("Bearer abc-of-the-header"), &json!("ber"))
    );
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!(
        (
            &body["kind"],
            &body["subject"],
            &body["labels"]["site"],
            &body["by"]["name"]
        ),
        (
            &json!("rule_added"),
            &json!("cam1"),
            &json!("ber"),
            &json!("changer")
        )
    );
    let cloud = &bed.posted("/cloud")[0];
    assert_eq!(
        cloud["headers"]["content-type"],
        "application/cloudevents+json"
    );
    let event: Value = serde_json::from_str(cloud["body"].as_str().unwrap()).unwrap();
    for key in ["specversion", "id", "source", "type", "time"] {
        assert!(
            event[key].as_str().is_some_and(|text| !text.is_empty()),
            "{event}"
        );
    }
    assert_eq!(bed.kinds("/grave"), [""; 0], "nothing is wrong");
    // A test reports which targets accepted it, and requires a role.
    let tested = bed.mcr("change", &["notify", "test"]);
    assert_eq!(
        tested.matches(" (https://10.0.1.2:8443): told").count(),
        3,
        "{tested}"
    );
    assert!(tested.contains("target 2 ("), "{tested}");
    bed.refuses("operate", &["notify", "test"], 77, "change");
    assert_eq!(bed.kinds("/grave"), ["notify_test"]);
    // Secrets are visible to no role, and not stored.
    let mut visible = bed.daemon.log() + &bed.daemon.mcr(&["export"]).unwrap();
    for command in [
        &["export"][..],
        &["status", "--json"],
        &["events", "-n", "1", "--recent", "200"],
    ] {
        visible += &bed.mcr("change", command);
    }
    bed.secret(
        "change.header",
        &format!("Authorization: Bearer {}\n", super::TOKENS[2].1),
    );
    for path in ["rules", "metrics", "generations", "changes", "unsaved"] {
        let path = if path == "metrics" {
            path.to_owned()
        } else {
            format!("v1/{path}")
        };
        visible += &bed
            .curl(&format!(
                "-H @change.header https://{}/{path}",
                super::RELAY
            ))
            .1;
    }
    visible += &super::left_behind(bed.daemon.instance());
    for secret in secrets {
        assert!(!visible.contains(secret), "{secret}");
    }
    // Changing or saving the settings remotely leaves the targets.
    let exported = bed.keys.path("exported.toml");
    fs::write(&exported, bed.mcr("ci", &["export"])).unwrap();
    bed.mcr("ci", &["apply", exported.to_str().unwrap()]);
    bed.mcr("ci", &["add", INPUT, OUTPUT, "--name", "cam2", "--save"]);
    bed.mcr("ci", &["save"]);
    let file = fs::read_to_string(bed.daemon.config_file()).unwrap();
    assert!(
        file.contains("cam2") && file.contains(signed.trim()),
        "{file}"
    );
    assert_eq!(bed.status()["notify"].as_array().unwrap().len(), 3);
    // A missing file is reported by its name.
    fs::remove_file(bed.keys.path("hook.secret")).unwrap();
    bed.refuses("change", &["notify", "test"], 69, "hook.secret");
    bed.configure("");
    bed.refuses("change", &["notify", "test"], 69, "nobody is told");
}

/// Nothing has to happen for it: the first event that could not be posted may be the one that matters.
#[test]
fn files_of_a_target_are_tried_before_there_is_anything_to_tell() {
    let Some(bed) = Bed::new("") else { return };
    let _server = bed.serve();
    let secret = bed.keys.path("hook.secret");
    let option = format!("secret_file = \"{}\"", secret.display());
    bed.configure(&bed.target("hook", "servers.pem", &option));
    let reason = || bed.notify("target 1")["reason"].to_string();
    wait::until_within(PATIENCE, "what is missing is told", || {
        reason().contains("hook.secret")
    })
    .unwrap();
    assert_eq!(bed.status()["state"], "degraded");
    let file = bed.daemon.config_file();
    let checked = bed
        .daemon
        .client(&["check", file.to_str().unwrap()])
        .unwrap();
    assert!(checked.status.success(), "the file may be for another host");
    let warning = "[[notify.target]] 1: ";
    let told = checked.stderr.contains(warning) && checked.stderr.contains("hook.secret");
    assert!(told, "{}", checked.stderr);

    bed.secret("hook.secret", "a shared secret\n");
    bed.daemon.mcr(&["reload"]).unwrap();
    wait::until_within(PATIENCE, "all is well", || bed.status()["state"] == "up").unwrap();
    assert_eq!(bed.notify("target 1")["reason"], Value::Null);
}

#[test]
fn openssl_takes_events_by_both_versions_of_tls() {
    let Some(bed) = Bed::new("") else { return };
    bed.sign_hook();
    bed.configure(&bed.target("hook", "servers.pem", ""));
    for version in ["-tls1_2", "-tls1_3"] {
        let mut command = bed.chain.sink.command("openssl");
        let server =
            format!("s_server -accept 10.0.1.2:8443 -quiet -cert hook.pem -key hook.key {version}");
        command
            .args(server.split(' '))
            .current_dir(bed.keys.directory());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = command.spawn().unwrap();
        wait::until("openssl listens", || {
            !bed.chain
                .sink
                .tool("ss", "-ltnH sport = :8443")
                .unwrap()
                .is_empty()
        })
        .unwrap();
        let (mut stdout, mut answer) =
            (server.stdout.take().unwrap(), server.stdin.take().unwrap());
        let answering = thread::spawn(move || {
            let mut text = Vec::new();
            let mut piece = [0; 4096];
            while !String::from_utf8_lossy(&text).contains("notify_test") {
                let read = stdout.read(&mut piece).unwrap();
                assert!(read > 0, "{}", String::from_utf8_lossy(&text));
                text.extend_from_slice(&piece[..read]);
            }
            answer
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                .unwrap();
            answer.flush().unwrap();
            (String::from_utf8_lossy(&text).into_owned(), answer)
        });
        let tested = bed.run("change", &["notify", "test"]);
        server.kill().unwrap();
        server.wait().unwrap();
        assert!(tested.status.success(), "{version}: {}", tested.stderr);
        let (request, _) = answering.join().unwrap();
        assert!(request.starts_with("POST /hook HTTP/1.1\r\n"), "{request}");
    }
}

#[test]
fn who_takes_no_events_is_told_of_counted_and_in_nobodys_way() {
    let Some(bed) = Bed::new("") else { return };
    let _server = bed.serve();
    let wrong = [
        ("hangs", "servers.pem", "no answer within 10 s"),
        ("broken", "servers.pem", "500"),
        ("moved", "servers.pem", "not followed"),
        ("strange", "clients.pem", "not believed"),
    ];
    let mut targets = bed.target("well", "servers.pem", "");
    for (path, ca, _) in wrong {
        targets += &bed.target(path, ca, "");
    }
    // A target where nobody listens.
    targets += "[[notify.target]]\nurl = \"http://10.0.1.2:1/\"\n";
    bed.configure(&targets);
    let memory = || {
        let status = fs::read_to_string(format!("/proc/{}/status", bed.daemon.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.unwrap().trim().trim_end_matches(" kB");
        kilobytes.parse::<u64>().unwrap()
    };
    bed.daemon.add("cam1", INPUT, &[OUTPUT]).unwrap();
    let before = memory();
    let rounds = 150;
    for _ in 0..rounds {
        bed.daemon.mcr(&["disable", "cam1"]).unwrap();
        bed.daemon.mcr(&["enable", "cam1"]).unwrap();
    }
    wait::until_within(
        4 * PATIENCE,
        "each is told of, and who is well has all",
        || {
            let reasons = wrong.iter().zip(2..).all(|((_, _, why), number)| {
                let receiver = bed.notify(&format!("target {number}"));
                receiver["reason"]
                    .as_str()
                    .is_some_and(|reason| reason.contains(why))
            });
            let events = bed.kinds("/well");
            let failed = events
                .iter()
                .filter(|kind| *kind == "notify_failed")
                .count();
            let disabled = events
                .iter()
                .filter(|kind| *kind == "rule_disabled")
                .count();
            reasons && failed == 5 && disabled == rounds
        },
    )
    .unwrap();
    let well = bed.notify("target 1");
    assert_eq!(
        (&well["state"], &well["dropped"]),
        (&json!("up"), &json!(0))
    );
    for number in [2, 3, 4, 6] {
        let receiver = bed.notify(&format!("target {number}"));
        assert!(
            receiver["dropped"].as_u64().unwrap() > 0,
            "256 wait: {receiver}"
        );
    }
    let status = bed.status();
    assert_eq!(status["state"], "degraded", "{status}");
    assert!(bed.posted("/followed").is_empty(), "nobody follows");
    let grown = memory().saturating_sub(before);
    assert!(grown < 32 << 10, "{grown} KiB");
    let page = lab::control::read(&bed.daemon.socket(), "/metrics").unwrap();
    let up = "mcr_notify_up{target=\"target 1\",to=\"https://10.0.1.2:8443\"} 1";
    let down = "mcr_notify_up{target=\"target 2\",to=\"https://10.0.1.2:8443\"} 0";
    assert!(page.contains(up) && page.contains(down), "{page}");
    // Removed targets are no longer reported.
    bed.configure(&bed.target("well", "servers.pem", ""));
    wait::until("all is well", || bed.status()["state"] == "up").unwrap();
}
