//! A relay with one rule and traffic through it.

use std::fs;
use std::path::Path;
use std::process::Command;

use lab::daemon::{Daemon, Options};
use lab::process::Process;
use lab::topology::Chain;

pub(crate) const INPUT: &str = "239.1.1.1%veth1:5001";
pub(crate) const OUTPUT: &str = "239.10.1.1%veth2:6001";

/// A relay, its daemon, its neighbours.
pub(crate) struct Bed {
    pub(crate) daemon: Daemon,
    pub(crate) chain: Chain,
}

impl Bed {
    /// Starts a daemon with these arguments; nothing where the test may not make namespaces or one
    /// of the `tools` is missing.
    pub(crate) fn new(tools: &[&str], arguments: &[&str]) -> Option<Self> {
        if !lab::demo::may_run() {
            eprintln!("skipped: needs root");
            return None;
        }
        for tool in tools {
            if let Err(reason) = can_run(tool) {
                eprintln!("skipped: {reason}");
                return None;
            }
        }
        let chain = Chain::plain().unwrap();
        let options = Options {
            arguments: arguments.iter().map(ToString::to_string).collect(),
            ..Options::default()
        };
        let daemon = Daemon::start(&chain.relay, options).unwrap();
        Some(Self { daemon, chain })
    }

    /// Adds the rule `cam1`.
    pub(crate) fn add(&self) {
        self.daemon.add("cam1", INPUT, &[OUTPUT]).unwrap();
    }

    /// Adds the rule `cam1` and watches its stream.
    pub(crate) fn add_watched(&self, health: &str) {
        let rule = ["add", INPUT, OUTPUT, "--name", "cam1", "--health", health];
        self.daemon.mcr(&rule).unwrap();
    }

    /// Sends to the rule's input until dropped.
    pub(crate) fn send(&self, pps: u32) -> Process {
        let mut command = self.chain.sender.command(lab::binary::mcr().unwrap());
        command.args(["send", "239.1.1.1%veth0:5001", "--duration", "60"]);
        command.args(["--rate", &pps.to_string(), "--size", "1000"]);
        Process::start(command).unwrap()
    }
}

/// Whether a tool is installed and can enter the network namespaces of the tests.
pub(crate) fn can_run(tool: &str) -> Result<(), String> {
    let missing = || format!("{tool} is not installed (dist/bootstrap test installs it)");
    let script = format!("command -v {tool}");
    let found = Command::new("sh").args(["-c", &script]).output();
    let found = found.ok().filter(|output| output.status.success());
    let path = found.ok_or_else(missing)?.stdout;
    let path = String::from_utf8_lossy(&path).trim().to_owned();
    if is_snap(Path::new(&path)) {
        return Err(format!(
            "{tool} is a snap here, which cannot enter a network namespace"
        ));
    }
    Ok(())
}

/// Whether a program is one of snapd's, or Ubuntu's script that starts one.
fn is_snap(program: &Path) -> bool {
    const LONGEST_SCRIPT: u64 = 64 << 10;
    let real = program.canonicalize().unwrap_or_default();
    if program.starts_with("/snap") || real.ends_with("bin/snap") {
        return true;
    }
    let small = fs::metadata(&real).is_ok_and(|file| file.len() < LONGEST_SCRIPT);
    small && fs::read_to_string(&real).is_ok_and(|text| text.contains("/snap/bin/"))
}

#[test]
fn a_snap_is_known_by_its_place_its_link_and_its_script() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    };
    assert!(is_snap(Path::new("/snap/bin/chromium")));
    let link = directory.path().join("chromium");
    std::os::unix::fs::symlink(file("usr/bin/snap", "\x7fELF"), &link).unwrap();
    assert!(is_snap(&link));
    let stub = "#!/bin/sh\nif ! [ -x /snap/bin/chromium ]; then exit 1; fi\n";
    assert!(is_snap(&file("chromium-browser", stub)));
    assert!(!is_snap(&file(
        "wrapper",
        "#!/bin/sh\nexec /usr/lib/chromium/chromium\n"
    )));
}
