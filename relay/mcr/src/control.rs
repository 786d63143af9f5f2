//! The subcommands' connection to the running daemon: sends requests, waits, turns refusals into exit
//! statuses.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use api::client::{Bytes, Client, Error, Events, Pieces, StreamItem};
use api::reply::{Change, History};
use api::request::{ChangeTerms, RuleList, Transaction};
use config::Config;
use rules::document::RuleDocument;
use rules::ruleset::ChangeError;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::failure::{Failure, OrFail, Status};
use crate::global::Global;
use crate::hosts;

/// How often a change is tried while somebody else also changes the rules.
const ATTEMPTS: u32 = 10;

/// How long to wait for the daemon before telling the user.
const NOTICE: Duration = Duration::from_secs(2);

/// A conversation with the daemon that the global options name.
pub(crate) struct Control {
    client: Client,
    runtime: Runtime,
    is_quiet: bool,
}

impl Control {
    /// Prepares the conversation; the daemon is first reached by a request.
    pub(crate) fn open(global: &Global) -> Result<Self, Failure> {
        let built = Builder::new_current_thread().enable_all().build();
        let runtime = built.or_fail("cannot start", Status::Unavailable)?;
        Ok(Self {
            client: match &global.host {
                Some(host) => hosts::client(host)?,
                None => Client::new(global.socket()),
            },
            runtime,
            is_quiet: false,
        })
    }

    /// The same, without messages when the daemon takes long, for a caller that draws on the terminal.
    pub(crate) fn quietly(mut self) -> Self {
        self.is_quiet = true;
        self
    }

    /// The same, with these terms for all changes.
    pub(crate) fn on(mut self, terms: ChangeTerms) -> Self {
        self.client = self.client.on(terms);
        self
    }

    /// The same, with changes saved when they are confirmed.
    pub(crate) fn saving(mut self, save: bool) -> Self {
        self.client = self.client.saving(save);
        self
    }

    /// Waits for the next event, if given within a limit; `None` if none arrived by then. It is an error
    /// if the daemon ends.
    pub(crate) fn next_event(
        &self,
        events: &mut Events,
        limit: Option<Duration>,
    ) -> Result<Option<StreamItem>, Failure> {
        let limit = limit.unwrap_or(Duration::MAX);
        match self.block_on(async { timeout(limit, events.next()).await }) {
            Ok(Ok(None)) => Err(Failure::new(Status::Unreachable, "the daemon ended")),
            Ok(next) => Ok(next?),
            Err(_) => Ok(None),
        }
    }

    /// Changes the rules of these names, all or none. If somebody else changes the rules in between,
    /// `change` is applied again to the new rules.
    pub(crate) fn edit(
        &self,
        names: &[String],
        change: impl Fn(&mut RuleDocument) -> Result<(), Failure>,
    ) -> Result<Change, Failure> {
        let mut attempts = 0;
        loop {
            let transaction = edited(self.rules()?, names, &change)?;
            attempts += 1;
            let request = self.client.transaction(&transaction);
            match self.block_on(self.awaited(request)) {
                Err(Error::Refused(reply)) if reply.code == "conflict" && attempts < ATTEMPTS => {}
                outcome => return outcome.map_err(Failure::from),
            }
        }
    }

    /// Replaces the running rules and settings by those of `config`, or only reports what that would
    /// change.
    pub(crate) fn replace_by(&self, config: Config, dry_run: bool) -> Result<Change, Failure> {
        let rules = RuleList {
            generation: None,
            rules: config.rules.to_documents(),
            settings: Some(config.settings),
        };
        self.replace(&rules, dry_run)
    }

    /// Begins to follow events, after this many recent ones; if `brief`, many simultaneous events are
    /// combined into one.
    pub(crate) fn events(&self, recent: u32, brief: bool) -> Result<Events, Failure> {
        self.wait(self.client.events(recent, brief))
    }

    /// Reads what all rules together, and these of them, received and dropped in the last `seconds`.
    pub(crate) fn history(&self, rules: &[&str], seconds: u32) -> Result<History, Failure> {
        self.wait(self.client.history(rules, seconds))
    }

    /// Reads the running rules as a configuration file.
    pub(crate) fn export(&self) -> Result<String, Failure> {
        self.wait(self.client.export())
    }

    /// Requests a reply that arrives in pieces.
    pub(crate) fn pieces(&self, path: &str) -> Result<Pieces, Failure> {
        self.wait(self.client.pieces(path))
    }

    /// Waits for the next piece; `None` at the end.
    pub(crate) fn next_piece(&self, pieces: &mut Pieces) -> Result<Option<Bytes>, Failure> {
        self.wait(pieces.next())
    }

