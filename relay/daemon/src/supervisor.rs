//! The supervisor: one task that owns rules, memberships and the running set, and executes what the core
//! decides. Readers never wait for it: they read the view.

mod changes;
pub(crate) mod command;
mod confirm;
mod dry_run;
mod persist;
pub(crate) mod port_conflicts;
mod save;
mod tunnels;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::reply::{By, Change, ChangeRecord, Via};
use compile::hook::Hooks;
use compile::host::Host;
use config::{Config, DaemonSettings, FleetSettings, NotifyTarget, Settings};
use dataplane::Close;
use dataplane::counters::WorkerStats;
use host::backlog::Backlog;
use host::offload::Offload;
use host::tick;
use host::tunnels::Tunnels;
use host::{Snapshot, Watch};
use nix::sys::signal::Signal;
use observe::events::{self, Events};
use observe::notify::Notified;
use observe::stats::{self, Identity, Readings, Sampler};
use observe::view::View;
use rules::net::Ifindex;
use rules::setting::Table;
use tokio::sync::{mpsc, watch};
use tokio::task::block_in_place;
use tokio::time::{sleep, sleep_until};

use crate::api::api_error::{ApiError, Code, Reply};
use crate::api::remote::{self, state::Remote};
use crate::author::Author;
use crate::config_files;
use crate::config_watch::ConfigWatch;
use crate::core::Core;
use crate::dataplane_thread::DataplaneThread;
use crate::demand::Demand;
use crate::descriptor_store::DescriptorStore;
use crate::error::DaemonError;
use crate::fleet::Fleet;
use crate::instance::OwnFile;
use crate::memberships::Joined;
use crate::named_files;
use crate::options::Options;
use crate::reports::Reports;
use crate::service_manager;
use crate::signals::Signals;
use crate::state::changes::ChangeLog;
use crate::state::generations::Generations;
use crate::state::pending::Pending;
use crate::state::running::RunningStore;
use command::{Command, Order};

/// How often failed joins are tried again, and workers checked.
const RETRY: Duration = tick::SECOND;

pub(crate) struct Supervisor {
    pub(crate) options: Options,
    /// The daemon settings at the start.
    pub(crate) started_with: DaemonSettings,
    /// The fleet settings at the start.
    pub(crate) fleet_settings: Option<FleetSettings>,
    /// This relay's membership of the fleet.
    pub(crate) fleet: Option<Fleet>,
    pub(crate) identity: Identity,
    pub(crate) core: Core,
    pub(crate) dataplane: DataplaneThread,
    pub(crate) joined: Joined,
    /// The schedule of repeated reports.
    pub(crate) reports: Reports,
    pub(crate) descriptor_store: DescriptorStore,
    /// Whether much memory was freed since the heap was last trimmed.
    pub(crate) heap_to_trim: bool,
    pub(crate) offload: Offload,
    pub(crate) backlog: Backlog,
    pub(crate) tunnels: Tunnels,
    /// The state of GRO on interfaces, and its reason.
    pub(crate) merging: BTreeMap<Ifindex, String>,
    /// The inputs received at XDP, or why they are not.
    pub(crate) hooks: Hooks,
    /// The hooks as published in the view.
    pub(crate) shown_hooks: Hooks,
    /// The configuration as last read.
    pub(crate) configured: Config,
    /// The watch over its files, if enabled.
    pub(crate) files: Option<ConfigWatch>,
    pub(crate) watch: Watch,
    /// Clients of other hosts.
    pub(crate) remote: Arc<Remote>,
    pub(crate) running_store: RunningStore,
    /// The log of changes, or why there is none.
    pub(crate) log: Result<ChangeLog, Arc<str>>,
    /// The last change.
    pub(crate) last: Option<ChangeRecord>,
    /// The rule sets that people made last.
    pub(crate) generations: Generations,
    /// The directory of persistent state.
    pub(crate) state: PathBuf,
    /// A change that waits to be confirmed, or was undone although the files still contain it.
    pub(crate) unconfirmed: Option<Pending>,
    /// Whether undoing an unconfirmed change failed.
    pub(crate) undoing_failed: bool,
    /// Removed rules that an undo would restore with their counters.
    pub(crate) counters_held: Vec<String>,
    /// The author of a reload requested while a change waits to be confirmed.
    pub(crate) reload_waits: Option<Author>,
    /// Why the running rules are not written to disk, if so.
    pub(crate) unsaved: Option<Arc<str>>,
    pub(crate) events: Events,
    /// Destinations outside that events are sent to.
    pub(crate) notified: Arc<Notified>,
    pub(crate) view: watch::Sender<Arc<View>>,
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) host_changes: mpsc::Receiver<Snapshot>,
    /// The listeners of outputs on demand.
    pub(crate) demand: Demand,
    pub(crate) signals: Signals,
    /// This daemon's restarts of each worker as last read.
    pub(crate) restarts: BTreeMap<u32, u64>,
    /// The revision of the workers when they were last checked.
    pub(crate) workers: u64,
    /// The number of host notifications when the memberships were last checked.
    pub(crate) notices: u64,
    /// The number of the host reading that the running rules were last applied to.
    pub(crate) reading: u64,
    /// The files by which others find this daemon.
    pub(crate) own_files: [OwnFile; 2],
    /// A change of the host that could not be applied yet.
    pub(crate) pending: Option<Snapshot>,
}

