//! The inputs and the commands of a member: the whole contract with its driver.
//!
//! The driver carries commands out in their order. A [`Command::Gate`] is in the data plane before
//! the next command begins: a transaction that gives a share away follows the gate that it depends on.
//! The driver never sends a transaction again by itself, and answers each exactly once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::keys::SessionNumber;
use crate::member::event::FleetEvent;

/// Names a transaction among those of one process.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Deserialize, serde::Serialize,
)]
pub struct TxnId(pub u64);

/// A key with its value, as reported by etcd.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct KeyValue {
    /// The key's text.
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
    /// Revision of the key's creation.
    pub created: u64,
    /// Revision of its last change.
    pub modified: u64,
}

/// A change of a watched key.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub enum Change {
    /// It was written.
    Put(KeyValue),
    /// It was deleted.
    Deleted {
        /// The key's text.
        key: String,
        /// Revision of the deletion.
        revision: u64,
    },
}

/// Which revision of a key a comparison is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub enum Target {
    /// Of its creation; 0 where there is no such key.
    Created,
    /// Of its last change; 0 where there is no such key.
    Modified,
}

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Compare {
    /// The key's text.
    pub key: String,
    /// Which of its revisions.
    pub target: Target,
    /// Whether the two must be equal, or must differ.
    pub equal: bool,
    /// The revision.
    pub revision: u64,
}

/// A transaction: `puts` and `deletes` if all of `compares` hold, else only `reads`.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Txn {
    /// Conditions.
    pub compares: Vec<Compare>,
    /// Keys to write, with their values.
    pub puts: Vec<(String, Vec<u8>)>,
    /// Keys to delete.
    pub deletes: Vec<String>,
    /// Keys to read where a condition does not hold.
    pub reads: Vec<String>,
}

/// The outcome of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub enum Outcome {
    /// It is committed.
    Applied {
        /// At this revision.
        revision: u64,
    },
    /// A condition did not hold: it changed nothing, and never will.
    Refused {
        /// Revision of the answer.
        revision: u64,
        /// The keys of `reads`, without those that do not exist.
        found: Vec<KeyValue>,
    },
    /// No answer, or an error after which it may have been committed, or may still be.
    Unknown,
    /// It never left this host, and never will.
    NotSent,
}

/// A question to a monitor: "do you promise not to fence me for `hold_ms`?"
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Question {
    /// Who asks.
    pub from: String,
    /// Its session.
    pub session: SessionNumber,
    /// Who is asked.
    pub to: String,
    /// The session of the asked relay, as listed in the asking relay's beat.
    pub to_session: SessionNumber,
    /// For how long the promise is to hold, in milliseconds.
    pub hold_ms: u64,
    /// Identifies the question, and is returned with the answer. Grows within a session.
    pub nonce: u64,
}

/// A monitor's promise. There is no negative answer.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Answer {
    /// Who promises.
    pub from: String,
    /// Its session.
    pub session: SessionNumber,
    /// Who asked.
    pub to: String,
    /// The question's number.
    pub nonce: u64,
}

