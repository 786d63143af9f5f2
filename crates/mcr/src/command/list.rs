//! `mcr list`: the rules as configured.

use std::process::ExitCode;

use api::reply::{RuleStats, Stats};
use comfy_table::Cell;
use model::document::RuleDocument;

use super::form::Output;
use super::watch::Watch;
use crate::control::Control;
use crate::failure::Failure;
use crate::global::Global;
use crate::render::{self, Form};
use crate::selection::Selection;

/// List the rules as configured; mcr stats shows what they do.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr list
  mcr list -o wide                          with state and path
  mcr list -l site=y                        those with this label
  mcr list -o name | xargs mcr remove       remove all of them
  mcr list --json | jq -r '.rules[].name'")]
pub(crate) struct Args {
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    watch: Watch,
    #[command(flatten)]
    selection: Selection,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let control = Control::open(global)?;
    let form = args.output.form(global);
    args.watch.print(|| {
        let mut rules = control.rules()?;
        rules
            .rules
            .retain(|rule| args.selection.takes(&rule.labels));
        if form == Form::Json {
            return Ok(render::json_text(&rules)?);
        }
        let rules = rules.rules;
        if rules.is_empty() {
            eprintln!("{}", args.selection.none());
            return Ok(String::new());
        }
        Ok(match form {
            Form::Name => rules
                .iter()
                .map(|rule| format!("{}\n", rule.name))
                .collect(),
            Form::Wide => wide(&rules, &control.stats()?),
            Form::Table | Form::Json => table(&rules),
        })
    })
}

fn table(rules: &[RuleDocument]) -> String {
    let mut table = render::table(&["RULE", "INPUTS", "OUTPUTS", "OPTIONS"]);
    for rule in rules {
        table.add_row([Cell::new(&rule.name)].into_iter().chain(parts(rule)));
    }
    render::table_text(&table)
}

/// Whatever the width.
fn wide(rules: &[RuleDocument], stats: &Stats) -> String {
    let header = [
        "RULE", "STATE", "PATH", "INPUTS", "OUTPUTS", "OPTIONS", "WHY",
    ];
    let mut table = render::wide_table(&header);
    for rule in rules {
        let stats = stats.rules.iter().find(|stats| stats.name == rule.name);
        let shown = |text: fn(&RuleStats) -> &str| stats.map_or("", text);
        let why = stats.map_or_else(String::new, |stats| {
            render::stats::reason(stats).unwrap_or_else(|| stats.path_reason.clone())
        });
        let first = [
            Cell::new(&rule.name),
            render::state_cell(shown(RuleStats::word)),
            Cell::new(shown(|stats| &stats.path)),
        ];
        let cells = first.into_iter().chain(parts(rule));
        table.add_row(cells.chain([Cell::new(why)]));
    }
    render::table_text(&table)
}

fn parts(rule: &RuleDocument) -> [Cell; 3] {
    [
        render::rule::inputs(rule),
        render::rule::outputs(rule),
        render::rule::options(rule),
    ]
    .map(|lines| Cell::new(lines.join("\n")))
}
