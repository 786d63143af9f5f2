//! The terms of a change: its message, its confirmation, and whether it is saved.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};

use api::reply::{Change, Outcome, PendingChange};
use api::request::{ChangeTerms, MESSAGE_MAX, time_to_confirm};

use crate::control::Control;
use crate::failure::{self, Failure};
use crate::global::Global;
use crate::save::Configuration;

/// The time between two queries whether somebody has confirmed.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// How long after the end of the waiting time a daemon may still be unreachable.
const PATIENCE: Duration = Duration::from_secs(10);

/// Recent changes among which the outcome of one that was pending is searched.
const LATEST: u32 = 100;

/// What is said about a change.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ChangeOptions {
    /// Why, for the log of changes: mcr log changes
    #[arg(long, value_name = "TEXT", value_parser = message)]
    message: Option<String>,
    /// Undo the change by itself unless mcr confirm comes in this time, 1s to 1h
    #[arg(long, value_name = "TIME", value_parser = time_to_confirm)]
    confirm: Option<Duration>,
    /// Ask nothing, and do not wait for the confirmation
    #[arg(short, long)]
    yes: bool,
}

/// On what terms rules are changed.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Terms {
    /// Write the change into the daemon's configuration file, too, whose comments stay
    #[arg(long)]
    save: bool,
    #[command(flatten)]
    options: ChangeOptions,
}

/// The connection for a change, and the configuration that the change is saved to.
type Conversation = (Control, Option<Configuration>);

impl ChangeOptions {
    /// Opens a connection with these options, for rules of that generation if one is given.
    pub(crate) fn open(
        &self,
        global: &Global,
        generation: Option<u64>,
    ) -> Result<Control, Failure> {
        let terms = ChangeTerms {
            message: self.message.clone(),
            generation,
            confirm: self.confirm,
            save: false,
        };
        Control::open(global).map(|control| control.on(terms))
    }

    /// Waits until the change that led to this generation is confirmed or undone. Without a terminal it only
    /// prints that the change is to be confirmed.
    pub(crate) fn wait(&self, control: &Control, generation: u64) -> Result<(), Failure> {
        let Some(within) = self.confirm else {
            return Ok(());
        };
        let waiting = Waiting {
            host: control.other_host(),
            control,
            generation,
        };
        let Some(pending) = waiting.pending()? else {
            eprintln!("MCR: nothing changed, so there is nothing to confirm");
            return Ok(());
        };
        if self.yes || !io::stderr().is_terminal() {
            let of_host = host_option(waiting.host.as_slice());
            eprintln!("MCR: {}: mcr {of_host}confirm", pending.countdown());
            return Ok(());
        }
        count_down(&[waiting], within)
    }
}

/// A change at the daemon of a host that waits to be confirmed.
struct Waiting<'a> {
    /// None for this host.
    host: Option<&'a str>,
    control: &'a Control,
    generation: u64,
}

impl Waiting<'_> {
    /// The daemon's pending change, if it is this one.
    fn pending(&self) -> Result<Option<PendingChange>, Failure> {
        let pending = self.control.status()?.pending;
        Ok(pending.filter(|pending| pending.generation == self.generation))
    }

    /// Whether it was confirmed.
    fn is_confirmed(&self) -> Result<bool, Failure> {
        let newest_first = self.control.changes(LATEST)?.into_iter().rev();
        let mut outcomes = newest_first.filter(|change| change.of == Some(self.generation));
        let outcome = outcomes.next().and_then(|change| change.outcome);
        Ok(outcome == Some(Outcome::Confirmed))
    }
}

/// Shows the pending changes of several hosts, until they are confirmed or undone.
///
/// # Errors
/// A change is undone.
pub(crate) fn count_down_at(hosts: &[String], global: &Global) -> Result<(), Failure> {
    let mut pending_at = Vec::new();
    for host in hosts {
        let control = Control::open(&global.at(host))?.quietly();
        if let Some(pending) = control.status()?.pending {
            pending_at.push((host, control, pending));
        }
    }
    let within = pending_at.iter().map(|(.., pending)| pending.seconds).max();
    let changes = pending_at.iter().map(|(host, control, pending)| Waiting {
        host: Some(host),
        control,
        generation: pending.generation,
    });
    let waiting: Vec<Waiting<'_>> = changes.collect();
    count_down(&waiting, Duration::from_secs(within.unwrap_or_default()))
}

/// The option that names these hosts, with the space behind it.
fn host_option(hosts: &[&str]) -> String {
    match hosts {
        [] => String::new(),
        hosts => format!("--host {} ", hosts.join(",")),
    }
}

