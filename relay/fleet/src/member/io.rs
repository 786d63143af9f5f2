//! What goes into a member and what comes out of it: the whole of its driver's contract.
//!
//! The driver carries commands out in their order. A [`Command::Gate`] is in the data plane before
//! the next command begins: a transaction that gives a share away follows the gate that it rests on.
//! It never sends a transaction again by itself, and answers each exactly once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::keys::SessionNumber;
use crate::member::event::FleetEvent;

/// Names a transaction among those of one process.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Deserialize, serde::Serialize,
)]
pub struct TxnId(pub u64);

/// A key with its value, as etcd tells it.
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
    /// Whether it must be `revision`, or must not.
    pub equal: bool,
    /// The revision.
    pub revision: u64,
}

/// A transaction: if all of `compares` hold, `puts` and `deletes`, else nothing but `reads`.
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

/// What became of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub enum Outcome {
    /// It is committed.
    Applied {
        /// At this revision.
        revision: u64,
    },
    /// A condition did not hold: nothing was changed, nor will be by it.
    Refused {
        /// Revision of the answer.
        revision: u64,
        /// What `reads` found; a key that is not there is missing.
        found: Vec<KeyValue>,
    },
    /// No answer, or an error that does not exclude that it was or will be committed.
    Unknown,
    /// It never left this host, nor will.
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
    /// The session of the asked that the asking one's beat lists.
    pub to_session: SessionNumber,
    /// For how long the promise is to hold, in milliseconds.
    pub hold_ms: u64,
    /// Names the question; comes back with the answer. Grows within a session.
    pub nonce: u64,
}

/// A monitor's promise. There is no answer that says no.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Answer {
    /// Who promises.
    pub from: String,
    /// Its session.
    pub session: SessionNumber,
    /// Who had asked.
    pub to: String,
    /// The question's number.
    pub nonce: u64,
}

/// What a member is given. Each comes with the time of its handling.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub enum Input {
    /// All watched keys, as they stood at `revision`, and this relay's own beat key: after the
    /// start, and whenever the watch cannot go on where it broke.
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
    /// The watch broke; it goes on, or [`Input::Listed`] follows.
    WatchLost,
    /// The beat key of a relay that [`Command::WatchBeat`] named, at first and at every change.
    BeatSeen {
        /// Whose.
        relay: String,
        /// Revision at which it was so.
        revision: u64,
        /// The key; `None` if there is none.
        beat: Option<KeyValue>,
    },
    /// What became of a transaction.
    Answered {
        /// Which.
        id: TxnId,
        /// When its first byte was handed to the network (this host's clock, ns), or earlier; the
        /// time of the call where it was not sent.
        sent_ns: u64,
        /// What became of it.
        outcome: Outcome,
    },
    /// A peer's question, its authenticity verified.
    Question(Question),
    /// A peer's answer, its authenticity verified.
    Answer(Answer),
    /// What the data plane has of the shares that the newest [`Command::Install`] named.
    Installed {
        /// Compiled and joined.
        shares: BTreeSet<String>,
        /// Not possible, and why.
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
    /// Where others reach this relay.
    Own(SocketAddr),
    /// An operator (or a signal) wants this relay to give everything away and go:
    /// [`FleetEvent::Left`] tells when.
    Leave,
    /// The data plane is alive.
    Alive,
    /// Whether a connection to etcd stands; for the status only.
    EtcdReachable(bool),
    /// Time has passed; at least every 20 ms.
    Tick,
    /// Somebody set the calendar: [`Config::boot_unix_ms`](super::Config::boot_unix_ms) of now.
    Calendar(u64),
}

/// How well a host serves the shares that are installed there. A share of which nothing has come yet
/// is neither fit nor unfit.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Fitness {
    /// Shares that it could not serve, and why: an output is down, an input is not joined.
    pub down: BTreeMap<String, String>,
    /// Shares of which something came that comes no more, and what.
    pub silent: BTreeMap<String, String>,
    /// How many rules of each share it receives; not of those that were installed just now.
    pub heard: BTreeMap<String, u32>,
}

/// What a member wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Carry out a transaction.
    Txn {
        /// Names it in the answer.
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
    /// Watch it no more.
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
    /// Keep the session for a restart within this boot; `None`: forget it.
    SaveSession(Option<Session>),
    /// Tell people.
    Event(FleetEvent),
}

/// A session as it is kept for a restart.
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

/// What a former process of this relay left.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Adopted {
    /// Its session.
    pub session: Session,
    /// The gates as they stand in the data plane (ns); those that are missing are shut.
    pub gates: BTreeMap<String, u64>,
}
