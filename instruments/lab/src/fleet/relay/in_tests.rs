//! Operations on a relay of a fleet for tests only.

use anyhow::{Context, Result};
use api::reply::FleetStatus;
use nix::sys::signal::Signal;

use super::Relay;
use crate::control;
use crate::daemon::Daemon;

impl Relay {
    /// Its port at the management bridge.
    pub fn management_port(&self) -> String {
        self.port("mg0")
    }

    /// Its port at the input's bridge.
    #[must_use]
    pub fn input_port(&self) -> String {
        self.port("in0")
    }

    /// Sets its output `down` or `up`.
    ///
    /// # Errors
    /// When the host is dead.
    pub fn set_output(&self, state: &str) -> Result<()> {
        let host = self.host.as_ref().context("the host is dead")?;
        host.ip(&format!("link set out0 {state}")).map(drop)
    }

    /// Returns whether the host is alive.
    pub const fn is_alive(&self) -> bool {
        self.host.is_some()
    }

    /// Returns whether the daemon runs.
    pub fn runs(&self) -> bool {
        self.daemon.as_ref().is_some_and(|daemon| daemon.id() != 0)
    }

    /// Kills only the daemon; its programs or workers continue.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill(&mut self) -> Result<()> {
        self.daemon_mut()?.kill()
    }

    /// Ends the daemon by a signal: SIGTERM, SIGUSR1.
    ///
    /// # Errors
    /// When it does not run or does not end in time.
    pub fn end(&mut self, signal: Signal) -> Result<()> {
        self.daemon_mut()?.stop(signal).map(drop)
    }

    /// Starts the daemon again.
    ///
    /// # Errors
    /// When it does not answer in time; the message has its log.
    pub fn start_again(&mut self) -> Result<()> {
        self.daemon_mut()?.start_again()
    }

    /// Sends the daemon a signal that does not end it: SIGSTOP, SIGCONT.
    ///
    /// # Errors
    /// When it does not run.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        self.daemon_mut()?.signal(signal)
    }

    /// Makes the host drop packets that these rules match, each after `in` or `out`.
    ///
    /// # Errors
    /// When nft fails.
    pub fn filter(&self, rules: &[&str]) -> Result<()> {
        let host = self.host.as_ref().context("the host is dead")?;
        let chains = [
            "add table inet cut",
            "add chain inet cut in { type filter hook input priority 0 ; }",
            "add chain inet cut out { type filter hook output priority 0 ; }",
        ];
        let rules = rules
            .iter()
            .map(|rule| format!("add rule inet cut {rule} drop"));
        for command in chains.into_iter().map(str::to_owned).chain(rules) {
            host.tool("nft", &command)?;
        }
        Ok(())
    }

    /// Reverts [`Relay::filter`].
    ///
    /// # Errors
    /// When nft fails.
    pub fn unfilter(&self) -> Result<()> {
        let host = self.host.as_ref().context("the host is dead")?;
        host.tool("nft", "delete table inet cut").map(drop)
    }

    /// Runs `mcr` with this relay's socket and requires success.
    ///
    /// # Errors
    /// When it fails; the message has its arguments and its error.
    pub fn mcr(&self, arguments: &[&str]) -> Result<String> {
        self.daemon()?.mcr(arguments)
    }

    /// The fleet as this relay sees it.
    ///
    /// # Errors
    /// When the daemon does not answer, or not in the documented form.
    pub fn status(&self) -> Result<FleetStatus> {
        let text = control::read(&self.daemon()?.socket(), "/v1/fleet")?;
        serde_json::from_str(&text).with_context(|| format!("/v1/fleet: {text}"))
    }

    /// What its metrics, its events and its doctor report of the fleet.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn diagnostics(&self) -> Result<[String; 3]> {
        let daemon = self.daemon()?;
        let select = |text: &str, is_relevant: fn(&&str) -> bool| {
            let lines: Vec<&str> = text.lines().filter(is_relevant).collect();
            lines.join("\n")
        };
        let metrics = control::read(&daemon.socket(), "/metrics")?;
        let events = daemon.mcr(&["fleet", "events"])?;
        let doctor = daemon.client(&["doctor"])?.stdout;
        Ok([
            select(&metrics, |line| line.starts_with("mcr_fleet_")),
            events,
            select(&doctor, |line| !line.starts_with("ok")),
        ])
    }

    fn daemon_mut(&mut self) -> Result<&mut Daemon> {
        self.daemon.as_mut().context("the host is dead")
    }
}
