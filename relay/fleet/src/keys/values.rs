//! The values under the fleet's keys: JSON, bounded in size, in length of lists and in numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use config::OnIsolation;
use rules::rule::is_name;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::rules::CHUNKS_MAX;

/// A session of a relay: the create revision of its beat key; 0 is none.
pub type SessionNumber = u64;

/// Longest value that is read, in bytes; the length of blobs is checked by their reader.
pub const VALUE_MAX: usize = 256 * 1024;

/// Most relays that may monitor one, most roles of a relay.
const LIST_MAX: usize = 64;
/// Most shares that a relay may report its fitness for.
const UNFIT_MAX: usize = 4096;
/// Longest free text, in bytes.
const TEXT_MAX: usize = 255;
/// Shortest and longest `hold`, in milliseconds.
const HOLD_MS: std::ops::RangeInclusive<u64> = 300..=HOLD_MAX_MS;
/// The longest `hold`, in milliseconds.
pub const HOLD_MAX_MS: u64 = 5000;
/// Largest weight of a relay.
const WEIGHT_MAX: u32 = 10_000;

/// Why a key or a value in etcd is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("etcd key {key:?} {problem}")]
pub struct Error {
    /// The key's text.
    pub key: String,
    /// What is wrong with it or with its value.
    pub problem: String,
}

impl Error {
    pub(super) fn new(key: &str, problem: impl Into<String>) -> Self {
        let key = key.chars().take(200).collect();
        let problem = problem.into();
        Self { key, problem }
    }
}

/// A monitor in a beat: a relay that may fence the beating one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeatMonitor {
    /// Its name.
    pub relay: String,
    /// Its session.
    pub session: SessionNumber,
}

/// `beats/RELAY`: a relay is alive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beat {
    /// Counts the beats of one process.
    pub number: u64,
    /// The process that wrote it: a random number, drawn at its start.
    pub process: u64,
    /// How long it counts, in milliseconds.
    pub hold_ms: u64,
    /// What the relay does without etcd.
    pub policy: OnIsolation,
    /// The relays that may fence it.
    pub monitors: Vec<BeatMonitor>,
}

/// `relays/RELAY`: what a relay publishes of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelayEntry {
    /// Its session; ended if `fenced`.
    pub session: SessionNumber,
    /// The address at which its peers ask it.
    pub peer: SocketAddr,
    /// Interface roles that it has.
    pub roles: BTreeSet<String>,
    /// Its part of the shares, relative to the other relays.
    pub weight: u32,
    /// Version of the program.
    pub version: String,
    /// Generation of the rules that it has applied.
    pub generation: u64,
    /// Shares that it cannot forward now, and why.
    pub unfit: BTreeMap<String, String>,
    /// How many rules it receives, of each share that has been installed for a while.
    #[serde(default)]
    pub heard: BTreeMap<String, u32>,
    /// Whether another relay has ended its session.
    pub fenced: bool,
    /// When that state began, in ms since 1970.
    pub since: u64,
}

impl RelayEntry {
    /// The entry of a relay of which only the session is known, and since when.
    pub(crate) fn unknown(session: SessionNumber, since: u64) -> Self {
        Self {
            session,
            peer: SocketAddr::from(([0; 4], 0)),
            roles: BTreeSet::new(),
            weight: 0,
            version: String::new(),
            generation: 0,
            unfit: BTreeMap::new(),
            heard: BTreeMap::new(),
            fenced: false,
            since,
        }
    }

    /// Whether the relay has left, or nothing but its ended session is known any more.
    pub(crate) fn has_left(&self) -> bool {
        self.fenced && self.peer.port() == 0
    }

    /// The reason in `unfit` by which a relay reports that it does not hold a share whose key is invalid
    /// since that revision.
    pub(crate) fn not_held(revision: u64) -> String {
        format!("cannot read who holds it, and does not since revision {revision}")
    }

    /// Whether both lead to the same plan.
    pub(crate) fn plans_alike(&self, other: &Self) -> bool {
        (self.session, self.fenced, self.weight) == (other.session, other.fenced, other.weight)
            && self.roles == other.roles
            && self.unfit == other.unfit
            && self.heard == other.heard
    }
}

/// `shares/SHARE`: the holder of a share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareEntry {
    /// The holder.
    pub relay: String,
    /// Its session: a holder whose session has ended holds nothing.
    pub session: SessionNumber,
    /// Since when, in ms since 1970.
    pub at: u64,
    /// Why it changed hands.
    pub why: String,
}

/// `drained/RELAY`: the relay is to take no shares and to give its own away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drained {
    /// Since when, in ms since 1970.
    pub at: u64,
}

/// `moves/SHARE`: where an operator wants a share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Move {
    /// The relay.
    pub relay: String,
    /// Since when, in ms since 1970.
    pub at: u64,
}

/// `rules/current`: the rule set in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Current {
    /// Counts the rule sets, from 1.
    pub generation: u64,
    /// SHA-256 of its text, 64 hexadecimal digits.
    pub hash: String,
    /// Number of chunks under `blobs/HASH/`.
    pub chunks: u16,
    /// Number of rules.
    pub rules: u32,
    /// Since when, in ms since 1970.
    pub at: u64,
    /// Who applied it.
    pub by: String,
}

