//! Completions that the shell offers while a command line is typed, such as names of running rules and of
//! interfaces. A daemon that does not answer soon is not waited for.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::iter;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use rules::document::RuleDocument;
use rules::failover::Failover;
use rules::health::Health;
use rules::merge::{ByWord, MergeKeys};
use rules::setting::{Form, Options};

use crate::command::change::key::settable;
use crate::control::Control;
use crate::failure::Failure;
use crate::global::Global;

/// How long a user is made to wait after pressing the key.
const PATIENCE: Duration = Duration::from_secs(1);

/// The daemon that the command line being completed names.
static DAEMON: OnceLock<Global> = OnceLock::new();

/// The words typed so far.
static TYPED: OnceLock<Vec<String>> = OnceLock::new();

/// Remembers the daemon that the words typed so far name by `--socket`, `--instance` or `--host`.
pub(crate) fn remember_daemon(words: &[OsString]) {
    let typed: Vec<String> = words
        .iter()
        .filter_map(|word| word.to_str().map(str::to_owned))
        .collect();
    let environment = std::env::var_os("MCR_SOCKET").map(PathBuf::from);
    let (socket, instance) = (value(&typed, "--socket"), value(&typed, "--instance"));
    let is_local = socket.is_some() || instance.is_some();
    let default_host = std::env::var("MCR_HOST").ok().filter(|_| !is_local);
    let _ = DAEMON.set(Global {
        socket: socket.map(PathBuf::from).or(environment),
        instance: instance.unwrap_or_else(|| "default".to_owned()),
        host: value(&typed, "--host").or(default_host),
        json: false,
    });
    let _ = TYPED.set(typed);
}

/// The value of an option: the next word, or behind a `=`, which bash makes a word of its own.
fn value(typed: &[String], option: &str) -> Option<String> {
    let mut words = typed.iter();
    let rest = words.find_map(|word| {
        let rest = word.strip_prefix(option)?;
        (rest.is_empty() || rest.starts_with('=')).then_some(rest)
    })?;
    match rest.strip_prefix('=') {
        Some(value) => Some(value.to_owned()),
        None => words.find(|word| *word != "=").cloned(),
    }
}

/// Completes the name of a rule.
pub(crate) fn rule() -> ArgValueCompleter {
    offering(rule_names)
}

/// Completes an input or an output of the rule named earlier on the command line.
pub(crate) fn part_of(parts: fn(RuleDocument) -> Vec<String>) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| {
        let is_named = |name: &String| TYPED.get().is_some_and(|typed| typed.contains(name));
        let named = rules().into_iter().filter(|rule| is_named(&rule.name));
        starting_with(current, named.flat_map(parts))
    })
}

/// The inputs of a rule, as it writes them.
pub(crate) fn inputs(rule: RuleDocument) -> Vec<String> {
    rule.input.into_iter().chain(rule.inputs).collect()
}

/// Its outputs.
pub(crate) fn outputs(rule: RuleDocument) -> Vec<String> {
    rule.outputs.iter().map(ToString::to_string).collect()
}

/// Completes a label that rules have, or its key alone.
pub(crate) fn label() -> ArgValueCompleter {
    offering(|| {
        let labels = rules().into_iter().flat_map(|rule| rule.labels);
        let words = labels.flat_map(|(key, value)| [format!("{key}={value}"), key]);
        words.collect::<BTreeSet<String>>().into_iter().collect()
    })
}

/// Completes the interface of a group to join, behind the `%`.
pub(crate) fn group() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let parts = current.to_str().and_then(|text| text.split_once('%'));
        let group = parts.map_or("", |(group, _)| group);
        let interfaces = interfaces().into_iter().filter(|_| !group.is_empty());
        starting_with(current, interfaces.map(|name| format!("{group}%{name}")))
    })
}

/// Completes a group that is joined independently of the rules.
pub(crate) fn joined() -> ArgValueCompleter {
    offering(|| {
        let joins = query(|control| Ok(control.status()?.joins)).unwrap_or_default();
        joins.into_iter().map(|join| join.at).collect()
    })
}

fn rule_names() -> Vec<String> {
    rules().into_iter().map(|rule| rule.name).collect()
}

fn rules() -> Vec<RuleDocument> {
    query(|control| Ok(control.rules()?.rules)).unwrap_or_default()
}

/// Completes the name of a rule, a share or, last, a relay of the fleet.
pub(crate) fn fleet_rule() -> ArgValueCompleter {
    offering(|| {
        let shares = query(|control| Ok(control.fleet()?.shares)).unwrap_or_default();
        let names: BTreeSet<String> = shares
            .into_iter()
            .flat_map(|share| iter::once(share.name).chain(share.rules))
            .collect();
        names.into_iter().chain(relays()).collect()
    })
}

