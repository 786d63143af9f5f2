//! The state that a daemon starts from: the previous running rules and the configuration, read while the
//! process has one thread and all its privileges.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use compile::placement::{PathChoice, Support};
use config::{Config, DaemonSettings, MAX_MEMBERSHIPS, MAX_RULES, Settings};
use rules::document::RuleDocument;
use rules::ruleset::{Policy, RuleSet};
use rules::setting::Table;
use sys::user::User;

use crate::config_files;
use crate::core::Core;
use crate::error::DaemonError;
use crate::fleet;
use crate::instance::Instance;
use crate::options::Options;
use crate::state::changes::{self, ChangeLog};
use crate::state::pending::Pending;
use crate::state::running::{Running, RunningStore};

/// The state that a daemon starts from.
pub(crate) struct StartupState {
    /// The configuration; empty if it cannot be read.
    pub(crate) configured: Config,
    /// The digest of its files.
    pub(crate) files: String,
    /// The first rules and settings.
    pub(crate) first: Config,
    /// The generation of the rules before them.
    pub(crate) generation: u64,
    /// Whether an earlier daemon left running rules.
    pub(crate) continues: bool,
    /// Why an existing configuration is not used.
    pub(crate) unread: Option<DaemonError>,
    /// A change that waits to be confirmed, or was undone.
    pub(crate) unconfirmed: Option<Pending>,
    /// The daemon settings in force.
    pub(crate) started_with: DaemonSettings,
    /// The user that workers run as, if it differs from this process's.
    pub(crate) worker_user: Option<User>,
}

impl StartupState {
    /// Reads the state.
    ///
    /// # Errors
    /// If the configuration or the command line cannot be used.
    pub(crate) fn read(options: &Options, instance: &Instance) -> Result<Self, DaemonError> {
        let policy = options.policy();
        let running = RunningStore::new(instance.directory()).load();
        let continues = running.is_some();
        let unconfirmed = unconfirmed(options, instance.state(), running.as_ref());
        let running = match &unconfirmed {
            Some(pending) => Some(pending.first(running)),
            None => running,
        };
        let before = changes::last_generation(&ChangeLog::path(instance.state()));
        let files = config_files::digest(options.config.as_deref());
        let config = config_files::read(options.config.as_deref(), policy);
        let mut own_files = Config::default();
        let config = config.and_then(|mut config| {
            // Unlike the rest these count in any case: their troubles are reported apart.
            own_files = config.own();
            let unusable = take_unusable(&mut config.settings, &options.given);
            unusable.map_or(Ok(config), Err)
        });
        let mut read = begin(config, running, policy, &options.given)?;
        if read.unread.is_some() {
            read.configured = own_files;
        }
        let started_with = options.given.over(&read.first.settings.daemon);
        // What is wrong with these now is given on the command line.
        let worker_user = started_with.worker_user.as_deref().map(worker_user);
        started_with.listen.map_or(Ok(()), try_listen)?;
        Ok(Self {
            files,
            configured: read.configured,
            first: read.first,
            generation: read.generation.max(before),
            continues,
            unread: read.unread,
            unconfirmed,
            worker_user: worker_user.transpose()?.flatten(),
            started_with,
        })
    }

    /// The path of rules that do not choose one.
    pub(crate) fn path(&self) -> PathChoice {
        self.started_with.path.unwrap_or_default()
    }

    /// The most rules that clients may run.
    pub(crate) fn max_rules(&self) -> u32 {
        self.started_with.max_rules.unwrap_or(MAX_RULES)
    }

    /// The most memberships that clients may cause.
    pub(crate) fn max_memberships(&self) -> usize {
        self.started_with.max_memberships.unwrap_or(MAX_MEMBERSHIPS) as usize
    }

    /// The core that continues from this state.
    pub(crate) fn core(&self, support: Support, policy: Policy) -> Core {
        let mut core = Core::new(support, self.path(), policy)
            .at_most(self.max_rules() as usize, self.max_memberships());
        core.continue_from(self.generation);
        core
    }
}

/// The change that waits to be confirmed, if there is one; an expired one is undone now.
fn unconfirmed(options: &Options, state: &Path, running: Option<&Running>) -> Option<Pending> {
    let mut pending = Pending::load(state)?;
    let files = config_files::digest(options.config.as_deref());
    // It was written but never made.
    let is_unmade = running.is_some_and(|running| running.generation < pending.generation);
    let is_over = pending.undone || running.is_none() || pending.remaining() == Duration::ZERO;
    if is_unmade || is_over && pending.is_overtaken_by(&files) {
        if let Err(error) = Pending::remove(state) {
            tracing::warn!(%error, "cannot forget a change that was to be confirmed");
        }
        return None;
    }
    pending.undone_now = is_over && !pending.undone;
    pending.undone |= is_over;
    if pending.undone_now {
        tracing::error!(by = %pending.by, generation = pending.generation,
            "nobody confirmed the change in time; it is undone");
        if let Err(error) = pending.store(state) {
            tracing::warn!(%error, "cannot write down that a change is undone");
        }
    }
    Some(pending)
}

