//! The table of counters: a line for each rule, one for each of its inputs where it has several, one for
//! each of its outputs.

use std::collections::BTreeMap;

use api::reply::{
    Condition, EgressStats, InputStats, OutputStats, RuleStats, State, Stats, Traffic, WorkerStats,
};
use comfy_table::{Cell, CellAlignment, ColumnConstraint, Table};

use crate::render::{self, number, times};

/// Renders counters; with an earlier snapshot of them, rates too; `wide` with joins and the reason
/// for the path, whatever the width.
pub(crate) fn table(now: &Stats, before: Option<&Stats>, wide: bool) -> String {
    let mut header = vec!["RULE", "STATE", "PATH", "ENDPOINT", "PACKETS", "BYTES"];
    if before.is_some() {
        header.extend(["PACKETS/S", "RATE"]);
    }
    header.push("DROPPED");
    // Where it would take room from the others it stands below its row.
    let notes = wide && now.rules.iter().any(has_notes);
    if notes {
        header.push("NOTE");
    }
    let counts = 4..header.len() - 1 - usize::from(notes);
    let more = wide && now.rules.iter().any(has_more);
    if wide {
        header.push("JOINED");
    }
    if more {
        header.push("MORE");
    }
    if wide {
        header.push("WHY THIS PATH");
    }
    let mut table = match wide {
        true => render::wide_table(&header),
        false => render::table(&header),
    };
    let columns = Columns {
        rates: before.is_some(),
        notes,
        wide,
        more,
    };
    let mut below = Below::default();
    for rule in &now.rules {
        let earlier = before.and_then(|stats| Some((of(stats, rule)?, elapsed(stats, now))));
        add_rule(&mut table, rule, earlier, columns, &mut below);
    }
    if let Some(endpoints) = table.column_mut(3) {
        endpoints.set_constraint(ColumnConstraint::ContentWidth);
    }
    for column in counts {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    below.put_into(&render::table_text(&table))
}

/// Notes that stand below rows. In the table each is a row of one character that nobody writes.
#[derive(Default)]
struct Below(Vec<String>);

impl Below {
    /// The first of Unicode's second plane for private use.
    const FIRST: u32 = 0xf_0000;

    fn add(&mut self, table: &mut Table, note: &str) {
        for line in note.lines() {
            let mark = char::from_u32(Self::FIRST + self.0.len() as u32 % 0xffff);
            table.add_row([mark.map(String::from).unwrap_or_default()]);
            self.0.push(line.to_owned());
        }
    }

    fn put_into(self, text: &str) -> String {
        let mut notes = self.0.into_iter();
        let is_mark = |c: char| (Self::FIRST..Self::FIRST + 0xffff).contains(&u32::from(c));
        let lines = text
            .lines()
            .map(|line| match line.trim_start().chars().next() {
                Some(first) if is_mark(first) => {
                    format!("    {}", notes.next().unwrap_or_default())
                }
                _ => line.to_owned(),
            });
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// One line on everything that is not a rule: instance, workers.
pub(crate) fn footer(stats: &Stats) -> String {
    let mut text = format!(
        "instance {}, version {}, up {}",
        stats.instance,
        stats.version,
        times::duration(stats.uptime_seconds)
    );
    for worker in &stats.workers {
        text += &format!(
            "\nworker {} on CPU {}: {}, {}",
            worker.id,
            worker.cpu,
            worker.state,
            number::all(WorkerStats::COUNTERS, worker),
        );
    }
    for egress in stats.egress.iter().filter(|egress| egress.any()) {
        text += &format!(
            "\nbehind MCR, {}: {}",
            egress.interface,
            number::all(EgressStats::COUNTERS, egress)
        );
    }
    text
}

type Earlier<'a> = Option<(&'a RuleStats, f64)>;

/// The columns that are not always there.
#[derive(Clone, Copy)]
struct Columns {
    rates: bool,
    notes: bool,
    wide: bool,
    more: bool,
}

fn add_rule(
    table: &mut Table,
    rule: &RuleStats,
    earlier: Earlier<'_>,
    columns: Columns,
    below: &mut Below,
) {
    let Columns {
        rates,
        notes,
        wide,
        more,
    } = columns;
    let at = match rule.inputs.as_slice() {
        [only] => only.at.clone(),
        several => format!("{} inputs", several.len()),
    };
    let mut row = vec![
        Cell::new(&rule.name),
        render::state_cell(rule.word()),
        Cell::new(&rule.path),
        Cell::new(at),
    ];
    let previous = earlier.map(|(rule, seconds)| (rule.received, seconds));
    row.extend(traffic(rule.received, previous, rates));
    row.push(Cell::new(dropped(&rule.dropped)));
    if notes {
        row.push(Cell::new(rule_note(rule)));
    }
    if wide {
        let joined = match rule.inputs.as_slice() {
            [only] => word(only.joined),
            _ => "",
        };
        row.push(Cell::new(joined));
        if more {
            row.push(Cell::new(rule_more(rule)));
        }
        row.push(Cell::new(&rule.path_reason));
    }
    table.add_row(row);
    if !wide {
        below.add(table, &rule_note(rule));
    }
    add_inputs(table, rule, earlier, columns);
    for (index, output) in rule.outputs.iter().enumerate() {
        let mut row = vec![
            Cell::new(""),
            render::state_cell(output.state.as_str()),
            Cell::new(""),
            Cell::new(format!("→ {}", output.to)),
        ];
        let previous = earlier.and_then(|(rule, seconds)| {
            let output = rule.outputs.get(index)?;
            Some((output.sent, seconds))
        });
        row.extend(traffic(output.sent, previous, rates));
        row.push(Cell::new(dropped(&output.dropped)));
        if notes {
            row.push(Cell::new(output.remark().unwrap_or_default()));
        }
        if more {
            row.push(Cell::new(""));
            row.push(Cell::new(number::all(OutputStats::COUNTERS, output)));
        }
        table.add_row(row);
        if !wide {
            below.add(table, output.remark().unwrap_or_default().as_str());
        }
    }
}

/// Adds the inputs of a rule that has several.
fn add_inputs(table: &mut Table, rule: &RuleStats, earlier: Earlier<'_>, columns: Columns) {
    let several = Some(&rule.inputs).filter(|inputs| inputs.len() > 1);
    for input in several.into_iter().flatten() {
        let mut row = [""; 3].map(Cell::new).to_vec();
        row.push(Cell::new(format!("← {}", input.at)));
        let previous = earlier.and_then(|(rule, seconds)| {
            let mut inputs = rule.inputs.iter();
            let input = inputs.find(|other| other.at == input.at)?;
            Some((input.received, seconds))
        });
        row.extend(traffic(input.received, previous, columns.rates));
        row.push(Cell::new(""));
        if columns.notes {
            row.push(Cell::new(""));
        }
        if columns.wide {
            row.push(Cell::new(word(input.joined)));
        }
        if columns.more {
            row.push(Cell::new(number::of_input(input)));
        }
        table.add_row(row);
    }
}

fn traffic(now: Traffic, previous: Option<(Traffic, f64)>, rates: bool) -> Vec<Cell> {
    let mut cells = vec![
        Cell::new(render::count(now.packets)),
        Cell::new(render::bytes(now.bytes)),
    ];
    if rates {
        let rate =
            |now: u64, before: u64, seconds: f64| now.saturating_sub(before) as f64 / seconds;
        cells.extend(match previous {
            Some((before, seconds)) if seconds > 0.0 => [
                Cell::new(render::count(
                    rate(now.packets, before.packets, seconds).round() as u64,
                )),
                Cell::new(render::bits_per_second(
                    rate(now.bytes, before.bytes, seconds) * 8.0,
                )),
            ],
            _ => [Cell::new("-"), Cell::new("-")],
        });
    }
    cells
}

/// The reasons that occurred, or a dash.
fn dropped(drops: &BTreeMap<String, u64>) -> String {
    let texts = number::drops(drops);
    match texts.is_empty() {
        true => "-".to_owned(),
        false => texts.join("\n"),
    }
}

fn rule_note(rule: &RuleStats) -> String {
    let not_joined = |input: &InputStats| {
        let reason = input.reason.as_deref().unwrap_or("no reason given");
        (!input.joined && rule.state != State::Disabled)
            .then(|| format!("{} not joined: {reason}", input.at))
    };
    let mut notes: Vec<String> = rule.inputs.iter().filter_map(not_joined).collect();
    if notes.is_empty() {
        notes.extend(reason(rule));
    }
    notes.join("\n")
}

/// Why a rule is not simply up.
pub(crate) fn reason(rule: &RuleStats) -> Option<String> {
    let said = |what, seconds| format!("{what} for {}", times::duration(seconds));
    let silent = match rule.condition() {
        Condition::Silent => rule.silent_seconds.map(|s| said("no packet", s)),
        Condition::Waiting => Some("nothing has come yet".to_owned()),
        _ => None,
    };
    match (silent, &rule.state_reason) {
        (Some(silent), Some(reason)) => Some(format!("{silent}; {reason}")),
        (Some(silent), None) => Some(silent),
        (None, _) => rule.worst().1.map(str::to_owned),
    }
}

fn has_notes(rule: &RuleStats) -> bool {
    let output_has = |output: &OutputStats| output.remark().is_some();
    !rule_note(rule).is_empty() || rule.outputs.iter().any(output_has)
}

/// What texts say of a rule beside what has a column, and of its input if that has no line.
fn rule_more(rule: &RuleStats) -> String {
    let own = number::of_rule(rule);
    let only = match rule.inputs.as_slice() {
        [only] => number::of_input(only),
        _ => String::new(),
    };
    let texts = [own, only].into_iter().filter(|text| !text.is_empty());
    texts.collect::<Vec<String>>().join(", ")
}

fn has_more(rule: &RuleStats) -> bool {
    let input_has = |input| !number::of_input(input).is_empty();
    let output_has = |output| !number::all(OutputStats::COUNTERS, output).is_empty();
    !rule_more(rule).is_empty()
        || rule.inputs.iter().any(input_has)
        || rule.outputs.iter().any(output_has)
}

const fn word(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

fn of<'a>(stats: &'a Stats, rule: &RuleStats) -> Option<&'a RuleStats> {
    stats.rules.iter().find(|other| other.name == rule.name)
}

fn elapsed(before: &Stats, now: &Stats) -> f64 {
    now.uptime_seconds - before.uptime_seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(uptime: f64, packets: u64) -> Stats {
        let text = format!(
            r#"{{"instance":"default","version":"1","uptime_seconds":{uptime},"workers":[],"rules":[
            {{"name":"cam1","state":"degraded","state_reason":"1 of 2 outputs is down",
              "path":"kernel","path_reason":"","inputs":[{{"at":"239.1.1.1%eth0:5001","joined":true}}],
              "received":{{"packets":{packets},"bytes":{}}},"dropped":{{"malformed":0}},
              "outputs":[
                {{"to":"239.10.1.1%eth1:6001","state":"up","sent":{{"packets":{packets},"bytes":{}}},
                  "dropped":{{"too_big":7}}}},
                {{"to":"10.9.9.9:7000","state":"down","reason":"no_route",
                  "sent":{{"packets":0,"bytes":0}},"dropped":{{"too_big":0,"no_route":{packets}}}}}
              ]}}]}}"#,
            packets * 1000,
            packets * 1000
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_rule_and_each_of_its_outputs_have_a_line() {
        let table = table(&stats(10.0, 12_000), None, false);
        let lines: Vec<Vec<&str>> = table
            .lines()
            .map(|line| {
                line.split("  ")
                    .map(str::trim)
                    .filter(|word| !word.is_empty())
                    .collect()
            })
            .collect();
        assert_eq!(
            lines,
            [
                vec![
                    "RULE", "STATE", "PATH", "ENDPOINT", "PACKETS", "BYTES", "DROPPED"
                ],
                vec![
                    "cam1",
                    "degraded",
                    "kernel",
                    "239.1.1.1%eth0:5001",
                    "12 000",
                    "12.0 MB",
                    "-"
                ],
                vec!["1 of 2 outputs is down"],
                vec![
                    "up",
                    "→ 239.10.1.1%eth1:6001",
                    "12 000",
                    "12.0 MB",
                    "too_big 7"
                ],
                vec!["down", "→ 10.9.9.9:7000", "0", "0 B", "no_route 12 000"],
                vec!["no_route"],
            ]
        );
    }

    #[test]
    fn each_of_several_inputs_has_a_line_too() {
        let several = |uptime, packets| {
            let mut stats = stats(uptime, packets);
            let inputs = &mut stats.rules[0].inputs;
            inputs.push(inputs[0].clone());
            inputs[1].at = "239.1.1.2%eth0:5001".to_owned();
            inputs[1].joined = false;
            inputs[1].received.packets = packets / 10;
            stats
        };
        let now = several(12.0, 14_000);
        let table = table(&now, Some(&several(10.0, 12_000)), true);
        let lines: Vec<Vec<&str>> = table
            .lines()
            .skip(1)
            .take(3)
            .map(|line| line.split("  ").map(str::trim))
            .map(|words| words.filter(|word| !word.is_empty()).collect())
            .collect();
        assert!(lines[0].contains(&"2 inputs"), "{table}");
        assert_eq!(lines[1][..2], ["← 239.1.1.1%eth0:5001", "0"], "{table}");
        assert!(lines[1].contains(&"yes"), "{table}");
        assert_eq!(lines[2][..2], ["← 239.1.1.2%eth0:5001", "1 400"], "{table}");
        assert!(
            lines[2].contains(&"100") && lines[2].contains(&"no"),
            "{table}"
        );
    }

    #[test]
    fn a_wide_table_has_joins_and_the_reason_for_the_path() {
        let mut stats = stats(10.0, 12_000);
        stats.rules[0].path_reason = "a reason longer than any terminal ".repeat(10);
        let table = table(&stats, None, true);
        let rule = table.lines().nth(1).unwrap();
        assert!(rule.contains(" yes ") && rule.contains(stats.rules[0].path_reason.trim()));
    }

    #[test]
    fn rates_come_from_two_looks() {
        let table = table(&stats(12.0, 14_000), Some(&stats(10.0, 12_000)), false);
        let rule = table.lines().nth(1).unwrap();
        assert!(
            rule.contains(" 1 000 ") && rule.contains("8.0 Mbit/s"),
            "{table}"
        );
    }

    #[test]
    fn uptimes_are_short() {
        assert_eq!(times::duration(12.34), "12.3 s");
        assert_eq!(times::duration(100.0), "1 min 40 s");
        assert_eq!(times::duration(7_300.0), "2 h 1 min");
        assert_eq!(times::duration(90_000.0), "1 d 1 h");
    }
}
