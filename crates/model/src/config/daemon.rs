//! How a daemon is started: what the `[daemon]` table of a configuration says, and in the same
//! words what a command line says, which comes first. What is not said is the default's to say.
//!
//! A running daemon keeps what it was started with, except the permission of link-local inputs.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::document::{Scalar, some_path};
use crate::placement::PathChoice;

/// The most rules that clients may bring about, where nobody says another number.
pub const MAX_RULES: u32 = 20_000;

/// The most memberships that clients may bring about, where nobody says another number: one for
/// each of the rules.
pub const MAX_MEMBERSHIPS: u32 = MAX_RULES;

/// What there may be of workers.
const WORKERS: RangeInclusive<u16> = 1..=1024;

/// How a daemon is started; `mcr run` has options of the same names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DaemonSettings {
    /// Address and port, as in `127.0.0.1:9469`, that serve the page, metrics and health, read
    /// only; by default none does.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_listen"
    )]
    #[schema(value_type = Option<String>)]
    pub listen: Option<SocketAddr>,
    /// Names, as in `["relay1.example"]`, that whoever asks there may know the host by, besides its
    /// addresses, `localhost` and its own name; requests under another name are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen_names: Option<Vec<String>>,
    /// Path of rules that do not choose one themselves: `auto` (the default), `kernel` or
    /// `userspace`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_path"
    )]
    pub path: Option<PathChoice>,
    /// Workers of the userspace path, 1 to 1024; by default one per core it may use.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_workers"
    )]
    #[schema(minimum = 1, maximum = 1024)]
    pub workers: Option<u16>,
    /// User that workers run as, by name or number; by default the daemon's own.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_worker_user"
    )]
    #[schema(min_length = 1)]
    pub worker_user: Option<String>,
    /// Form of the log: `text`, `json`, `journal`, or `auto` (the default), which is the journal
    /// where standard error goes there and text elsewhere.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_log"
    )]
    pub log: Option<LogForm>,
    /// The most rules that clients may bring about, 20000 by default; the configuration may hold
    /// more.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_max_rules"
    )]
    #[schema(minimum = 1)]
    pub max_rules: Option<u32>,
    /// The most memberships that clients may bring about, one for each group, source and interface,
    /// 20000 by default; the configuration may hold more.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_max_memberships"
    )]
    #[schema(minimum = 1)]
    pub max_memberships: Option<u32>,
    /// Whether the daemon has interfaces of inputs merge packets (`rx-udp-gro-forwarding`) where it
    /// is safe and pays: `auto` (the default), or `off`, and only `gro` of an interface does.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_gro"
    )]
    pub gro: Option<Automatic>,
    /// Whether the daemon lengthens the queue behind virtual links (`net.core.netdev_max_backlog`)
    /// where the copies of a rule would not fit: `auto` (the default), or `off`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_backlog"
    )]
    pub backlog: Option<Automatic>,
    /// What becomes of a change that cannot be written down, because `/run` is full: `refuse` (the
    /// default), or `warn`, and it is carried out though a crash would undo it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_on_full"
    )]
    pub on_full: Option<OnFull>,
    /// Whether 224.0.0.0/24 and ff02::/16 may be inputs, as the key of this name at top level says;
    /// one of them is enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_link_local: Option<bool>,
    /// Whether the kernel path goes on forwarding when the daemon stops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_forwarding: Option<bool>,
}

/// Whether the daemon changes a setting of the host by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Automatic {
    /// Where it is safe and pays.
    #[default]
    Auto,
    /// It is left as it is.
    Off,
}

/// What becomes of a change that cannot be written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnFull {
    /// It is refused: what was answered survives a crash.
    #[default]
    Refuse,
    /// It is carried out, with a warning: a crash would undo it.
    Warn,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogForm {
    /// The journal where standard error goes there, as under systemd; else text.
    #[default]
    Auto,
    /// A line of text for each event.
    Text,
    /// A JSON object for each event.
    Json,
    /// systemd's journal, each field by itself.
    Journal,
}

