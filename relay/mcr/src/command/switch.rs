//! `mcr switch`: has another leg of a failover rule relayed.

use api::request::ActiveInput;

use crate::completion;
use crate::control::Control;
use crate::failure::Failure;
use crate::global::Global;
use crate::render;

/// Have another input of a rule relayed now, of those that stand by for each other (failover).
///
/// It stays so while it delivers. With failover's revert an input that stands before it takes over
/// again when it has delivered for that long from now on. An input that is silent loses its place at
/// once to one that delivers. Exits with status 3 if there is no such rule.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr switch news 10.0.0.6@232.1.1.1%eth0:5001")]
pub(crate) struct Args {
    /// Name of the rule
    #[arg(add = completion::rule())]
    name: String,
    /// The input, as the rule writes it
    #[arg(add = completion::part_of(completion::inputs))]
    input: String,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let control = Control::open(global)?;
    let request = ActiveInput {
        input: args.input.clone(),
    };
    let active = control.switch(&args.name, &request)?;
    render::reply(global.json, &active, String::new)
}
