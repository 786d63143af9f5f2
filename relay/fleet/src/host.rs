//! The services that a fleet needs from the daemon that it runs in.

use std::collections::BTreeMap;
use std::pin::Pin;

use api::reply::FleetCounters;
use rules::document::RuleDocument;

pub use crate::member::Fitness;

/// A boxed future that may be sent to another thread.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A daemon, as far as a fleet needs it.
pub trait Host: Send + Sync + 'static {
    /// Makes exactly these the fleet's rules on this host, with this host's interfaces: compiled and
    /// joined, shut until their gates open. Each has its `share` set. Returns the shares that could not be
    /// installed, with the reasons; the others are installed all the same. `by` is who applied the rules,
    /// if they are a new set and that is known.
    ///
    /// # Errors
    ///
    /// Why none could be installed, in one sentence; the previous rules stay installed.
    fn install(
        &self,
        rules: Vec<RuleDocument>,
        by: Option<String>,
    ) -> BoxFuture<'_, Result<BTreeMap<String, String>, String>>;

    /// Lets a share forward until then, in nanoseconds of `CLOCK_BOOTTIME`; 0 shuts it. Takes effect
    /// immediately on both paths, and is cheap. A share that is not installed stays shut.
    fn set_gate(&self, share: &str, until_ns: u64);

    /// How well this host serves the fleet's installed rules, as of the daemon's last sample.
    fn fitness(&self) -> Fitness;

    /// The counters of the fleet's rules on this host since the daemon began to count, summed by share.
    fn counters(&self) -> BoxFuture<'_, BTreeMap<String, FleetCounters>>;

    /// Resolves when the dataplane's thread has answered, so was alive after the call.
    fn alive(&self) -> BoxFuture<'_, ()>;

    /// Adds an event to the daemon's event log.
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
    /// This relay no longer forwards a share.
    ShareShut {
        /// The share.
        share: String,
        /// Why, in a few words.
        why: String,
    },
    /// A relay was silent and was fenced: it forwards nothing until it has a new session.
    RelayFenced {
        /// The relay that was fenced.
        relay: String,
        /// By whom and why, in a few words.
        why: String,
    },
    /// No etcd answers.
    EtcdAway {
        /// The reason of the last attempt's failure.
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
    /// Rules of the fleet, or other values in etcd, cannot be used.
    RulesRefused {
        /// The key or the share concerned.
        what: String,
        /// What is wrong with it.
        why: String,
    },
}
