//! `mcr check`: reads a configuration and says what is wrong with it, without a daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use model::ruleset::Policy;
use serde_json::json;

use crate::failure::Failure;
use crate::global::Global;
use crate::{configuration, render};

/// Check a configuration file and the files that belong to it, without a daemon.
///
/// Exits with status 78 if something is wrong, and says what and where.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr check /etc/mcr/mcr.toml
  generate-rules | mcr check -")]
pub(crate) struct Args {
    /// The configuration, TOML; - is standard input
    file: PathBuf,
    /// Permit 224.0.0.0/24 and ff02::/16 as inputs, as mcr run does with this option
    #[arg(long)]
    allow_link_local: bool,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let policy = Policy {
        allow_link_local: args.allow_link_local,
    };
    let rules = configuration::read(&args.file, policy)?.rules;
    if global.json {
        render::json(&json!({ "file": args.file, "rules": rules.len() }))?;
    } else {
        let plural = if rules.len() == 1 { "" } else { "s" };
        render::text(&format!(
            "{}: {} rule{plural}, good",
            args.file.display(),
            rules.len()
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
