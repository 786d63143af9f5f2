//! What a change would do, said without doing it.

use std::sync::Arc;

use api::reply::Change;
use config::Config;
use tokio::task::block_in_place;

use super::port_conflicts::port_conflicts;
use super::{Supervisor, with_warnings};
use crate::core::{Refused, Request};

impl Supervisor {
    /// What a request would come to; of a transaction also what would keep its rules from relaying, and
    /// where they would run.
    pub(super) async fn dry_run(&mut self, request: &Request) -> Result<Change, Refused> {
        let Config {
            rules, settings, ..
        } = block_in_place(|| self.resolve(request))?;
        let change = self.core.compare(&rules, &settings);
        let Request::Change(_) = request else {
            return Ok(with_warnings(change, self.awaiting_restart_by(request)));
        };
        let queries = self.core.queries(&rules, &settings);
        let snapshot = self.watch.read(queries).await;
        let snapshot = snapshot.map_err(|error| Refused::Unavailable(error.to_string()))?;
        let host = self.known(&snapshot.host);
        let (rules, settings) = (Arc::new(rules), Arc::new(settings));
        let step = block_in_place(|| self.core.step(rules, settings, host, &snapshot.renewed));
        let mut warnings = step.change.warnings.clone();
        warnings.extend(block_in_place(|| port_conflicts(self.core.rules(), &step)));
        let change = Change {
            placements: step.placements(),
            ..change
        };
        // What was read of the host is true all the same, and nobody reports it again.
        self.host_changed(snapshot).await;
        Ok(with_warnings(change, warnings))
    }
}
