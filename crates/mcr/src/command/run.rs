//! `mcr run`: the daemon.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use daemon::{DaemonError, Options};
use model::config::{Automatic, DaemonSettings, LogForm, OnFull};
use model::ruleset::Policy;

use super::PathChoice;
use super::without::Without;
use crate::failure::{Failure, Status};
use crate::global::Global;
use crate::logging;

/// Run the daemon in the foreground.
///
/// It stops on SIGTERM and Ctrl-C, detaches everything and prints final statistics; SIGHUP applies
/// the configuration anew; SIGUSR1 stops it as --keep-forwarding does, for the next one to take over.
/// Needs root: CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF, CAP_PERFMON, and CAP_SYS_ADMIN to mount bpffs
/// where it is not. The table [daemon] of the configuration has a key for each of --listen,
/// --listen-name (listen_names), --path, --workers, --worker-user, --log, --max-rules,
/// --max-memberships, --gro, --backlog, --on-full, --allow-link-local and --keep-forwarding; what the
/// command line says comes first.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mcr run\n  mcr run --config my.toml --path userspace --workers 2\n  mcr run --instance studio --log json"
)]
pub(crate) struct Args {
    /// The configuration, TOML; files in conf.d beside mcr.toml, in NAME.conf.d beside any other
    /// NAME.toml, belong to it [default: /etc/mcr/mcr.toml if there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Path of rules that do not choose one themselves [default: auto]
    #[arg(long, value_enum, value_name = "PATH")]
    path: Option<PathChoice>,
    /// Workers of the userspace path [default: one per core it may use]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// User that workers run as, by name or number; needs CAP_SETUID, CAP_SETGID and CAP_KILL
    /// [default: the daemon's own]
    #[arg(long, value_name = "USER", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    worker_user: Option<String>,
    /// Serve metrics, read only, on this address and port as well
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// A name that --listen may be asked for by, besides addresses, localhost and the host's own
    /// name; may be given several times
    #[arg(long = "listen-name", value_name = "NAME")]
    listen_names: Vec<String>,
    /// Leave the kernel path forwarding when the daemon stops; the next one takes over
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    keep_forwarding: Option<bool>,
    /// The most rules that clients may bring about, with eight inputs and outputs for each on
    /// average; the configuration may hold more [default: 20000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_rules: Option<u32>,
    /// The most memberships that clients may bring about, one for each group, source and interface;
    /// the configuration may hold more [default: 20000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_memberships: Option<u32>,
    /// Whether interfaces of inputs merge packets of a stream before they are relayed, where the
    /// configuration does not say it of them: where it is safe and pays, or not [default: auto]
    #[arg(long, value_enum, value_name = "HOW")]
    gro: Option<AutomaticChoice>,
    /// Whether net.core.netdev_max_backlog is raised, for the whole host, where the copies of a rule
    /// would overflow the queue behind a virtual link [default: auto]
    #[arg(long, value_enum, value_name = "HOW")]
    backlog: Option<AutomaticChoice>,
    /// What becomes of a change that cannot be written down, because /run is full: it is refused, or
    /// carried out with a warning, though a crash would undo it [default: refuse]
    #[arg(long, value_enum, value_name = "HOW")]
    on_full: Option<OnFullChoice>,
    /// Permit 224.0.0.0/24 and ff02::/16 as inputs
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    allow_link_local: Option<bool>,
    /// Form of the log [default: auto]
    #[arg(long, value_enum, value_name = "FORM")]
    log: Option<logging::Format>,
    /// Log more
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    without: Without,
}

/// Whether the daemon changes a setting of the host by itself.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum AutomaticChoice {
    /// Where it is safe and pays
    Auto,
    /// It is left as it is
    Off,
}

impl From<AutomaticChoice> for Automatic {
    fn from(choice: AutomaticChoice) -> Self {
        match choice {
            AutomaticChoice::Auto => Self::Auto,
            AutomaticChoice::Off => Self::Off,
        }
    }
}

/// What becomes of a change that cannot be written down.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum OnFullChoice {
    /// It is refused: what was answered survives a crash
    Refuse,
    /// It is carried out, with a warning: a crash would undo it
    Warn,
}

impl From<OnFullChoice> for OnFull {
    fn from(choice: OnFullChoice) -> Self {
        match choice {
            OnFullChoice::Refuse => Self::Refuse,
            OnFullChoice::Warn => Self::Warn,
        }
    }
}

pub(crate) fn run(args: Args, global: &Global) -> Result<ExitCode, Failure> {
    let given = args.given();
    let _log = logging::start(form_of_log(&args, &given), args.verbose);
    let program = std::env::current_exe().map_err(|error| {
        let message = format!("cannot find the own program, to start workers with: {error}");
        Failure::new(Status::Unavailable, message)
    })?;
    let subcommand = |name: &str| vec![program.clone().into_os_string(), name.into()];
    let options = Options {
        instance: global.instance.clone(),
        socket: global.socket(),
        config: args.config,
        given,
        without: args.without.features,
        worker_command: subcommand("worker"),
        fd_holder_command: subcommand("keeper"),
        log: Some(logging::control()),
        ..Options::default()
    };
    daemon::run(options)?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// What these say of how the daemon is started.
    fn given(&self) -> DaemonSettings {
        DaemonSettings {
            listen: self.listen,
            listen_names: (!self.listen_names.is_empty()).then(|| self.listen_names.clone()),
            path: self.path.map(PathChoice::document),
            workers: self.workers,
            worker_user: self.worker_user.clone(),
            log: self.log.map(Into::into),
            max_rules: self.max_rules,
            max_memberships: self.max_memberships,
            gro: self.gro.map(Into::into),
            backlog: self.backlog.map(Into::into),
            on_full: self.on_full.map(Into::into),
            allow_link_local: self.allow_link_local,
            keep_forwarding: self.keep_forwarding,
        }
    }
}

/// The log begins before the daemon, which reads the configuration and says what is wrong with it.
fn form_of_log(args: &Args, given: &DaemonSettings) -> LogForm {
    let policy = Policy {
        allow_link_local: args.allow_link_local,
    };
    let from_file = || {
        let config = daemon::config::read(args.config.as_deref(), policy);
        config.ok().and_then(|config| config.settings.daemon.log)
    };
    given.log.or_else(from_file).unwrap_or_default()
}

impl From<DaemonError> for Failure {
    fn from(error: DaemonError) -> Self {
        let code = error.exit_code();
        let says_what_to_do = matches!(
            error,
            DaemonError::NoPath { .. } | DaemonError::WorkerUser { .. }
        );
        if code == Status::Privilege as u8 && !says_what_to_do {
            return Self::new(Status::Privilege, format!("{error}; run it as root"));
        }
        Self::with_code(code, error)
    }
}
