//! The Helm chart with every value given, by Helm itself: what it renders is valid, and its configuration is
//! one that the relay takes. `dist/bootstrap packages` brings the tools.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const VALUES: &str = r#"
image: { tag: "1.2.3", pullSecrets: [plain, { name: table }] }
namespace: { create: true }
nodeSelector: { role: media }
tolerations: [{ key: node-role.kubernetes.io/control-plane, operator: Exists }]
daemon: { listen: "[::]:9469", settings: "max_rules = 1000", watch: false }
fleet: |
  name = "plant"
  endpoints = ["http://10.0.0.9:2379"]
  interfaces = { red = "eth0" }
rules: |
  [[rule]]
  name = "telemetry"
  input = "239.1.1.1%eth0:5001"
  outputs = [{ to = "recorders.media.svc.cluster.local:7000", all = true, ttl = 64 }]
secrets: [mcr-tls]
probes: { forgiveMissing: true }
resources: { limits: { memory: 512Mi } }
podMonitor: { enabled: true, interval: 30s, labels: { release: prom } }
"#;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A tool of `dist/bootstrap packages`, or of PATH.
fn tool(directory: &str, name: &str) -> Option<Command> {
    let own = root().join("target").join(directory).join(name);
    let program = if own.exists() { own } else { name.into() };
    let is_there = Command::new(&program).arg("--help").output().is_ok();
    if !is_there {
        println!("skipped: no {name}; dist/bootstrap packages");
    }
    is_there.then(|| Command::new(program))
}

fn output(command: &mut Command) -> String {
    let done = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    assert!(
        done.status.success(),
        "{}",
        text([done.stdout, done.stderr].concat())
    );
    text(done.stdout)
}

#[test]
fn the_chart_with_every_value_is_valid_and_its_configuration_too() {
    let Some(mut helm) = tool("go/bin", "helm") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("values.yaml"), VALUES).unwrap();
    helm.args([
        "template",
        "mcr",
        "dist/helm",
        "--namespace",
        "mcr",
        "--values",
    ]);
    let rendered = output(helm.arg(at("values.yaml")).current_dir(root()));
    for words in [
        "image: mcr:1.2.3\n",
        "- name: \"plain\"\n        - name: \"table\"\n",
        "role: media",
        "path: /readyz?missing=ok",
        "mountPath: /run/secrets/mcr/mcr-tls",
        "kind: PodMonitor",
        "release: prom",
        "pod-security.kubernetes.io/enforce: privileged",
    ] {
        assert!(rendered.contains(words), "{words}: {rendered}");
    }
    // The text of the ConfigMap, which is indented by four.
    let (_, text) = rendered.split_once("mcr.toml: |\n").unwrap();
    let block = text
        .lines()
        .take_while(|line| line.is_empty() || line.starts_with("    "));
    let lines: Vec<&str> = block
        .map(|line| line.get(4..).unwrap_or_default())
        .collect();
    fs::write(at("mcr.toml"), lines.join("\n")).unwrap();
    output(
        Command::new(env!("CARGO_BIN_EXE_mcr"))
            .arg("check")
            .arg(at("mcr.toml")),
    );
    let Some(mut validate) = tool("python/bin", "kubernetes-validate") else {
        return;
    };
    // A PodMonitor is no kind of Kubernetes' own.
    let own = rendered
        .split("\n---\n")
        .filter(|one| !one.contains("PodMonitor"));
    fs::write(at("mcr.yaml"), own.collect::<Vec<_>>().join("\n---\n")).unwrap();
    output(validate.arg("--strict").arg(at("mcr.yaml")));
}
