//! `mcr reload`: has the daemon read its configuration again.

use super::apply;
use crate::failure::Failure;
use crate::global::Global;
use crate::terms::ChangeOptions;

/// Have the daemon read its configuration again, as SIGHUP does, and say what that changed.
///
/// Exits with status 1 if the configuration cannot be used; the rules stay then. Rules that stay the
/// same lose no packet; rules that were added at run time and not saved go.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr reload
  mcr check /etc/mcr/mcr.toml && mcr reload")]
pub(crate) struct Args {
    #[command(flatten)]
    options: ChangeOptions,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let control = args.options.open(global, None)?;
    let change = control.reload()?;
    apply::show("reload", &change, global)?;
    args.options.wait(&control, change.generation)
}
