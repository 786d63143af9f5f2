//! `mcr enable` and `mcr disable`: whether rules that stay configured forward.

use api::request::EnabledRules;

use crate::completion;
use crate::failure::Failure;
use crate::global::Global;
use crate::terms::Terms;

/// Have rules forward again that mcr disable stopped, all of those named or none.
///
/// Exits with status 3 if there is no rule of a name. A rule that forwards already stays as it is.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr enable cam1
  mcr enable cam1 cam2 --save")]
pub(crate) struct EnableArgs {
    /// Names of the rules
    #[arg(required = true, value_name = "NAME", add = completion::rule())]
    names: Vec<String>,
    #[command(flatten)]
    terms: Terms,
}

/// Have rules forward nothing and stay configured, all of those named or none.
///
/// A disabled rule joins nothing, takes no packet from other rules, and keeps its place, its counters
/// and its options. In a configuration that is enabled = false. Exits with status 3 if there is no
/// rule of a name.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr disable cam1
  mcr disable cam1 cam2 && mcr enable cam3")]
pub(crate) struct DisableArgs {
    /// Names of the rules
    #[arg(required = true, value_name = "NAME", add = completion::rule())]
    names: Vec<String>,
    #[command(flatten)]
    terms: Terms,
}

pub(crate) fn enable(args: &EnableArgs, global: &Global) -> Result<(), Failure> {
    set("enable", &args.names, true, &args.terms, global)
}

pub(crate) fn disable(args: &DisableArgs, global: &Global) -> Result<(), Failure> {
    set("disable", &args.names, false, &args.terms, global)
}

fn set(
    command: &str,
    names: &[String],
    enabled: bool,
    terms: &Terms,
    global: &Global,
) -> Result<(), Failure> {
    let (control, saving) = terms.open(global)?;
    let rules = names.to_vec();
    let change = control.set_enabled(&EnabledRules { rules, enabled })?;
    super::print_change(command, &change, global)?;
    terms.finish_rules((control, saving), &change, names)
}
