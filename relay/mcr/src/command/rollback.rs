//! `mcr rollback`, `mcr generations`, `mcr confirm` and `mcr save`: earlier rules, the way back to
//! them, and what makes a change stay.

use std::io::{self, IsTerminal};

use api::reply::ChangeRecord;
use api::request::Rollback;
use comfy_table::Cell;

use super::apply;
use crate::completion;
use crate::control::Control;
use crate::failure::{Failure, Status, usage};
use crate::global::Global;
use crate::render::{self, Column};
use crate::save::Configuration;
use crate::terms::{self, Terms};

/// Go back to rules and settings of before, in one step, after showing what that changes.
///
/// Rules that stay the same lose no packet. What no longer fits the host is down and says why. Rules of a
/// fleet, and joins whose time is over, are left alone. Exits with status 3 if those rules are not kept.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr rollback --last
  mcr rollback 7 --message \"the new plan drops cam3\"
  mcr rollback 7 --yes                                in a script")]
pub(crate) struct Args {
    /// Their generation, as mcr generations lists it
    #[arg(
        value_name = "N",
        required_unless_present = "last",
        conflicts_with = "last",
        add = completion::generation()
    )]
    generation: Option<u64>,
    /// The last rules that are not those that run
    #[arg(long)]
    last: bool,
    #[command(flatten)]
    terms: Terms,
}

/// Have a change stay that was made with --confirm and undoes itself otherwise.
///
/// Whoever made it does that, or root. Exits with status 1 if none waits, 77 if it is somebody else's.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr apply new.toml --confirm 60s --yes
  mcr confirm")]
pub(crate) struct ConfirmArgs {}

pub(crate) fn confirm(_: &ConfirmArgs, global: &Global) -> Result<(), Failure> {
    let control = Control::open(global)?;
    let change = control.confirm()?;
    super::print_change("confirm", &change, global)?;
    if change.to_save {
        Configuration::read(&control)?.write_all(&control)?;
    }
    Ok(())
}

/// Write what runs into the daemon's configuration, whose comments and order stay.
///
/// Where you may not write there, the daemon does it, if it may. What runs and is not saved lasts until
/// the daemon stops.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr diff --saved
  mcr save")]
pub(crate) struct SaveArgs {}

pub(crate) fn save(_: &SaveArgs, global: &Global) -> Result<(), Failure> {
    let control = Control::open(global)?;
    match Configuration::read(&control) {
        Ok(configuration) => configuration.write_all(&control)?,
        Err(own) => {
            control.save().map_err(|other| {
                let has_no_access = other.is(Status::Unreachable) || other.is(Status::Privilege);
                if has_no_access || other.to_string().starts_with(&own.to_string()) {
                    return other;
                }
                // Each cannot write, for a reason of its own.
                Failure::new(Status::Configuration, format!("{own}\n{other}"))
            })?;
        }
    }
    Ok(())
}

/// List the rules of before that are kept: who made them, when and why.
///
/// The last 50 sets that people made are kept, over restarts and reboots.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr generations
  mcr diff --generation 7
  mcr rollback 7")]
pub(crate) struct GenerationsArgs {}

pub(crate) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let request = Rollback {
        generation: args.generation,
    };
    let change = Control::open(global)?.rollback(&request, true)?;
    if !args.terms.yes() {
        apply::show("rollback", &change, global)?;
        if !io::stdin().is_terminal() {
            let message = "nobody can be asked here; mcr rollback --yes does it without";
            return Err(usage(message));
        }
        terms::ask("Roll back?")?;
    }
    // Only what was shown is done: the daemon refuses if another generation runs by now.
    let (control, saving) = args.terms.open_at(global, Some(change.generation))?;
    let change = control.rollback(&request, false)?;
    if args.terms.yes() {
        apply::show("rollback", &change, global)?;
    }
    args.terms
        .finish((control, saving), &change, Configuration::write_all)
}

pub(crate) fn generations(_: &GenerationsArgs, global: &Global) -> Result<(), Failure> {
    let generations = Control::open(global)?.generations()?;
    render::reply(global.json, &generations, || {
        render::table_text(&render::table(GENERATIONS, &generations))
    })
}

const GENERATIONS: &[Column<ChangeRecord>] = &[
    ("GENERATION", |one| Cell::new(one.generation)),
    ("WHEN", |one| Cell::new(render::second(one.at_ms))),
    ("WHO", |one| Cell::new(&one.by)),
    ("RULES", |one| Cell::new(render::count(one.rules as u64))),
    ("MESSAGE", |one| {
        Cell::new(one.message.as_deref().unwrap_or_default())
    }),
];