impl DaemonSettings {
    /// These where they say something, and `below` where they do not.
    #[must_use]
    pub fn over(&self, below: &Self) -> Self {
        Self {
            listen: self.listen.or(below.listen),
            listen_names: { self.listen_names.clone() }.or_else(|| below.listen_names.clone()),
            path: self.path.or(below.path),
            workers: self.workers.or(below.workers),
            worker_user: { self.worker_user.clone() }.or_else(|| below.worker_user.clone()),
            log: self.log.or(below.log),
            max_rules: self.max_rules.or(below.max_rules),
            max_memberships: self.max_memberships.or(below.max_memberships),
            gro: self.gro.or(below.gro),
            backlog: self.backlog.or(below.backlog),
            on_full: self.on_full.or(below.on_full),
            allow_link_local: self.allow_link_local.or(below.allow_link_local),
            keep_forwarding: self.keep_forwarding.or(below.keep_forwarding),
        }
    }

    /// Lists what a daemon that runs with `running` would do otherwise if it were started with
    /// these, each in a few words that say what it does now.
    #[must_use]
    pub fn awaiting_restart(&self, running: &Self) -> Vec<String> {
        let differences = self.differences(running).into_iter();
        let awaiting = differences.filter(|(name, ..)| *name != "allow_link_local");
        awaiting
            .map(|(name, asked, now)| {
                format!(
                    "[daemon] {name}: {asked} takes effect when the daemon is started again; \
                     until then {now}"
                )
            })
            .collect()
    }

    /// Name, what these say and what `other` says, of each that is not the same.
    pub(super) fn differences(&self, other: &Self) -> Vec<(&'static str, String, String)> {
        let both = self.texts().into_iter().zip(other.texts());
        both.filter(|((_, mine), (_, theirs))| mine != theirs)
            .map(|((name, mine), (_, theirs))| (name, mine, theirs))
            .collect()
    }

    /// What each comes to, defaults included.
    fn texts(&self) -> [(&'static str, String); 13] {
        let lowercase = |name: String| name.to_lowercase();
        let or = |text: Option<String>, default: &str| text.unwrap_or_else(|| default.to_owned());
        let listen = self.listen.map(|address| address.to_string());
        let names = self.listen_names.as_ref().map(|names| names.join(", "));
        let workers = self.workers.map(|number| number.to_string());
        let path = format!("{:?}", self.path.unwrap_or_default());
        let log = format!("{:?}", self.log.unwrap_or_default());
        let automatic = |choice: Option<Automatic>| format!("{:?}", choice.unwrap_or_default());
        let on_full = format!("{:?}", self.on_full.unwrap_or_default());
        let yes = |said: Option<bool>| said.unwrap_or_default().to_string();
        [
            ("listen", or(listen, "none")),
            ("listen_names", or(names, "none")),
            ("path", lowercase(path)),
            ("workers", or(workers, "one per core")),
            (
                "worker_user",
                or(self.worker_user.clone(), "the daemon's own"),
            ),
            ("log", lowercase(log)),
            ("max_rules", self.max_rules.unwrap_or(MAX_RULES).to_string()),
            (
                "max_memberships",
                self.max_memberships.unwrap_or(MAX_MEMBERSHIPS).to_string(),
            ),
            ("gro", lowercase(automatic(self.gro))),
            ("backlog", lowercase(automatic(self.backlog))),
            ("on_full", lowercase(on_full)),
            ("allow_link_local", yes(self.allow_link_local)),
            ("keep_forwarding", yes(self.keep_forwarding)),
        ]
    }
}

fn some_listen<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let give = "ADDRESS:PORT, as in 127.0.0.1:9469 or [::1]:9469";
    parsed(deserializer, "listen", give, |_| true)
}

fn some_workers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    let fits = |number: &u16| WORKERS.contains(number);
    parsed(deserializer, "workers", "1 to 1024", fits)
}

