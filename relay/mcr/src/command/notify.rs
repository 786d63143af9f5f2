//! `mcr notify`: whether those who are to be told of events can be.

use std::process::ExitCode;

use crate::control::Control;
use crate::failure::{Failure, Status};
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
    Test(TestArgs),
}

/// Have the daemon tell each of them once, and say who took it.
///
/// They are told an event of the kind `notify_test`. Exits with status 69 where somebody did not take it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr notify test
  mcr --host relay1 notify test --json")]
struct TestArgs {}

pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let Command::Test(TestArgs {}) = args.command;
    let tested = Control::open(global)?.notify_test()?;
    render::reply(global.json, &tested, || {
        let told = tested.iter().filter(|one| one.error.is_none());
        told.map(|one| format!("{}: told\n", one.to)).collect()
    })?;
    let failed = tested
        .iter()
        .filter_map(|one| Some(format!("{}: {}", one.to, one.error.as_ref()?)));
    let failed: Vec<String> = match tested.is_empty() {
        true => {
            vec!["nobody is told of events: give [[notify.target]], or [notify] webhook".into()]
        }
        false => failed.collect(),
    };
    let host = global.host.as_ref().map(|host| format!("{host}: "));
    let failed = failed.join(&format!("\n{}", host.as_deref().unwrap_or_default()));
    match failed.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => {
            let message = host.unwrap_or_default() + &failed;
            Err(Failure::new(Status::Unavailable, message))
        }
    }
}
