//! `mcr rollback`, `mcr generations` and `mcr confirm`: rules of before, and back to them or not.

use std::io::{self, IsTerminal};

use api::request::Rollback;

use super::apply;
use crate::completion;
use crate::control::Control;
use crate::failure::{Failure, Status, usage};
use crate::global::Global;
use crate::render;
use crate::save::{Configuration, Save};
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
    super::tell("confirm", &change, global)?;
    if change.to_save
        && let Some(configuration) = Save::asked().begin(&control)?
    {
        configuration.write_all(&control)?;
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
    match Save::asked().begin(&control) {
        Ok(Some(configuration)) => configuration.write_all(&control)?,
        Ok(None) => {}
        Err(own) => {
            let saved = control.save();
            saved.map_err(|others| {
                match [Status::Unreachable, Status::Privilege].map(|status| others.is(status)) {
                    // Each for reasons of its own.
                    [false, false] if !others.to_string().starts_with(&own.to_string()) => {
                        Failure::new(Status::Configuration, format!("{own}\n{others}"))
                    }
                    _ => others,
                }
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
    let asked = Rollback {
        generation: args.generation,
    };
    let change = Control::open(global)?.rollback(&asked, true)?;
    if !args.terms.yes() {
        apply::show("rollback", &change, global)?;
        if !io::stdin().is_terminal() {
            let message = "nobody can be asked here; mcr rollback --yes does it without";
            return Err(usage(message));
        }
        terms::ask("Roll back?")?;
    }
    // What was shown is what is done, or nothing.
    let (control, saving) = args.terms.open_at(global, Some(change.generation))?;
    let change = control.rollback(&asked, false)?;
    if args.terms.yes() {
        apply::show("rollback", &change, global)?;
    }
    args.terms
        .finish((control, saving), &change, Configuration::write_all)
}

pub(crate) fn generations(_: &GenerationsArgs, global: &Global) -> Result<(), Failure> {
    let kept = Control::open(global)?.generations()?;
    if global.json {
        return Ok(render::json(&kept)?);
    }
    let mut table = render::empty_table(&["GENERATION", "WHEN", "WHO", "RULES", "MESSAGE"]);
    for made in &kept {
        table.add_row(vec![
            made.generation.to_string(),
            render::second(made.at_ms),
            made.by.to_string(),
            render::count(made.rules as u64),
            made.message.clone().unwrap_or_default(),
        ]);
    }
    Ok(render::text(&render::table_text(&table))?)
}
