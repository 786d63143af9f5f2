//! The service behind the API: a read is answered in its own connection's task from the view and the
//! dataplane's counters, a change goes to the supervisor. So no reader waits for a change.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use api::query::{RulesQuery, StatsQuery};
use api::reply::{
    Acknowledgement, Change, FlowStats, InterfaceStatus, ListenerStats, Log, Part, RulePart,
};
use api::request::{Acknowledge, ActiveInput, RuleList};
use igmp::listeners::Listeners;
use observe::compressed_body::CompressedBody;
use observe::events::Events;
use observe::notify::Notified;
use observe::stats::metrics::{self, Format, Scrape};
use observe::stats::process::Process;
use observe::stats::writing::Streamed;
use observe::stats::{self, Identity, Readings, Sampler};
use observe::view::{RuleState, View};

use compile::host::Interface;
use compile::placement::Support;
use compile::table::Table;
use config::{Notify, Settings};
use dataplane::counters::Counters;
use dataplane::explain::Explained;
use dataplane::features::Features;
use host::{UdpSocket, udp_sockets};
use packet::datagram::Datagram;
use rules::document::RuleDocument;
use rules::endpoint::Endpoint;
use rules::net::Ifindex;
use rules::rule::Rule;
use serde::Serialize;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

use super::api_error::{ApiError, Code, Reply};
use super::body::spawn_blocking;
use super::connections::Connection;
use super::remote::state::Remote;
use super::response_cache::{Made, Reading, ResponseCache, Subject};
use super::unsaved::Unsaved;
use crate::author::Author;
use crate::capture::CaptureCommand;
use crate::core::export;
use crate::dataplane_thread::{self, DataplaneThread};
use crate::fleet::Fleet;
use crate::options::LogControl;
use crate::state::acknowledged::Acknowledged;
use crate::state::changes;
use crate::state::generations::Generations;
use crate::supervisor::command::{CancelOnce, Command, Order};

/// Up to this many rules a text is written on the spot: in some milliseconds.
const FEW: usize = 1024;

/// The state of every route.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) identity: Identity,
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) dataplane: DataplaneThread,
    pub(crate) view: watch::Receiver<Arc<View>>,
    pub(crate) support: Support,
    pub(crate) features: Features,
    pub(crate) events: Events,
    pub(crate) sampler: Sampler,
    /// The hosts that listen to outputs on demand.
    pub(crate) listeners: Listeners,
    /// This relay's membership of a fleet, if it is in one.
    pub(crate) fleet: Option<Fleet>,
    /// The rule sets that people made last.
    pub(crate) generations: Generations,
    /// The path of the log of changes, or why there is none.
    pub(crate) changes: Result<PathBuf, Arc<str>>,
    /// The running rules and settings that are not in the configuration.
    pub(crate) unsaved: Arc<Unsaved>,
    /// Acknowledged trouble.
    pub(crate) acknowledged: Acknowledged,
    pub(crate) log: Option<LogControl>,
    /// The command that captures for clients.
    pub(crate) capture: CaptureCommand,
    pub(crate) responses: Arc<ResponseCache>,
    /// Whether it serves other clients than those of the control socket.
    pub(crate) is_apart: bool,
    /// Clients of other hosts.
    pub(crate) remote: Arc<Remote>,
    /// Destinations outside that events are sent to.
    pub(crate) notified: Arc<Notified>,
}

impl Service {
    /// The same service for another listener, whose clients delay none of this one.
    pub(super) fn apart(&self) -> Self {
        Self {
            responses: Arc::default(),
            is_apart: true,
            ..self.clone()
        }
    }

    /// The settings a client may see: on other listeners without the destinations of events, whose path
    /// may be a secret.
    fn settings(&self, view: &View) -> Settings {
        let mut settings = Settings::clone(&view.settings);
        if self.is_apart {
            settings.notify = Notify::default();
        }
        settings
    }

    /// Returns the text about a subject for a client.
    pub(super) async fn read(
        self: &Arc<Self>,
        subject: Subject,
        client: &Connection,
    ) -> Reply<Reading> {
        let current = || self.view();
        let make = || Arc::clone(self).make(subject.clone());
        self.responses
            .read(subject.clone(), client, current, make)
            .await
    }

