//! The keys of a fleet in etcd, `/mcr/NAME/…`, and their values.
//!
//! Everything that is read from etcd is parsed here first: a foreign key or an invalid value is refused
//! by name, and changes nothing.

mod values;

use rules::rule::is_name;

pub use values::{
    Beat, BeatMonitor, Current, Drained, Error, FleetSettings, HOLD_MAX_MS, Move, RelayEntry,
    SessionNumber, ShareEntry, VALUE_MAX, Value,
};

/// Most digits of a chunk's number in its key.
const CHUNK_DIGITS: usize = 4;

/// A key of the fleet, as parsed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// `beats/RELAY`
    Beat(String),
    /// `blobs/HASH/0000`
    Blob {
        /// SHA-256 of the whole, 64 hexadecimal digits.
        hash: String,
        /// Which chunk, from 0.
        chunk: u16,
    },
    /// `counters/RELAY`
    Counters(String),
    /// `drained/RELAY`
    Drained(String),
    /// `moves/SHARE`
    Move(String),
    /// `relays/RELAY`
    Relay(String),
    /// `rules/current`
    Rules,
    /// `settings`
    Settings,
    /// `shares/SHARE`
    Share(String),
}

/// Builds and parses the keys of one fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    /// Keys of the fleet `name`; `None` if that is not a name (see [`is_name`]).
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let prefix = format!("/mcr/{name}/");
        is_name(name).then_some(Self { prefix })
    }

    /// The prefix of all keys of the fleet, `/mcr/NAME/`.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// First key of the range that every relay watches: everything but beats, blobs and counters.
    #[must_use]
    pub fn watch_from(&self) -> String {
        format!("{}d", self.prefix)
    }

    /// End of the watched range, exclusive.
    #[must_use]
    pub fn watch_to(&self) -> String {
        format!("{}0", self.prefix.trim_end_matches('/'))
    }

    /// The text of `key` in etcd.
    #[must_use]
    pub fn text(&self, key: &Key) -> String {
        let prefix = &self.prefix;
        match key {
            Key::Beat(relay) => format!("{prefix}beats/{relay}"),
            Key::Blob { hash, chunk } => format!("{prefix}blobs/{hash}/{chunk:04}"),
            Key::Counters(relay) => format!("{prefix}counters/{relay}"),
            Key::Drained(relay) => format!("{prefix}drained/{relay}"),
            Key::Move(share) => format!("{prefix}moves/{share}"),
            Key::Relay(relay) => format!("{prefix}relays/{relay}"),
            Key::Rules => format!("{prefix}rules/current"),
            Key::Settings => format!("{prefix}settings"),
            Key::Share(share) => format!("{prefix}shares/{share}"),
        }
    }

    /// Parses a key's text.
    ///
    /// # Errors
    ///
    /// [`Error`] names the key if it is not one of this fleet.
    pub fn parse(&self, text: &str) -> Result<Key, Error> {
        let refused = |problem| Error::new(text, problem);
        let rest = text
            .strip_prefix(&self.prefix)
            .ok_or_else(|| refused("is not a key of this fleet"))?;
        match rest {
            "settings" => return Ok(Key::Settings),
            "rules/current" => return Ok(Key::Rules),
            _ => {}
        }
        let (kind, name) = rest.split_once('/').unwrap_or((rest, ""));
        if kind == "blobs" {
            return blob(name).ok_or_else(|| refused("is not a blob's key, blobs/HASH/0000"));
        }
        if !is_name(name) {
            return Err(refused("has no valid name at its end"));
        }
        let name = name.to_owned();
        match kind {
            "beats" => Ok(Key::Beat(name)),
            "counters" => Ok(Key::Counters(name)),
            "drained" => Ok(Key::Drained(name)),
            "moves" => Ok(Key::Move(name)),
            "relays" => Ok(Key::Relay(name)),
            "shares" => Ok(Key::Share(name)),
            _ => Err(refused("is of no known kind")),
        }
    }
}

/// The remedy for a key with an invalid value; `None`: the key itself is invalid.
pub(crate) fn remedy(key: Option<&Key>) -> &'static str {
    match key {
        Some(Key::Beat(_) | Key::Relay(_)) => {
            "its relay writes it anew; where none does, delete it"
        }
        Some(Key::Share(_)) => {
            "its holder writes it anew; where there is none, delete it once no relay forwards the share"
        }
        Some(Key::Rules) => "apply the rules again",
        Some(Key::Settings) => "delete it, and a relay makes a new one",
        _ => "delete it",
    }
}

fn blob(rest: &str) -> Option<Key> {
    let (hash, chunk) = rest.split_once('/')?;
    let has_lengths = values::is_hash(hash) && chunk.len() == CHUNK_DIGITS;
    let is_number = chunk.bytes().all(|b| b.is_ascii_digit());
    (has_lengths && is_number).then(|| Key::Blob {
        hash: hash.to_owned(),
        chunk: chunk.parse().expect("four digits fit"),
    })
}

#[cfg(test)]
mod tests;
