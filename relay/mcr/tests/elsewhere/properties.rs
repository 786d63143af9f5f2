//! Generated requests of any kind, by every role and without credentials.

use std::fs;
use std::time::Duration;

use lab::wait;

use super::{Bed, RELAY, TOKENS};
use crate::bed::{INPUT, OUTPUT};
use crate::schemathesis;

#[test]
#[ignore = "takes minutes: make long-properties"]
fn whoever_asks_is_answered_as_the_document_says() {
    if !schemathesis::is_installed() {
        return;
    }
    let Some(bed) = Bed::new("") else { return };
    bed.mcr("change", &["add", INPUT, OUTPUT, "--name", "cam1"]);
    let header = |token: &str| format!("Authorization: Bearer {token}");
    bed.secret("view.header", &(header(TOKENS[0].1) + "\n"));
    let (status, document) = bed.curl(&format!("-H @view.header https://{RELAY}/openapi.json"));
    assert_eq!(status, 200, "{document}");
    fs::write(bed.keys.path("openapi.json"), document).unwrap();
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
        let is_client = TOKENS.iter().any(|(role, _)| *role == name) || name == "certificate";
        let host = &bed.chain.sink;
        let mut command = schemathesis::command(host, bed.keys.directory(), "openapi.json");
        command.args(["--url", &format!("https://{RELAY}")]);
        command.args(["--tls-verify", "servers.pem", "--max-examples", "10"]);
        command.args(["--request-timeout", "60"]).args(shown);
        if is_client {
            // The runs without credentials show that nobody is let in without.
            command.args(["--exclude-checks", "ignored_auth"]);
        } else {
            command.args([
                "--checks",
                "not_a_server_error,status_code_conformance,content_type_conformance,\
                 response_schema_conformance",
            ]);
        }
        schemathesis::finds_nothing(command, Duration::from_secs(400), name);
    }
    wait::until("it is well still", || bed.status()["api"]["state"] == "up").unwrap();
    bed.mcr("view", &["stats"]);
}
