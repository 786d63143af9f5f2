//! Starts the daemon up to the first live rules.

use std::collections::BTreeSet;
use std::mem::take;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use api::request::RULES_MAX;
use compile::placement::{PathChoice, Support};
use compile::table::Table;
use config::{Config, FleetSettings};
use dataplane::Capacity;
use dataplane::features::{Feature, Features};
use host::backlog::{self, Backlog};
use host::offload::Offload;
use host::tunnels::Tunnels;
use observe::events::{self, Events};
use observe::notify;
use observe::stats::{Identity, Sampler};
use observe::view::View;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::task::block_in_place;

use crate::api::server::Public;
use crate::api::service::Service;
use crate::api::socket::Listener;
use crate::api::{host_name, remote, server};
use crate::capture::CaptureCommand;
use crate::config_watch::ConfigWatch;
use crate::dataplane_thread::{DataplaneThread, OpenedDataplane};
use crate::demand::Demand;
use crate::descriptor_store::DescriptorStore;
use crate::error::DaemonError;
use crate::fleet::{DaemonHost, Fleet};
use crate::instance::{Instance, OwnFile};
use crate::memberships::Joined;
use crate::options::Options;
use crate::signals::Signals;
use crate::startup_state::StartupState;
use crate::state::acknowledged::Acknowledged;
use crate::state::changes::ChangeLog;
use crate::state::running::RunningStore;
use crate::supervisor::Supervisor;
use crate::supervisor::command::Command;
use crate::supervisor::port_conflicts::port_conflicts;
use crate::{abort_on_panic, config_files, sampling, service_manager};

/// The most changes that wait for the supervisor.
const QUEUE: usize = 64;

