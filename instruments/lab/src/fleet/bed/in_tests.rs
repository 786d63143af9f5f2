//! Operations on a fleet for tests only.

use anyhow::{Context, Result};
use api::reply::{FleetRelayState, FleetShare, FleetStatus};

use super::{Bed, PATIENCE, rules};
use crate::fleet::relay::Settings;
use crate::wait;

/// Packets a second while relays settle.
const WARM_PPS: u32 = 500;

impl Bed {
    /// Makes networks, etcd and `relays` relays, and makes the fleet relay one stream.
    ///
    /// # Errors
    /// When a step fails; the message has what relays and etcd wrote.
    pub fn new(relays: u8, settings: &Settings) -> Result<Self> {
        let mut bed = Self::without_relays()?;
        for number in 1..=relays {
            bed.add_relay(number, settings)?;
        }
        let first = bed.relays.first().context("a fleet needs a relay")?;
        first.apply(&rules())?;
        bed.settle()?;
        Ok(bed)
    }

    /// What the relays do when etcd does not answer.
    pub fn on_isolation(&self) -> &str {
        &self.on_isolation
    }

    /// Restores the normal state and waits for it: all relays run, one forwards and another is standby. A
    /// stream passes through them meanwhile: relays without input are not fit.
    ///
    /// # Errors
    /// When that is not reached in time; the message has what relays and etcd wrote.
    pub fn settle(&mut self) -> Result<()> {
        for relay in &mut self.relays {
            if !relay.is_alive() {
                relay.boot()?;
            } else if !relay.runs() {
                relay.start_again()?;
            }
        }
        self.etcd.wait_for_leader()?;
        let traffic = self.start_traffic(WARM_PPS)?;
        let mut last = None;
        let is_healthy = || {
            let statuses = self
                .relays
                .iter()
                .map(|relay| (relay.name(), relay.status()));
            last = statuses
                .map(|(name, status)| defect(status).map(|why| format!("{name}: {why}")))
                .find(Option::is_some)
                .flatten();
            last.is_none()
        };
        wait::until_within(PATIENCE, "the fleet is well", is_healthy)
            .with_context(|| format!("{last:?}: {}", self.log()))?;
        self.wait_until_joined(self.relays.len().min(2))?;
        traffic.finish().map(drop)
    }

    /// Cuts off any host of the management network: nothing passes its port.
    ///
    /// # Errors
    /// When there is no such port.
    pub fn cut_port(&self, port: &str) -> Result<()> {
        self.set_port(port, "disabled")
    }

    /// Reverts [`Bed::cut_port`].
    ///
    /// # Errors
    /// When there is no such port.
    pub fn heal_port(&self, port: &str) -> Result<()> {
        self.set_port(port, "forwarding")
    }

    fn set_port(&self, port: &str, state: &str) -> Result<()> {
        let number = if state == "disabled" { 0 } else { 3 };
        let set = format!("link set dev {port} state {number}");
        self.switches.tool("bridge", &set).map(drop)
    }

    /// Runs `mcr` on the first relay that answers.
    ///
    /// # Errors
    /// When none answers; the message has the last one's error.
    pub fn mcr(&self, arguments: &[&str]) -> Result<String> {
        let mut last = None;
        for relay in &self.relays {
            match relay.mcr(arguments) {
                Ok(answer) => return Ok(answer),
                Err(error) => last = Some(error),
            }
        }
        Err(last
            .context("there is no relay")?
            .context("no relay answers"))
    }
}

/// What is wrong with a relay's view of its fleet.
fn defect(status: Result<FleetStatus>) -> Option<String> {
    let status = match status {
        Ok(status) => status,
        Err(error) => return Some(format!("{error:#}")),
    };
    let has_successor = |share: &&FleetShare| share.relay.is_some() && share.standby.is_some();
    let shares = status.shares.iter().filter(has_successor).count();
    let up = status
        .relays
        .iter()
        .filter(|relay| relay.state == FleetRelayState::Up);
    let is_healthy = status.phase == "joined"
        && status.etcd.reachable
        && shares == 1
        && up.count() == status.relays.len();
    (!is_healthy).then(|| format!("{status:?}"))
}

/// The port of a member of etcd at the management bridge.
pub fn member_port(member: usize) -> String {
    format!("etcd{member}")
}
