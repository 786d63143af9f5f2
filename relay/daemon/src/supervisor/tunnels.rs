//! The lifetime of tunnels: created before rules use them, removed after none does.

use compile::host::Host;
use config::{Config, Settings};
use host::{Error, Snapshot};
use rules::ruleset::RuleSet;

use super::Supervisor;
use crate::core::Refused;

impl Supervisor {
    /// Creates the tunnels that a change needs; a new one that cannot be created refuses the change.
    pub(super) async fn make_tunnels(
        &mut self,
        rules: &RuleSet,
        settings: &Settings,
        snapshot: &mut Snapshot,
    ) -> Result<(), Refused> {
        let refused = self
            .settle_tunnels(rules, settings, snapshot)
            .await
            .map_err(|error| Refused::Unavailable(error.to_string()))?;
        match refused.as_slice() {
            [] => Ok(()),
            refused => Err(Refused::Unavailable(refused.join("\n"))),
        }
    }

    /// Creates the tunnels of the first rules; a failure is logged and affects nothing else.
    pub(crate) async fn make_first_tunnels(
        &mut self,
        first: &Config,
        snapshot: &mut Snapshot,
    ) -> Result<(), Error> {
        let settled = self.settle_tunnels(&first.rules, &first.settings, snapshot);
        for refused in settled.await? {
            tracing::warn!("{refused}");
        }
        Ok(())
    }

    /// Creates tunnels, and reads the host with them; returns why new ones could not be created.
    async fn settle_tunnels(
        &mut self,
        rules: &RuleSet,
        settings: &Settings,
        snapshot: &mut Snapshot,
    ) -> Result<Vec<String>, Error> {
        let mut refused = Vec::new();
        if !self.tunnels.are_settled(settings, &snapshot.host) {
            let settled = self.tunnels.settle(settings, &snapshot.host).await;
            refused = settled.refused;
            if settled.changed {
                let queries = self.core.queries(rules, settings);
                let with_them = self.watch.read(queries).await?;
                snapshot.take_up(with_them);
            }
        }
        self.tunnels.tell(&mut snapshot.host);
        Ok(refused)
    }

    /// Restores the tunnels of the running settings after a change of the host; their changes are reported
    /// as a further change of the host.
    pub(super) async fn keep_tunnels(&mut self, host: &mut Host) {
        let settings = self.core.settings().clone();
        if !self.tunnels.are_settled(&settings, host) {
            self.tunnels.settle(&settings, host).await;
        }
        self.tunnels.tell(host);
    }

    /// Tries again to create failed tunnels: there is no notification that a port is free.
    pub(super) async fn retry_tunnels(&mut self) {
        if !self.tunnels.are_refused() {
            return;
        }
        let mut host = Host::clone(self.core.host());
        self.keep_tunnels(&mut host).await;
        if host.tunnels != self.core.host().tunnels {
            self.host_changed(self.snapshot_of(host)).await;
        }
    }

    /// Removes tunnels that are no longer configured; at the start also those of an earlier run.
    pub(crate) async fn remove_tunnels(&mut self) {
        if self.tunnels.has_orphans() {
            self.tunnels.remove_others().await;
        }
    }
}
