//! Reports what a change would do, without making it.

use std::sync::Arc;

use api::reply::Change;
use tokio::task::block_in_place;

use super::port_conflicts::port_conflicts;
use super::{Supervisor, with_warnings};
use crate::core::{Refused, Request};

impl Supervisor {
    /// The result of a request; for a transaction also what would prevent its rules from relaying, and
    /// their placements.
    pub(super) async fn dry_run(&mut self, request: &Request) -> Result<Change, Refused> {
        let config = block_in_place(|| self.resolve(request))?;
        let change = self.core.compare(&config.rules, &config.settings);
        let Request::Change(_) = request else {
            return Ok(with_warnings(change, self.awaiting_restart_by(request)));
        };
        let queries = self.core.queries(&config.rules, &config.settings);
        let read = self.watch.read(queries).await;
        let snapshot = read.map_err(|error| Refused::Unavailable(error.to_string()))?;
        let host = self.shared(&snapshot.host);
        let (rules, settings) = (Arc::new(config.rules), Arc::new(config.settings));
        let step = block_in_place(|| self.core.step(rules, settings, host, &snapshot.renewed));
        let mut warnings = step.change.warnings.clone();
        warnings.extend(block_in_place(|| port_conflicts(self.core.rules(), &step)));
        let change = Change {
            placements: step.placements(),
            ..change
        };
        // The host was read all the same, and these changes are not reported again.
        self.host_changed(snapshot).await;
        Ok(with_warnings(change, warnings))
    }
}
