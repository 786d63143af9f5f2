//! Schemathesis, which makes requests of the OpenAPI document and checks every answer against it.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lab::namespace::Namespace;
use lab::process;

/// A request may be wrong in what the document cannot express: 422, and 400 for numbers, of which
/// the generator takes some with a fraction for whole.
const CHECKS: &str = r#"[checks.positive_data_acceptance]
expected-statuses = ["2xx", "400", "401", "403", "404", "409", "422", "429", "503"]
"#;

/// Whether it is installed; prints a note if not.
pub(crate) fn is_installed() -> bool {
    let is_there = program().exists();
    if !is_there {
        eprintln!("skipped: needs schemathesis, which dist/bootstrap test installs with Python");
    }
    is_there
}

fn program() -> PathBuf {
    crate::api::target().join("python/bin/schemathesis")
}

/// Its command line at a host, for a document; `directory` is its working directory.
pub(crate) fn command(host: &Namespace, directory: &Path, document: &str) -> Command {
    let checks = directory.join("schemathesis.toml");
    fs::write(&checks, CHECKS).unwrap();
    let mut command = host.command(program());
    command.arg("--config-file").arg(&checks);
    command.args(["run", document, "--max-time", "20", "--seed", "1"]);
    // Events never end, and captures take the time that they are asked for.
    for path in ["/v1/events", "/v1/discover", "/v1/rules/{name}/tap"] {
        command.args(["--exclude-path", path]);
    }
    command.args(["--continue-on-failure", "--warnings", "off"]);
    // A connection that is kept open may end just when the next request is sent, which is then
    // repeated.
    command.args(["--request-retries", "1"]);
    command.current_dir(directory);
    command
}

/// Expects that it finds nothing as `who`; prints how much was tried.
pub(crate) fn finds_nothing(command: Command, patience: Duration, who: &str) {
    let finished = process::run(command, patience).unwrap();
    assert!(
        finished.status.success(),
        "{who}: {}{}",
        finished.stdout,
        finished.stderr
    );
    let mut lines = finished.stdout.lines();
    let cases = lines.find(|line| line.contains(" generated"));
    println!("{who}: {}", cases.unwrap().trim());
}
