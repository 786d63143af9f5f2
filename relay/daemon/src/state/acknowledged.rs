//! Acknowledged trouble of rules: by whom, when and why, until it is over. It survives restarts and
//! reboots.

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

/// Events that end a rule's trouble, or the rule.
const OVER: [&str; 6] = [
    DROPS_ENDED,
    LINE_UP,
    RULE_REMOVED,
    RULE_UP,
    STREAM_BACK,
    STREAM_UP,
];

/// The acknowledgements by rule, and their file; `None`: in memory only.
#[derive(Clone, Debug, Default)]
pub(crate) struct Acknowledged {
    path: Option<PathBuf>,
    by_rule: Arc<Mutex<BTreeMap<String, Acknowledgement>>>,
}

impl Acknowledged {
    /// Reads the acknowledgements in an instance's directory.
    pub(crate) fn open(directory: &Path) -> Self {
        let path = directory.join("acknowledged.json");
        let text = fs::read(&path).unwrap_or_default();
        let by_rule = serde_json::from_slice(&text).unwrap_or_default();
        Self {
            path: Some(path),
            by_rule: Arc::new(Mutex::new(by_rule)),
        }
    }

    /// Sets or removes the acknowledgement of a rule's trouble.
    pub(crate) fn set(&self, rule: &str, new: Option<Acknowledgement>) -> io::Result<()> {
        let mut by_rule = self.by_rule.lock();
        let mut next = by_rule.clone();
        match new {
            Some(new) => next.insert(rule.to_owned(), new),
            None => next.remove(rule),
        };
        if let Some(path) = self.path.as_ref().filter(|_| next != *by_rule) {
            whole_file::replace(path, &serde_json::to_vec(&next)?)?;
        }
        *by_rule = next;
        Ok(())
    }

    /// A rule's counters with the acknowledgement of its current condition.
    pub(crate) fn shown(&self, rule: RuleStats) -> RuleStats {
        let acknowledged = self.by_rule.lock().get(&rule.name).cloned();
        RuleStats {
            acknowledged: acknowledged.filter(|entry| entry.condition == rule.condition()),
            ..rule
        }
    }

    /// Removes acknowledgements whose trouble is over.
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
