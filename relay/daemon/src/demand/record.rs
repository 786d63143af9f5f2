//! The record of listened-to groups on disk: after a crash or a handover they are served until a query
//! round is over.
//!
//! Times are not written: groups are restored as if just reported.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use compile::host::Host;
use igmp::listeners::Routers;
use igmp::timers::Timers;
use parking_lot::Mutex;
use rules::demand::{Groups, Listening};
use rules::net::Ifindex;
use serde::{Deserialize, Serialize};

/// Version of the file's format.
const VERSION: u32 = 1;
/// A longer file was not written here.
const LENGTH_MAX: u64 = 64 << 20;

/// The file; clones share it.
#[derive(Clone, Debug)]
pub(super) struct Record {
    path: PathBuf,
    /// Whether it is removed for good; locked during writes, because a late one would stay.
    removed: Arc<Mutex<bool>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Written {
    version: u32,
    /// When it was written, in seconds of the boot clock, which cannot be set.
    at: u64,
    /// By name: an index may belong to another link after a restart.
    interfaces: BTreeMap<String, Groups>,
}

impl Record {
    pub(super) fn new(directory: &Path) -> Self {
        Self {
            path: directory.join("listening.json"),
            removed: Arc::default(),
        }
    }

    /// Reads the record, if it is not too old.
    pub(super) fn read(&self, host: &Host) -> Listening {
        let is_short = fs::metadata(&self.path).is_ok_and(|file| file.len() <= LENGTH_MAX);
        let bytes = match fs::read(&self.path) {
            Ok(bytes) if is_short => bytes,
            _ => return Listening::default(),
        };
        let written = match serde_json::from_slice::<Written>(&bytes) {
            Ok(written) if written.version == VERSION => written,
            _ => {
                tracing::warn!(file = %self.path.display(), "what was listened to is damaged; not used");
                return Listening::default();
            }
        };
        let age = now_s().saturating_sub(written.at);
        if Duration::from_secs(age) > Timers::default().membership() {
            return Listening::default();
        }
        let links = written.interfaces.into_iter();
        let known =
            links.filter_map(|(name, groups)| Some((host.by_name(&name)?.index, Arc::new(groups))));
        Listening(known.collect())
    }

    /// Rewrites it atomically, unless it is removed.
    pub(super) fn write(&self, routers: &BTreeMap<Ifindex, Routers>) {
        let interfaces = routers.values().map(|routers| {
            let mut groups = routers.ipv4.wanted().clone();
            groups.extend(routers.ipv6.wanted().clone());
            (routers.name.clone(), groups)
        });
        let written = Written {
            version: VERSION,
            at: now_s(),
            interfaces: interfaces.collect(),
        };
        let text = serde_json::to_vec(&written).unwrap_or_default();
        self.store(&text);
    }

    fn store(&self, text: &[u8]) {
        let removed = self.removed.lock();
        if *removed {
            return;
        }
        let temporary = self.temporary();
        let stored = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, &self.path));
        if let Err(error) = stored {
            tracing::warn!(%error, "what is listened to cannot be written down");
        }
    }

    /// Removes it for good, and the temporary file of a daemon killed during a write.
    pub(super) fn remove(&self) {
        *self.removed.lock() = true;
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(self.temporary());
    }

    fn temporary(&self) -> PathBuf {
        self.path.with_extension("new")
    }
}

fn now_s() -> u64 {
    sys::clock::boottime_ns() / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use compile::host::Interface;

    use super::*;

    #[test]
    fn a_write_after_the_removal_leaves_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let record = Record::new(directory.path());
        let late = record.clone();
        record.write(&BTreeMap::new());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        record.remove();
        late.write(&BTreeMap::new());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_record_older_than_a_query_round_is_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let record = Record::new(directory.path());
        let link = Interface {
            index: Ifindex(2),
            name: "eth1".to_owned(),
            ..Interface::default()
        };
        let host = Host {
            interfaces: [(link.index, link)].into(),
            ..Host::default()
        };
        let restored = |at: u64| {
            let groups = "{\"239.1.1.1\":{\"exclude\":[]}}";
            let text =
                format!("{{\"version\":1,\"at\":{at},\"interfaces\":{{\"eth1\":{groups}}}}}");
            record.store(text.as_bytes());
            record.read(&host).0.len()
        };
        // The boot clock: setting the calendar time expires nothing.
        let now_s = sys::clock::boottime_ns() / 1_000_000_000;
        assert_eq!(restored(now_s), 1);
        if let Some(long_ago) = now_s.checked_sub(600) {
            assert_eq!(restored(long_ago), 0);
        }
    }
}
