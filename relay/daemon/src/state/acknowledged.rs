//! Trouble of rules that somebody sees to: who, since when and why, until it is over. Kept over restarts
//! and reboots.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::reply::{Acknowledgement, RuleStats};
use observe::events::kind::{DROPS_ENDED, LINE_UP, RULE_REMOVED, RULE_UP, STREAM_BACK, STREAM_UP};
use observe::events::{Begin, Delivery, Events};
use parking_lot::Mutex;
use sys::whole_file;

/// Events behind which a rule's trouble, or the rule, is no more.
const OVER: [&str; 6] = [
    DROPS_ENDED,
    LINE_UP,
    RULE_REMOVED,
    RULE_UP,
    STREAM_BACK,
    STREAM_UP,
];

/// What is acknowledged, by rule, and the file that has it; none where nothing is kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Acknowledged {
    path: Option<PathBuf>,
    by_rule: Arc<Mutex<BTreeMap<String, Acknowledgement>>>,
}

impl Acknowledged {
    /// Reads what an instance keeps in its directory.
    pub(crate) fn open(directory: &Path) -> Self {
        let path = directory.join("acknowledged.json");
        let text = fs::read(&path).unwrap_or_default();
        let known = serde_json::from_slice(&text).unwrap_or_default();
        Self {
            path: Some(path),
            by_rule: Arc::new(Mutex::new(known)),
        }
    }

    /// Writes down that a rule's trouble is acknowledged, or is not.
    pub(crate) fn set(&self, rule: &str, what: Option<Acknowledgement>) -> io::Result<()> {
        let mut known = self.by_rule.lock();
        let mut next = known.clone();
        match what {
            Some(what) => next.insert(rule.to_owned(), what),
            None => next.remove(rule),
        };
        if let Some(path) = self.path.as_ref().filter(|_| next != *known) {
            whole_file::replace(path, &serde_json::to_vec(&next)?)?;
        }
        *known = next;
        Ok(())
    }

    /// A rule's counters with what is acknowledged of how it does now.
    pub(crate) fn shown(&self, rule: RuleStats) -> RuleStats {
        let acknowledged = self.by_rule.lock().get(&rule.name).cloned();
        RuleStats {
            acknowledged: acknowledged.filter(|known| known.condition == rule.condition()),
            ..rule
        }
    }

    /// Forgets what is over.
    pub(crate) async fn follow(self, events: Events) {
        let mut events = events.subscribe(Begin::Recent(0), false);
        while let Some(delivery) = events.next().await {
            if let Delivery::Event(numbered) = delivery
                && OVER.contains(&numbered.event.kind.as_str())
                && let Err(error) = self.set(&numbered.event.subject, None)
            {
                tracing::warn!(%error, "cannot write down what is acknowledged no more");
            }
        }
    }
}
