//! A relay for the doctor to examine, and the diagnosis.

use std::fs;

use lab::daemon::Daemon;
use lab::namespace::Namespace;
use lab::topology::Chain;
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const RULE: &str = r#"version = 1
[[rule]]
name = "cam1"
input = "239.1.1.1%veth1:5001"
outputs = ["239.10.1.1%veth2:6001"]
"#;

/// A relay between two networks, and a file of rules.
pub(crate) struct Bed {
    pub(crate) chain: Chain,
    pub(crate) directory: TempDir,
}

/// The doctor's report.
pub(crate) struct Diagnosis {
    pub(crate) status: i32,
    pub(crate) findings: Vec<Value>,
}

/// Makes relay and rules; `None` if the test may not make namespaces.
pub(crate) fn bed(rules: &str) -> Option<Bed> {
    if !lab::demo::may_run() {
        eprintln!("skipped: needs root");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("mcr.toml"), rules).unwrap();
    Some(Bed {
        chain: Chain::plain().unwrap(),
        directory,
    })
}

impl Bed {
    pub(crate) fn relay(&self) -> &Namespace {
        &self.chain.relay
    }

    pub(crate) fn doctor(&self, arguments: &[&str]) -> Diagnosis {
        let mut command = self.relay().command(env!("CARGO_BIN_EXE_mcr"));
        self.examine(command.args(["doctor", "--json"]).args(arguments))
    }

    pub(crate) fn examine(&self, command: &mut std::process::Command) -> Diagnosis {
        let file = self.directory.path().join("mcr.toml");
        let output = command.arg("--config").arg(file).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.stdout.is_empty(), "{error}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        Diagnosis {
            status: output.status.code().unwrap(),
            findings: report["findings"].as_array().unwrap().clone(),
        }
    }
}

impl Diagnosis {
    /// Expects a finding of this check with that severity and these words.
    #[track_caller]
    pub(crate) fn has(&self, check: &str, severity: &str, words: &[&str]) -> &Value {
        let matching = self.findings.iter().find(|finding| {
            let text = finding.to_string();
            finding["check"] == check
                && finding["severity"] == severity
                && words.iter().all(|word| text.contains(word))
        });
        matching
            .unwrap_or_else(|| panic!("no {check} {severity} {words:?} in {:#?}", self.findings))
    }

    /// Expects no finding of this check.
    #[track_caller]
    pub(crate) fn has_no(&self, check: &str) {
        let finding = self
            .findings
            .iter()
            .find(|finding| finding["check"] == check);
        assert_eq!(finding, None);
    }
}

pub(crate) fn nft(namespace: &Namespace, rules: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), rules).unwrap();
    let path = file.path().to_str().unwrap();
    namespace.tool("nft", &format!("-f {path}")).unwrap();
}

/// Runs the doctor for the rules of a daemon.
pub(crate) fn diagnose(daemon: &Daemon) -> Diagnosis {
    let finished = daemon.client(&["doctor", "--json"]).unwrap();
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert!(report["rules_from"].as_str().unwrap().contains("daemon"));
    Diagnosis {
        status: finished.status.code().unwrap(),
        findings: report["findings"].as_array().unwrap().clone(),
    }
}
