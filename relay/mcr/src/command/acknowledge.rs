//! `mcr acknowledge`: marks the trouble of rules as being seen to.

use api::request::{Acknowledge, ChangeTerms};

use crate::control::Control;
use crate::failure::Failure;
use crate::global::Global;
use crate::{completion, terms};

/// Say that you see to the trouble of rules, as it stands: others are told who does, and since when.
///
/// The daemon keeps that over restarts until the trouble is over, or is another. What rules relay, their
/// states and alarms stay as they are. Exits with status 3 if there is no rule of a name, 1 if one has no
/// trouble.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr acknowledge cam1 --message \"the camera is being mended, ticket 7\"
  mcr acknowledge cam1 --undo")]
pub(crate) struct Args {
    /// Names of the rules
    #[arg(required = true, value_name = "NAME", add = completion::rule())]
    names: Vec<String>,
    /// Why, or what is being done
    #[arg(long, value_name = "TEXT", value_parser = terms::message, conflicts_with = "undo")]
    message: Option<String>,
    /// Take it back
    #[arg(long)]
    undo: bool,
}

pub(crate) fn run(args: Args, global: &Global) -> Result<(), Failure> {
    let terms = ChangeTerms {
        message: args.message,
        ..ChangeTerms::default()
    };
    let control = Control::open(global)?.on(terms);
    let request = Acknowledge {
        acknowledged: !args.undo,
    };
    for name in &args.names {
        control.acknowledge(name, &request)?;
    }
    Ok(())
}
