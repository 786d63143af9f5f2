//! `mcr notify`: sends a test event to those who are notified.

use api::reply::NotifyTested;

use crate::control::Control;
use crate::failure::{Failure, unavailable};
use crate::global::Global;
use crate::render;

/// See whether those who are to be told of events can be
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr notify test")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Have the daemon tell each of them once, and say who took it.
    ///
    /// They are told an event of the kind `notify_test`. Exits with status 69 where somebody did not take it.
    #[command(after_help = "Examples:
  mcr notify test
  mcr --host relay1 notify test --json")]
    Test,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let Command::Test = args.command;
    let tested = Control::open(global)?.notify_test()?;
    render::reply(global.json, &tested, || {
        let reached = tested.iter().filter(|one| one.error.is_none());
        let lines = reached.map(|one| format!("{} ({}): told\n", one.name, one.to));
        lines.collect()
    })?;
    let error_of = |one: &NotifyTested| {
        let error = one.error.as_ref()?;
        Some(format!("{} ({}): {error}", one.name, one.to))
    };
    let mut errors: Vec<String> = tested.iter().filter_map(error_of).collect();
    if tested.is_empty() {
        errors.push("nobody is told of events: give [[notify.target]], or [notify] webhook".into());
    }
    if errors.is_empty() {
        return Ok(());
    }
    let host = global.host.as_ref();
    let prefix = host.map_or_else(String::new, |host| format!("{host}: "));
    let message = errors.join(&format!("\n{prefix}"));
    Err(unavailable(format!("{prefix}{message}")))
}
