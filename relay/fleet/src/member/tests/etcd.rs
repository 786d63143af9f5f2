//! A model of etcd: one history of revisions.

use std::collections::{BTreeMap, HashMap};

use crate::member::{Change, KeyValue, Outcome, Target, Txn};

#[derive(Clone, Default)]
pub(super) struct Etcd {
    pub(super) revision: u64,
    pub(super) keys: BTreeMap<String, KeyValue>,
    pub(super) history: Vec<(u64, Change)>,
    pub(super) compacted: u64,
    /// The revision at which each key was last deleted.
    pub(super) deleted: HashMap<String, u64>,
}

impl Etcd {
    pub(super) fn apply(&mut self, txn: &Txn) -> Outcome {
        let holds = txn.compares.iter().all(|compare| {
            let kv = self.keys.get(&compare.key);
            let actual = kv.map_or(0, |kv| match compare.target {
                Target::Created => kv.created,
                Target::Modified => kv.modified,
            });
            (actual == compare.revision) == compare.equal
        });
        if !holds {
            let found = txn
                .reads
                .iter()
                .filter_map(|key| self.keys.get(key).cloned());
            return Outcome::Refused {
                revision: self.revision,
                found: found.collect(),
            };
        }
        self.revision += 1;
        for (key, value) in &txn.puts {
            self.put(key, value.clone());
        }
        for key in &txn.deletes {
            self.delete(key);
        }
        Outcome::Applied {
            revision: self.revision,
        }
    }

    pub(super) fn operator_put(&mut self, key: &str, value: Vec<u8>) {
        self.revision += 1;
        self.put(key, value);
    }

    pub(super) fn operator_delete(&mut self, key: &str) {
        self.revision += 1;
        self.delete(key);
    }

    /// All at one revision.
    pub(super) fn operator_delete_prefix(&mut self, prefix: &str) {
        self.revision += 1;
        let matching = self.keys.keys().filter(|key| key.starts_with(prefix));
        let keys: Vec<String> = matching.cloned().collect();
        keys.iter().for_each(|key| self.delete(key));
    }

    fn put(&mut self, key: &str, value: Vec<u8>) {
        let created = self.keys.get(key).map_or(self.revision, |kv| kv.created);
        let kv = KeyValue {
            key: key.to_owned(),
            value,
            created,
            modified: self.revision,
        };
        self.keys.insert(key.to_owned(), kv.clone());
        self.history.push((self.revision, Change::Put(kv)));
    }

    fn delete(&mut self, key: &str) {
        if self.keys.remove(key).is_some() {
            self.deleted.insert(key.to_owned(), self.revision);
            let change = Change::Deleted {
                key: key.to_owned(),
                revision: self.revision,
            };
            self.history.push((self.revision, change));
        }
    }

    /// A key as it stood at `revision`, and the revision of its last change until then.
    pub(super) fn last(&self, key: &str, revision: u64) -> (u64, Option<&KeyValue>) {
        let beat = self.keys.get(key);
        let deleted = || self.deleted.get(key).copied().unwrap_or(0);
        let modified = beat.map_or_else(deleted, |kv| kv.modified);
        if modified <= revision {
            return (modified, beat);
        }
        let until = self.history.partition_point(|(at, _)| *at <= revision);
        let mut before = self.history[..until].iter().rev();
        let last = before.find_map(|(at, change)| match change {
            Change::Put(kv) => (kv.key == key).then_some((*at, Some(kv))),
            Change::Deleted { key: deleted, .. } => (deleted == key).then_some((*at, None)),
        });
        last.unwrap_or((0, None))
    }

    /// Changes after `revision`; `None` if they are compacted.
    pub(super) fn since(&self, revision: u64) -> Option<&[(u64, Change)]> {
        if revision < self.compacted {
            return None;
        }
        let from = self.history.partition_point(|(at, _)| *at <= revision);
        Some(&self.history[from..])
    }
}