    /// Generates the text about a subject; a long one on a thread for blocking tasks.
    async fn make(self: Arc<Self>, subject: Subject) -> Reply<Made> {
        let mut counters = Counters::default();
        let mut flows = Vec::new();
        match &subject {
            Subject::Stats(_) | Subject::Metrics(_) => {
                let dropped = self.sampler.read_egress(&self.view()).await;
                self.events.publish_all(dropped);
                counters = self.dataplane.counters().await.map_err(internal)?;
            }
            Subject::Flows(name) => flows = self.flows(name).await?,
            Subject::History { rules, .. } => {
                let required = self.view().rules.require(rules);
                required.map_err(|error| ApiError::new(Code::NotFound, error))?;
            }
            Subject::Changes(_) => drop(self.log_of_changes()?),
            Subject::Rules(_) | Subject::Export | Subject::Interfaces => {}
        }
        // Read after the counters: a rule just removed is not shown with nothing counted.
        let view = self.view();
        let is_short = view.rules.len() <= FEW && !matches!(subject, Subject::Changes(_));
        let write = move || {
            let mut text = CompressedBody::default();
            let written = match subject {
                Subject::Stats(Some(query)) => {
                    let (rest, rules) = self.readings(&view, &counters).selected(&query);
                    let rules = rules.map(|rule| self.acknowledged.shown(rule));
                    json(&mut text, &Streamed::new(rest, rules))
                }
                Subject::Stats(None) => {
                    let readings = self.readings(&view, &counters);
                    json(
                        &mut text,
                        &Streamed::new(
                            readings.without_rules(),
                            readings.rules().map(|rule| self.acknowledged.shown(rule)),
                        ),
                    )
                }
                Subject::Flows(_) => json(&mut text, &flows),
                Subject::History { rules, seconds } => {
                    json(&mut text, &self.sampler.history(&rules, seconds))
                }
                Subject::Rules(None) => json(&mut text, &rules(&view, self.settings(&view))),
                Subject::Rules(Some(query)) => json(&mut text, &selected_rules(&view, &query)),
                Subject::Interfaces => json(&mut text, &interfaces(&view)),
                Subject::Changes(last) => {
                    let changes = changes::read(self.log_of_changes()?, last);
                    changes.and_then(|changes| json(&mut text, &changes))
                }
                Subject::Export => {
                    text.write_all(export(&view.rules, &self.settings(&view)).as_bytes())
                }
                Subject::Metrics(format) => {
                    text = self.metrics(format, &view, &counters);
                    Ok(())
                }
            };
            written.map_err(|error| ApiError::new(Code::Internal, error))?;
            let pieces = text.finish();
            Ok(Made { view, pieces })
        };
        if is_short {
            return write();
        }
        spawn_blocking(write).await?
    }

