//! Who changed what, when and why.

use std::fmt;

use rules::document::RuleDocument;
use rules::named::named;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Change, RuleChange};

/// The most bytes of a difference that the log of changes retains.
const WHAT_MAX: usize = 64 << 10;

named! {
    /// What kind of author a change has.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "lowercase")]
    pub enum Via {
        /// Somebody at the control socket, or of another host.
        #[default]
        Client = "client",
        /// Somebody who had the configuration read again, by the socket or by SIGHUP.
        Reload = "reload",
        /// The fleet, of that name.
        Fleet = "fleet",
        /// An interface of the host, of that name.
        Link = "link",
        /// A name that stands for another address now.
        Name = "name",
        /// The daemon at its start.
        Start = "start",
        /// The daemon, which undoes what nobody confirmed, and ends joins whose time is over.
        Time = "time",
    }
}

/// Who made a change.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct By {
    /// What kind of author.
    pub via: Via,
    /// The user's name, where the host knows one; who applied the fleet's rules, and at which relay.
    pub user: Option<String>,
    /// The user's number.
    pub uid: Option<u32>,
    /// The process.
    pub pid: Option<i32>,
    /// The process's name, where the daemon may see it.
    pub process: Option<String>,
    /// Name of the fleet, the interface, what was looked up, or the client of another host.
    pub name: Option<String>,
}

impl By {
    /// An author that is not a process.
    pub fn of(via: Via, name: Option<String>) -> Self {
        Self {
            via,
            name,
            ..Self::default()
        }
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uid = self.uid.map(|uid| format!("uid {uid}"));
        let pid = self.pid.map(|pid| match &self.process {
            Some(process) => format!("{process}, pid {pid}"),
            None => format!("pid {pid}"),
        });
        let who = self.user.clone().or_else(|| uid.clone());
        let details = [uid.filter(|_| self.user.is_some()), pid];
        let details: Vec<String> = details.into_iter().flatten().collect();
        let suffix = if details.is_empty() {
            String::new()
        } else {
            format!(" ({})", details.join(", "))
        };
        let via = self.via.as_str();
        let process = who.map(|who| who + &suffix);
        match process.or_else(|| self.name.clone()) {
            who if self.via == Via::Client => f.write_str(who.as_deref().unwrap_or("somebody")),
            Some(who) if self.via == Via::Reload => write!(f, "{via} by {who}"),
            Some(who) if self.via == Via::Fleet && self.user.is_some() => {
                let fleet = self.name.as_deref().unwrap_or_default();
                write!(f, "{via} {fleet} by {who}")
            }
            Some(name) => write!(f, "{via} {name}"),
            None => f.write_str(via),
        }
    }
}

named! {
    /// What became of a change that was made to be confirmed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "lowercase")]
    pub enum Outcome {
        /// Nobody has confirmed it yet.
        Pending = "pending",
        /// Somebody has.
        Confirmed = "confirmed",
        /// It was undone.
        Undone = "undone",
    }
}

/// A change that undoes itself unless somebody confirms it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PendingChange {
    /// Generation of the rules after it.
    pub generation: u64,
    /// Who made it.
    pub by: By,
    /// Why, as they said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When it undoes itself, in seconds since the epoch; whoever sets the clock changes nothing about it.
    pub until: u64,
    /// In how many seconds.
    pub seconds: u64,
}

impl PendingChange {
    /// How long it waits, as it is shown.
    pub fn countdown(&self) -> String {
        format!("{} s to confirm", self.seconds)
    }
}

/// A change, as the log of changes and the generations know it.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangeRecord {
    /// Milliseconds since the epoch.
    pub at_ms: u64,
    /// Who made it.
    pub by: By,
    /// Why, as whoever made it said.
    pub message: Option<String>,
    /// Generation of the rules before it.
    pub before: u64,
    /// Generation of the rules after it.
    pub generation: u64,
    /// How many rules there were then.
    pub rules: usize,
    /// What it changed, as `mcr diff` prints it: at most 64 KiB.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
    /// How many more lines it would be.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: usize,
    /// What became of it, if it was made to be confirmed.
    pub outcome: Option<Outcome>,
    /// The generation that a confirmation or an undoing is about.
    pub of: Option<u64>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands over a reference"
)]
const fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl ChangeRecord {
    /// Adds what a change did, as far as there is room.
    #[must_use]
    pub fn with(mut self, change: &Change) -> Self {
        self.generation = change.generation;
        for line in change.lines() {
            if self.left_out == 0 && self.what.len() + line.len() < WHAT_MAX {
                self.what.push_str(&line);
                self.what.push('\n');
            } else {
                self.left_out += 1;
            }
        }
        self
    }
}

impl Change {
    /// Returns whether anything changed.
    pub fn differs(&self) -> bool {
        self.lines().next().is_some()
    }

    /// How many rules and settings changed.
    pub const fn count(&self) -> usize {
        self.added.len() + self.removed.len() + self.changed.len() + self.settings.len()
    }

    /// What it changed, line by line, as `mcr diff` prints it.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let marked = |mark: &'static str, names: &'_ [String]| {
            let lines = names.iter().map(|name| format!("{mark} {name}"));
            lines.collect::<Vec<String>>()
        };
        // Both are in the order of the rules, and every changed rule may have a difference.
        let mut differences = self.differences.iter().peekable();
        let changed = self.changed.iter().flat_map(move |name| {
            let mut lines = vec![format!("~ {name}")];
            if let Some(RuleChange { removed, added, .. }) =
                differences.next_if(|one| one.rule == *name)
            {
                lines.extend(marked("    -", removed));
                lines.extend(marked("    +", added));
            }
            lines
        });
        let one = |mark: &'static str, names: &'_ [String]| marked(mark, names).into_iter();
        one("-", &self.removed)
            .chain(one("+", &self.added))
            .chain(changed)
            .chain(one("~", &self.settings))
    }
}

/// Rules that were read of a text, or of a form, and what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RulesRead {
    /// The rules; none where anything is wrong.
    pub rules: Vec<RuleDocument>,
    /// The same as TOML; of what is wrong as it was given.
    pub toml: String,
    /// What is wrong; of an import what was not taken over.
    pub problems: Vec<TextProblem>,
}

/// Something in a text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TextProblem {
    /// Its line, from 1; 0 where it has none.
    pub line: usize,
    /// The rule, from 0, and its key there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<usize>,
    /// The key of the rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What is wrong and what to do.
    pub message: String,
}

/// Where a rule would run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RulePlacement {
    /// Name of the rule.
    pub rule: String,
    /// `kernel` or `userspace`; `none` where neither serves it.
    pub path: String,
    /// Why there.
    pub reason: String,
}