    /// Waits for the next piece within a limit; none at the end.
    pub(crate) fn next_piece_within(
        &self,
        pieces: &mut Pieces,
        limit: Duration,
    ) -> Result<Poll<Option<Bytes>>, Failure> {
        let next = async { timeout(limit, pieces.next()).await };
        let piece = self.runtime.block_on(next);
        piece.map_or(Ok(Poll::Pending), |piece| Ok(Poll::Ready(piece?)))
    }

    /// The name of the other host that the daemon is on, if it is on one.
    pub(crate) fn other_host(&self) -> Option<&str> {
        self.client.other_host()
    }

    /// Runs work that is not a request to the daemon.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    fn wait<T>(&self, request: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
        self.block_on(self.awaited(request)).map_err(Failure::from)
    }

    /// Waits for the daemon, and tells the user if that takes long.
    async fn awaited<T>(&self, request: impl Future<Output = T>) -> T {
        let mut request = pin!(request);
        match timeout(NOTICE, request.as_mut()).await {
            Ok(reply) => reply,
            Err(_) => {
                if !self.is_quiet {
                    eprintln!("MCR: the daemon has not answered for 2 s; it is given 30 s");
                }
                request.await
            }
        }
    }
}

/// Declares a blocking method for each request of the client.
macro_rules! waited_for {
    ($(
        $(#[$about:meta])+
        $name:ident($($arg:ident: $type:ty),*) -> $reply:ty = $method:ident $path:expr $(, $body:ident)?;
    )+) => {
        impl Control {
            $($(#[$about])+ pub(crate) fn $name(&self, $($arg: $type),*) -> Result<$reply, Failure> {
                self.wait(self.client.$name($($arg),*))
            })+
        }
    };
}

api::for_each_request!(waited_for);

/// The transaction that applies `change` to the rules of these names.
fn edited(
    running: RuleList,
    names: &[String],
    change: impl Fn(&mut RuleDocument) -> Result<(), Failure>,
) -> Result<Transaction, Failure> {
    let existing = running.rules.iter().map(|rule| rule.name.as_str());
    require(names, &existing.collect::<Vec<_>>())?;
    let mut transaction = Transaction {
        generation: running.generation,
        ..Transaction::default()
    };
    let named = running.rules.into_iter();
    for rule in named.filter(|rule| names.contains(&rule.name)) {
        let mut changed = rule.clone();
        change(&mut changed)?;
        if changed != rule {
            transaction.remove.push(rule.name);
            transaction.add.push(changed);
        }
    }
    Ok(transaction)
}

/// Refuses names that do not exist, as the daemon does.
pub(crate) fn require(names: &[String], existing: &[&str]) -> Result<(), Failure> {
    let is_missing = |name: &&String| !existing.contains(&name.as_str());
    let missing: Vec<String> = names.iter().filter(is_missing).cloned().collect();
    if missing.is_empty() {
        return Ok(());
    }
    let known = existing.iter().map(ToString::to_string).collect();
    let refused = ChangeError::NotFound { missing, known };
    Err(Failure::new(Status::Rule, refused))
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match &error {
            Error::Connect { path, source } => {
                let is_forbidden = source.kind() == io::ErrorKind::PermissionDenied;
                let status = if is_forbidden {
                    Status::Privilege
                } else {
                    Status::Unreachable
                };
                let remedy = if !path.is_absolute() {
                    OTHER_HOST
                } else if is_forbidden {
                    FORBIDDEN
                } else {
                    NOT_RUNNING
                };
                Self::new(status, format!("{error}; {remedy}"))
            }
            Error::Denied { .. } => Self::new(Status::Privilege, error),
            Error::Broken { .. } | Error::Untrusted { .. } => Self::new(Status::Unreachable, error),
            // This process may see more of other processes than the daemon does.
            Error::Refused(reply) => {
                Self::new(status(&reply.code), host::name_owners(&reply.message))
            }
        }
    }
}

const FORBIDDEN: &str = "use sudo, or become a member of the group that owns the socket";
const NOT_RUNNING: &str =
    "start it with mcr run, or name its socket with --socket or its name with --instance";
const OTHER_HOST: &str =
    "see that it runs there, that [api] of its configuration listens, and hosts.toml";

fn status(code: &str) -> Status {
    match code {
        "usage" | "bad_request" => Status::Usage,
        "not_found" | "exists" => Status::Rule,
        "unavailable" => Status::Unavailable,
        "privilege" | "unauthorized" | "forbidden" => Status::Privilege,
        "timeout" => Status::Unreachable,
        _ => Status::Refused,
    }
}