/// Shows the remaining time of changes, until they are confirmed or undone.
fn count_down(waiting: &[Waiting<'_>], within: Duration) -> Result<(), Failure> {
    let ends = Instant::now() + within + PATIENCE;
    let mut unsettled: Vec<&Waiting<'_>> = waiting.iter().collect();
    let hosts: Vec<&str> = waiting.iter().filter_map(|one| one.host).collect();
    let of_hosts = host_option(&hosts);
    while !unsettled.is_empty() {
        let mut texts: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        let mut failed = None;
        unsettled.retain(|one| match one.pending() {
            Ok(Some(pending)) => {
                let hosts = texts.entry(pending.countdown()).or_default();
                hosts.extend(one.host);
                true
            }
            Ok(None) => false,
            // A restarted daemon goes on with its pending change.
            Err(failure) => {
                failed = Some(failure).filter(|_| Instant::now() > ends);
                true
            }
        });
        if let Some(failure) = failed {
            return Err(failure);
        }
        let countdowns = texts.iter().map(|(text, hosts)| match hosts.as_slice() {
            [] => text.clone(),
            hosts => format!("{}: {text}", hosts.join(", ")),
        });
        if !texts.is_empty() {
            let countdowns = countdowns.collect::<Vec<String>>().join("; ");
            eprint!("\r\x1b[KMCR: {countdowns}: mcr {of_hosts}confirm ");
        }
        if !unsettled.is_empty() {
            thread::sleep(POLL_INTERVAL);
        }
    }
    if waiting.is_empty() {
        return Ok(());
    }
    eprintln!();
    let mut undone = Vec::new();
    for one in waiting {
        if !one.is_confirmed()? {
            let host = one
                .host
                .map_or_else(String::new, |host| format!("{host}: "));
            undone.push(format!("{host}the change is undone"));
        }
    }
    if undone.is_empty() {
        Ok(())
    } else {
        Err(Failure::new(failure::Status::Refused, undone.join("\n")))
    }
}

impl Terms {
    /// Whether to change things without asking.
    pub(crate) const fn yes(&self) -> bool {
        self.options.yes
    }

    /// Opens a connection on these terms. A configuration that is to be saved to is read first, so that
    /// nothing is changed if it cannot be written.
    pub(crate) fn open(&self, global: &Global) -> Result<Conversation, Failure> {
        self.open_at(global, None)
    }

    /// The same, but rules of another generation are not changed.
    pub(crate) fn open_at(
        &self,
        global: &Global,
        generation: Option<u64>,
    ) -> Result<Conversation, Failure> {
        let control = self.options.open(global, generation)?;
        // The daemon of another host writes its files itself.
        let is_remote_save = self.save && control.other_host().is_some();
        let is_own_save = self.save && !is_remote_save;
        let read = is_own_save.then(|| Configuration::read(&control));
        let configuration = read.transpose()?;
        // A change that can still be undone is saved when it is confirmed.
        let waits = self.options.confirm.is_some();
        let control = control.saving(is_remote_save || waits && configuration.is_some());
        Ok((control, configuration.filter(|_| !waits)))
    }

    /// Finishes a change: saves it, and waits for its confirmation.
    pub(crate) fn finish(
        &self,
        (control, configuration): Conversation,
        change: &Change,
        write: impl FnOnce(Configuration, &Control) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if let Some(configuration) = configuration {
            write(configuration, &control)?;
        }
        self.options.wait(&control, change.generation)
    }

    /// The same for rules of these names.
    pub(crate) fn finish_rules(
        &self,
        conversation: Conversation,
        change: &Change,
        names: &[String],
    ) -> Result<(), Failure> {
        self.finish(conversation, change, |configuration, control| {
            configuration.write(control, names)
        })
    }

    /// Whether any of them are given.
    pub(crate) const fn are_given(&self) -> bool {
        self.save
            || self.options.message.is_some()
            || self.options.confirm.is_some()
            || self.options.yes
    }
}

/// Asks the user; fails unless the answer is yes.
pub(crate) fn ask(question: &str) -> Result<(), Failure> {
    eprint!("{question} [y/N] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new(
            failure::Status::Refused,
            "nothing was changed",
        )),
    }
}

/// Checks a message, which becomes a header of a request.
pub(crate) fn message(text: &str) -> Result<String, String> {
    match text.len() {
        _ if text.chars().any(char::is_control) => Err("a message is one line".to_owned()),
        0..=MESSAGE_MAX => Ok(text.to_owned()),
        length => Err(format!(
            "a message has at most {MESSAGE_MAX} bytes, not {length}"
        )),
    }
}
