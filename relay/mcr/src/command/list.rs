//! `mcr list`: the rules as configured.

use std::collections::BTreeMap;

use api::query::{RulesQuery, StatsQuery};
use api::reply::{RulePart, RuleStats, Stats};
use comfy_table::Cell;
use rules::document::RuleDocument;

use super::form::Output;
use super::watch::Watch;
use crate::control::Control;
use crate::failure::Failure;
use crate::global::Global;
use crate::render::{self, Form};
use crate::selection::{Part, Selection, not_paged};

/// List the rules as configured; mcr stats shows what they do.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr list
  mcr list -o wide                          with state and path
  mcr list -l site=y                        those with this label
  mcr list --limit 100 --offset 200         the third hundred
  mcr list -o name | xargs mcr remove       remove all of them
  mcr list --json | jq -r '.rules[].name'")]
pub(crate) struct Args {
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    watch: Watch,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    part: Part,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let control = Control::open(global)?;
    let form = args.output.form(global);
    args.watch.print(|| {
        if args.part.is_some() {
            return part(&control, args, form);
        }
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
        text(&rules, form, || control.stats())
    })
}

/// The rules that `--offset` and `--limit` select.
fn part(control: &Control, args: &Args, form: Form) -> Result<String, Failure> {
    let labels = &args.selection.labels;
    let Part { limit, offset } = args.part;
    let reply: RulePart = control.selected_rules(&RulesQuery {
        labels: labels.clone(),
        offset,
        limit,
    })?;
    let Some(selection) = reply.selection else {
        return Err(not_paged());
    };
    if form == Form::Json {
        return Ok(render::json_text(&reply)?);
    }
    Part::tell(selection);
    let stats = StatsQuery {
        labels: labels.clone(),
        offset,
        limit,
        ..StatsQuery::default()
    };
    text(&reply.rules, form, || control.selected_stats(&stats))
}

fn text(
    rules: &[RuleDocument],
    form: Form,
    stats: impl FnOnce() -> Result<Stats, Failure>,
) -> Result<String, Failure> {
    Ok(match form {
        Form::Name => rules
            .iter()
            .map(|rule| format!("{}\n", rule.name))
            .collect(),
        Form::Wide => wide(rules, &stats()?),
        Form::Table | Form::Json => table(rules),
    })
}

fn table(rules: &[RuleDocument]) -> String {
    let mut table = render::empty_table(&["RULE", "INPUTS", "OUTPUTS", "OPTIONS"]);
    for rule in rules {
        let name = [Cell::new(&rule.name)].into_iter();
        table.add_row(name.chain(render::rule::cells(rule)));
    }
    render::table_text(&table)
}

/// The wide table, regardless of the terminal's width.
fn wide(rules: &[RuleDocument], stats: &Stats) -> String {
    let header = [
        "RULE", "STATE", "PATH", "INPUTS", "OUTPUTS", "OPTIONS", "WHY",
    ];
    let mut table = render::empty_table(&header);
    render::widen(&mut table);
    let named = stats.rules.iter().map(|stats| (stats.name.as_str(), stats));
    let by_name: BTreeMap<&str, &RuleStats> = named.collect();
    for rule in rules {
        let stats = by_name.get(rule.name.as_str()).copied();
        let shown = |text: fn(&RuleStats) -> &str| stats.map_or("", text);
        let why = stats.map_or_else(String::new, |stats| {
            render::stats::reason(stats).unwrap_or_else(|| stats.path_reason.clone())
        });
        let first = [
            Cell::new(&rule.name),
            render::state_cell(shown(RuleStats::word)),
            Cell::new(shown(|stats| &stats.path)),
        ];
        let cells = first.into_iter().chain(render::rule::cells(rule));
        table.add_row(cells.chain([Cell::new(why)]));
    }
    render::table_text(&table)
}
