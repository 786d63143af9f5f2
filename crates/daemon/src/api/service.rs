//! What the API does: reads are answered from the view and the dataplane's counters by whoever asks,
//! changes go to the supervisor. So nobody who reads waits for a change.

use std::sync::Arc;

use api::reply::{
    Change, FeatureStatus, FlowStats, InterfaceStatus, Log, PathStatus, Stats, Status,
};
use api::request::RuleList;
use dataplane::features::{Feature, Features};
use model::config::Settings;
use model::document::RuleDocument;
use model::host::Interface;
use model::placement::Support;
use tokio::sync::{mpsc, oneshot, watch};

use super::refusal::{Answer, Code, Refusal};
use crate::dataplane_thread::{self, DataplaneThread};
use crate::events::Events;
use crate::options::LogControl;
use crate::stats::metrics::Scrape;
use crate::stats::{self, Identity, Sampler};
use crate::supervisor::command::{Command, Order};
use crate::view::{RuleState, View};

/// What every route is given.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) identity: Identity,
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) dataplane: DataplaneThread,
    pub(crate) view: watch::Receiver<Arc<View>>,
    pub(crate) support: Support,
    pub(crate) features: Features,
    pub(crate) events: Events,
    pub(crate) sampler: Sampler,
    pub(crate) log: Option<LogControl>,
}

impl Service {
    pub(super) fn status(&self) -> Status {
        self.status_of(&self.view())
    }

    pub(super) async fn stats(&self) -> Answer<Stats> {
        self.stats_and_view().await.map(|(stats, _)| stats)
    }

    /// All that the metrics show.
    pub(super) async fn scrape(&self) -> Answer<Scrape> {
        let (stats, view) = self.stats_and_view().await?;
        Ok(Scrape {
            status: self.status_of(&view),
            stats,
            possible: stats::possible_drops(&view),
        })
    }

    pub(super) fn rules(&self) -> RuleList {
        let view = self.view();
        RuleList {
            generation: Some(view.generation),
            rules: view.rules.to_documents(),
            settings: Some(Settings::clone(&view.settings)),
        }
    }

    pub(super) fn rule(&self, name: &str) -> Answer<RuleDocument> {
        let view = self.view();
        let rule = view.rules.get(name).map(RuleDocument::from);
        rule.ok_or_else(|| {
            let names: Vec<&str> = view.rules.names().collect();
            let message = format!("no rule {name} (have: {})", names.join(", "));
            Refusal::new(Code::NotFound, message)
        })
    }

    /// What arrived in the ranges of the rule of that name.
    pub(super) async fn flows(&self, name: String) -> Answer<Vec<FlowStats>> {
        if self.view().rules.get(&name).is_none() {
            let message = format!("no rule {name}; GET /v1/rules lists what there is");
            return Err(Refusal::new(Code::NotFound, message));
        }
        let flows = self.dataplane.flows(name).await.map_err(internal)?;
        Ok(flows.iter().map(stats::flow).collect())
    }

    pub(super) fn interfaces(&self) -> Vec<InterfaceStatus> {
        let view = self.view();
        view.host.interfaces.values().map(interface).collect()
    }

    /// The running rules as a configuration file.
    pub(super) fn export(&self) -> String {
        let view = self.view();
        model::config::export(&view.rules, &view.settings)
    }

    /// Refuses while the dataplane does not answer or an input is not joined.
    pub(super) async fn check_ready(&self) -> Answer<()> {
        self.dataplane.workers().await.map_err(internal)?;
        let view = self.view();
        let joined = |state: &RuleState| state.inputs().all(|(_, input)| input.joined);
        let waiting = view.states.values().filter(|state| !joined(state));
        let waiting: Vec<&str> = waiting.map(|state| state.name()).collect();
        if waiting.is_empty() {
            return Ok(());
        }
        let message = format!("not joined: {}", waiting.join(", "));
        Err(Refusal::new(Code::Unavailable, message))
    }

    pub(super) fn log(&self) -> Answer<Log> {
        let level = (self.log_control()?.level)();
        Ok(Log { level })
    }

    pub(super) fn set_log(&self, log: &Log) -> Answer<Log> {
        (self.log_control()?.set_level)(log.level);
        // Not `level`: a line has one of its own, which would stand in JSON twice.
        tracing::info!(from = log.level.as_str(), "logging from another level on");
        self.log()
    }

    /// Has the supervisor change something and waits until it has.
    pub(super) async fn change(&self, order: Order) -> Answer<Change> {
        let (reply, answer) = oneshot::channel();
        let ending = || Refusal::new(Code::Unavailable, "the daemon is ending");
        let sent = self.commands.send(Command { order, reply }).await;
        sent.map_err(|_| ending())?;
        answer.await.map_err(|_| ending())?
    }

    fn view(&self) -> Arc<View> {
        self.view.borrow().clone()
    }

    /// The statistics and the view they are of.
    async fn stats_and_view(&self) -> Answer<(Stats, Arc<View>)> {
        let counters = self.dataplane.counters().await.map_err(internal)?;
        // Read after the counters: a rule just removed is not shown with nothing counted.
        let view = self.view();
        let stats = stats::stats(&self.identity, &view, &counters, &self.sampler);
        Ok((stats, view))
    }

    fn status_of(&self, view: &View) -> Status {
        Status {
            instance: self.identity.instance.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.identity.started.elapsed().as_secs_f64(),
            generation: view.generation,
            rules: view.rules.len(),
            kernel: path(&self.support.kernel),
            userspace: path(&self.support.userspace),
            features: self.features.iter().map(feature).collect(),
            last_reload: self.events.last_reload(),
        }
    }

    fn log_control(&self) -> Answer<LogControl> {
        let message = "this daemon's log is not its own";
        let refusal = || Refusal::new(Code::Unavailable, message);
        self.log.ok_or_else(refusal)
    }
}

fn internal(error: dataplane_thread::Error) -> Refusal {
    Refusal::new(Code::Internal, error)
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

fn feature((feature, present): (Feature, Option<bool>)) -> FeatureStatus {
    let meaning = feature.lack().to_owned();
    FeatureStatus {
        name: feature.name().to_owned(),
        present,
        meaning: Some(meaning).filter(|_| present == Some(false)),
    }
}

fn path(support: &Result<(), String>) -> PathStatus {
    PathStatus {
        available: support.is_ok(),
        reason: support.as_ref().err().cloned(),
    }
}
