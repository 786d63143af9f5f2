//! `mcr stats`: what every rule and output counted.

use api::query::{Order, StatsQuery};
use api::reply::Stats;
use api::request::HISTORY_RULES_MAX;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::form::Output;
use super::watch::Watch;
use crate::completion;
use crate::control::{self, Control};
use crate::failure::Failure;
use crate::global::Global;
use crate::render::{self, Form};
use crate::selection::{Part, Selection, not_paged};

/// Show what every rule and output counted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr stats --watch                         with rates
  mcr stats -o wide                         with joins and the reason for the path
  mcr stats --sort state --limit 20         the twenty worst
  mcr stats cam1 --json")]
pub(crate) struct Args {
    #[command(flatten)]
    watch: Watch,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    part: Part,
    /// Order: as configured, by name, the worst first, the busiest first, the most lost first
    #[arg(long, value_name = "ORDER", value_parser = order())]
    sort: Option<Order>,
    /// Show only these rules
    #[arg(value_name = "NAME", add = completion::rule(),
        conflicts_with_all = ["limit", "offset", "sort"])]
    names: Vec<String>,
}

fn order() -> impl TypedValueParser<Value = Order> {
    let words = PossibleValuesParser::new(Order::ALL.map(Order::as_str));
    words.map(|word| {
        let mut all = Order::ALL.into_iter();
        all.find(|order| order.as_str() == word).unwrap_or_default()
    })
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let control = Control::open(global)?;
    let form = args.output.form(global);
    let mut previous = None;
    args.watch.print(|| {
        let mut stats = read(&control, args)?;
        stats
            .rules
            .retain(|rule| args.selection.takes(&rule.labels));
        let text = match form {
            Form::Json => render::json_text(&stats)?,
            Form::Name => stats
                .rules
                .iter()
                .map(|rule| format!("{}\n", rule.name))
                .collect(),
            Form::Table | Form::Wide => {
                let table = render::stats::table(&stats, previous.as_ref(), form == Form::Wide);
                let footer = render::stats::footer(&stats);
                format!("{table}\n\n{footer}")
            }
        };
        previous = Some(stats);
        Ok(text)
    })
}

fn read(control: &Control, args: &Args) -> Result<Stats, Failure> {
    if args.part.is_some() || args.sort.is_some() {
        let stats = control.selected_stats(&StatsQuery {
            labels: args.selection.labels.clone(),
            order: args.sort.unwrap_or_default(),
            offset: args.part.offset,
            limit: args.part.limit,
            ..StatsQuery::default()
        })?;
        Part::tell(stats.selection.as_ref().ok_or_else(not_paged)?.part);
        return Ok(stats);
    }
    let names = &args.names;
    if names.is_empty() {
        return control.stats();
    }
    if names.len() <= HISTORY_RULES_MAX {
        let mut stats = control.selected_stats(&StatsQuery {
            limit: Some(0),
            rules: names.clone(),
            ..StatsQuery::default()
        })?;
        let is_reported = |name: &String| stats.rules.iter().any(|rule| rule.name == *name);
        if stats.selection.is_some() && names.iter().all(is_reported) {
            stats.selection = None;
            return Ok(stats);
        }
    }
    // The error about an unknown name lists the existing ones.
    let mut stats = control.stats()?;
    let existing: Vec<&str> = stats.rules.iter().map(|rule| rule.name.as_str()).collect();
    control::require(names, &existing)?;
    stats.rules.retain(|rule| names.contains(&rule.name));
    Ok(stats)
}
