//! A relay of a fleet: a host of its own, which can die and come back, with the daemon in it, which
//! can be killed, stopped and cut off.

#[cfg(feature = "test-support")]
mod in_tests;

use std::fmt::Write;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::daemon::{Daemon, Options};
use crate::link;
use crate::namespace::Namespace;

/// The bridge between sender and relays.
pub const INPUT_BRIDGE: &str = "brin";
/// The bridge between relays and sink.
pub const OUTPUT_BRIDGE: &str = "brout";
/// The bridge that etcd is on.
pub const MANAGEMENT_BRIDGE: &str = "brmg";

/// Settings that all relays of a fleet share.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Path to relay on: `kernel` or `userspace`.
    pub path: String,
    /// What a relay does when etcd does not answer: `stop`, `peers` or `hold`.
    pub on_isolation: String,
    /// How long a beat counts.
    pub hold: Duration,
}

/// A relay, alive or dead.
#[derive(Debug)]
pub struct Relay {
    name: String,
    number: u8,
    endpoints: Vec<String>,
    settings: Settings,
    switches: Namespace,
    // Dropped before the namespace that it runs in.
    daemon: Option<Daemon>,
    host: Option<Namespace>,
    logs: Vec<String>,
}

/// The links of a host: name there, bridge, network.
const LINKS: [(&str, &str, u8); 3] = [
    ("in0", INPUT_BRIDGE, 71),
    ("out0", OUTPUT_BRIDGE, 72),
    ("mg0", MANAGEMENT_BRIDGE, 73),
];

impl Relay {
    /// Describes a relay whose host is still to be booted.
    ///
    /// # Errors
    /// When its number is not 1 to 8.
    pub fn new(
        number: u8,
        switches: &Namespace,
        endpoints: Vec<String>,
        settings: Settings,
    ) -> Result<Self> {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let name = usize::from(number)
            .checked_sub(1)
            .and_then(|index| names.get(index));
        Ok(Self {
            name: (*name.context("a fleet of the lab has eight relays at most")?).to_owned(),
            number,
            endpoints,
            settings,
            switches: switches.clone(),
            daemon: None,
            host: None,
            logs: Vec::new(),
        })
    }

    /// Its name in the fleet.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address at the output, the source of its packets.
    pub const fn output(&self) -> Ipv4Addr {
        address(72, self.number)
    }

    fn port(&self, link: &str) -> String {
        format!("{}-{link}", self.name)
    }

    /// Makes the host, with its links, and starts the daemon.
    ///
    /// # Errors
    /// When a step fails or the daemon does not answer in time; the message has its log.
    pub fn boot(&mut self) -> Result<()> {
        let host = Namespace::new(&format!("relay-{}", self.name))?;
        for (link, bridge, network) in LINKS {
            link::plug((&host, link), (&self.switches, &self.port(link)), bridge)?;
            let address = address(network, self.number);
            link::address((&host, link), &format!("{address}/24"))?;
        }
        let options = Options {
            config: Some(self.config()),
            ..Options::path(&self.settings.path)
        };
        self.daemon = Some(Daemon::start(&host, options)?);
        self.host = Some(host);
        Ok(())
    }

    fn config(&self) -> String {
        let quoted: Vec<String> = self.endpoints.iter().map(|at| format!("{at:?}")).collect();
        format!(
            "version = 1\n[fleet]\nname = \"lab\"\nendpoints = [{}]\nrelay = \"{}\"\n\
             interfaces = {{ red = \"in0\", out = \"out0\" }}\non_isolation = \"{}\"\n\
             hold = \"{}ms\"\n",
            quoted.join(", "),
            self.name,
            self.settings.on_isolation,
            self.settings.hold.as_millis()
        )
    }

    /// The host dies: its links go down and its processes are killed.
    ///
    /// # Errors
    /// When it is dead already.
    pub fn die(&mut self) -> Result<()> {
        let host = self.host.take().context("the host is dead already")?;
        let batch = |command: &str| {
            LINKS.iter().fold(String::new(), |mut text, (link, _, _)| {
                let _ = writeln!(text, "link {}", command.replace('*', &self.port(link)));
                text
            })
        };
        self.switches.ip_batch(&batch("set * down"))?;
        for process in host.processes() {
            let _ = kill(Pid::from_raw(process), Signal::SIGKILL);
        }
        self.switches.ip_batch(&batch("del *"))?;
        // Dropping the daemon removes its pins and its state, as a boot does.
        if let Some(daemon) = self.daemon.take() {
            self.logs.push(daemon.log());
        }
        Ok(())
    }

    /// Makes these the fleet's rules.
    ///
    /// # Errors
    /// When they are refused.
    pub fn apply(&self, rules: &str) -> Result<()> {
        let daemon = self.daemon()?;
        let path = daemon.config_file().with_file_name("rules.toml");
        std::fs::write(&path, rules)?;
        let file = path.to_str().context("temporary directory")?;
        daemon.mcr(&["fleet", "apply", file]).map(drop)
    }

    /// What the relay logged, former boots first.
    pub fn log(&self) -> String {
        let now = self.daemon.as_ref().map(Daemon::log);
        let all: Vec<String> = self.logs.iter().cloned().chain(now).collect();
        format!("relay {}:\n{}\n", self.name, all.join("--- boot ---\n"))
    }

    fn daemon(&self) -> Result<&Daemon> {
        self.daemon.as_ref().context("the host is dead")
    }
}

/// An address of the network between sender and relays (71), relays and sink (72), or of management
/// (73).
pub(super) const fn address(network: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, network, 0, host)
}
