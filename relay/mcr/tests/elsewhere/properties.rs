//! Requests of any kind, by every role and by nobody.

use std::fs;
use std::path::Path;
use std::time::Duration;

use lab::process;
use lab::wait;

use super::{Bed, RELAY, TOKENS};
use crate::bed::{INPUT, OUTPUT};

#[test]
#[ignore = "takes minutes: make long-properties"]
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
        // Events never end, and captures take the time that they are asked for.
        for path in ["/v1/events", "/v1/discover", "/v1/rules/{name}/tap"] {
            command.args(["--exclude-path", path]);
        }
        command.args(["--max-examples", "10"]);
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