/// Takes out of settings what a start with them cannot use, unless something else is `given` for it;
/// returns the first problem.
fn take_unusable(settings: &mut Settings, given: &DaemonSettings) -> Option<DaemonError> {
    let Settings { daemon, fleet, .. } = settings;
    let mut problems = Vec::new();
    let mut note =
        |tried: Result<(), DaemonError>| tried.map_err(|why| problems.push(why)).is_err();
    fleet.take_if(|fleet| note(fleet::check(fleet)));
    if given.worker_user.is_none() {
        daemon
            .worker_user
            .take_if(|name| note(worker_user(name).map(drop)));
    }
    if given.listen.is_none() {
        daemon.listen.take_if(|address| note(try_listen(*address)));
    }
    problems.into_iter().next()
}

fn try_listen(address: SocketAddr) -> Result<(), DaemonError> {
    // As the listener of the start, which comes when there is a runtime.
    let tried = TcpListener::bind(address).map(drop);
    tried.map_err(|source| DaemonError::Listen { address, source })
}

/// The user of this name; `None` if it is this process's own.
fn worker_user(name: &str) -> Result<Option<User>, DaemonError> {
    let refused = |problem: String, missing| DaemonError::WorkerUser {
        name: name.to_owned(),
        problem,
        missing,
    };
    let lookup = User::find(name);
    let user =
        lookup.map_err(|error| refused(format!("cannot be looked up: {error}"), Vec::new()))?;
    let Some(user) = user else {
        let problem = "no such user; make one with `useradd --system --no-create-home`, or name \
                       another one in [daemon] or by --worker-user";
        return Err(refused(problem.to_owned(), Vec::new()));
    };
    if user.is_own() {
        return Ok(None);
    }
    let missing = sys::capability::missing_for_switching();
    if missing.is_empty() {
        return Ok(Some(user));
    }
    let problem = format!(
        "this process lacks {} to run workers as another user; give it these, under systemd by \
         CapabilityBoundingSet= in `systemctl edit`",
        missing.join(", ")
    );
    Err(refused(problem, missing))
}

/// The combination of configuration and running rules.
struct Read {
    configured: Config,
    first: Config,
    generation: u64,
    unread: Option<DaemonError>,
}

/// The configuration with the previously running rules of a fleet, if it still names one.
fn with_fleet(configured: &Config, mut before: Vec<RuleDocument>, policy: Policy) -> Config {
    before.retain(|rule| rule.share.is_some() && configured.settings.fleet.is_some());
    let fleet: Result<Vec<_>, _> = before.iter().map(|rule| rule.to_rule(0)).collect();
    let policy = configured.settings.policy(policy);
    Config {
        rules: match fleet.map(|fleet| configured.rules.changed(&[], fleet, policy)) {
            Ok(Ok(rules)) => rules,
            // The fleet sends them again and reports their problems.
            _ => configured.rules.clone(),
        },
        ..configured.clone()
    }
}

/// After a crash or a handover the previous running rules and settings, unless the configuration was
/// edited since the previous daemon read it; otherwise those of the configuration. An unusable
/// configuration does not end running rules: it is an error only if there were none.
fn begin(
    config: Result<Config, DaemonError>,
    running: Option<Running>,
    policy: Policy,
    given: &DaemonSettings,
) -> Result<Read, DaemonError> {
    let of_configuration = |configured: Config, generation| Read {
        first: configured.clone(),
        configured,
        generation,
        unread: None,
    };
    let Some(mut running) = running else {
        return config.map(|configured| of_configuration(configured, 0));
    };
    let (configured, unread) = match config {
        Ok(configured) => (configured, None),
        Err(error) => (Config::default(), Some(error)),
    };
    if unread.is_none() && running.is_overtaken_by(&configured) {
        tracing::info!("the configuration was edited; rules added at run time are not used");
        let first = with_fleet(&configured, running.rules, policy);
        return Ok(Read {
            first,
            ..of_configuration(configured, running.generation)
        });
    }
    let mut settings = running
        .settings
        .unwrap_or_else(|| configured.settings.clone());
    if unread.is_none() {
        // The settings of this daemon's start come from the configuration, not from the previous daemon.
        settings.daemon = configured.settings.daemon.clone();
        settings.fleet = configured.settings.fleet.clone();
    } else if let Some(problem) = take_unusable(&mut settings, given) {
        tracing::warn!(%problem, "a setting of before cannot be used any more");
    }
    if settings.fleet.is_none() {
        // Without the fleet nothing would open their gates.
        running.rules.retain(|rule| rule.share.is_none());
    }
    let rules = RuleSet::from_documents(&running.rules, settings.policy(policy));
    match (rules, unread) {
        (Ok(rules), unread) => {
            tracing::info!(
                rules = rules.len(),
                generation = running.generation,
                "goes on with the running rules of before; `mcr apply` takes the configuration"
            );
            Ok(Read {
                configured,
                first: Config::of(rules, settings),
                generation: running.generation,
                unread,
            })
        }
        (Err(problems), unread) => {
            tracing::warn!(%problems, "running rules of before are not valid any more; not used");
            match unread {
                None => Ok(of_configuration(configured, 0)),
                Some(error) => Err(error),
            }
        }
    }
}
