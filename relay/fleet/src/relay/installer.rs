//! Has the daemon compile and join what the member wants, one set after the other; sets that come
//! while one is under way make way for the newest.

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

/// Before what the daemon has refused is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// What is to be installed.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    /// Counts the changes: what is installed for an earlier one is not what is wanted.
    pub(super) number: u64,
    pub(super) rules: Arc<Rules>,
    /// `None`: the member has not said it yet, and what a process before this one left stays.
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
    // Of which rules it is told whose they are: with the first that come here of a set, since shares that
    // change hands later are nobody's doing.
    let mut known = None;
    loop {
        let now = wanted.borrow_and_update().clone();
        let mut is_refused = false;
        if let Some(shares) = now.shares {
            let rules = Some(now.rules.generation);
            let by = (rules != known).then(|| now.rules.by.clone());
            let (documents, failed) = now.rules.on_host(&shares, &interfaces);
            let is_some = !documents.is_empty();
            let installed;
            (installed, is_refused) = install(&*host, (documents, by), shares, failed).await;
            if is_some && !is_refused {
                known = rules;
            }
            let received = Received::Installed(now.number, installed);
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

/// Installs, and says whether the daemon has refused all of it.
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
