//! From nothing to the first live rules.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use api::request::RULES_MAX;
use compile::placement::{PathChoice, Support};
use compile::table::Table;
use config::{Config, MAX_MEMBERSHIPS, MAX_RULES};
use dataplane::Capacity;
use dataplane::features::Feature;
use host::backlog::{self, Backlog};
use host::offload::Offload;
use host::tunnels::Tunnels;
use observe::events::{self, Events, webhook};
use observe::stats::{Identity, Sampler};
use observe::view::View;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::task::block_in_place;

use crate::api::server::Public;
use crate::api::service::Service;
use crate::api::socket::Listener;
use crate::api::{host_name, server};
use crate::beginning::Beginning;
use crate::core::Core;
use crate::dataplane_thread::DataplaneThread;
use crate::demand::Demand;
use crate::descriptor_store::DescriptorStore;
use crate::error::DaemonError;
use crate::fleet::{Fleet, Lent};
use crate::instance::Instance;
use crate::memberships::Joined;
use crate::options::Options;
use crate::signals::Signals;
use crate::state::running::RunningStore;
use crate::supervisor::Supervisor;
use crate::supervisor::occupied::occupied;
use crate::{abort_on_panic, config_files, sampling, service_manager};

/// Changes that may wait for the supervisor.
const QUEUE: usize = 64;

