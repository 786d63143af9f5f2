//! On what terms something is changed: why, and whether it is written down.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};

use api::reply::{Change, Outcome, PendingChange};
use api::request::{ChangeTerms, MESSAGE_MAX, time_to_confirm};

use crate::control::Control;
use crate::failure::{self, Failure};
use crate::global::Global;
use crate::save::{Configuration, Save};

/// How often it is looked whether somebody has confirmed.
const LOOK: Duration = Duration::from_millis(250);

/// How much longer than a change may wait a daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// So many of the last changes tell what became of one that has just ended to wait.
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
    #[command(flatten)]
    save: Save,
    #[command(flatten)]
    options: ChangeOptions,
}

/// A conversation in which something is changed, and where that is written down.
type Conversation = (Control, Option<Configuration>);

impl ChangeOptions {
    /// Opens a conversation in which it is said, about rules of that generation where one is given.
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

    /// Waits until somebody confirms the change that led to this generation, or nobody has; where nobody
    /// looks on it says that it is to be confirmed, and leaves it to others.
    pub(crate) fn wait(&self, control: &Control, generation: u64) -> Result<(), Failure> {
        let Some(within) = self.confirm else {
            return Ok(());
        };
        let waits = Waiting {
            host: None,
            control,
            generation,
        };
        let Some(pending) = waits.pending()? else {
            eprintln!("MCR: nothing changed, so there is nothing to confirm");
            return Ok(());
        };
        if self.yes || !io::stderr().is_terminal() {
            eprintln!("MCR: {}: mcr confirm", pending.countdown());
            return Ok(());
        }
        count_down(&[waits], within)
    }
}

/// A change that waits to be confirmed, at the daemon of a host.
struct Waiting<'a> {
    /// None of this one.
    host: Option<&'a str>,
    control: &'a Control,
    generation: u64,
}

impl Waiting<'_> {
    /// What waits there, if it is this.
    fn pending(&self) -> Result<Option<PendingChange>, Failure> {
        let pending = self.control.status()?.pending;
        Ok(pending.filter(|pending| pending.generation == self.generation))
    }

    /// Whether it was confirmed.
    fn is_confirmed(&self) -> Result<bool, Failure> {
        let ended = self.control.changes(LATEST)?.into_iter().rev();
        let mut outcomes = ended.filter(|change| change.of == Some(self.generation));
        let outcome = outcomes.next().and_then(|change| change.outcome);
        Ok(outcome == Some(Outcome::Confirmed))
    }
}

/// Shows what waits at several hosts, until it is confirmed there or undone.
///
/// # Errors
/// A host where it is undone.
pub(crate) fn count_down_at(hosts: &[String], global: &Global) -> Result<(), Failure> {
    let mut asked = Vec::new();
    for host in hosts {
        let control = Control::open(&global.at(host))?.quietly();
        if let Some(pending) = control.status()?.pending {
            asked.push((host, control, pending));
        }
    }
    let within = asked.iter().map(|(.., pending)| pending.seconds).max();
    let waiting = asked.iter().map(|(host, control, pending)| Waiting {
        host: Some(host),
        control,
        generation: pending.generation,
    });
    let waiting: Vec<Waiting<'_>> = waiting.collect();
    count_down(&waiting, Duration::from_secs(within.unwrap_or_default()))
}

/// Shows how long changes wait yet, until somebody confirms them or nobody has.
fn count_down(waiting: &[Waiting<'_>], within: Duration) -> Result<(), Failure> {
    let ends = Instant::now() + within + PATIENCE;
    let mut left: Vec<&Waiting<'_>> = waiting.iter().collect();
    let hosts: Vec<&str> = waiting.iter().filter_map(|one| one.host).collect();
    let of_hosts = if hosts.is_empty() {
        String::new()
    } else {
        format!("--host {} ", hosts.join(","))
    };
    while !left.is_empty() {
        let mut texts: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        let mut failed = None;
        left.retain(|one| match one.pending() {
            Ok(Some(waits)) => {
                let hosts = texts.entry(waits.countdown()).or_default();
                hosts.extend(one.host);
                true
            }
            Ok(None) => false,
            // One that is started again goes on with it.
            Err(failure) => {
                failed = Some(failure).filter(|_| Instant::now() > ends);
                true
            }
        });
        if let Some(failure) = failed {
            return Err(failure);
        }
        let texts = texts.iter().map(|(text, hosts)| match hosts.as_slice() {
            [] => text.clone(),
            hosts => format!("{}: {text}", hosts.join(", ")),
        });
        let texts: Vec<String> = texts.collect();
        if !texts.is_empty() {
            eprint!("\r\x1b[KMCR: {}: mcr {of_hosts}confirm ", texts.join("; "));
        }
        if !left.is_empty() {
            thread::sleep(LOOK);
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
    /// Whether nothing is to be asked.
    pub(crate) const fn yes(&self) -> bool {
        self.options.yes
    }

    /// Opens a conversation on these terms. The configuration is read where it is to be written, so that
    /// nothing is changed where it cannot be.
    pub(crate) fn open(&self, global: &Global) -> Result<Conversation, Failure> {
        self.open_at(global, None)
    }

    /// The same, where rules of another generation stay as they are.
    pub(crate) fn open_at(
        &self,
        global: &Global,
        generation: Option<u64>,
    ) -> Result<Conversation, Failure> {
        let control = self.options.open(global, generation)?;
        // Files of another host are its daemon's to write.
        let elsewhere = self.save.is_asked() && control.is_elsewhere();
        let saving = if elsewhere {
            None
        } else {
            self.save.begin(&control)?
        };
        // What may be undone yet is saved when it is confirmed.
        let waits = self.options.confirm.is_some();
        let control = control.saving(elsewhere || waits && saving.is_some());
        Ok((control, saving.filter(|_| !waits)))
    }

    /// Ends a change: has it written down, and waits for its confirmation.
    pub(crate) fn finish(
        &self,
        (control, saving): Conversation,
        change: &Change,
        write: impl FnOnce(Configuration, &Control) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if let Some(configuration) = saving {
            write(configuration, &control)?;
        }
        self.options.wait(&control, change.generation)
    }

    /// The same of rules of these names.
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

    /// Whether any are given.
    pub(crate) const fn are_given(&self) -> bool {
        self.save.is_asked()
            || self.options.message.is_some()
            || self.options.confirm.is_some()
            || self.options.yes
    }
}

/// Asks whoever sits there; nothing is changed unless they say yes.
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

/// It becomes a header of a request.
pub(crate) fn message(text: &str) -> Result<String, String> {
    match text.len() {
        _ if text.chars().any(char::is_control) => Err("a message is one line".to_owned()),
        0..=MESSAGE_MAX => Ok(text.to_owned()),
        length => Err(format!(
            "a message has at most {MESSAGE_MAX} bytes, not {length}"
        )),
    }
}