/// Completes the name of a relay of the fleet.
pub(crate) fn relay() -> ArgValueCompleter {
    offering(relays)
}

fn relays() -> Vec<String> {
    let relays = query(|control| Ok(control.fleet()?.relays)).unwrap_or_default();
    relays.into_iter().map(|relay| relay.name).collect()
}

/// Completes a stored generation of the rules, the newest first.
pub(crate) fn generation() -> ArgValueCompleter {
    offering(|| {
        let stored = query(|control| control.generations()).unwrap_or_default();
        let newest_first = stored.iter().rev();
        newest_first.map(|one| one.generation.to_string()).collect()
    })
}

/// Completes what identifies copies of a packet.
pub(crate) fn merge() -> ArgValueCompleter {
    offering(|| {
        let words = ByWord::ALL.iter().filter_map(|word| match word {
            ByWord::Sequence => Some("by=sequence,offset=".to_owned()),
            ByWord::None => None,
            word => Some(word.to_string()),
        });
        words.collect()
    })
}

/// Completes a key of a rule, and its value where that is one of a few words.
pub(crate) fn setting() -> ArgValueCompleter {
    offering(|| {
        let own = settable().map(|row| (row.key.to_owned(), row));
        let groups = [
            ("failover", Failover::GROUP),
            ("merge", MergeKeys::GROUP),
            ("health", Health::GROUP),
        ];
        let options = groups.into_iter().flat_map(|(name, group)| {
            let rows = group.rows.iter();
            rows.map(move |row| (format!("{name}.{}", row.key), row))
        });
        let settings = own.chain(options).flat_map(|(key, row)| {
            let words = match row.form {
                Form::Words(words) => words.iter().map(|word| word.word).collect(),
                Form::Flag => vec!["yes", "no"],
                _ => vec![""],
            };
            words.into_iter().map(move |word| format!("{key}={word}"))
        });
        settings.collect()
    })
}

/// Completes the name of a rule, an interface or a worker.
pub(crate) fn subject() -> ArgValueCompleter {
    offering(|| rule_names().into_iter().chain(interfaces()).collect())
}

/// Completes the name of an interface.
pub(crate) fn interface() -> ArgValueCompleter {
    offering(interfaces)
}

/// Completes the interface of an endpoint, behind the `%`.
pub(crate) fn endpoint() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let Some((group, _)) = current.to_str().and_then(|text| text.split_once('%')) else {
            return Vec::new();
        };
        let end = if group.starts_with('[') { "]:" } else { ":" };
        let names = interfaces().into_iter();
        starting_with(current, names.map(|name| format!("{group}%{name}{end}")))
    })
}

fn offering(values: fn() -> Vec<String>) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| starting_with(current, values().into_iter()))
}

fn starting_with(
    current: &OsStr,
    values: impl Iterator<Item = String>,
) -> Vec<CompletionCandidate> {
    let start = current.to_str().unwrap_or_default();
    let matching = values.filter(|value| value.starts_with(start));
    matching.map(CompletionCandidate::new).collect()
}

/// The interfaces that the daemon sees, which may be in another network namespace; else those that this
/// process sees.
fn interfaces() -> Vec<String> {
    if let Some(list) = query(|control| control.interfaces()) {
        return list.into_iter().map(|interface| interface.name).collect();
    }
    let list = nix::net::if_::if_nameindex();
    let own = list.iter().flat_map(|list| list.iter());
    own.map(|interface| interface.name().to_string_lossy().into_owned())
        .collect()
}

fn query<T: Send + 'static>(request: fn(&Control) -> Result<T, Failure>) -> Option<T> {
    let global = DAEMON.get()?.clone();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        if let Ok(value) = Control::open(&global).and_then(|control| request(&control.quietly())) {
            let _ = sender.send(value);
        }
    });
    receiver.recv_timeout(PATIENCE).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_has_its_value_however_it_is_attached() {
        for words in ["--socket /a", "--socket=/a", "--socket = /a"] {
            let typed = format!("mcr --sockets /b {words} show --host r1");
            let typed: Vec<String> = typed.split(' ').map(str::to_owned).collect();
            assert_eq!(value(&typed, "--socket").as_deref(), Some("/a"), "{words}");
            assert_eq!(value(&typed, "--host").as_deref(), Some("r1"));
            assert_eq!(value(&typed, "--instance"), None);
        }
    }
}
