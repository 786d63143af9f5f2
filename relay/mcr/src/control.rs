//! The running daemon as subcommands talk to it: sends requests, waits, turns refusals into exit
//! statuses.

use std::future::Future;
use std::io;
use std::time::Duration;

use api::client::{Client, Error, Events, StreamItem};
use api::query::{RulesQuery, StatsQuery};
use api::reply::{
    Change, ChangeRecord, FleetChange, FleetDone, FleetRecord, FleetRules, FleetStatus, History,
    Log, RulePart, Stats,
};
use api::request::{ActiveInput, FleetMove, FleetRelayName, FleetRuleList, RuleList, Transaction};
use config::Config;
use rules::document::RuleDocument;
use rules::ruleset::ChangeError;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::failure::{Failure, Status};
use crate::global::Global;

/// How often a change is tried while somebody else changes the rules, too.
const ATTEMPTS: u32 = 10;

/// A conversation with the daemon that the global options name.
pub(crate) struct Control {
    client: Client,
    runtime: Runtime,
}

impl Control {
    /// Prepares the conversation; the daemon is first reached by a request.
    pub(crate) fn open(global: &Global) -> Result<Self, Failure> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| {
            let message = format!("cannot start: {error}");
            Failure::new(Status::Unavailable, message)
        })?;
        Ok(Self {
            client: Client::new(global.socket()),
            runtime,
        })
    }

    /// The same, that says why it changes what it changes.
    pub(crate) fn because(self, message: Option<String>) -> Self {
        Self {
            client: self.client.because(message),
            ..self
        }
    }

    pub(crate) fn stats(&self) -> Result<Stats, Failure> {
        self.wait(self.client.stats())
    }

    /// Reads the counters of some rules; an older daemon tells all, without a `selection`.
    pub(crate) fn selected_stats(&self, query: &StatsQuery) -> Result<Stats, Failure> {
        self.wait(self.client.selected_stats(query))
    }

    pub(crate) fn status(&self) -> Result<api::reply::Status, Failure> {
        self.wait(self.client.status())
    }

    pub(crate) fn interfaces(&self) -> Result<Vec<api::reply::InterfaceStatus>, Failure> {
        self.wait(self.client.interfaces())
    }

    /// Begins to follow events, with so many of those of before; many that come together as one if
    /// `brief`.
    pub(crate) fn events(&self, recent: u32, brief: bool) -> Result<Events, Failure> {
        self.wait(self.client.events(recent, brief))
    }

    /// Waits for the next event; `None` when the daemon ended.
    pub(crate) fn next_event(&self, events: &mut Events) -> Result<Option<StreamItem>, Failure> {
        self.wait(events.next())
    }

    /// Waits for the next event for so long; `None` when none came.
    pub(crate) fn next_event_within(
        &self,
        events: &mut Events,
        limit: Duration,
    ) -> Result<Option<Option<StreamItem>>, Failure> {
        let next = async { timeout(limit, events.next()).await };
        match self.runtime.block_on(next) {
            Ok(next) => next.map(Some).map_err(Failure::from),
            Err(_) => Ok(None),
        }
    }

    pub(crate) fn fleet(&self) -> Result<FleetStatus, Failure> {
        self.wait(self.client.fleet())
    }

    pub(crate) fn fleet_record(&self, seconds: u32) -> Result<FleetRecord, Failure> {
        self.wait(self.client.fleet_record(seconds))
    }

    pub(crate) fn fleet_rules(&self) -> Result<FleetRules, Failure> {
        self.wait(self.client.fleet_rules())
    }

    pub(crate) fn fleet_apply(
        &self,
        rules: &FleetRuleList,
        dry_run: bool,
    ) -> Result<FleetChange, Failure> {
        self.wait(self.client.fleet_apply(rules, dry_run))
    }

    pub(crate) fn fleet_drain(
        &self,
        relay: &FleetRelayName,
        drained: bool,
    ) -> Result<FleetDone, Failure> {
        self.wait(self.client.fleet_drain(relay, drained))
    }

    pub(crate) fn fleet_move(&self, asked: &FleetMove) -> Result<FleetDone, Failure> {
        self.wait(self.client.fleet_move(asked))
    }

    pub(crate) fn fleet_rebalance(&self) -> Result<FleetDone, Failure> {
        self.wait(self.client.fleet_rebalance())
    }

    pub(crate) fn fleet_fence(&self, relay: &FleetRelayName) -> Result<FleetDone, Failure> {
        self.wait(self.client.fleet_fence(relay))
    }

    pub(crate) fn rules(&self) -> Result<RuleList, Failure> {
        self.wait(self.client.rules())
    }

    /// Reads some of the rules; an older daemon tells all, without a `selection`.
    pub(crate) fn selected_rules(&self, query: &RulesQuery) -> Result<RulePart, Failure> {
        self.wait(self.client.selected_rules(query))
    }

    pub(crate) fn rule(&self, name: &str) -> Result<RuleDocument, Failure> {
        self.wait(self.client.rule(name))
    }

    pub(crate) fn listeners(&self, name: &str) -> Result<Vec<api::reply::ListenerStats>, Failure> {
        self.wait(self.client.listeners(name))
    }

    pub(crate) fn flows(&self, name: &str) -> Result<Vec<api::reply::FlowStats>, Failure> {
        self.wait(self.client.flows(name))
    }

    /// Reads what all rules together, and these of them, received and dropped in so many seconds.
    pub(crate) fn history(&self, rules: &[&str], seconds: u32) -> Result<History, Failure> {
        self.wait(self.client.history(rules, seconds))
    }

    pub(crate) fn export(&self) -> Result<String, Failure> {
        self.wait(self.client.export())
    }

    pub(crate) fn reload(&self) -> Result<Change, Failure> {
        self.wait(self.client.reload())
    }

    pub(crate) fn changes(&self, last: u32) -> Result<Vec<ChangeRecord>, Failure> {
        self.wait(self.client.changes(last))
    }

    pub(crate) fn log(&self) -> Result<Log, Failure> {
        self.wait(self.client.log())
    }

    pub(crate) fn set_log(&self, log: &Log) -> Result<Log, Failure> {
        self.wait(self.client.set_log(log))
    }

    pub(crate) fn switch(&self, name: &str, active: &ActiveInput) -> Result<ActiveInput, Failure> {
        self.wait(self.client.switch(name, active))
    }

    /// Adds rules, all or none.
    pub(crate) fn add(&self, add: Vec<RuleDocument>) -> Result<Change, Failure> {
        let transaction = Transaction {
            add,
            ..Transaction::default()
        };
        self.transact(&transaction)
    }

    /// Removes rules, all or none.
    pub(crate) fn remove(&self, remove: Vec<String>) -> Result<Change, Failure> {
        let transaction = Transaction {
            remove,
            ..Transaction::default()
        };
        self.transact(&transaction)
    }

    /// Joins and leaves, all or nothing.
    pub(crate) fn transact(&self, change: &Transaction) -> Result<Change, Failure> {
        self.wait(self.client.transaction(change))
    }

    /// Changes the rules of these names, all or none. Where somebody else changed the rules in
    /// between, `change` is asked again of what they are by then.
    pub(crate) fn edit(
        &self,
        names: &[String],
        change: impl Fn(&mut RuleDocument) -> Result<(), Failure>,
    ) -> Result<Change, Failure> {
        let mut attempts = 0;
        loop {
            let transaction = edited(self.rules()?, names, &change)?;
            attempts += 1;
            match self.runtime.block_on(self.client.transaction(&transaction)) {
                Err(Error::Refused(reply)) if reply.code == "conflict" && attempts < ATTEMPTS => {}
                outcome => return outcome.map_err(Failure::from),
            }
        }
    }

    /// Makes what `config` says the running rules and settings, or only says what that would change.
    pub(crate) fn replace(&self, config: Config, dry_run: bool) -> Result<Change, Failure> {
        let rules = RuleList {
            generation: None,
            rules: config.rules.to_documents(),
            settings: Some(config.settings),
        };
        self.wait(self.client.replace(&rules, dry_run))
    }

    /// Runs work that is not a request to the daemon.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    fn wait<T>(&self, request: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
        self.runtime.block_on(request).map_err(Failure::from)
    }
}

