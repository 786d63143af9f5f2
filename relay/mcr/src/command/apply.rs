//! `mcr apply` and `mcr diff`: makes the running rules and settings those of a file, or says what
//! that would change.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

use api::reply::Change;
use api::request::Rollback;
use config::{ApiSettings, Config};

use crate::completion;
use crate::configuration::read;
use crate::control::Control;
use crate::failure::Failure;
use crate::global::Global;
use crate::render;
use crate::save::Configuration;
use crate::terms::{self, Terms};

/// Make the running rules and settings those of a configuration file: all of it or nothing.
///
/// Rules that stay the same lose no packet. What the file does not say is not there any more, the
/// budget and the settings of interfaces too, as when the daemon reads its own file again. On a terminal
/// it asks before it removes rules that no file has.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mcr apply /etc/mcr/mcr.toml\n  mcr apply new.toml --dry-run\n  mcr apply new.toml --save\n  generate-rules | mcr apply -"
)]
pub(crate) struct Args {
    /// The configuration, TOML; - is standard input
    file: PathBuf,
    /// Only say what would change, like mcr diff
    #[arg(long, conflicts_with_all = ["save", "confirm"])]
    dry_run: bool,
    /// Only if the rules are of this generation still, as mcr status tells it
    #[arg(long, value_name = "N")]
    generation: Option<u64>,
    #[command(flatten)]
    terms: Terms,
}

/// Say what mcr apply would change, rule by rule and line by line.
///
/// Exits with status 0 where nothing would, with 1 where something would, as diff does.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mcr diff /etc/mcr/mcr.toml
  mcr diff new.toml > /dev/null || mcr apply new.toml
  mcr diff --generation 7
  mcr diff --saved")]
pub(crate) struct DiffArgs {
    /// The configuration, TOML; - is standard input
    #[arg(required_unless_present_any = ["generation", "saved"])]
    file: Option<PathBuf>,
    /// What mcr rollback N would change
    #[arg(long, value_name = "N", conflicts_with = "file", add = completion::generation())]
    generation: Option<u64>,
    /// What runs and the configuration does not say: what mcr save would write
    #[arg(long, conflicts_with_all = ["file", "generation"])]
    saved: bool,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let config = read(&args.file)?;
    let mut generation = args.generation;
    if args.may_ask()
        && let Some((names, shown)) = unsaved(&config, global)?
    {
        ask(&names)?;
        // Only what was agreed to is done: the daemon refuses if another generation runs by now.
        generation = Some(shown);
    }
    let (control, saving) = args.terms.open_at(global, generation)?;
    let change = replace(&control, config, args.dry_run)?;
    let command = if args.dry_run { "diff" } else { "apply" };
    show(command, &change, global)?;
    args.terms
        .finish((control, saving), &change, Configuration::write_all)
}

impl Args {
    /// Whether the user can be asked before rules are removed that no file has.
    fn may_ask(&self) -> bool {
        !self.dry_run && !self.terms.yes() && io::stdin().is_terminal()
    }
}

/// Asks once for several hosts; other errors of a host are reported when the change is made there.
pub(crate) fn ask_of(args: &Args, global: &Global, hosts: &[String]) -> Result<(), Failure> {
    if !args.may_ask() {
        return Ok(());
    }
    let config = read(&args.file)?;
    let unsaved_of = |host: &String| {
        let (names, _) = unsaved(&config, &global.at(host)).ok()??;
        Some(format!("{names} ({host})"))
    };
    let lost: Vec<String> = hosts.iter().filter_map(unsaved_of).collect();
    if lost.is_empty() {
        Ok(())
    } else {
        ask(&lost.join(", "))
    }
}

fn ask(names: &str) -> Result<(), Failure> {
    terms::ask(&format!(
        "No file has {names}: what the configuration does not say is removed (mcr save would keep it). \
         Apply?"
    ))
}

/// The rules that would be removed and that no file has, with the generation that runs.
fn unsaved(config: &Config, global: &Global) -> Result<Option<(String, u64)>, Failure> {
    let control = Control::open(global)?;
    let mut change = control.replace_by(config.clone(), true)?;
    // Where the daemon's own configuration cannot be read, none of them is in it.
    if let Ok(unsaved) = control.unsaved() {
        change.removed.retain(|name| unsaved.added.contains(name));
    }
    let names = change.removed.join(", ");
    Ok(Some((names, change.generation)).filter(|(names, _)| !names.is_empty()))
}

pub(crate) fn diff(args: &DiffArgs, global: &Global) -> Result<ExitCode, Failure> {
    let outcome = match &args.file {
        Some(file) => {
            let config = read(file)?;
            replace(&Control::open(global)?, config, true)
        }
        None if args.saved => Control::open(global)?.unsaved(),
        None => {
            let generation = args.generation;
            Control::open(global)?.rollback(&Rollback { generation }, true)
        }
    };
    let change = outcome.map_err(Failure::of_comparison)?;
    show("diff", &change, global)?;
    Ok(ExitCode::from(u8::from(change.differs())))
}

/// Makes the running rules and settings those of a file, or only reports what that would change; warns of
/// what the file says that is read of the daemon's own files alone, as far as the daemon's state tells it.
fn replace(control: &Control, config: Config, dry_run: bool) -> Result<Change, Failure> {
    let own = config.own();
    let mut change = control.replace_by(config, dry_run)?;
    if own == Config::default() {
        return Ok(change);
    }
    let status = control.status()?;
    let api = status.api.map(|api| (api.listen, api.clients));
    let asked = own
        .api
        .listen
        .map(|listen| (listen.to_string(), own.api.client.len()));
    let notified = status
        .notify
        .into_iter()
        .filter(|one| one.name != "webhook");
    let targets = own.targets.iter().map(|target| target.url.origin());
    for (table, differs) in [
        ("[api]", own.api != ApiSettings::default() && asked != api),
        (
            "[[notify.target]]",
            !own.targets.is_empty() && !targets.eq(notified.map(|one| one.to)),
        ),
    ] {
        let warning = format!(
            "{table}: stays as it is; the daemon reads it of its own files, at its start and at a reload"
        );
        change.warnings.extend(differs.then_some(warning));
    }
    Ok(change)
}

/// Shows what was changed, or would be.
pub(super) fn show(command: &str, change: &Change, global: &Global) -> Result<(), Failure> {
    super::warn(command, &change.warnings);
    render::reply(global.json, change, || {
        let lines: String = change.lines().map(|line| line + "\n").collect();
        format!(
            "{lines}{} unchanged",
            render::count(change.unchanged as u64)
        )
    })
}