fn some_worker_user<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    let give = "the name of a user, or a number";
    parsed(deserializer, "worker_user", give, |name: &String| {
        !name.is_empty()
    })
}

fn some_max_memberships<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u32>, D::Error> {
    parsed(deserializer, "max_memberships", "1 or more", |number| {
        *number > 0
    })
}

fn some_max_rules<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    parsed(deserializer, "max_rules", "1 or more", |number| *number > 0)
}

/// Reads a value by its text, so that what is wrong with it is said in the words of the option.
pub(super) fn parsed<'de, D: Deserializer<'de>, T: FromStr>(
    deserializer: D,
    name: &str,
    give: &str,
    fits: impl Fn(&T) -> bool,
) -> Result<Option<T>, D::Error> {
    let Some(value) = Option::<Scalar>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let text = value.to_string();
    match text.parse().ok().filter(fits) {
        Some(value) => Ok(Some(value)),
        None => Err(D::Error::custom(format!("{name} = {text}: give {give}"))),
    }
}

fn some_on_full<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<OnFull>, D::Error> {
    let Some(value) = Option::<Scalar>::deserialize(deserializer)? else {
        return Ok(None);
    };
    match value.to_string().as_str() {
        "refuse" => Ok(Some(OnFull::Refuse)),
        "warn" => Ok(Some(OnFull::Warn)),
        other => Err(D::Error::custom(format!(
            "on_full = {other:?}: give \"refuse\" or \"warn\""
        ))),
    }
}

fn some_gro<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Automatic>, D::Error> {
    automatic(deserializer, "gro")
}

fn some_backlog<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Automatic>, D::Error> {
    automatic(deserializer, "backlog")
}

fn automatic<'de, D: Deserializer<'de>>(
    deserializer: D,
    name: &str,
) -> Result<Option<Automatic>, D::Error> {
    let Some(value) = Option::<Scalar>::deserialize(deserializer)? else {
        return Ok(None);
    };
    match value.to_string().as_str() {
        "auto" => Ok(Some(Automatic::Auto)),
        "off" | "no" => Ok(Some(Automatic::Off)),
        other => Err(D::Error::custom(format!(
            "{name} = {other:?}: give \"auto\" or \"off\""
        ))),
    }
}

fn some_log<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<LogForm>, D::Error> {
    let Some(value) = Option::<Scalar>::deserialize(deserializer)? else {
        return Ok(None);
    };
    match value.to_string().as_str() {
        "auto" => Ok(Some(LogForm::Auto)),
        "text" => Ok(Some(LogForm::Text)),
        "json" => Ok(Some(LogForm::Json)),
        "journal" => Ok(Some(LogForm::Journal)),
        other => Err(D::Error::custom(format!(
            "log = {other:?}: give \"auto\", \"text\", \"json\" or \"journal\""
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(workers: Option<u16>, keep_forwarding: Option<bool>) -> DaemonSettings {
        DaemonSettings {
            workers,
            keep_forwarding,
            ..DaemonSettings::default()
        }
    }

    #[test]
    fn the_command_line_comes_first_also_where_it_says_no() {
        let file = settings(Some(4), Some(true));
        let over = settings(None, Some(false)).over(&file);
        assert_eq!(over, settings(Some(4), Some(false)));
        assert_eq!(DaemonSettings::default().over(&file), file);
    }

    #[test]
    fn a_default_that_is_written_out_awaits_nothing() {
        let written = DaemonSettings {
            path: Some(PathChoice::Auto),
            log: Some(LogForm::Auto),
            max_rules: Some(MAX_RULES),
            ..settings(None, Some(false))
        };
        let said = written.awaiting_restart(&DaemonSettings::default());
        assert_eq!(said, [""; 0]);
        let other = DaemonSettings {
            allow_link_local: Some(true),
            ..settings(Some(2), None)
        };
        assert_eq!(
            other.awaiting_restart(&settings(None, None)),
            [
                "[daemon] workers: 2 takes effect when the daemon is started again; until then one \
                 per core"
            ]
        );
    }
}
