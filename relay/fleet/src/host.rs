//! What a fleet needs of the daemon that it runs in; the daemon gives it, the driver asks.

use std::collections::BTreeMap;
use std::pin::Pin;

use api::reply::FleetCounters;
use rules::document::RuleDocument;

pub use crate::member::Fitness;

/// An answer that takes a while.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A daemon, as far as a fleet needs it.
pub trait Host: Send + Sync + 'static {
    /// Makes exactly these the fleet's rules on this host, with this host's interfaces: compiled and
    /// joined, shut until their gates open. Each has its `share` set. Returns for every share that
    /// could not be, why; the others are installed all the same. They are another set that `by` applied,
    /// where that is known.
    ///
    /// # Errors
    ///
    /// Why none could be, in one sentence; what was installed before is installed still.
    fn install(
        &self,
        rules: Vec<RuleDocument>,
        by: Option<String>,
    ) -> BoxFuture<'_, Result<BTreeMap<String, String>, String>>;

    /// Lets a share forward until then, in nanoseconds of `CLOCK_BOOTTIME`; 0 shuts it. Counts at
    /// once and on both paths, and is cheap. A share that is not installed stays shut.
    fn set_gate(&self, share: &str, until_ns: u64);

    /// How well this host serves the fleet's rules that are installed. Follows the daemon's samples.
    fn fitness(&self) -> Fitness;

    /// What this host's rules of the fleet counted since the daemon began to, summed by share.
    fn counters(&self) -> BoxFuture<'_, BTreeMap<String, FleetCounters>>;

    /// Resolves when the dataplane's thread has answered: it was alive after the call.
    fn alive(&self) -> BoxFuture<'_, ()>;

    /// Puts an event into the daemon's log of events.
    fn tell(&self, event: Event);
}

/// Something that happened to a relay of a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// This relay forwards a share from now on.
    ShareOpened {
        /// The share.
        share: String,
        /// Why now, in a few words.
        why: String,
    },
    /// This relay forwards a share no more.
    ShareShut {
        /// The share.
        share: String,
        /// Why, in a few words.
        why: String,
    },
    /// A relay was silent and was fenced: nothing it does counts until it begins anew.
    RelayFenced {
        /// The relay that was fenced.
        relay: String,
        /// Who did it and why, in a few words.
        why: String,
    },
    /// No etcd answers.
    EtcdAway {
        /// What the last attempt said.
        why: String,
    },
    /// etcd answers again.
    EtcdBack,
    /// Rules of the fleet are installed here.
    RulesApplied {
        /// Their generation.
        generation: u64,
        /// How many rules there are in the whole fleet.
        rules: usize,
    },
    /// Rules of the fleet, or what else stands in etcd, cannot be used.
    RulesRefused {
        /// The key or the share that it is about.
        what: String,
        /// What is wrong with it.
        why: String,
    },
}
