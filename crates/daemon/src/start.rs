//! From nothing to the first live rules.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use model::config::{Config, MAX_RULES};
use model::placement::{PathChoice, Support};
use model::ruleset::{Policy, RuleSet};
use model::table::Table;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, watch};
use tokio::task::block_in_place;

use crate::api::server;
use crate::api::service::Service;
use crate::api::socket::Listener;
use crate::core::Core;
use crate::dataplane_thread::DataplaneThread;
use crate::descriptor_store::DescriptorStore;
use crate::error::DaemonError;
use crate::events::Events;
use crate::host::offload::Offload;
use crate::instance::Instance;
use crate::memberships::Joined;
use crate::options::Options;
use crate::state::running::RunningStore;
use crate::stats::{Identity, Sampler};
use crate::supervisor::{Signals, Supervisor};
use crate::view::View;
use crate::{config, host, service_manager};

/// Changes that may wait for the supervisor.
const QUEUE: usize = 64;

/// Runs until SIGTERM, SIGINT or SIGUSR1.
pub(crate) async fn run(
    options: &Options,
    instance: &Instance,
    listener: Listener,
) -> Result<(), DaemonError> {
    start(options, instance, &listener).await?.serve().await
}

async fn start(
    options: &Options,
    instance: &Instance,
    listener: &Listener,
) -> Result<Supervisor, DaemonError> {
    let signals = Signals::new()?;
    let policy = Policy {
        allow_link_local: options.given.allow_link_local == Some(true),
    };
    let config = config::read(options.config.as_deref(), policy)?;
    let started_with = options.given.over(&config.settings.daemon);
    let path = started_with.path.unwrap_or_default();
    let (dataplane, support) = DataplaneThread::start(dataplane::Options {
        instance: instance.name().to_owned(),
        bpffs: options.bpffs.clone(),
        workers: started_with.workers.map_or(0, usize::from),
        // On `--path userspace` too: it consumes behind the taps what workers relay, and what an
        // earlier run left pinned must not go on forwarding beside them.
        kernel: true,
        worker_command: options.worker_command.clone(),
        ..dataplane::Options::default()
    })?;
    require_path(&support, path)?;
    let max_rules = started_with.max_rules.unwrap_or(MAX_RULES) as usize;
    let mut core = Core::new(support.clone(), path, policy).at_most(max_rules);
    let running_store = RunningStore::new(instance.directory());
    let first = first_config(&running_store, &mut core, config.clone());
    let (watch, host_changes) = host::follow()?;
    let (commands, incoming) = mpsc::channel(QUEUE);
    let (sender, view) = watch::channel(Arc::new(View::default()));
    let identity = Identity {
        instance: instance.name().to_owned(),
        started: Instant::now(),
    };
    let events = Events::new();
    let mut joined = Joined::default();
    let descriptor_store = block_in_place(|| {
        DescriptorStore::open(
            &options.fd_holder_command,
            instance.directory(),
            &mut joined,
        )
    });
    let mut supervisor = Supervisor {
        options: options.clone(),
        started_with,
        identity: identity.clone(),
        core,
        dataplane: dataplane.clone(),
        joined,
        descriptor_store,
        offload: Offload::open(instance.directory()),
        merging: Default::default(),
        heap_to_trim: true,
        configured: config,
        watch,
        running_store,
        events: events.clone(),
        view: sender,
        commands: incoming,
        host_changes,
        signals,
        restarts: Default::default(),
        pending: None,
    };
    supervisor.first_step(first).await?;
    let sampler = Sampler::default();
    tokio::spawn(
        sampler
            .clone()
            .run(dataplane.clone(), view.clone(), events.clone()),
    );
    let service = Arc::new(Service {
        identity,
        commands,
        dataplane,
        view,
        support,
        events,
        sampler,
        log: options.log,
    });
    open_api(listener, supervisor.started_with.listen, service).await?;
    tracing::info!(
        instance = instance.name(),
        socket = %options.socket.display(),
        rules = supervisor.core.rules().len(),
        "ready"
    );
    service_manager::ready(supervisor.core.rules().len());
    Ok(supervisor)
}

/// Answers on the control socket, and on TCP where that is asked for.
async fn open_api(
    listener: &Listener,
    public: Option<SocketAddr>,
    service: Arc<Service>,
) -> Result<(), DaemonError> {
    let control = listener.listener().and_then(UnixListener::from_std);
    let control = control.map_err(DaemonError::Runtime)?;
    tokio::spawn(server::serve_control(control, service.clone()));
    if let Some(address) = public {
        let public = TcpListener::bind(address).await;
        let public = public.map_err(|source| DaemonError::Listen { address, source })?;
        tokio::spawn(server::serve_read_only(public, service));
    }
    Ok(())
}

impl Supervisor {
    /// Brings the first rules to the dataplane, which may have others from before.
    async fn first_step(&mut self, first: Config) -> Result<(), DaemonError> {
        let queries = self.core.queries(&first.rules);
        let snapshot = self.watch.read(queries).await?;
        let (rules, settings) = (Arc::new(first.rules), Arc::new(first.settings));
        let (host, renewed) = (Arc::new(snapshot.host), BTreeSet::new());
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
        self.finish(step, &[], Vec::new());
        block_in_place(|| self.save(None));
        Ok(())
    }
}

/// After a crash or a hand-over the running rules and settings of before, unless the configuration
/// was edited since the daemon before read it; otherwise those of the configuration.
fn first_config(store: &RunningStore, core: &mut Core, configured: Config) -> Config {
    let Some(running) = store.load() else {
        return configured;
    };
    if running.is_overtaken_by(&configured) {
        tracing::info!("the configuration was edited; rules added at run time are not used");
        core.continue_from(running.generation);
        return configured;
    }
    let mut settings = running
        .settings
        .unwrap_or_else(|| configured.settings.clone());
    // How this daemon is started is the configuration's to say, not the one before's.
    settings.daemon = configured.settings.daemon.clone();
    match RuleSet::from_documents(&running.rules, core.policy(&settings)) {
        Ok(rules) => {
            tracing::info!(
                rules = rules.len(),
                generation = running.generation,
                "goes on with the running rules of before; `mcr apply` takes the configuration"
            );
            core.continue_from(running.generation);
            Config { rules, settings }
        }
        Err(problems) => {
            tracing::warn!(%problems, "running rules of before are not valid any more; not used");
            configured
        }
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
