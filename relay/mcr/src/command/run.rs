//! `mcr run`: the daemon.

use std::path::{Path, PathBuf};

use config::{DaemonSettings, LogForm};
use daemon::{DaemonError, Options};
use rules::ruleset::Policy;

use super::without::Without;
use crate::failure::{Failure, OrFail, Status};
use crate::global::Global;
use crate::logging;
use crate::rows::Keys;

/// Run the daemon in the foreground.
///
/// It stops on SIGTERM and Ctrl-C, detaches everything and prints final statistics; SIGHUP applies
/// the configuration anew; SIGUSR1 stops it as --keep-forwarding does, for the next one to take over.
/// Needs root: CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF, CAP_PERFMON, and CAP_SYS_ADMIN to mount bpffs
/// where it is not. The table [daemon] of the configuration has a key for each option from --listen to
/// --keep-forwarding, with _ for - and listen_names for --listen-name; what the command line says
/// comes first.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mcr run\n  mcr run --config my.toml --path userspace --workers 2\n  mcr run --instance studio --log json"
)]
pub(crate) struct Args {
    /// The configuration, TOML; files in conf.d beside mcr.toml, in NAME.conf.d beside any other
    /// NAME.toml, belong to it [default: /etc/mcr/mcr.toml if there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    given: Keys<DaemonSettings>,
    /// Log more
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    without: Without,
}

pub(crate) fn run(args: Args, global: &Global) -> Result<(), Failure> {
    let Keys(given) = args.given;
    let _log = logging::start(log_form(args.config.as_deref(), &given), args.verbose);
    let context = "cannot find the own program, to start workers with";
    let program = std::env::current_exe().or_fail(context, Status::Unavailable)?;
    let subcommand = |name: &str| vec![program.clone().into_os_string(), name.into()];
    let options = Options {
        instance: global.instance.clone(),
        socket: global.socket(),
        config: args.config,
        given,
        without: args.without.features,
        worker_command: subcommand("worker"),
        fd_holder_command: subcommand("keeper"),
        capture_program: Some(program.clone().into_os_string()),
        log: Some(logging::control()),
        ..Options::default()
    };
    Ok(daemon::run(options)?)
}

/// The form of the log, which begins before the daemon reads the configuration and reports its
/// errors.
fn log_form(config: Option<&Path>, given: &DaemonSettings) -> LogForm {
    let policy = Policy {
        allow_link_local: given.allow_link_local,
    };
    let from_file = || {
        let config = daemon::config_files::read(config, policy);
        config.ok().and_then(|config| config.settings.daemon.log)
    };
    given.log.or_else(from_file).unwrap_or_default()
}

impl From<DaemonError> for Failure {
    fn from(error: DaemonError) -> Self {
        let code = error.exit_code();
        let has_remedy = matches!(
            error,
            DaemonError::NoPath { .. } | DaemonError::WorkerUser { .. }
        );
        if code == Status::Privilege as u8 && !has_remedy {
            return Self::new(Status::Privilege, format!("{error}; run it as root"));
        }
        Self::with_code(code, error)
    }
}