/// Runs until SIGTERM, SIGINT or SIGUSR1.
pub(crate) async fn run(
    options: &Options,
    instance: &Instance,
    listener: Listener,
    beginning: Beginning,
) -> Result<(), DaemonError> {
    let supervisor = start(options, instance, &listener, beginning).await?;
    // A task of its own: the thread that waits here would wake up as well with every tick.
    let served = tokio::spawn(supervisor.serve()).await;
    served.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

async fn start(
    options: &Options,
    instance: &Instance,
    listener: &Listener,
    beginning: Beginning,
) -> Result<Supervisor, DaemonError> {
    // All that can refuse comes before the first rule is live.
    let signals = Signals::new()?;
    let Beginning {
        configured,
        first,
        generation,
        continues,
        unread,
        started_with,
        worker_user,
    } = beginning;
    let control = listener.listener().and_then(UnixListener::from_std);
    let control = control.map_err(DaemonError::Runtime)?;
    let public = listen(started_with.listen).await?;
    let (watch, host_changes) = host::follow()?;
    let path = started_with.path.unwrap_or_default();
    let merging = started_with.gro.unwrap_or_default();
    let silence = started_with.silence.unwrap_or_default();
    let backlog_choice = started_with.backlog.unwrap_or_default();
    let max_rules = started_with.max_rules.unwrap_or(MAX_RULES);
    let opening = DataplaneThread::start(dataplane::Options {
        instance: instance.name().to_owned(),
        bpffs: options.bpffs.clone(),
        workers: started_with.workers.map_or(0, usize::from),
        // On `--path userspace` too: it consumes behind the taps what workers relay, and what an
        // earlier run left pinned must not go on forwarding beside them.
        kernel: true,
        without: options.without.clone(),
        worker_command: options.worker_command.clone(),
        worker_user,
        log_directory: Some(instance.directory().to_owned()),
        capacity: Capacity::for_rules(max_rules.min(RULES_MAX as u32)),
        ..Default::default()
    })?;
    let (commands, incoming) = mpsc::channel(QUEUE);
    let (sender, view) = watch::channel(Arc::new(View::default()));
    let identity = Identity {
        instance: instance.name().to_owned(),
        host: host_name::own(),
        started: Instant::now(),
        config: config_files::main_file(options.config.as_deref()),
        fleet: first
            .settings
            .fleet
            .as_ref()
            .map(|fleet| fleet.name.clone()),
    };
    let events = Events::default();
    let mut joined = Joined::default();
    let descriptor_store = block_in_place(|| {
        DescriptorStore::open(
            &options.fd_holder_command,
            instance.directory(),
            &mut joined,
        )
    });
    let (dataplane, support, features) = match block_in_place(|| opening.finish()) {
        Ok(opened) => opened,
        Err(error) => {
            // What an earlier run left goes on until a start succeeds.
            if !continues {
                block_in_place(|| descriptor_store.close());
            }
            return Err(error.into());
        }
    };
    let max_memberships = started_with.max_memberships.unwrap_or(MAX_MEMBERSHIPS) as usize;
    let mut core = Core::new(support.clone(), path, options.policy())
        .at_most(max_rules as usize, max_memberships);
    core.continue_from(generation);
    let fleet_settings = first.settings.fleet.clone();
    let mut supervisor = Supervisor {
        own_files: [instance.lock(), listener.file()],
        options: options.clone(),
        started_with,
        fleet_settings: fleet_settings.clone(),
        fleet: None,
        identity: identity.clone(),
        core,
        dataplane: dataplane.clone(),
        joined,
        descriptor_store,
        offload: Offload::open(
            instance.directory(),
            features.found(Feature::SuperPackets) != Some(false),
            merging,
        ),
        backlog: Backlog::new(backlog::SETTING.as_ref(), backlog_choice),
        tunnels: Tunnels::open(instance.name())?,
        merging: Default::default(),
        heap_to_trim: true,
        configured,
        watch,
        running_store: RunningStore::new(instance.directory()),
        unsaved: None,
        events: events.clone(),
        view: sender,
        commands: incoming,
        host_changes,
        demand: Demand::start(instance.directory(), events.clone()),
        signals,
        restarts: Default::default(),
        workers: 0,
        notices: 0,
        reading: 0,
        pending: None,
    };
    let live = match require_path(&support, path) {
        Ok(()) => supervisor.first_step(first).await,
        refused => refused,
    };
    if let Err(error) = live {
        if !continues {
            let _ = supervisor.detach().await;
        }
        return Err(error);
    }
    if let Some(error) = unread {
        supervisor.events.publish(events::not_used(&error));
    }
    let sampler = Sampler::new(silence);
    abort_on_panic::spawn(sampling::run(
        sampler.clone(),
        dataplane.clone(),
        view.clone(),
        events.clone(),
    ));
    abort_on_panic::spawn(webhook::run(
        events.clone(),
        view.clone(),
        instance.name().to_owned(),
    ));
    if let Some(settings) = fleet_settings {
        let lent = Lent::new(
            commands.clone(),
            dataplane.clone(),
            view.clone(),
            events.clone(),
            sampler.clone(),
            settings.input_silence(),
        );
        let permitted = supervisor.core.policy(supervisor.core.settings());
        let shares = supervisor.core.rules().iter();
        let shares = shares.filter_map(|rule| rule.share.clone());
        let gates = shares.map(|share| (dataplane.gates().until(&share), share));
        let gates = gates.map(|(until, share)| (share, until)).collect();
        let of_instance = (instance.directory(), permitted);
        supervisor.fleet = Some(Fleet::start(settings, of_instance, (lent, gates))?);
    }
    let service = Arc::new(Service {
        identity,
        commands,
        dataplane,
        view,
        support,
        features,
        events,
        sampler,
        listeners: supervisor.demand.listeners().clone(),
        fleet: supervisor.fleet.clone(),
        log: options.log,
        answers: Arc::default(),
    });
    if let Some(public) = public {
        let names = host_name::known(supervisor.started_with.listen_names.as_deref());
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

/// Listens on TCP where that is asked for; who connects waits until somebody answers.
async fn listen(address: Option<SocketAddr>) -> Result<Option<Public>, DaemonError> {
    let Some(address) = address else {
        return Ok(None);
    };
    let public = Public::listen(address).await;
    let public = public.map_err(|source| DaemonError::Listen { address, source })?;
    Ok(Some(public))
}

impl Supervisor {
    /// Brings the first rules to the dataplane, which may have others from before.
    async fn first_step(&mut self, first: Config) -> Result<(), DaemonError> {
        let queries = self.core.queries(&first.rules, &first.settings);
        let mut snapshot = self.watch.read(queries).await?;
        self.make_first_tunnels(&first, &mut snapshot).await?;
        let (rules, settings) = (Arc::new(first.rules), Arc::new(first.settings));
        self.reading = snapshot.reading;
        let (host, renewed) = (Arc::new(snapshot.host), BTreeSet::new());
        // What the kernel path forwards meanwhile goes on.
        let listening = self.demand.begin(&host);
        self.core.set_listening(listening);
        let step = block_in_place(|| self.core.step(rules, settings, host, &renewed));
        // Joined before anything is forwarded and before anything of an earlier run is left.
        block_in_place(|| self.joined.settle(&self.core.joins(&step)));
        let mut table = Table::default();
        step.diff().clone().apply_to(&mut table);
        self.dataplane
            .inherit(self.descriptor_store.take_inherited())
            .await?;
        self.dataplane.prepare(table.clone()).await?;
        // Held before they take packets: from then on they may outlive this process.
        self.store_descriptors().await;
        self.dataplane.sync(table).await?;
        let occupied = block_in_place(|| occupied(self.core.rules(), &step));
        for told in self.contested(&step).await.into_iter().chain(occupied) {
            tracing::warn!("{told}");
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
