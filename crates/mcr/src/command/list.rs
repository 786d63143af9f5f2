//! `mcr list`: the rules as configured.

use std::process::ExitCode;

use comfy_table::Cell;
use model::document::RuleDocument;

use crate::cli::Global;
use crate::control::Control;
use crate::failure::Failure;
use crate::render;

/// List the rules as configured; mcr stats shows what they do.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr list
  mcr list --json | jq -r '.rules[].name'")]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let rules = Control::open(global)?.rules()?;
    if global.json {
        render::json(&rules)?;
    } else if rules.rules.is_empty() {
        eprintln!("no rules; add one with mcr add INPUT OUTPUT");
    } else {
        render::text(&table(&rules.rules))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table(rules: &[RuleDocument]) -> String {
    let mut table = render::table(&["RULE", "INPUTS", "OUTPUTS", "OPTIONS"]);
    for rule in rules {
        table.add_row([
            Cell::new(&rule.name),
            Cell::new(render::rule::inputs(rule).join("\n")),
            Cell::new(render::rule::outputs(rule).join("\n")),
            Cell::new(render::rule::options(rule).join("\n")),
        ]);
    }
    render::table_text(&table)
}