impl Supervisor {
    pub(crate) async fn serve(mut self) -> Result<(), DaemonError> {
        let mut retry = tick::next(RETRY);
        let hands_over = loop {
            let remaining = self.time_to_confirm();
            tokio::select! {
                Some((signal, by)) = self.signals.next() => match signal {
                    Signal::SIGHUP => {
                        let by = By { via: Via::Reload, ..by };
                        self.reload_waits = Some(Author { by, ..Author::default() });
                        self.reload_after_waiting().await;
                    }
                    signal => break signal == Signal::SIGUSR1,
                },
                Some(command) = self.commands.recv() => self.execute(command).await,
                Some(snapshot) = self.host_changes.recv() => self.host_changed(snapshot).await,
                listening = self.demand.next_change() => self.listening_changed(listening).await,
                () = sleep(remaining) => self.undo_in_time().await,
                () = sleep_until(retry) => {
                    retry = tick::next(RETRY);
                    self.do_periodic_work().await;
                }
            }
        };
        self.stop(hands_over).await
    }

    async fn execute(&mut self, command: Command) {
        if !command.turn.begin() {
            return;
        }
        let outcome = self.carry_out(command.order, &command.author).await;
        // The requester may have disconnected.
        let _ = command.reply.send(outcome);
        self.reload_after_waiting().await;
    }

    async fn carry_out(&mut self, mut order: Order, author: &Author) -> Reply<Change> {
        let mut ignored = Vec::new();
        if let Order::Change(request) | Order::DryRun(request) = &mut order
            && author.is_elsewhere
        {
            ignored = request.retain_local(self.core.settings());
        }
        if let Order::Change(_) | Order::Reload | Order::Save = order {
            self.refuse_while_waiting()?;
        }
        self.insist(author.generation)?;
        let done = match order {
            Order::Change(request) => {
                let mut change = self.change(&request, author).await?;
                if author.save && author.confirm.is_none() {
                    let warning = self.save_changed(&change, author);
                    change.warnings.extend(warning);
                }
                change
            }
            Order::DryRun(request) => self.dry_run(&request).await?,
            Order::Reload => self.reload(author).await?,
            Order::Save => self.save_all(author)?,
            Order::Confirm => self.confirm(author).await?,
            Order::Undo { dry_run } => self.undo(author, dry_run).await?,
            Order::Fleet(rules) => self.change_fleet(rules, author).await?,
            Order::Routes(asked) => {
                let table =
                    block_in_place(|| self.core.table().of(asked.ingress, asked.destination));
                // The requester may have disconnected.
                let _ = asked.table.send(table);
                Change::default()
            }
        };
        Ok(with_warnings(done, ignored))
    }

    /// A snapshot of the rules' reading, with this host.
    fn snapshot_of(&self, host: Host) -> Snapshot {
        Snapshot {
            reading: self.reading,
            host,
            ..Snapshot::default()
        }
    }

