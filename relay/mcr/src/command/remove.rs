//! `mcr remove`: removes rules, all of those named or none.

use std::io;

use api::request::Transaction;

use crate::completion;
use crate::failure::{Failure, OrFail, Status};
use crate::global::Global;
use crate::render;
use crate::terms::Terms;

/// Remove rules, all of those named or none.
///
/// Exits with status 3 if there is no rule of a name.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr remove cam1
  mcr remove cam1 cam2
  mcr list -o name | grep ^test- | mcr remove -       names from standard input")]
pub(crate) struct Args {
    /// Names of the rules; - reads them from standard input
    #[arg(required = true, value_name = "NAME", add = completion::rule())]
    names: Vec<String>,
    #[command(flatten)]
    terms: Terms,
}

pub(crate) fn run(args: Args, global: &Global) -> Result<(), Failure> {
    let mut names = args.names;
    if names == ["-"] {
        let text = io::read_to_string(io::stdin()).or_fail("standard input", Status::Usage)?;
        names = text.split_whitespace().map(str::to_owned).collect();
    }
    let (control, saving) = args.terms.open(global)?;
    let change = control.transaction(&Transaction {
        remove: names.clone(),
        ..Transaction::default()
    })?;
    render::reply(global.json, &change, String::new)?;
    args.terms.finish_rules((control, saving), &change, &names)
}
