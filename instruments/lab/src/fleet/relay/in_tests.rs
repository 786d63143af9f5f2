//! What tests alone do to a relay of a fleet.

use anyhow::{Context, Result};
use api::reply::FleetStatus;
use nix::sys::signal::Signal;

use super::Relay;
use crate::daemon::Daemon;

impl Relay {
    /// Its port at the management bridge.
    pub fn management_port(&self) -> String {
        self.port("mg0")
    }

    /// Says whether the host is alive.
    pub const fn is_alive(&self) -> bool {
        self.host.is_some()
    }

    /// Says whether the daemon runs.
    pub fn runs(&self) -> bool {
        self.daemon.as_ref().is_some_and(|daemon| daemon.id() != 0)
    }

    /// Kills the daemon alone; what it loaded goes on.
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

    /// Cuts the daemon off from etcd and from nothing else.
    ///
    /// # Errors
    /// When nft fails.
    pub fn cut_from_etcd(&self) -> Result<()> {
        let host = self.host.as_ref().context("the host is dead")?;
        for command in [
            "add table inet cut",
            "add chain inet cut in { type filter hook input priority 0 ; }",
            "add chain inet cut out { type filter hook output priority 0 ; }",
            "add rule inet cut in tcp sport 2379 drop",
            "add rule inet cut out tcp dport 2379 drop",
        ] {
            host.tool("nft", command)?;
        }
        Ok(())
    }

    /// Takes [`Relay::cut_from_etcd`] back.
    ///
    /// # Errors
    /// When nft fails.
    pub fn heal_to_etcd(&self) -> Result<()> {
        let host = self.host.as_ref().context("the host is dead")?;
        host.tool("nft", "delete table inet cut").map(drop)
    }

    /// Runs `mcr` with this relay's socket and insists on success.
    ///
    /// # Errors
    /// When it fails; the message has its words and its complaint.
    pub fn mcr(&self, arguments: &[&str]) -> Result<String> {
        self.daemon()?.mcr(arguments)
    }

    /// The fleet as this relay sees it.
    ///
    /// # Errors
    /// When the daemon does not answer, or not in the documented form.
    pub fn status(&self) -> Result<FleetStatus> {
        let text = self.mcr(&["fleet", "status", "--json"])?;
        serde_json::from_str(&text).with_context(|| format!("mcr fleet status --json: {text}"))
    }

    fn daemon_mut(&mut self) -> Result<&mut Daemon> {
        self.daemon.as_mut().context("the host is dead")
    }
}
