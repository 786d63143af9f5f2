//! Has the daemon compile and join the shares that the member wants, one set after the other; of the sets
//! that arrive while one is being installed only the newest is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rules::document::RuleDocument;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::received::Received;
use crate::host::Host;
use crate::member::Input;
use crate::rules::Rules;

/// Pause before a set that the daemon has refused is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// What is to be installed.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    /// Counts the changes: results for an earlier one are outdated.
    pub(super) number: u64,
    pub(super) rules: Arc<Rules>,
    /// `None`: the member has not decided yet, and the rules that a former process left stay.
    pub(super) shares: Option<BTreeSet<String>>,
}

/// Installs until the engine ends.
pub(super) async fn run(
    host: Arc<dyn Host>,
    interfaces: BTreeMap<String, String>,
    mut wanted: watch::Receiver<Wanted>,
    engine: mpsc::UnboundedSender<Received>,
) {
    if wanted.changed().await.is_err() {
        return;
    }
    // The last generation whose author was passed on: that happens with its first installation only, since
    // nobody applied the shares that change hands later.
    let mut attributed = None;
    loop {
        let target = wanted.borrow_and_update().clone();
        let mut is_refused = false;
        if let Some(shares) = target.shares {
            let generation = Some(target.rules.generation);
            let by = (generation != attributed).then(|| target.rules.by.clone());
            let (documents, failed) = target.rules.on_host(&shares, &interfaces);
            let is_empty = documents.is_empty();
            let installed;
            (installed, is_refused) = install(&*host, (documents, by), shares, failed).await;
            if !is_empty && !is_refused {
                attributed = generation;
            }
            let received = Received::Installed(target.number, installed);
            if engine.send(received).is_err() {
                return;
            }
        }
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() {
                return;
            },
            () = sleep(AGAIN), if is_refused => {}
        }
    }
}

/// Installs a set of rules; returns the result, and whether the daemon has refused all of them.
async fn install(
    host: &dyn Host,
    (documents, by): (Vec<RuleDocument>, Option<String>),
    mut shares: BTreeSet<String>,
    mut failed: BTreeMap<String, String>,
) -> (Input, bool) {
    let installed = host.install(documents, by).await;
    let is_refused = installed.is_err();
    match installed {
        Ok(refused) => failed.extend(refused),
        Err(why) => {
            tracing::warn!("rules of the fleet are not installed: {why}");
            let all = shares.iter().map(|share| (share.clone(), why.clone()));
            failed.extend(all);
        }
    }
    shares.retain(|share| !failed.contains_key(share));
    (Input::Installed { shares, failed }, is_refused)
}
