//! Requested changes of the rules, and why they may be refused.

use api::request::{RuleList, Transaction};
use config::Settings;
use rules::problem::Problems;
use rules::ruleset::ChangeError;

/// A requested change.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    /// Remove and add rules.
    Change(Transaction),
    /// Replace the rules, and the settings too if they are given.
    Replace(Box<RuleList>),
}

impl Request {
    /// Keeps the settings that only files of this host may change; returns warnings of what that ignores.
    pub(crate) fn retain_local(&mut self, own: &Settings) -> Vec<String> {
        let settings = match self {
            Self::Replace(list) => list.settings.as_mut(),
            Self::Change(_) => None,
        };
        settings.map_or_else(Vec::new, |settings| settings.retain_local(own))
    }
}

/// Why a change is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// The rules, or their names.
    #[error(transparent)]
    Rules(#[from] ChangeError),
    /// A rule of the fleet, which cannot be changed on one host.
    #[error(
        "rule {0:?} is the fleet's, and the same on all relays: change it in the fleet's file and \
         give that to `mcr fleet apply`; the rules stay as they were"
    )]
    OfFleet(String),
    /// A rule of this host that names a share of a fleet.
    #[error(
        "rule {0:?}: only rules of a fleet have a share; take it out, or give the rules to `mcr \
         fleet apply`"
    )]
    Share(String),
    /// The rules were changed in between.
    #[error(
        "the rules are of generation {running}, not {asked}: {who} changed them in between; \
         read them again and repeat the change"
    )]
    Conflict {
        running: u64,
        asked: u64,
        who: String,
    },
    /// Another change is to be confirmed first.
    #[error(
        "a change by {by} waits {seconds} s more to be confirmed: `mcr confirm` has it stay, `mcr rollback \
         --last` takes it back; nothing was changed"
    )]
    Pending { by: String, seconds: u64 },
    /// No change waits to be confirmed.
    #[error("no change waits to be confirmed")]
    NothingPending,
    /// A group that is not joined statically.
    #[error(
        "{0} is not joined by `mcr join`: `mcr join` without a group lists what is; nothing was changed"
    )]
    NotJoined(String),
    /// More than a limit of the daemon.
    #[error(
        "{asked} {what}, of at most {most}: take out what nobody uses, or start the daemon with a \
         larger {option}; the rules stay as they were"
    )]
    TooMany {
        what: &'static str,
        asked: usize,
        most: usize,
        option: &'static str,
    },
    /// The host could not execute it; the rules stay as they were.
    #[error("{0}; the rules stay as they were")]
    Unavailable(String),
}

impl Refused {
    /// Refuses a request for rules of another generation than the running ones.
    pub(crate) fn insist(running: u64, asked: Option<u64>) -> Result<(), Self> {
        match asked.filter(|asked| *asked != running) {
            None => Ok(()),
            Some(asked) => Err(Self::Conflict {
                running,
                asked,
                who: "somebody".to_owned(),
            }),
        }
    }
}

impl From<Problems> for Refused {
    fn from(problems: Problems) -> Self {
        Self::Rules(problems.into())
    }
}