/// Runs until SIGTERM, SIGINT or SIGUSR1.
pub(crate) async fn run(
    options: &Options,
    instance: &Instance,
    listener: Listener,
    startup: StartupState,
) -> Result<(), DaemonError> {
    let supervisor = start(options, instance, &listener, startup).await?;
    // A task of its own: otherwise the thread that waits here would wake with every tick too.
    let served = tokio::spawn(supervisor.serve()).await;
    served.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

async fn start(
    options: &Options,
    instance: &Instance,
    listener: &Listener,
    mut startup: StartupState,
) -> Result<Supervisor, DaemonError> {
    // Everything that can fail comes before the first rule is live.
    let signals = Signals::new()?;
    let control = listener
        .listener()
        .and_then(UnixListener::from_std)
        .map_err(DaemonError::Runtime)?;
    let public = listen(startup.started_with.listen)?;
    let own_files = [instance.lock(), listener.file()];
    let (mut supervisor, handles) =
        assemble(options, instance, (signals, own_files), &mut startup)?;
    let live = match require_path(&handles.support, startup.path()) {
        Ok(()) => supervisor.first_step(startup.first).await,
        refused => refused,
    };
    if let Err(error) = live {
        if !startup.continues {
            let _ = supervisor.detach().await;
        }
        return Err(error);
    }
    block_in_place(|| supervisor.begin_log(startup.generation, instance.state()));
    if let Some(error) = startup.unread {
        supervisor.events.publish(events::not_used(&error));
    }
    // Before the first notification, for which the targets have to be known.
    supervisor.follow_own_files();
    let service = supervisor.serve_readers(instance, handles)?;
    let names = host_name::served(supervisor.started_with.listen_names.as_deref());
    remote::serve(&service, Arc::clone(&names));
    if let Some(public) = public {
        public
            .serve(&service, names)
            .map_err(DaemonError::Runtime)?;
    }
    abort_on_panic::spawn(server::serve_control(control, service));
    tracing::info!(
        instance = instance.name(),
        socket = %options.socket.display(),
        rules = supervisor.core.rules().len(),
        "ready"
    );
    service_manager::ready(supervisor.core.rules().len());
    Ok(supervisor)
}

/// The other ends of the supervisor's channels, and what the host supports.
struct Handles {
    commands: mpsc::Sender<Command>,
    view: watch::Receiver<Arc<View>>,
    support: Support,
    features: Features,
}

/// Opens the daemon's resources; no rules are live yet.
fn assemble(
    options: &Options,
    instance: &Instance,
    (signals, own_files): (Signals, [OwnFile; 2]),
    startup: &mut StartupState,
) -> Result<(Supervisor, Handles), DaemonError> {
    let (watch, host_changes) = host::follow()?;
    let mut joined = Joined::default();
    let opened = block_in_place(|| open(options, instance, startup, &mut joined));
    let (descriptor_store, (dataplane, support, features)) = opened?;
    let started_with = startup.started_with.clone();
    let fleet_settings = startup.first.settings.fleet.clone();
    let (commands, incoming) = mpsc::channel(QUEUE);
    let (sender, view) = watch::channel(Arc::new(View::default()));
    let events = Events::default();
    let supervisor = Supervisor {
        own_files,
        options: options.clone(),
        identity: identity(options, instance, fleet_settings.as_ref()),
        fleet_settings,
        fleet: None,
        core: startup.core(support.clone(), options.policy()),
        dataplane,
        joined: {
            joined.at_most(startup.max_memberships());
            joined
        },
        reports: Default::default(),
        descriptor_store,
        offload: Offload::open(
            instance.directory(),
            features.found(Feature::SuperPackets) != Some(false),
            started_with.gro.unwrap_or_default(),
        ),
        backlog: Backlog::new(
            backlog::SETTING.as_ref(),
            started_with.backlog.unwrap_or_default(),
        ),
        tunnels: Tunnels::open(instance.name())?,
        merging: Default::default(),
        hooks: Default::default(),
        shown_hooks: Default::default(),
        heap_to_trim: true,
        configured: take(&mut startup.configured),
        files: (started_with.watch == Some(true))
            .then(|| ConfigWatch::new(options.config.clone(), take(&mut startup.files))),
        started_with,
        watch,
        remote: Arc::default(),
        notified: Arc::default(),
        running_store: RunningStore::new(instance.directory()),
        log: Err("".into()),
        last: None,
        state: instance.state().to_owned(),
        unconfirmed: startup.unconfirmed.take(),
        undoing_failed: false,
        counters_held: Vec::new(),
        reload_waits: None,
        generations: Default::default(),
        unsaved: None,
        demand: Demand::start(instance.directory(), events.clone()),
        events,
        view: sender,
        commands: incoming,
        host_changes,
        signals,
        restarts: Default::default(),
        workers: 0,
        notices: 0,
        reading: 0,
        pending: None,
    };
    let handles = Handles {
        commands,
        view,
        support,
        features,
    };
    Ok((supervisor, handles))
}

/// Opens the dataplane and, in parallel, the descriptor store.
fn open(
    options: &Options,
    instance: &Instance,
    startup: &mut StartupState,
    joined: &mut Joined,
) -> Result<(DescriptorStore, OpenedDataplane), DaemonError> {
    let workers = startup.started_with.workers;
    let opening = DataplaneThread::start(dataplane::Options {
        instance: instance.name().to_owned(),
        bpffs: options.bpffs.clone(),
        workers: workers.map_or(0, usize::from),
        // With `--path userspace` too: it consumes behind the taps the packets that workers relay, and
        // pinned programs of an earlier run must not continue to forward beside them.
        kernel: true,
        without: options.without.clone(),
        worker_command: options.worker_command.clone(),
        worker_user: startup.worker_user.take(),
        log_directory: Some(instance.directory().to_owned()),
        capacity: Capacity::for_rules(startup.max_rules().min(RULES_MAX as u32)),
        ..Default::default()
    })?;
    let store = DescriptorStore::open(&options.fd_holder_command, instance.directory(), joined);
    match opening.finish() {
        Ok(opened) => Ok((store, opened)),
        Err(error) => {
            // The forwarding of an earlier run continues until a start succeeds.
            if !startup.continues {
                store.close();
            }
            Err(error.into())
        }
    }
}

fn identity(options: &Options, instance: &Instance, fleet: Option<&FleetSettings>) -> Identity {
    Identity {
        instance: instance.name().to_owned(),
        host: host_name::own(),
        started: Instant::now(),
        config: config_files::main_file(options.config.as_deref()),
        fleet: fleet.map(|fleet| fleet.name.clone()),
    }
}

/// Listens on TCP if configured; connections wait until they are served.
fn listen(address: Option<SocketAddr>) -> Result<Option<Public>, DaemonError> {
    let Some(address) = address else {
        return Ok(None);
    };
    match Public::listen(address) {
        Ok(public) => Ok(Some(public)),
        Err(source) => Err(DaemonError::Listen { address, source }),
    }
}

impl Supervisor {
    /// Starts sampling, notifications and the fleet's relay; returns the service of the API.
    fn serve_readers(
        &mut self,
        instance: &Instance,
        handles: Handles,
    ) -> Result<Arc<Service>, DaemonError> {
        let Handles { commands, view, .. } = handles;
        let (dataplane, events) = (self.dataplane.clone(), self.events.clone());
        let sampler = Sampler::new(self.started_with.silence.unwrap_or_default());
        abort_on_panic::spawn(sampling::run(
            sampler.clone(),
            dataplane.clone(),
            view.clone(),
            events.clone(),
        ));
        abort_on_panic::spawn(notify::run(notify::Source {
            notified: Arc::clone(&self.notified),
            events: events.clone(),
            view: view.clone(),
            sampler: sampler.clone(),
            identity: self.identity.clone(),
        }));
        if let Some(settings) = self.fleet_settings.clone() {
            let host = DaemonHost::new(
                commands.clone(),
                dataplane.clone(),
                view.clone(),
                events.clone(),
                sampler.clone(),
                (settings.name.clone(), settings.input_silence()),
            );
            let permitted = self.core.policy(self.core.settings());
            let shares = self
                .core
                .rules()
                .iter()
                .filter_map(|rule| rule.share.clone());
            let gates = shares.map(|share| (share.clone(), dataplane.gates().until(&share)));
            let of_instance = (instance, permitted);
            self.fleet = Some(Fleet::start(
                settings,
                of_instance,
                (host, gates.collect()),
            )?);
        }
        let acknowledged = Acknowledged::open(instance.state());
        abort_on_panic::spawn(acknowledged.clone().follow(self.events.clone()));
        Ok(Arc::new(Service {
            acknowledged,
            identity: self.identity.clone(),
            commands,
            dataplane,
            view,
            support: handles.support,
            features: handles.features,
            events,
            sampler,
            listeners: self.demand.listeners().clone(),
            fleet: self.fleet.clone(),
            generations: self.generations.clone(),
            changes: match &self.log {
                Ok(_) => Ok(ChangeLog::path(instance.state())),
                Err(why) => Err(Arc::clone(why)),
            },
            log: self.options.log,
            capture: CaptureCommand {
                program: self.options.capture_program.clone(),
                socket: self.options.socket.clone(),
            },
            unsaved: Arc::default(),
            responses: Arc::default(),
            is_apart: false,
            remote: Arc::clone(&self.remote),
            notified: Arc::clone(&self.notified),
        }))
    }

    /// Applies the first rules to the dataplane, which may still execute those of an earlier run.
    async fn first_step(&mut self, first: Config) -> Result<(), DaemonError> {
        let queries = self.core.queries(&first.rules, &first.settings);
        let mut snapshot = self.watch.read(queries).await?;
        self.make_first_tunnels(&first, &mut snapshot).await?;
        let (rules, settings) = (Arc::new(first.rules), Arc::new(first.settings));
        self.reading = snapshot.reading;
        let (host, renewed) = (Arc::new(snapshot.host), BTreeSet::new());
        // Meanwhile the kernel path continues to forward.
        let listening = self.demand.restore(&host);
        self.core.set_listening(listening);
        let step = block_in_place(|| self.core.step(rules, settings, host, &renewed));
        // Joined before anything is forwarded and before any membership of an earlier run is left.
        block_in_place(|| self.joined.settle(&self.core.joins(&step)));
        let mut table = Table::default();
        step.diff().clone().apply_to(&mut table);
        self.dataplane
            .inherit(self.descriptor_store.take_inherited())
            .await?;
        self.dataplane.prepare(table.clone()).await?;
        // Held before they take packets: from then on they may outlive this process.
        self.store_descriptors().await;
        self.prepare_hooks(step.rules_and_settings().1, step.host())
            .await?;
        self.dataplane.sync(table).await?;
        self.hooks = self.dataplane.hooks().await?;
        let conflicts = block_in_place(|| port_conflicts(self.core.rules(), &step));
        for warning in self.contested(&step).await.into_iter().chain(conflicts) {
            tracing::warn!("{warning}");
        }
        self.finish(step, &[], Vec::new());
        self.remove_tunnels().await;
        self.follow_demand();
        block_in_place(|| self.save(None));
        Ok(())
    }
}

fn require_path(support: &Support, choice: PathChoice) -> Result<(), DaemonError> {
    let reason = match (choice, &support.kernel, &support.userspace) {
        (PathChoice::Kernel, Err(reason), _) => format!("no kernel path: {reason}"),
        (PathChoice::Userspace, _, Err(reason)) => format!("no userspace path: {reason}"),
        (PathChoice::Auto, Err(kernel), Err(userspace)) => {
            format!("no kernel path: {kernel}; no userspace path: {userspace}")
        }
        _ => return Ok(()),
    };
    Err(DaemonError::NoPath {
        reason,
        missing: sys::capability::missing(),
    })
}