/// What it takes to have the rules of these names as `change` leaves them.
fn edited(
    running: RuleList,
    names: &[String],
    change: impl Fn(&mut RuleDocument) -> Result<(), Failure>,
) -> Result<Transaction, Failure> {
    let known: Vec<&str> = running
        .rules
        .iter()
        .map(|rule| rule.name.as_str())
        .collect();
    require(names, &known)?;
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

/// Refuses names that are not among those that are known, as the daemon does.
pub(crate) fn require(names: &[String], known: &[&str]) -> Result<(), Failure> {
    let missing = names.iter().filter(|name| !known.contains(&name.as_str()));
    let missing: Vec<String> = missing.cloned().collect();
    if missing.is_empty() {
        return Ok(());
    }
    let known = known.iter().map(ToString::to_string).collect();
    Err(Failure::new(
        Status::Rule,
        ChangeError::NotFound { missing, known },
    ))
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match &error {
            Error::Connect { source, .. } => {
                let status = match source.kind() {
                    io::ErrorKind::PermissionDenied => Status::Privilege,
                    _ => Status::Unreachable,
                };
                Self::new(status, format!("{error}; {}", remedy(source.kind())))
            }
            Error::Broken { .. } => Self::new(Status::Unreachable, error),
            // Who asks may see more of other processes than the daemon may.
            Error::Refused(reply) => {
                Self::new(status(&reply.code), host::name_owners(&reply.message))
            }
        }
    }
}

fn remedy(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::PermissionDenied => {
            "use sudo, or become a member of the group that owns the socket"
        }
        _ => "start it with mcr run, or name its socket with --socket or its name with --instance",
    }
}

fn status(code: &str) -> Status {
    match code {
        "usage" | "bad_request" => Status::Usage,
        "not_found" | "exists" => Status::Rule,
        "unavailable" => Status::Unavailable,
        "privilege" => Status::Privilege,
        "timeout" => Status::Unreachable,
        _ => Status::Refused,
    }
}
