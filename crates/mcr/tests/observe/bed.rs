//! A relay with one rule and traffic through it.

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
            if !is_there(tool) {
                eprintln!("skipped: {tool} is not installed (dist/bootstrap test installs it)");
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

fn is_there(tool: &str) -> bool {
    let script = format!("command -v {tool}");
    let found = Command::new("sh").args(["-c", &script]).output();
    found.is_ok_and(|output| output.status.success())
}
