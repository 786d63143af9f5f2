//! The daemon as a service: what it reports to its manager, with the capabilities of the unit.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use lab::process::Process;
use lab::topology::Chain;
use nix::sys::signal::Signal;
use tempfile::TempDir;

const RULES: &str = r#"version = 1
[[rule]]
name = "cam1"
input = "239.1.1.1%veth1:5001"
outputs = ["239.10.1.1%veth2:6001"]
"#;

/// A file of the repository.
fn repository(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(file)
}

/// The units' value of a key.
fn setting(key: &str) -> String {
    let text = fs::read_to_string(repository("dist/systemd/mcr.service")).unwrap();
    let mut values = text
        .lines()
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values.next().unwrap().to_owned()
}

/// The capabilities that the unit leaves the daemon, without `CAP_`.
fn of_unit() -> BTreeSet<String> {
    let capabilities = setting("CapabilityBoundingSet");
    let names = capabilities.split_whitespace();
    names
        .map(|name| name.trim_start_matches("CAP_").to_owned())
        .collect()
}

/// The capabilities that a file for containers grants, in the list behind `key`.
fn of_container(file: &str, key: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(repository(file)).unwrap();
    let (_, list) = text.split_once(key).unwrap();
    let end = list.find([']', '\\', '\n']).unwrap();
    let names = list[..end].trim().split([',', ' ']);
    let words = names.map(str::trim).filter(|name| !name.is_empty());
    words
        .take_while(|name| !name.starts_with('-'))
        .map(str::to_owned)
        .collect()
}

/// A daemon that was started as the unit starts it, and its manager's socket.
struct Service {
    daemon: Option<Process>,
    manager: UnixDatagram,
    directory: TempDir,
    instance: String,
    chain: Chain,
}

impl Service {
    /// Starts it in a lab; `None` where that is not allowed.
    fn start(arguments: &[&str]) -> Option<Self> {
        let capabilities = of_unit();
        Self::start_with(&capabilities, RULES, arguments)
    }

    fn start_with(
        capabilities: &BTreeSet<String>,
        rules: &str,
        arguments: &[&str],
    ) -> Option<Self> {
        if !lab::demo::may_run() {
            eprintln!("skipped: needs root");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("mcr.toml"), rules).unwrap();
        let notify = directory.path().join("notify");
        let manager = UnixDatagram::bind(&notify).unwrap();
        manager
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let chain = Chain::plain().unwrap();
        static COUNTER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let instance = format!("service{}-{number}", std::process::id());
        let bound = |capability: &String| format!("+{}", capability.to_lowercase());
        let bounds: Vec<String> = capabilities.iter().map(bound).collect();
        let mut command = chain.relay.command("setpriv");
        command
            .arg(format!("--bounding-set=-all,{}", bounds.join(",")))
            .arg("--no-new-privs")
            .arg(env!("CARGO_BIN_EXE_mcr"))
            .args(["--instance", &instance, "--socket"])
            .arg(directory.path().join("mcr.sock"))
            .args(["run", "--config"])
            .arg(directory.path().join("mcr.toml"))
            .args(arguments)
            .env("NOTIFY_SOCKET", &notify)
            .env("INVOCATION_ID", "of this test")
            .env_remove("SYSTEMD_EXEC_PID");
        Some(Self {
            daemon: Some(Process::start(command).unwrap()),
            manager,
            directory,
            instance,
            chain,
        })
    }

    /// Waits for a message with `words`, whatever others arrive before.
    #[track_caller]
    fn expect(&self, words: &str) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut received = Vec::new();
        while Instant::now() < deadline {
            let mut buffer = [0; 1024];
            let Ok(length) = self.manager.recv(&mut buffer) else {
                break;
            };
            let message = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if message.contains(words) {
                return;
            }
            received.push(message);
        }
        let log = self.daemon.as_ref().map(Process::stderr);
        panic!(
            "no {words:?} in {received:?}; log: {}",
            log.unwrap_or_default()
        );
    }

    fn client(&self, arguments: &[&str]) -> Output {
        let mut command = self.chain.relay.command(env!("CARGO_BIN_EXE_mcr"));
        command
            .arg("--socket")
            .arg(self.directory.path().join("mcr.sock"));
        command.args(arguments).output().unwrap()
    }

    fn path_of_rule(&self) -> String {
        let output = self.client(&["stats", "--json"]);
        let stats: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(stats["rules"][0]["state"], "up", "{stats}");
        stats["rules"][0]["path"].as_str().unwrap().to_owned()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            let _ = daemon.stop(Signal::SIGTERM);
        }
        let _ = fs::remove_dir_all(Path::new("/sys/fs/bpf/mcr").join(&self.instance));
        let _ = fs::remove_dir_all(Path::new("/run/mcr").join(&self.instance));
    }
}

