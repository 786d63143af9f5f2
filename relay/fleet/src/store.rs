//! Where a fleet's rules stand in etcd. Their text is larger than one transaction takes, so it is put
//! there chunk by chunk under its hash, where nobody looks, and one transaction on one key makes it
//! the fleet's.

use std::time::Duration;

use etcd::{Client, Compare, Is, KeyRange, Op, OpReply, RangeOptions, Txn};

use crate::error::Error;
use crate::keys::{Current, Key, Keys, Value};
use crate::rules::{CHUNKS_MAX, Text};

/// How long one request may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often somebody else may take away what was just put there.
const ATTEMPTS: usize = 3;

/// The rules of a fleet in etcd.
#[derive(Clone)]
pub struct Store {
    client: Client,
    keys: Keys,
}

/// The key that says which rules there are, as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// What it says; `None`: there never were rules, or what stands there makes no sense.
    pub current: Option<Current>,
    /// When it was written; 0: never.
    pub revision: i64,
}

impl Store {
    /// The rules of the fleet that these keys are of.
    #[must_use]
    pub fn new(client: Client, keys: Keys) -> Self {
        Self { client, keys }
    }

    /// Reads which rules there are.
    ///
    /// # Errors
    ///
    /// etcd's.
    pub async fn current(&self) -> Result<Read, Error> {
        let key = self.keys.text(&Key::Rules);
        let range = KeyRange::key(key.as_str());
        let mut reply = self.read(range, RangeOptions::default()).await?;
        let Some(found) = reply.keys.pop() else {
            return Ok(Read::default());
        };
        Ok(Read {
            current: Current::read(&key, &found.value).ok(),
            revision: found.mod_revision,
        })
    }

    /// Reads the text that a key speaks of.
    ///
    /// # Errors
    ///
    /// etcd's; [`Error::Invalid`] where chunks are missing.
    pub async fn text(&self, current: &Current) -> Result<Vec<u8>, Error> {
        let mut text = Vec::new();
        // One by one: an answer holds one request's worth.
        for chunk in 0..current.chunks {
            let key = self.chunk(&current.hash, chunk);
            let range = KeyRange::key(key.as_str());
            let mut reply = self.read(range, RangeOptions::default()).await?;
            let Some(found) = reply.keys.pop() else {
                return Err(Error::invalid(format!(
                    "{key} is missing, so the rules of generation {} cannot be read; apply them again",
                    current.generation
                )));
            };
            text.extend(found.value);
        }
        Ok(text)
    }

    /// Makes a text the fleet's, if `before` is what stands there still; hands back since which revision
    /// it is so.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`] where somebody else was faster; etcd's.
    pub async fn replace(
        &self,
        before: &Read,
        text: &Text,
        current: &Current,
    ) -> Result<i64, Error> {
        for _ in 0..ATTEMPTS {
            self.put_chunks(text).await?;
            if let Some(revision) = self.switch(before, current).await? {
                self.tidy(before, current).await;
                return Ok(revision);
            }
        }
        Err(Error::conflict(
            "the rules of the fleet are changed by somebody else all the time; try again"
                .to_owned(),
        ))
    }

    /// Puts a text there, or there again: what stands under its hash may be damaged.
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

    /// Switches over; `None`: a chunk was taken away meanwhile.
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
        let now = reply.replies.first().and_then(OpReply::first);
        if now.map_or(0, |now| now.mod_revision) == before.revision {
            return Ok(None);
        }
        Err(Error::conflict(
            "somebody else applied rules to the fleet at the same time; look at them with \
             `mcr fleet diff`, then apply again"
                .to_owned(),
        ))
    }

    /// Takes away all texts but this one and the one before it, which a slow relay may be reading.
    async fn tidy(&self, before: &Read, current: &Current) {
        let options = RangeOptions {
            keys_only: true,
            ..RangeOptions::default()
        };
        let range = KeyRange::prefix(format!("{}blobs/", self.keys.prefix()));
        let Ok(found) = self.read(range, options).await else {
            return;
        };
        let kept = [Some(current), before.current.as_ref()];
        let kept = kept.into_iter().flatten();
        let kept: Vec<&str> = kept.map(|kept| kept.hash.as_str()).collect();
        for found in found.keys {
            let key = String::from_utf8_lossy(&found.key).into_owned();
            let is_old = |hash: &String| !kept.contains(&hash.as_str());
            if matches!(self.keys.parse(&key), Ok(Key::Blob { hash, .. }) if is_old(&hash)) {
                let delete = Txn::new().then(Op::delete(KeyRange::key(found.key)));
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
