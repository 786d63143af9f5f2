//! Where the API's questions arrive: what only looks is answered at once from the view and the
//! engine, changes are handed to the supervisor. So nobody who looks waits for a change.

use std::sync::Arc;

use api::reply::{FlowStats, InterfaceStatus, Log, PathStatus, Stats, Status};
use api::request::RuleList;
use model::config::Settings;
use model::host::Interface;
use model::placement::Support;
use tokio::sync::{mpsc, watch};

use super::question::{Answer, Code, Question, Refusal, Scrape, Supervisor};
use crate::core::Request;
use crate::dataplane_thread::Engine;
use crate::events::Events;
use crate::options::LogControl;
use crate::stats::{self, Identity, Sampler};
use crate::supervisor::Asked;
use crate::view::View;

/// Questions that may wait.
const QUEUE: usize = 256;

/// What answers need.
#[derive(Clone, Debug)]
pub(crate) struct Desk {
    pub(crate) identity: Identity,
    pub(crate) asks: mpsc::Sender<Asked>,
    pub(crate) engine: Engine,
    pub(crate) view: watch::Receiver<Arc<View>>,
    pub(crate) support: Arc<Support>,
    pub(crate) events: Events,
    pub(crate) sampler: Sampler,
    pub(crate) log: Option<LogControl>,
}

impl Desk {
    /// Begins to answer.
    pub(crate) fn open(self) -> Supervisor {
        let (questions, mut incoming) = mpsc::channel(QUEUE);
        let events = self.events.board();
        tokio::spawn(async move {
            while let Some(question) = incoming.recv().await {
                tokio::spawn(self.clone().answer(question));
            }
        });
        Supervisor::new(questions, events)
    }

    async fn answer(self, question: Question) {
        let view = self.view.borrow().clone();
        // Whoever asked may have gone away; that changes nothing.
        match question {
            Question::Status(reply) => drop(reply.send(Ok(self.status(&view)))),
            Question::Stats(reply) => {
                let counted = self.counted().await;
                drop(reply.send(counted.map(|(stats, _)| stats)));
            }
            Question::Scrape(reply) => drop(reply.send(self.scrape().await)),
            Question::Rules(reply) => drop(reply.send(Ok(rules(&view)))),
            Question::Flows(name, reply) => drop(reply.send(self.flows(&view, name).await)),
            Question::Interfaces(reply) => drop(reply.send(Ok(interfaces(&view)))),
            Question::Export(reply) => {
                drop(reply.send(Ok(model::config::export(&view.rules, &view.settings))));
            }
            Question::Change(transaction, reply) => {
                self.hand_over(Asked::Change(Request::Change(transaction), reply))
                    .await;
            }
            Question::Replace {
                rules,
                dry_run: true,
                reply,
            } => {
                self.hand_over(Asked::DryRun(Request::Replace(rules), reply))
                    .await;
            }
            Question::Replace { rules, reply, .. } => {
                self.hand_over(Asked::Change(Request::Replace(rules), reply))
                    .await;
            }
            Question::Log(wanted, reply) => drop(reply.send(self.log(wanted))),
            Question::Reload(reply) => self.hand_over(Asked::Reload(reply)).await,
        }
    }

    /// A supervisor that is gone drops the reply, and whoever asked learns that the daemon ends.
    async fn hand_over(&self, asked: Asked) {
        let _ = self.asks.send(asked).await;
    }

    /// The statistics and the view they are of.
    async fn counted(&self) -> Answer<(Stats, Arc<View>)> {
        let counters = self.engine.counters().await;
        let counters = counters.map_err(|error| Refusal::new(Code::Internal, error))?;
        // Looked at after the counters: a rule just removed is not shown with nothing counted.
        let view = self.view.borrow().clone();
        let stats = stats::stats(&self.identity, &view, &counters, &self.sampler);
        Ok((stats, view))
    }

    async fn scrape(&self) -> Answer<Scrape> {
        let (stats, view) = self.counted().await?;
        Ok(Scrape {
            status: self.status(&view),
            stats,
            possible: stats::possible_drops(&view),
        })
    }

    fn log(&self, wanted: Option<Log>) -> Answer<Log> {
        let unknown = "this daemon's log is not its own";
        let refusal = || Refusal::new(Code::Unavailable, unknown);
        let control = self.log.ok_or_else(refusal)?;
        if let Some(log) = wanted {
            (control.set_level)(log.level);
            // Not `level`: a line has one of its own, which would stand in JSON twice.
            tracing::info!(from = log.level.as_str(), "logging from another level on");
        }
        Ok(Log {
            level: (control.level)(),
        })
    }

    async fn flows(&self, view: &View, name: String) -> Answer<Vec<FlowStats>> {
        if view.rules.get(&name).is_none() {
            let message = format!("no rule {name}; GET /v1/rules lists what there is");
            return Err(Refusal::new(Code::NotFound, message));
        }
        let flows = self.engine.flows(name).await;
        let flows = flows.map_err(|error| Refusal::new(Code::Internal, error))?;
        Ok(flows.iter().map(stats::flow).collect())
    }

    fn status(&self, view: &View) -> Status {
        Status {
            instance: self.identity.instance.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.identity.started.elapsed().as_secs_f64(),
            generation: view.generation,
            rules: view.rules.len(),
            kernel: path(&self.support.kernel),
            userspace: path(&self.support.userspace),
            last_reload: self.events.last_reload(),
        }
    }
}

fn rules(view: &View) -> RuleList {
    RuleList {
        generation: Some(view.generation),
        rules: view.rules.to_documents(),
        settings: Some(Settings::clone(&view.settings)),
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

fn path(support: &Result<(), String>) -> PathStatus {
    PathStatus {
        available: support.is_ok(),
        reason: support.as_ref().err().cloned(),
    }
}