    /// Notes the configuration as read; of what only files configure, what was applied last stays.
    pub(super) fn note_configured(&mut self, read: Config) {
        self.configured = Config {
            rules: read.rules,
            settings: read.settings,
            ..self.configured.own()
        };
    }

    /// Applies the settings that only files of this host may change, and that are not published.
    pub(crate) fn follow_own_files(&self) {
        let Config { api, targets, .. } = &self.configured;
        let is_secret =
            |target: &NotifyTarget| target.secret_file.is_some() || target.headers_file.is_some();
        if targets.iter().any(is_secret) {
            remote::keep_secrets();
        }
        self.remote.set(api.clone());
        self.notified.set(targets.clone());
    }

    /// Replaces the running rules by those of the current configuration.
    async fn reload(&mut self, author: &Author) -> Result<Change, ApiError> {
        service_manager::reloading();
        if let Some(files) = &mut self.files {
            block_in_place(|| files.note_read());
        }
        let config =
            config_files::read_again(self.options.config.as_deref(), self.core.own_policy());
        let outcome = match config {
            Ok(config) => {
                let own = config.own();
                self.note_configured(config.clone());
                let mut awaiting = self.awaiting_restart(&config.settings);
                awaiting.extend(block_in_place(|| named_files::of_fleet(&config.settings)));
                for awaiting in &awaiting {
                    tracing::warn!("{awaiting}");
                }
                let outcome = match self.core.keeping_fleet(config) {
                    Ok(config) => self.change_to(config, author).await,
                    Err(refused) => Err(refused),
                };
                outcome
                    .and_then(|change| self.change_own(own, change, author))
                    .map(|change| with_warnings(change, awaiting))
                    .map_err(ApiError::from)
            }
            Err(error) => Err(ApiError::new(Code::Invalid, error)),
        };
        let event = match &outcome {
            Ok(change) => events::event(
                events::kind::RELOADED,
                "configuration",
                format!(
                    "configuration read again: {} added, {} removed, {} changed, {} unchanged",
                    change.added.len(),
                    change.removed.len(),
                    change.changed.len(),
                    change.unchanged
                ),
            ),
            Err(refusal) => events::not_used(&refusal.message),
        };
        if outcome.is_ok() {
            self.forget_undone();
        }
        let why = author.message.as_deref();
        self.events.publish(events::done_by(event, &author.by, why));
        if outcome.is_ok() {
            // Last: a failure that this reload ends is no news to a new target.
            self.follow_own_files();
        }
        service_manager::ready(self.core.rules().len());
        outcome
    }

    /// Reads the configuration again if its files have changed, unless a change waits to be confirmed.
    async fn follow_files(&mut self) {
        let is_waiting = self.waiting().is_some();
        let files = self.files.as_mut().filter(|_| !is_waiting);
        if files.is_some_and(|files| block_in_place(|| files.have_changed())) {
            let author = Author::of(Via::Reload, Some("watch".to_owned()));
            drop(self.reload(&author).await);
        }
    }

    /// The differences in settings that take effect only after a restart.
    fn awaiting_restart(&self, settings: &Settings) -> Vec<String> {
        let asked = self.options.given.over(&settings.daemon);
        let mut awaiting = asked.awaiting_restart(&self.started_with);
        let (asked, running) = (settings.fleet.as_ref(), self.fleet_settings.as_ref());
        awaiting.extend(FleetSettings::awaiting_restart(asked, running));
        awaiting
    }

