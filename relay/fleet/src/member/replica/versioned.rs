//! The replica of one key.

use std::collections::BTreeMap;

/// A value with the revision of its last change.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub(in crate::member) struct Versioned<T> {
    /// The value; the last one, if its key was deleted.
    pub(in crate::member) value: T,
    /// Revision of the last change; 0 if the key was deleted.
    pub(in crate::member) modified: u64,
    /// The newest revision at which this was so.
    pub(super) as_of: u64,
}

impl<T> Versioned<T> {
    /// Whether the key exists, as far as this relay has read.
    pub(in crate::member) const fn is_present(&self) -> bool {
        self.modified != 0
    }
}

pub(super) fn learn<T>(map: &mut BTreeMap<String, Versioned<T>>, name: String, value: T, at: u64) {
    let is_outdated = map.get(&name).is_some_and(|entry| entry.as_of > at);
    if !is_outdated {
        let entry = Versioned {
            value,
            modified: at,
            as_of: at,
        };
        map.insert(name, entry);
    }
}

pub(super) fn unlearn<T>(map: &mut BTreeMap<String, Versioned<T>>, name: &str, revision: u64) {
    if let Some(entry) = map.get_mut(name)
        && entry.as_of < revision
    {
        entry.modified = 0;
        entry.as_of = revision;
    }
}
