//! A fleet's rules in etcd. Their text is too large for one transaction, so it is written chunk by chunk
//! under its hash, where nobody reads it yet, and one transaction on one key makes it the fleet's.

use std::time::Duration;

use etcd::{Client, Compare, Is, KeyRange, Op, OpReply, RangeOptions, Txn};

use crate::error::Error;
use crate::keys::{Current, Key, Keys, Value};
use crate::rules::{CHUNKS_MAX, Text};

/// How long one request may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the chunks are written again after somebody else removed them.
const ATTEMPTS: usize = 3;

/// The rules of a fleet in etcd.
#[derive(Clone)]
pub struct Store {
    client: Client,
    keys: Keys,
}

/// The key `rules/current` as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Its value; `None`: there never were rules, or the value is invalid.
    pub current: Option<Current>,
    /// When it was written; 0: never.
    pub revision: i64,
}

impl Store {
    /// The rules of the fleet with these keys.
    #[must_use]
    pub fn new(client: Client, keys: Keys) -> Self {
        Self { client, keys }
    }

    /// Reads `rules/current`.
    ///
    /// # Errors
    ///
    /// etcd's.
    pub async fn current(&self) -> Result<Read, Error> {
        let key = self.keys.text(&Key::Rules);
        let range = KeyRange::key(key.as_str());
        let mut reply = self.read(range, RangeOptions::default()).await?;
        let Some(entry) = reply.keys.pop() else {
            return Ok(Read::default());
        };
        Ok(Read {
            current: Current::read(&key, &entry.value).ok(),
            revision: entry.mod_revision,
        })
    }

    /// Reads the text of these rules.
    ///
    /// # Errors
    ///
    /// etcd's; [`Error::Invalid`] where chunks are missing.
    pub async fn text(&self, current: &Current) -> Result<Vec<u8>, Error> {
        let mut text = Vec::new();
        // One by one: the size of a reply is limited.
        for chunk in 0..current.chunks {
            let key = self.chunk(&current.hash, chunk);
            let range = KeyRange::key(key.as_str());
            let mut reply = self.read(range, RangeOptions::default()).await?;
            let Some(entry) = reply.keys.pop() else {
                return Err(Error::invalid(format!(
                    "{key} is missing, so the rules of generation {} cannot be read; apply them again",
                    current.generation
                )));
            };
            text.extend(entry.value);
        }
        Ok(text)
    }

    /// Makes a text the fleet's, if `before` is still current; returns the revision of the change.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`] if somebody else was faster; etcd's.
    pub async fn replace(
        &self,
        before: &Read,
        text: &Text,
        current: &Current,
    ) -> Result<i64, Error> {
        for _ in 0..ATTEMPTS {
            self.put_chunks(text).await?;
            if let Some(revision) = self.switch(before, current).await? {
                self.delete_old(before, current).await;
                return Ok(revision);
            }
        }
        Err(Error::conflict(
            "the rules of the fleet are changed by somebody else all the time; try again"
                .to_owned(),
        ))
    }

    /// Writes the chunks of a text, also if they exist: they may be damaged.
    ///
    /// # Errors
    ///
    /// etcd's.
    pub async fn put_chunks(&self, text: &Text) -> Result<(), Error> {
        for (number, chunk) in text.chunks().enumerate() {
            let key = self.chunk(&text.hash, number as u16);
            self.client.put(key, chunk, PATIENCE).await?;
        }
        Ok(())
    }

    /// Makes `current` the fleet's rules; `None`: a chunk was removed meanwhile.
    async fn switch(&self, before: &Read, current: &Current) -> Result<Option<i64>, Error> {
        let key = self.keys.text(&Key::Rules);
        let compare = Compare::mod_revision(key.as_str(), Is::Equal, before.revision);
        let mut txn = Txn::new()
            .when(compare)
            .then(Op::put(key.as_str(), current.write()))
            .otherwise(Op::range(KeyRange::key(key.as_str())));
        // etcd takes 128 comparisons.
        const { assert!(CHUNKS_MAX < 128) };
        for chunk in 0..current.chunks {
            let key = self.chunk(&current.hash, chunk);
            txn = txn.when(Compare::version(key, Is::Greater, 0));
        }
        let reply = self.client.txn(txn, PATIENCE).await?;
        if reply.succeeded {
            return Ok(Some(reply.revision));
        }
        let found = reply.replies.first().and_then(OpReply::first);
        if found.map_or(0, |entry| entry.mod_revision) == before.revision {
            return Ok(None);
        }
        Err(Error::conflict(
            "somebody else applied rules to the fleet at the same time; look at them with \
             `mcr fleet diff`, then apply again"
                .to_owned(),
        ))
    }

    /// Deletes all texts but this one and the one before it, which a slow relay may be reading.
    async fn delete_old(&self, before: &Read, current: &Current) {
        let options = RangeOptions {
            keys_only: true,
            ..RangeOptions::default()
        };
        let range = KeyRange::prefix(format!("{}blobs/", self.keys.prefix()));
        let Ok(blobs) = self.read(range, options).await else {
            return;
        };
        let previous_hash = before.current.as_ref().map(|previous| &previous.hash);
        for blob in blobs.keys {
            let key = String::from_utf8_lossy(&blob.key).into_owned();
            let is_old = |hash: &String| *hash != current.hash && Some(hash) != previous_hash;
            if matches!(self.keys.parse(&key), Ok(Key::Blob { hash, .. }) if is_old(&hash)) {
                let delete = Txn::new().then(Op::delete(KeyRange::key(blob.key)));
                if let Err(error) = self.client.txn(delete, PATIENCE).await {
                    tracing::debug!(%error, "rules of before are left in etcd");
                    return;
                }
            }
        }
    }

    fn chunk(&self, hash: &str, chunk: u16) -> String {
        let hash = hash.to_owned();
        self.keys.text(&Key::Blob { hash, chunk })
    }

    async fn read(
        &self,
        range: KeyRange,
        options: RangeOptions,
    ) -> Result<etcd::RangeReply, Error> {
        Ok(self.client.range(range, options, PATIENCE).await?)
    }
}