    /// Retries what failed, and checks for changes without notification.
    async fn do_periodic_work(&mut self) {
        service_manager::alive();
        self.own_files.iter_mut().for_each(OwnFile::watch);
        if let Some(snapshot) = self.pending.take() {
            self.host_changed(snapshot).await;
        }
        let notices = self.watch.notices();
        if std::mem::replace(&mut self.notices, notices) != notices {
            self.joined.doubt();
        }
        let lost = if self.joined.is_check_due() {
            block_in_place(|| self.joined.give_up_missing())
        } else {
            0
        };
        if lost > 0 || self.joined.is_incomplete() {
            block_in_place(|| self.joined.settle(&self.core.wanted()));
            self.update_view(None, Vec::new());
        }
        let (generation, core) = (self.core.generation(), &self.core);
        let joined = &mut self.joined;
        block_in_place(|| joined.end_lingering(generation, |held| core.lets_linger(held)));
        block_in_place(|| self.reports.send_due(&self.core, &self.joined));
        self.end_joins().await;
        self.follow_files().await;
        self.retry_tunnels().await;
        self.follow_merging();
        self.follow_hooks().await;
        self.follow_backlog();
        self.follow_workers().await;
        if self.unsaved.is_some() {
            block_in_place(|| self.save(None));
        }
        if std::mem::take(&mut self.heap_to_trim) {
            block_in_place(sys::heap::trim);
        }
    }

    /// Updates the descriptor store, and publishes restarts of workers.
    async fn follow_workers(&mut self) {
        let workers = self.dataplane.worker_revision();
        if std::mem::replace(&mut self.workers, workers) == workers {
            if self.descriptor_store.is_behind(&self.joined) {
                block_in_place(|| self.descriptor_store.update(&self.joined));
            }
            return;
        }
        self.store_descriptors().await;
        for worker in self.restarted_workers().await {
            self.events.publish(events::worker_restarted(&worker));
        }
    }

    /// Lists the workers that were restarted since they were last checked.
    async fn restarted_workers(&mut self) -> Vec<WorkerStats> {
        let mut workers = self.dataplane.workers().await.unwrap_or_default();
        workers.retain(|worker| {
            // A new worker may have been restarted before its first check.
            let last = self.restarts.insert(worker.id, worker.restarts_here);
            last.unwrap_or(0) < worker.restarts_here
        });
        workers
    }

    /// Stores the descriptors of the current memberships and workers for the next daemon.
    pub(crate) async fn store_descriptors(&mut self) {
        match self.dataplane.descriptors().await {
            Ok(descriptors) => self.descriptor_store.set_dataplane(descriptors),
            Err(error) => tracing::warn!(%error, "a crash would end the workers"),
        }
        block_in_place(|| self.descriptor_store.update(&self.joined));
    }

    async fn stop(mut self, hands_over: bool) -> Result<(), DaemonError> {
        service_manager::stopping();
        block_in_place(|| self.generations.finish());
        if let Ok(counters) = self.dataplane.counters().await {
            stats::log(Readings {
                identity: &self.identity,
                view: &self.view.borrow().clone(),
                counters: &counters,
                sampler: &Sampler::default(),
                listeners: self.demand.listeners(),
            });
        }
        if let Some(fleet) = self.fleet.take().filter(|_| !hands_over) {
            // While everything still works, and the other relays' last messages still arrive.
            self.leave(&fleet).await;
        }
        if hands_over || self.started_with.keep_forwarding == Some(true) {
            block_in_place(|| {
                self.save(Some(&self.configured.clone()));
                self.demand.save();
            });
            self.store_descriptors().await;
            let how = if self.descriptor_store.holds_workers() {
                Close::HandOver
            } else {
                Close::KeepForwarding
            };
            return Ok(self.dataplane.close(how).await?);
        }
        self.detach().await
    }

    /// Gives up all shares of the fleet, and executes the fleet's commands meanwhile.
    async fn leave(&mut self, fleet: &Fleet) {
        let leaving = fleet.leave();
        tokio::pin!(leaving);
        loop {
            tokio::select! {
                () = &mut leaving => return,
                Some(command) = self.commands.recv() => self.execute(command).await,
            }
        }
    }

    /// Removes everything: forwarding, memberships and running rules.
    pub(crate) async fn detach(mut self) -> Result<(), DaemonError> {
        let closed = self.dataplane.close(Close::Detach).await;
        self.running_store.remove();
        self.demand.remove();
        block_in_place(|| {
            self.offload.close();
            self.descriptor_store.close();
        });
        self.tunnels.close().await;
        Ok(closed?)
    }
}

fn with_warnings(mut change: Change, warnings: Vec<String>) -> Change {
    change.warnings.extend(warnings);
    change
}