/// An input of a member. Each comes with the time of its handling.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub enum Input {
    /// All watched keys as of `revision`, and this relay's own beat key: after the start, and whenever
    /// the watch cannot resume where it broke.
    Listed {
        /// The cluster's identity.
        cluster: u64,
        /// Revision of the answer.
        revision: u64,
        /// The keys.
        keys: Vec<KeyValue>,
    },
    /// Changes of watched keys, each once and in the order of their revisions.
    Changed {
        /// Revision of the last.
        revision: u64,
        /// The changes.
        changes: Vec<Change>,
    },
    /// The watch broke; it resumes, or [`Input::Listed`] follows.
    WatchLost,
    /// The beat key of a relay that [`Command::WatchBeat`] named, first as it is and then at every change.
    BeatSeen {
        /// Whose.
        relay: String,
        /// Revision of this state.
        revision: u64,
        /// The key; `None` if there is none.
        beat: Option<KeyValue>,
    },
    /// The outcome of a transaction.
    Answered {
        /// Which.
        id: TxnId,
        /// When its first byte was handed to the network (this host's clock, ns), or earlier; the
        /// time of the call where it was not sent.
        sent_ns: u64,
        /// Its outcome.
        outcome: Outcome,
    },
    /// A peer's question, its authenticity verified.
    Question(Question),
    /// A peer's answer, its authenticity verified.
    Answer(Answer),
    /// The state in the data plane of the shares that the newest [`Command::Install`] named.
    Installed {
        /// Compiled and joined.
        shares: BTreeSet<String>,
        /// Not installable, and why.
        failed: BTreeMap<String, String>,
    },
    /// This relay has read the rules of a generation.
    Rules {
        /// Which.
        generation: u64,
        /// Its shares, and the roles that each needs.
        shares: BTreeMap<String, BTreeSet<String>>,
    },
    /// How well this host serves the shares that are installed: the whole of it.
    Fitness(Fitness),
    /// The address at which others reach this relay.
    Own(SocketAddr),
    /// An operator (or a signal) wants this relay to give everything away and leave:
    /// [`FleetEvent::Left`] reports when it has.
    Leave,
    /// The data plane is alive.
    Alive,
    /// Whether a connection to etcd stands; for the status only.
    EtcdReachable(bool),
    /// Time has passed; at least every 20 ms.
    Tick,
    /// The calendar was set: the new [`Config::boot_unix_ms`](super::Config::boot_unix_ms).
    Calendar(u64),
}

/// How well a host serves the shares that are installed there. A share of which nothing has been received
/// yet is neither fit nor unfit.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Fitness {
    /// Shares that it could not serve, and why: an output is down, an input is not joined.
    pub down: BTreeMap<String, String>,
    /// Shares with inputs that were received and are not any more, and which.
    pub silent: BTreeMap<String, String>,
    /// How many rules of each share it receives; without shares that were installed only recently.
    pub heard: BTreeMap<String, u32>,
    /// How many of these are silent for no longer than they paused before: they count as received, but whether
    /// their source has ended is not known yet.
    pub pausing: BTreeMap<String, u32>,
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Carry out a transaction.
    Txn {
        /// Identifies it in the answer.
        id: TxnId,
        /// The transaction.
        txn: Txn,
        /// After this time (ns) nobody waits for the answer any more: answer
        /// [`Outcome::Unknown`], or [`Outcome::NotSent`] if it has not been sent.
        give_up_ns: u64,
    },
    /// Watch a relay's beat key.
    WatchBeat {
        /// Whose.
        relay: String,
    },
    /// Stop watching it.
    UnwatchBeat {
        /// Whose.
        relay: String,
    },
    /// Read all watched keys again: [`Input::Listed`] follows. Watches begin anew.
    ListAgain,
    /// Ask a monitor.
    Ask {
        /// Where.
        peer: SocketAddr,
        /// What.
        question: Question,
    },
    /// Answer a peer, at the address that asked.
    Answer(Answer),
    /// Let the rules of a share pass packets while now < `until` (ns); 0 shuts, `u64::MAX` stays.
    Gate {
        /// Which.
        share: String,
        /// The deadline.
        until: u64,
    },
    /// Have the rules of these shares compiled and joined, and no other shares'.
    Install {
        /// Which.
        shares: BTreeSet<String>,
    },
    /// Save the session for a restart within this boot; `None`: remove it.
    SaveSession(Option<Session>),
    /// Report an event.
    Event(FleetEvent),
}

/// A session as saved for a restart.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Session {
    /// The fleet.
    pub fleet: String,
    /// The relay.
    pub relay: String,
    /// The session.
    pub session: SessionNumber,
    /// The cluster's identity.
    pub cluster: u64,
}

/// The state that a former process of this relay left behind.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Adopted {
    /// Its session.
    pub session: Session,
    /// The gates as they stand in the data plane (ns); those that are missing are shut.
    pub gates: BTreeMap<String, u64>,
}