#[test]
fn it_is_ready_once_its_rules_are_live_then_alive_reloading_and_stopping() {
    let Some(mut service) = Service::start(&[]) else {
        return;
    };
    service.expect("READY=1\nSTATUS=Relaying by 1 rule");
    assert_eq!(service.path_of_rule(), "kernel");
    service.expect("WATCHDOG=1");
    let more = RULES
        .trim_start_matches("version = 1\n")
        .replace("cam1", "cam2")
        .replace("239.1.1.1", "239.1.1.2");
    fs::write(
        service.directory.path().join("mcr.toml"),
        format!("{RULES}{more}"),
    )
    .unwrap();
    service
        .daemon
        .as_mut()
        .unwrap()
        .signal(Signal::SIGHUP)
        .unwrap();
    service.expect("RELOADING=1\nMONOTONIC_USEC=");
    service.expect("READY=1\nSTATUS=Relaying by 2 rules");
    let daemon = service.daemon.take().unwrap();
    let finished = daemon.stop(Signal::SIGTERM).unwrap();
    assert!(finished.status.success(), "{finished:?}");
    service.expect("STOPPING=1");
}

#[test]
fn the_units_capabilities_suffice_for_the_userspace_path_too() {
    let Some(service) = Service::start(&["--path", "userspace", "--workers", "1"]) else {
        return;
    };
    service.expect("READY=1");
    assert_eq!(service.path_of_rule(), "userspace");
}

#[test]
fn containers_get_what_the_daemon_needs_and_nothing_else() {
    let given = of_container("dist/compose.yaml", "cap_add: [");
    for (file, key) in [
        ("dist/kubernetes.yaml", "\n              add: ["),
        ("dist/Containerfile", "--cap-add "),
    ] {
        assert_eq!(of_container(file, key), given, "{file}");
    }
    // In a container there is no group that the socket could belong to.
    let mut with_group = given.clone();
    with_group.insert("CHOWN".to_owned());
    assert_eq!(with_group, of_unit());

    let Some(true) = serves_both_paths(&given) else {
        return assert!(!lab::demo::may_run());
    };
    for capability in &given {
        let mut less = given.clone();
        less.remove(capability);
        let served = serves_both_paths(&less);
        assert_eq!(served, Some(false), "{capability} is not needed");
    }
}

/// Whether a daemon with these capabilities serves a rule on each path; `None` where none may be
/// started.
fn serves_both_paths(capabilities: &BTreeSet<String>) -> Option<bool> {
    let second = RULES
        .trim_start_matches("version = 1\n")
        .replace("cam1", "cam2")
        .replace("239.1.1.1", "239.1.1.2");
    let rules = format!("{RULES}path = \"kernel\"\n{second}path = \"userspace\"\n");
    let mut service = Service::start_with(capabilities, &rules, &["--workers", "1"])?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline && service.daemon.as_mut().is_some_and(Process::is_running) {
        let output = service.client(&["stats", "--json"]);
        if let Ok(stats) = serde_json::from_slice::<serde_json::Value>(&output.stdout) {
            let mut rules = stats["rules"].as_array().unwrap().iter();
            return Some(rules.all(|rule| rule["state"] == "up"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Some(false)
}

fn systemd_analyze(arguments: &[&str], unit: &Path) -> Option<Output> {
    let output = Command::new("systemd-analyze")
        .args(arguments)
        .arg(unit)
        .output();
    if output.is_err() {
        eprintln!("skipped: needs systemd-analyze");
    }
    output.ok()
}

#[test]
fn systemd_accepts_the_units() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["mcr.service", "mcr@.service"] {
        let text = fs::read_to_string(repository(&format!("dist/systemd/{name}"))).unwrap();
        // Not installed here: the binary under test stands in.
        let text = text.replace("/usr/bin/mcr", env!("CARGO_BIN_EXE_mcr"));
        let unit = directory.path().join(name.replace('@', "@studio"));
        fs::write(&unit, text).unwrap();
        let arguments = ["verify", "--man=no", "--recursive-errors=no"];
        let Some(output) = systemd_analyze(&arguments, &unit) else {
            return;
        };
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {complaint}");
        assert!(!complaint.contains(name), "{complaint}");
    }
}

/// The score is recorded in docs/install.md; 10 is no protection at all.
#[test]
fn systemd_finds_the_unit_well_protected() {
    let unit = repository("dist/systemd/mcr.service");
    let arguments = ["security", "--offline=true", "--threshold=40", "--no-pager"];
    let Some(output) = systemd_analyze(&arguments, &unit) else {
        return;
    };
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{table}");
}
