//! `mcr config`: describes what a configuration may contain.

use crate::failure::Failure;
use crate::render;

/// What may stand in a configuration.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mcr config schema > mcr.schema.json")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Print the JSON schema of the configuration, for editors that complete and check TOML.
    ///
    /// Those that go by taplo (Even Better TOML in VS Code, Helix, Neovim) read it where the first line of
    /// the file says #:schema ./mcr.schema.json. It knows each key by itself; mcr check knows the rest.
    #[command(after_help = "\
Examples:
  mcr config schema > mcr.schema.json
  mcr config schema | jq .definitions.RuleDocument.properties.limit")]
    Schema,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let What::Schema = args.what;
    Ok(render::json(&config::schema())?)
}
