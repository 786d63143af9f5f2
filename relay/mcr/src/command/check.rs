//! `mcr check`: reads a configuration and says what is wrong with it, without a daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use api::request::RULES_MAX;
use compile::table::Path;
use config::{Config, MAX_RULES};
use dataplane::Capacity;
use rules::ruleset::{Policy, RuleSet};
use serde_json::json;

use crate::failure::{Failure, Status};
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
    /// Permit 224.0.0.0/24 and ff02::/16 as inputs, or not, as mcr run does with this option
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    allow_link_local: Option<bool>,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let policy = Policy {
        allow_link_local: args.allow_link_local,
    };
    let Config { rules, settings } = configuration::read(&args.file, policy)?;
    require_room(&rules, settings.daemon.max_rules)?;
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

/// Refuses more streams than the kernel path of a daemon for so many rules has room for: each input takes
/// a route, and one for each source that it names.
pub(super) fn require_room(rules: &RuleSet, max_rules: Option<u32>) -> Result<(), Failure> {
    let rules = rules
        .iter()
        .filter(|rule| rule.path != Some(Path::Userspace));
    let inputs = rules.flat_map(|rule| &rule.inputs);
    let routes: usize = inputs.map(|input| input.sources.len().max(1)).sum();
    let most = u32::try_from(RULES_MAX).unwrap_or(u32::MAX);
    let room = Capacity::for_rules(max_rules.unwrap_or(MAX_RULES).min(most)).routes as usize;
    if routes <= room {
        return Ok(());
    }
    let message = format!(
        "{routes} routes needed, the kernel path has room for {room}: raise max_rules of \
         [daemon], up to {RULES_MAX}, or put some of the rules on the userspace path \
         (path = \"userspace\"), or in another instance"
    );
    Err(Failure::new(Status::Configuration, message))
}
