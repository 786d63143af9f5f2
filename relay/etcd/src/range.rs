//! Ranges of keys, and the replies to reading them.

use crate::messages::{self, KeyValue};

/// One key, or all keys from one up to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyRange {
    pub(crate) first: Vec<u8>,
    pub(crate) end: Vec<u8>,
}

impl KeyRange {
    /// One key.
    pub fn key(key: impl Into<Vec<u8>>) -> Self {
        Self {
            first: key.into(),
            end: Vec::new(),
        }
    }

    /// All keys that begin with `prefix`; all keys if it is empty.
    pub fn prefix(prefix: impl Into<Vec<u8>>) -> Self {
        let first = prefix.into();
        let mut end = first.clone();
        // The next prefix: the last byte below 0xff is incremented, those after it are dropped. etcd reads
        // a single zero byte as "no end".
        while end.pop_if(|last| *last == 0xff).is_some() {}
        match end.last_mut() {
            Some(last) => *last += 1,
            None => end = vec![0],
        }
        let first = non_empty(first);
        Self { first, end }
    }

    /// All keys from `first` up to, but not including, `end`; empty unless `first` < `end`.
    pub fn between(first: impl Into<Vec<u8>>, end: impl Into<Vec<u8>>) -> Self {
        Self {
            first: non_empty(first.into()),
            end: non_empty(end.into()),
        }
    }

    /// The first key.
    pub fn first(&self) -> &[u8] {
        &self.first
    }

    /// Whether a key is in this range.
    pub fn contains(&self, key: &[u8]) -> bool {
        match self.end.as_slice() {
            [] => key == self.first,
            [0] => key >= self.first.as_slice(),
            end => key >= self.first.as_slice() && key < end,
        }
    }
}

/// etcd accepts no empty key; a zero byte is the first key.
fn non_empty(key: Vec<u8>) -> Vec<u8> {
    if key.is_empty() { vec![0] } else { key }
}

/// What to read of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeOptions {
    /// Most keys; 0: all.
    pub limit: u32,
    /// Leave the values out.
    pub keys_only: bool,
    /// As of this revision; 0: the newest.
    pub revision: i64,
    /// Read the state of the member that is asked, without checking with the leader that it is the newest.
    pub serializable: bool,
}

/// The keys of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeReply {
    /// The newest revision of the store when it was read.
    pub revision: i64,
    /// The keys, ascending.
    pub keys: Vec<KeyValue>,
    /// How many there are, also beyond the limit.
    pub count: u64,
    /// Whether the limit cut some off.
    pub more: bool,
}

impl From<messages::RangeResponse> for RangeReply {
    fn from(response: messages::RangeResponse) -> Self {
        Self {
            revision: messages::revision(response.header.as_ref()),
            keys: response.kvs,
            count: u64::try_from(response.count).unwrap_or(0),
            more: response.more,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_a_prefix_before_the_next() {
        let end = |prefix: &[u8]| KeyRange::prefix(prefix).end;
        assert_eq!(end(b"a/"), b"a0");
        assert_eq!(end(&[1, 0xff]), [2]);
        assert_eq!(end(&[0xff, 0xff]), [0]);
        assert_eq!(end(b""), [0]);
        assert_eq!(KeyRange::prefix("").first, [0]);
    }

    #[test]
    fn contains_its_keys() {
        assert!(KeyRange::key("a").contains(b"a") && !KeyRange::key("a").contains(b"ab"));
        let prefix = KeyRange::prefix("a/");
        assert!(prefix.contains(b"a/b") && !prefix.contains(b"a0") && !prefix.contains(b"a"));
        let between = KeyRange::between("d", "f");
        assert!(between.contains(b"e") && !between.contains(b"f"));
        assert!(KeyRange::prefix("").contains(b"anything"));
    }
}