    const fn readings<'a>(&'a self, view: &'a View, counters: &'a Counters) -> Readings<'a> {
        Readings {
            identity: &self.identity,
            view,
            counters,
            sampler: &self.sampler,
            listeners: &self.listeners,
        }
    }

    fn metrics(&self, format: Format, view: &View, counters: &Counters) -> CompressedBody {
        let readings = self.readings(view, counters);
        let scrape = Scrape {
            status: self.status_of(view),
            is_saved: view.unsaved.is_none(),
            stats: readings.without_rules(),
            lost_lines: self.log.map_or(0, |log| (log.lost)()),
            webhook: Arc::clone(self.notified.webhook()),
            fleet: self.fleet.as_ref().map(Fleet::status),
        };
        metrics::text(
            format,
            &scrape,
            readings.rules_and_drops(),
            &Process::read(),
        )
    }

    /// This relay's membership of its fleet.
    pub(super) fn fleet(&self) -> Reply<&Fleet> {
        let message = "this daemon is in no fleet; give it a [fleet] section, and start it again";
        self.fleet
            .as_ref()
            .ok_or_else(|| ApiError::new(Code::NotFound, message))
    }

    /// A rule, and the generation of the rules it belongs to.
    pub(super) fn rule_of(&self, name: &str) -> Reply<(u64, RuleDocument)> {
        let view = self.view();
        let rule = find_rule(&view, name)?;
        Ok((view.generation, RuleDocument::from(rule)))
    }

    pub(super) fn rule(&self, name: &str) -> Reply<RuleDocument> {
        self.rule_of(name).map(|(_, rule)| rule)
    }

    /// The hosts that listen to a rule's outputs.
    pub(super) fn members(&self, name: &str) -> Reply<Vec<ListenerStats>> {
        let view = self.view();
        let mut rules = view.rules.iter().zip(view.states.values());
        let (rule, state) = rules
            .find(|(rule, _)| rule.name == name)
            .ok_or_else(|| no_such_rule(&view, name))?;
        Ok(stats::demand::members(rule, state, &self.listeners))
    }

    /// Makes another input of a rule the active one.
    pub(super) async fn switch(&self, name: &str, active: ActiveInput) -> Reply<ActiveInput> {
        let view = self.view();
        let rule = find_rule(&view, name)?;
        let invalid = |what: String| ApiError::new(Code::Invalid, format!("rule {name:?}: {what}"));
        if rule.failover.is_none() {
            let what = "its inputs do not stand by for each other; give it a failover";
            return Err(invalid(what.to_owned()));
        }
        let inputs: Vec<String> = rule.inputs.iter().map(ToString::to_string).collect();
        let endpoint: Result<Endpoint, _> = active.input.parse();
        let wanted = endpoint.map_or(active.input, |input| input.to_string());
        if !inputs.contains(&wanted) {
            let have = inputs.join(", ");
            return Err(invalid(format!("no input {wanted}; it has {have}")));
        }
        let switched = self.dataplane.switch(name.to_owned(), wanted.clone()).await;
        if switched.map_err(internal)? {
            Ok(ActiveInput { input: wanted })
        } else {
            Err(invalid(format!("nothing can come by input {wanted} yet")))
        }
    }

    /// Sets or removes the acknowledgement of a rule's trouble.
    pub(super) async fn acknowledge(
        &self,
        name: &str,
        request: Acknowledge,
        author: Author,
    ) -> Reply<Acknowledge> {
        let counters = self.dataplane.counters().await.map_err(internal)?;
        let view = self.view();
        find_rule(&view, name)?;
        let query = StatsQuery {
            rules: vec![name.to_owned()],
            limit: Some(0),
            ..StatsQuery::default()
        };
        let (_, mut stats) = self.readings(&view, &counters).selected(&query);
        let troubled = stats.find(|stats| stats.name == name && stats.is_troubled());
        let acknowledgement = match (request.acknowledged, troubled) {
            (false, _) => None,
            (true, Some(stats)) => Some(Acknowledgement {
                by: author.by,
                at_ms: sys::clock::realtime_ms(),
                message: author.message,
                condition: stats.condition(),
            }),
            (true, None) => {
                let message = format!("rule {name:?} has no trouble that could be acknowledged");
                return Err(ApiError::new(Code::Invalid, message));
            }
        };
        let written = self.acknowledged.set(name, acknowledgement);
        written.map_err(|error| {
            ApiError::new(Code::Unavailable, format!("cannot write it down: {error}"))
        })?;
        Ok(request)
    }

    /// The flows that arrived in the ranges of a rule.
    async fn flows(&self, name: &str) -> Reply<Vec<FlowStats>> {
        find_rule(&self.view(), name)?;
        let flows = self.dataplane.flows(name.to_owned()).await;
        flows.map_err(internal)
    }

    /// Refuses while the dataplane does not answer or an input is not joined.
    pub(super) async fn check_ready(&self, may_be_missing: bool) -> Reply<()> {
        self.dataplane.workers().await.map_err(internal)?;
        let view = self.view();
        let is_joined = |state: &RuleState| {
            let mut inputs = state.inputs().zip(&state.rule.inputs);
            !state.rule.enabled
                || inputs.all(|((_, input), resolved)| {
                    input.joined || may_be_missing && resolved.interfaces.is_empty()
                })
        };
        let states = view.states.values().filter(|state| !is_joined(state));
        let waiting: Vec<&str> = states.map(|state| state.name()).collect();
        if let Some(fleet) = self.fleet.as_ref().map(Fleet::status)
            && !["joined", "leaving"].contains(&fleet.phase.as_str())
        {
            let why = fleet.problems.first().map_or("", String::as_str);
            let message = format!("the fleet is not joined ({}): {why}", fleet.phase);
            return Err(ApiError::new(Code::Unavailable, message));
        }
        if waiting.is_empty() {
            return Ok(());
        }
        let message = format!("not joined: {}", waiting.join(", "));
        Err(ApiError::new(Code::Unavailable, message))
    }

    pub(super) fn log(&self) -> Reply<Log> {
        let level = (self.log_control()?.level)();
        Ok(Log { level })
    }

    pub(super) fn set_log(&self, log: &Log) -> Reply<Log> {
        (self.log_control()?.set_level)(log.level);
        // Not `level`: each line has its own, which would appear twice in JSON.
        tracing::info!(from = log.level.as_str(), "logging from another level on");
        self.log()
    }

    /// Sends an order to the supervisor and waits until it is done. An order not begun by the deadline is
    /// cancelled.
    pub(super) async fn change(
        &self,
        order: Order,
        author: Author,
        deadline: Instant,
    ) -> Reply<Change> {
        let ending = || ApiError::new(Code::Unavailable, "the daemon is ending");
        let (command, turn, reply) = Command::new(order, author);
        let generation = self.view().generation;
        let exchange = async {
            let sent = self.commands.send(command).await;
            sent.map_err(|_| ending())?;
            reply.await.map_err(|_| ending())?
        };
        timeout_at(deadline, exchange)
            .await
            .unwrap_or_else(|_| Err(too_late(&turn, generation)))
    }

    /// What would happen to a packet by these routes.
    pub(super) async fn explained(
        &self,
        table: Table,
        ingress: Ifindex,
        frame: Vec<u8>,
        datagram: &Datagram,
    ) -> Reply<Explained> {
        let (address, port) = (datagram.destination, datagram.destination_port);
        let takes = |socket: &UdpSocket| {
            let any = socket.address.is_unspecified();
            socket.port == port && (any || socket.address == address)
        };
        let socket_bound = udp_sockets().iter().any(takes);
        let input = (ingress, frame, socket_bound);
        self.dataplane.explain(table, input).await.map_err(internal)
    }

    pub(super) fn view(&self) -> Arc<View> {
        self.view.borrow().clone()
    }

    fn log_control(&self) -> Reply<LogControl> {
        let message = "this daemon's log is not its own";
        let refusal = || ApiError::new(Code::Unavailable, message);
        self.log.ok_or_else(refusal)
    }
}

