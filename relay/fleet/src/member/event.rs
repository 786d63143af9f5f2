//! What a member reports to people.

use serde::Serialize;

use crate::keys::SessionNumber;

/// Something that happened in the fleet, as seen by this relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum FleetEvent {
    /// This relay has a session and takes part.
    Joined {
        /// Which.
        session: SessionNumber,
    },
    /// Another relay ended this relay's session: all its gates are shut.
    Fenced,
    /// This relay has left, as it was asked to.
    Left,
    /// Another relay's session was ended.
    RelayFenced {
        /// Whose.
        relay: String,
    },
    /// This relay begins to forward a share.
    ShareOpened {
        /// Which.
        share: String,
    },
    /// This relay no longer forwards a share.
    ShareShut {
        /// Which.
        share: String,
        /// Why.
        why: String,
    },
    /// No other relay has the roles that a share needs.
    Sole {
        /// Which.
        share: String,
    },
    /// etcd has acknowledged no beat for as long as a beat counts.
    EtcdAway,
    /// It answers again.
    EtcdBack,
    /// etcd holds an invalid key or value, which was ignored.
    Refused {
        /// The key.
        key: String,
        /// What is wrong.
        problem: String,
    },
    /// `rules/current` was deleted; the rules stay as they are.
    RulesMissing,
    /// etcd went back in time, or is another cluster: a backup was restored. All gates are shut
    /// for `hold`.
    Restored,
    /// Another process has this relay's name.
    NameTaken,
}
