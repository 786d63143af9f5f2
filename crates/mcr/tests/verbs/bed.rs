//! A relay between two neighbours, and its daemon.

use lab::daemon::{Daemon, Options};
use lab::process::{self, Finished};
use lab::topology::Chain;
use serde_json::Value;
use std::time::Duration;

pub(crate) const INPUT: &str = "239.1.1.1%veth1:5001";
pub(crate) const OUTPUT: &str = "239.10.1.1%veth2:6001";

/// A relay, its daemon, its neighbours.
pub(crate) struct Bed {
    pub(crate) daemon: Daemon,
    pub(crate) chain: Chain,
}

impl Bed {
    /// Nothing where the test may not make namespaces.
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

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.daemon.mcr(arguments).unwrap()).unwrap()
    }

    /// Runs `mcr`, expects this exit status and every one of `words` on standard error.
    #[track_caller]
    pub(crate) fn fails(&self, arguments: &[&str], status: i32, words: &[&str]) {
        let Finished {
            status: got,
            stdout,
            stderr,
        } = self.daemon.client(arguments).unwrap();
        assert_eq!(got.code(), Some(status), "{arguments:?}: {stdout}{stderr}");
        for word in words {
            let is_said = stderr.contains(word);
            assert!(is_said, "{arguments:?}: no {word:?} in: {stderr}");
        }
    }

    /// Sends so many packets to the first input.
    pub(crate) fn send(&self, packets: u64) {
        let mut command = self.chain.sender.command(lab::binary::mcr().unwrap());
        command.args(["send", "239.1.1.1%veth0:5001", "--rate", "2000", "--count"]);
        command.arg(packets.to_string());
        let sent = process::run(command, Duration::from_secs(20)).unwrap();
        sent.success().unwrap();
    }
}