/// `settings`: settings common to all relays of the fleet.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FleetSettings {
    /// Key of the messages between peers: 64 hexadecimal digits.
    pub secret: String,
}

impl std::fmt::Debug for FleetSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FleetSettings").finish_non_exhaustive()
    }
}

/// A value of a key: JSON that is checked when it is read.
pub trait Value: Serialize + DeserializeOwned {
    /// Checks what the types do not.
    ///
    /// # Errors
    ///
    /// What is wrong, and with which field.
    fn check(&self) -> Result<(), String>;

    /// Reads a value.
    ///
    /// # Errors
    ///
    /// [`Error`] names `key` and what is wrong with its value.
    fn read(key: &str, bytes: &[u8]) -> Result<Self, Error> {
        let refused = |problem: String| Error::new(key, format!("has a bad value: {problem}"));
        if bytes.len() > VALUE_MAX {
            let len = bytes.len();
            return Err(refused(format!("{len} bytes, more than {VALUE_MAX}")));
        }
        let value: Self = serde_json::from_slice(bytes).map_err(|e| refused(e.to_string()))?;
        value.check().map_err(refused)?;
        Ok(value)
    }

    /// Writes the value as it is stored in etcd.
    fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("maps have text keys and writing to memory cannot fail")
    }
}

impl Value for Beat {
    fn check(&self) -> Result<(), String> {
        if !HOLD_MS.contains(&self.hold_ms) {
            return Err(format!("hold_ms {} is not 300 to 5000", self.hold_ms));
        }
        at_most("monitors", self.monitors.len(), LIST_MAX)?;
        let mut names = BTreeSet::new();
        for monitor in &self.monitors {
            name("monitors", &monitor.relay)?;
            if !names.insert(&monitor.relay) {
                return Err(format!("monitors has {} twice", monitor.relay));
            }
        }
        Ok(())
    }
}

impl Value for RelayEntry {
    fn check(&self) -> Result<(), String> {
        at_most("roles", self.roles.len(), LIST_MAX)?;
        self.roles.iter().try_for_each(|role| name("roles", role))?;
        if self.weight > WEIGHT_MAX {
            return Err(format!("weight {} is above {WEIGHT_MAX}", self.weight));
        }
        text("version", &self.version)?;
        at_most("unfit", self.unfit.len(), UNFIT_MAX)?;
        for (share, reason) in &self.unfit {
            name("unfit", share)?;
            text("unfit", reason)?;
        }
        at_most("heard", self.heard.len(), UNFIT_MAX)?;
        self.heard
            .keys()
            .try_for_each(|share| name("heard", share))?;
        Ok(())
    }
}

impl Value for ShareEntry {
    fn check(&self) -> Result<(), String> {
        name("relay", &self.relay)?;
        text("why", &self.why)
    }
}

impl Value for Drained {
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

impl Value for Move {
    fn check(&self) -> Result<(), String> {
        name("relay", &self.relay)
    }
}

impl Current {
    /// The author of rules that are applied at a relay, shortened to fit.
    pub(crate) fn author(who: Option<&str>, relay: &str) -> String {
        let Some(who) = who else {
            return relay.to_owned();
        };
        let end = format!(" at {relay}");
        let mut who: String = who.chars().filter(|letter| !letter.is_control()).collect();
        while who.len() + end.len() > TEXT_MAX {
            who.pop();
        }
        who + &end
    }
}

impl Value for Current {
    fn check(&self) -> Result<(), String> {
        if self.generation == 0 {
            return Err("generation is 0, they count from 1".to_owned());
        }
        hash("hash", &self.hash)?;
        if usize::from(self.chunks) > CHUNKS_MAX {
            return Err(format!("chunks {} is above {CHUNKS_MAX}", self.chunks));
        }
        text("by", &self.by)
    }
}

impl Value for FleetSettings {
    fn check(&self) -> Result<(), String> {
        if is_hash(&self.secret) {
            return Ok(());
        }
        Err("secret is not 64 hexadecimal digits".to_owned())
    }
}

/// Whether `text` is 32 bytes as lower-case hexadecimal digits.
pub(super) fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn hash(field: &str, value: &str) -> Result<(), String> {
    if is_hash(value) {
        return Ok(());
    }
    Err(format!("{field} is not 64 hexadecimal digits"))
}

fn name(field: &str, value: &str) -> Result<(), String> {
    if is_name(value) {
        return Ok(());
    }
    let start: String = value.chars().take(64).collect();
    Err(format!("{field}: {start:?} is not a name"))
}

fn text(field: &str, value: &str) -> Result<(), String> {
    at_most(field, value.len(), TEXT_MAX)?;
    if value.chars().any(char::is_control) {
        return Err(format!("{field} has control characters"));
    }
    Ok(())
}

fn at_most(field: &str, len: usize, most: usize) -> Result<(), String> {
    if len <= most {
        return Ok(());
    }
    Err(format!("{field} is {len} long, more than {most}"))
}
