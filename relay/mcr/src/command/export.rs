//! `mcr export`: the running rules and settings as a configuration file.

use crate::control::Control;
use crate::failure::Failure;
use crate::global::Global;
use crate::render;

/// Print the running rules and settings as a configuration file that mcr apply takes back unchanged.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr export > /etc/mcr/mcr.toml        make rules added at run time permanent")]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args, global: &Global) -> Result<(), Failure> {
    let control = Control::open(global)?;
    if global.json {
        return Ok(render::json(&control.rules()?)?);
    }
    Ok(render::text(&control.export()?)?)
}
