//! A relay between two neighbours, its daemon, and traffic through it.

#![expect(clippy::unwrap_used, reason = "tests")]

mod tools;

use std::process::Command;
use std::time::Duration;

use lab::daemon::{Daemon, Options};
use lab::process::{self, Finished, Process};
use lab::topology::Chain;
use serde_json::Value;

pub(crate) use tools::can_run;

pub(crate) const INPUT: &str = "239.1.1.1%veth1:5001";
pub(crate) const OUTPUT: &str = "239.10.1.1%veth2:6001";

/// A relay, its daemon, its neighbours.
pub(crate) struct Bed {
    pub(crate) daemon: Daemon,
    pub(crate) chain: Chain,
}

impl Bed {
    /// Starts a daemon; `None` where the test may not make namespaces.
    pub(crate) fn new(config: Option<&str>, arguments: &[&str]) -> Option<Self> {
        if !lab::demo::may_run() {
            eprintln!("skipped: needs root");
            return None;
        }
        let chain = Chain::plain().unwrap();
        let options = Options {
            config: config.map(str::to_owned),
            arguments: arguments.iter().map(ToString::to_string).collect(),
            ..Options::default()
        };
        let daemon = Daemon::start(&chain.relay, options).unwrap();
        Some(Self { daemon, chain })
    }

    /// The same without a configuration; `None`, too, where one of the `tools` is missing.
    pub(crate) fn with_tools(tools: &[&str], arguments: &[&str]) -> Option<Self> {
        for tool in tools {
            if let Err(reason) = can_run(tool) {
                eprintln!("skipped: {reason}");
                return None;
            }
        }
        Self::new(None, arguments)
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

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.daemon.mcr(arguments).unwrap()).unwrap()
    }

    /// Runs `mcr`, expects this exit status and every one of `words` on standard error. Returns its
    /// standard output.
    #[track_caller]
    pub(crate) fn fails(&self, arguments: &[&str], status: i32, words: &[&str]) -> String {
        let Finished {
            status: got,
            stdout,
            stderr,
        } = self.daemon.client(arguments).unwrap();
        assert_eq!(got.code(), Some(status), "{arguments:?}: {stdout}{stderr}");
        for word in words {
            let is_named = stderr.contains(word);
            assert!(is_named, "{arguments:?}: no {word:?} in: {stderr}");
        }
        stdout
    }

    /// The same for a refusal, which prints nothing to standard output.
    #[track_caller]
    pub(crate) fn refuses(&self, arguments: &[&str], status: i32, words: &[&str]) {
        let stdout = self.fails(arguments, status, words);
        assert_eq!(stdout, "", "{arguments:?}");
    }

    /// Sends so many packets to the first input.
    pub(crate) fn send(&self, packets: u64) {
        let mut command = self.sender();
        command.args(["--rate", "2000", "--count", &packets.to_string()]);
        let sent = process::run(command, Duration::from_secs(20)).unwrap();
        sent.success().unwrap();
    }

    /// Sends to the first input until dropped.
    pub(crate) fn stream(&self, pps: u32) -> Process {
        let mut command = self.sender();
        command.args(["--duration", "60", "--rate", &pps.to_string()]);
        command.args(["--size", "1000"]);
        Process::start(command).unwrap()
    }

    fn sender(&self) -> Command {
        let mut command = self.chain.sender.command(lab::binary::mcr().unwrap());
        command.args(["send", "239.1.1.1%veth0:5001"]);
        command
    }
}
