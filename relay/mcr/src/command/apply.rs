//! `mcr apply` and `mcr diff`: makes the running rules and settings those of a file, or says what
//! that would change.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::reply::{Change, RuleChange};
use rules::ruleset::Policy;

use crate::configuration;
use crate::control::Control;
use crate::failure::{Failure, Status};
use crate::global::Global;
use crate::render;
use crate::save::Save;

/// Make the running rules and settings those of a configuration file: all of it or nothing.
///
/// Rules that stay the same lose no packet. What the file does not say is not there any more, the
/// budget and the settings of interfaces too, as when the daemon reads its own file again.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mcr apply /etc/mcr/mcr.toml\n  mcr apply new.toml --dry-run\n  mcr apply new.toml --save\n  generate-rules | mcr apply -"
)]
pub(crate) struct Args {
    /// The configuration, TOML; - is standard input
    file: PathBuf,
    /// Only say what would change, like mcr diff
    #[arg(long, conflicts_with = "save")]
    dry_run: bool,
    #[command(flatten)]
    save: Save,
}

/// Say what mcr apply would change, rule by rule and line by line.
///
/// Exits with status 0 where nothing would, with 1 where something would, as diff does.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mcr diff /etc/mcr/mcr.toml
  mcr diff new.toml > /dev/null || mcr apply new.toml")]
pub(crate) struct DiffArgs {
    /// The configuration, TOML; - is standard input
    file: PathBuf,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    replace(&args.file, args.dry_run, args.save, global)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn diff(args: &DiffArgs, global: &Global) -> Result<ExitCode, Failure> {
    let change = replace(&args.file, true, Save::default(), global).map_err(|failure| {
        // Its status is that of a difference.
        match failure.is(Status::Refused) {
            true => Failure::new(Status::Configuration, failure),
            false => failure,
        }
    })?;
    Ok(ExitCode::from(u8::from(differs(&change))))
}

const fn differs(change: &Change) -> bool {
    let rules = [&change.added, &change.removed, &change.changed];
    let [added, removed, changed] = rules;
    let none = added.is_empty() && removed.is_empty() && changed.is_empty();
    !(none && change.settings.is_empty())
}

fn replace(file: &Path, dry_run: bool, save: Save, global: &Global) -> Result<Change, Failure> {
    // Whether link-local inputs are permitted is the daemon's to say.
    let policy = Policy {
        allow_link_local: Some(true),
    };
    let config = configuration::read(file, policy)?;
    let control = Control::open(global)?;
    let saving = save.begin(&control)?;
    let change = control.replace(config, dry_run)?;
    super::warn(if dry_run { "diff" } else { "apply" }, &change.warnings);
    if global.json {
        render::json(&change)?;
    } else {
        render::text(&text(&change))?;
    }
    if let Some(configuration) = saving {
        configuration.write_all(&control)?;
    }
    Ok(change)
}

pub(super) fn text(change: &Change) -> String {
    let marked = |mark: &'static str, names: &[String]| {
        let lines = names.iter().map(|name| format!("{mark} {name}\n"));
        lines.collect::<String>()
    };
    let changed = change.changed.iter().map(|name| {
        let differs = change.differences.iter().filter(|one| one.rule == *name);
        let lines = differs.map(|RuleChange { removed, added, .. }| {
            marked("    -", removed) + &marked("    +", added)
        });
        format!("~ {name}\n{}", lines.collect::<String>())
    });
    let changes = [
        marked("-", &change.removed),
        marked("+", &change.added),
        changed.collect(),
        marked("~", &change.settings),
    ];
    format!("{}{} unchanged", changes.concat(), change.unchanged)
}
