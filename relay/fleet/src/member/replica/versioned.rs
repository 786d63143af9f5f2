//! What is known of one key.

use std::collections::BTreeMap;

/// A value with the revision of its last change.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub(in crate::member) struct Known<T> {
    /// The value; the last one, if its key was deleted.
    pub(in crate::member) value: T,
    /// Revision of the last change; 0 if the key was deleted.
    pub(in crate::member) modified: u64,
    /// Up to which revision that is known.
    pub(super) heard: u64,
}

impl<T> Known<T> {
    /// Whether the key is there, as far as is known.
    pub(in crate::member) const fn stands(&self) -> bool {
        self.modified != 0
    }
}

pub(super) fn learn<T>(map: &mut BTreeMap<String, Known<T>>, name: String, value: T, at: u64) {
    let older = map.get(&name).is_some_and(|known| known.heard > at);
    if !older {
        map.insert(
            name,
            Known {
                value,
                modified: at,
                heard: at,
            },
        );
    }
}

pub(super) fn unlearn<T>(map: &mut BTreeMap<String, Known<T>>, name: &str, revision: u64) {
    if let Some(known) = map.get_mut(name)
        && known.heard < revision
    {
        known.modified = 0;
        known.heard = revision;
    }
}
