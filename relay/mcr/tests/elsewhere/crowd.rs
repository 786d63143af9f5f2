//! What strangers do beside clients: thousands of wrong tokens, and requests of any kind.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use api::client::{Client, Host};
use lab::process;
use lab::wait;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Bed, RELAY, TOKENS};
use crate::bed::{INPUT, OUTPUT};

/// Wrong tokens that are shown.
const WRONG: u64 = 10_000;
/// How many show them at once.
const AT_ONCE: usize = 128;

/// Shows wrong tokens until somebody says that it is enough; says what came of one.
async fn show_wrong_tokens(ca: &Path, enough: &AtomicBool) {
    let mut showing = JoinSet::new();
    let mut number = 0;
    while !enough.load(Ordering::Relaxed) {
        while showing.len() < AT_ONCE {
            number += 1;
            let who = ("relay", "10.0.0.2:9471", Some("10.0.1.1"));
            let host = Host::new(who, Some(ca), None, Some(format!("mcr_wrong{number}"))).unwrap();
            showing.spawn(async move {
                // Nobody waits for the answer, which comes later and later.
                let answer = timeout(Duration::from_secs(1), Client::at(host).status()).await;
                assert!(!matches!(answer, Ok(Ok(_))), "it was let in");
            });
        }
        showing.join_next().await.unwrap().unwrap();
    }
}

#[test]
fn ten_thousand_wrong_tokens_leave_the_operator_alone() {
    let Some(bed) = Bed::new("") else { return };
    bed.mcr("change", &["add", INPUT, OUTPUT, "--name", "cam1"]);
    let refused = || bed.status()["api"]["refused"].as_u64().unwrap();
    let ca = bed.keys.path("servers.pem");
    let enough = AtomicBool::new(false);
    let mut took = thread::scope(|scope| {
        let wrong = scope.spawn(|| {
            bed.chain.sender.run(|| {
                let runtime = Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(show_wrong_tokens(&ca, &enough));
                Ok(())
            })
        });
        let (began, mut took) = (Instant::now(), Vec::new());
        while refused() < WRONG
            && !wrong.is_finished()
            && began.elapsed() < Duration::from_secs(1200)
        {
            for (host, command) in [
                ("operate", &["disable", "cam1"][..]),
                ("operate", &["enable", "cam1"]),
                ("view", &["stats", "cam1"]),
                ("ci", &["change", "cam1", "--set", "limit=5000pps"]),
            ] {
                let asked = Instant::now();
                bed.mcr(host, command);
                took.push(asked.elapsed());
            }
        }
        enough.store(true, Ordering::Relaxed);
        wrong.join().unwrap().unwrap();
        took
    });
    assert!(refused() >= WRONG, "{}", bed.status());
    took.sort();
    println!(
        "{} requests of clients beside {} wrong tokens: median {:?}, longest {:?}",
        took.len(),
        refused(),
        took[took.len() / 2],
        took[took.len() - 1]
    );
    // By address: who was refused so often waits, and whoever else comes there for the first time does not
    // as long.
    bed.secret("wrong.header", "Authorization: Bearer wrong\n");
    let ask = |namespace: &lab::namespace::Namespace, address: &str| {
        let mut command: Command = namespace.command("curl");
        command.args([
            "-sk",
            "-H",
            "@wrong.header",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code} %{time_starttransfer}",
        ]);
        command.arg(format!("https://{address}:9471/v1/status"));
        command.current_dir(bed.keys.directory());
        let said = process::run(command, Duration::from_secs(60))
            .unwrap()
            .stdout;
        let (status, seconds) = said.split_once(' ').unwrap();
        assert_eq!(status, "401", "{said}");
        seconds.parse::<f64>().unwrap()
    };
    assert!(ask(&bed.chain.sender, "10.0.0.2") >= 3.0);
    println!(
        "the first of another address: {} s",
        ask(&bed.chain.sink, "10.0.1.1")
    );
    let events = bed.daemon.log();
    assert!(
        events.contains("10.0.0.1 was refused (10000 times of late)"),
        "{events}"
    );
}

#[test]
fn whoever_asks_is_answered_as_the_document_says() {
    let schemathesis =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python/bin/schemathesis");
    if !schemathesis.exists() {
        eprintln!("skipped: needs schemathesis, which dist/bootstrap test installs with Python");
        return;
    }
    let Some(bed) = Bed::new("") else { return };
    bed.mcr("change", &["add", INPUT, OUTPUT, "--name", "cam1"]);
    let header = |token: &str| format!("Authorization: Bearer {token}");
    bed.secret("view.header", &(header(TOKENS[0].1) + "\n"));
    let (status, document) = bed.curl(&format!("-H @view.header https://{RELAY}/openapi.json"));
    assert_eq!(status, 200, "{document}");
    fs::write(bed.keys.path("openapi.json"), document).unwrap();
    let checks = bed.keys.path("schemathesis.toml");
    fs::write(&checks, crate::api::CHECKS).unwrap();
    let shown = |token: &str| vec!["-H".to_owned(), header(token)];
    let mut who: Vec<(&str, Vec<String>)> = TOKENS.map(|(role, token)| (role, shown(token))).into();
    let certificate = ["--request-cert", "ci.pem", "--request-cert-key", "ci.key"];
    who.push(("certificate", certificate.map(str::to_owned).into()));
    who.push(("nobody", Vec::new()));
    who.push(("a wrong token", shown("mcr_wrong")));
    who.push((
        "no token",
        vec![
            "-H".to_owned(),
            "Authorization: Basic bm9jOm5vYw==".to_owned(),
        ],
    ));
    for (name, shown) in who {
        let is_known = TOKENS.iter().any(|(role, _)| *role == name) || name == "certificate";
        let mut command = bed.chain.sink.command(&schemathesis);
        command
            .arg("--config-file")
            .arg(&checks)
            .current_dir(bed.keys.directory());
        command.args(["run", "openapi.json", "--url", &format!("https://{RELAY}")]);
        command.args([
            "--tls-verify",
            "servers.pem",
            "--seed",
            "1",
            "--max-time",
            "20",
        ]);
        // Events never end.
        command.args(["--exclude-path", "/v1/events", "--max-examples", "10"]);
        command.args([
            "--continue-on-failure",
            "--request-timeout",
            "60",
            "--warnings",
            "off",
        ]);
        command.args(["--request-retries", "1"]).args(shown);
        match is_known {
            // That nobody is let in without is what the others find.
            true => command.args(["--exclude-checks", "ignored_auth"]),
            // Who is answered late asks much at once.
            false => command.args([
                "--workers",
                "16",
                "--checks",
                "not_a_server_error,status_code_conformance,content_type_conformance,\
                 response_schema_conformance",
            ]),
        };
        let finished = process::run(command, Duration::from_secs(400)).unwrap();
        assert!(
            finished.status.success(),
            "{name}: {}{}",
            finished.stdout,
            finished.stderr
        );
        let cases = finished
            .stdout
            .lines()
            .find(|line| line.contains(" generated"));
        println!("{name}: {}", cases.unwrap_or_default().trim());
    }
    wait::until("it is well still", || bed.status()["api"]["state"] == "up").unwrap();
    bed.mcr("view", &["stats"]);
}