fn too_late(turn: &CancelOnce, generation: u64) -> ApiError {
    let message = if turn.cancel() {
        "the daemon is busy with other changes; nothing was changed, try again".to_owned()
    } else {
        format!(
            "no answer in time; the change may have been made: the generation of the rules was \
             {generation}, and GET /v1/rules tells whether it is a later one"
        )
    };
    ApiError::new(Code::Timeout, message)
}

fn find_rule<'a>(view: &'a View, name: &str) -> Reply<&'a Rule> {
    let rule = view.rules.get(name);
    rule.ok_or_else(|| no_such_rule(view, name))
}

fn no_such_rule(view: &View, name: &str) -> ApiError {
    let refused = view.rules.require(&[name.to_owned()]);
    let message = refused.map_or_else(|error| error.to_string(), |()| format!("no rule {name:?}"));
    ApiError::new(Code::NotFound, message)
}

fn internal(error: dataplane_thread::Error) -> ApiError {
    ApiError::new(Code::Internal, error)
}

fn json(text: &mut CompressedBody, value: &impl Serialize) -> io::Result<()> {
    Ok(serde_json::to_writer(text, value)?)
}

fn rules(view: &View, settings: Settings) -> RuleList {
    RuleList {
        generation: Some(view.generation),
        rules: view.rules.to_documents(),
        settings: Some(settings),
    }
}

/// The rules that a query selects.
fn selected_rules(view: &View, query: &RulesQuery) -> RulePart {
    let matches = |rule: &&Rule| query.labels.iter().all(|label| label.is_in(&rule.labels));
    let matching = view.rules.iter().filter(matches).count() as u64;
    let offset = query.offset.min(matching);
    let limit = query.limit.unwrap_or(u64::MAX);
    let rules: Vec<RuleDocument> = view
        .rules
        .iter()
        .filter(matches)
        .skip(offset as usize)
        .take(usize::try_from(limit).unwrap_or(usize::MAX))
        .map(RuleDocument::from)
        .collect();
    RulePart {
        generation: Some(view.generation),
        settings: None,
        selection: Some(Part {
            offset,
            count: rules.len() as u64,
            matching,
            total: view.rules.len() as u64,
        }),
        rules,
    }
}

fn interfaces(view: &View) -> Vec<InterfaceStatus> {
    view.host.interfaces.values().map(interface).collect()
}

fn interface(link: &Interface) -> InterfaceStatus {
    InterfaceStatus {
        name: link.name.clone(),
        index: link.index.0,
        up: link.up,
        mtu: link.mtu,
        mac: link.mac.map(|mac| mac.to_string()),
        addresses: link.addresses.iter().map(ToString::to_string).collect(),
    }
}
