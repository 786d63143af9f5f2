//! The table of counters: a line for each rule, for each of its inputs if it has several, and for each of its
//! outputs.

use std::collections::BTreeMap;

use api::reply::{
    Condition, EgressStats, InputStats, OutputStats, RuleStats, State, Stats, Traffic, WorkerStats,
};
use comfy_table::{Cell, CellAlignment, ColumnConstraint, Table};

use crate::render::{self, number, times};

/// Renders counters; with an earlier snapshot also rates; if `wide` also joins and the reason for the path,
/// whatever the width.
pub(crate) fn table(now: &Stats, before: Option<&Stats>, wide: bool) -> String {
    let mut rows = Vec::new();
    for rule in &now.rules {
        let earlier = before.and_then(|stats| {
            let mut rules = stats.rules.iter();
            let same = rules.find(|other| other.name == rule.name)?;
            Some((same, now.uptime_seconds - stats.uptime_seconds))
        });
        add_rule(&mut rows, rule, earlier);
    }
    let is_shown = |column: &&Column| match column.shown {
        Shown::Always => true,
        Shown::WithRates => before.is_some(),
        Shown::Wide => wide,
        Shown::WideIfAny => {
            let mut cells = rows.iter().map(column.cell);
            wide && cells.any(|cell| !cell.content().is_empty())
        }
    };
    let columns: Vec<&Column> = COLUMNS.iter().filter(is_shown).collect();
    let header: Vec<&str> = columns.iter().map(|column| column.title).collect();
    let mut table = render::empty_table(&header);
    if wide {
        render::widen(&mut table);
    }
    let mut below = Below::default();
    for row in &rows {
        table.add_row(columns.iter().map(|column| (column.cell)(row)));
        // In a narrow table it stands below its row, to leave room for the other columns.
        if !wide {
            below.add(&mut table, &row.note);
        }
    }
    for (shown, column) in table.column_iter_mut().zip(&columns) {
        if column.title == "ENDPOINT" {
            shown.set_constraint(ColumnConstraint::ContentWidth);
        }
        if column.is_number {
            shown.set_cell_alignment(CellAlignment::Right);
        }
    }
    below.put_into(&render::table_text(&table))
}

/// The contents of one line.
#[derive(Default)]
struct Row<'a> {
    rule: &'a str,
    state: &'a str,
    path: &'a str,
    endpoint: String,
    traffic: Traffic,
    /// What it was this many seconds before.
    earlier: Option<(Traffic, f64)>,
    dropped: String,
    note: String,
    joined: &'static str,
    more: String,
    why: &'a str,
}

/// When a column is shown.
#[derive(Clone, Copy)]
enum Shown {
    Always,
    WithRates,
    Wide,
    WideIfAny,
}

struct Column {
    title: &'static str,
    shown: Shown,
    is_number: bool,
    cell: fn(&Row<'_>) -> Cell,
}

const COLUMNS: [Column; 13] = [
    column("RULE", Shown::Always, |row| Cell::new(row.rule)),
    column("STATE", Shown::Always, |row| match row.state {
        "" => Cell::new(""),
        state => render::state_cell(state),
    }),
    column("PATH", Shown::Always, |row| Cell::new(row.path)),
    column("ENDPOINT", Shown::Always, |row| Cell::new(&row.endpoint)),
    numbers("PACKETS", Shown::Always, |row| {
        Cell::new(render::count(row.traffic.packets))
    }),
    numbers("BYTES", Shown::Always, |row| {
        Cell::new(render::bytes(row.traffic.bytes))
    }),
    numbers("PACKETS/S", Shown::WithRates, |row| {
        let rate = row.rate(|traffic| traffic.packets);
        Cell::new(rate.map_or_else(dash, |rate| render::count(rate.round() as u64)))
    }),
    numbers("RATE", Shown::WithRates, |row| {
        let rate = row.rate(|traffic| traffic.bytes);
        Cell::new(rate.map_or_else(dash, |rate| render::bits_per_second(rate * 8.0)))
    }),
    column("DROPPED", Shown::Always, |row| Cell::new(&row.dropped)),
    column("NOTE", Shown::WideIfAny, |row| Cell::new(&row.note)),
    column("JOINED", Shown::Wide, |row| Cell::new(row.joined)),
    column("MORE", Shown::WideIfAny, |row| Cell::new(&row.more)),
    column("WHY THIS PATH", Shown::Wide, |row| Cell::new(row.why)),
];

const fn column(title: &'static str, shown: Shown, cell: fn(&Row<'_>) -> Cell) -> Column {
    Column {
        title,
        shown,
        is_number: false,
        cell,
    }
}

const fn numbers(title: &'static str, shown: Shown, cell: fn(&Row<'_>) -> Cell) -> Column {
    Column {
        is_number: true,
        ..column(title, shown, cell)
    }
}

fn dash() -> String {
    "-".to_owned()
}

impl Row<'_> {
    fn rate(&self, of: fn(&Traffic) -> u64) -> Option<f64> {
        let (before, seconds) = self.earlier.filter(|(_, seconds)| *seconds > 0.0)?;
        Some(of(&self.traffic).saturating_sub(of(&before)) as f64 / seconds)
    }
}

/// Notes that stand below rows. In the table each is a row of one private-use character.
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

fn add_rule<'a>(rows: &mut Vec<Row<'a>>, rule: &'a RuleStats, earlier: Earlier<'_>) {
    let only = match rule.inputs.as_slice() {
        [only] => Some(only),
        _ => None,
    };
    let several = || format!("{} inputs", rule.inputs.len());
    rows.push(Row {
        rule: &rule.name,
        state: rule.word(),
        path: &rule.path,
        endpoint: only.map_or_else(several, |only| only.at.clone()),
        traffic: rule.received,
        earlier: earlier.map(|(rule, seconds)| (rule.received, seconds)),
        dropped: dropped(&rule.dropped),
        note: rule_note(rule),
        joined: only.map_or("", |only| word(only.joined)),
        // An only input has no line of its own.
        more: number::joined(number::of_rule(rule), only.map(number::of_input)),
        why: &rule.path_reason,
    });
    let inputs = rule.inputs.iter().filter(|_| rule.inputs.len() > 1);
    rows.extend(inputs.map(|input| Row {
        endpoint: format!("← {}", input.at),
        traffic: input.received,
        earlier: earlier.and_then(|(rule, seconds)| {
            let mut inputs = rule.inputs.iter();
            let input = inputs.find(|other| other.at == input.at)?;
            Some((input.received, seconds))
        }),
        joined: word(input.joined),
        more: number::of_input(input),
        ..Row::default()
    }));
    let outputs = rule.outputs.iter().enumerate();
    rows.extend(outputs.map(|(index, output)| Row {
        state: output.state.as_str(),
        endpoint: format!("→ {}", output.to),
        traffic: output.sent,
        earlier: earlier.and_then(|(rule, seconds)| Some((rule.outputs.get(index)?.sent, seconds))),
        dropped: dropped(&output.dropped),
        note: output.remark().unwrap_or_default(),
        more: number::all(OutputStats::COUNTERS, output),
        ..Row::default()
    }));
}

/// The reasons that occurred, or a dash.
fn dropped(drops: &BTreeMap<String, u64>) -> String {
    let texts = number::drops(drops);
    if texts.is_empty() {
        "-".to_owned()
    } else {
        texts.join("\n")
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

/// Where the kernel path takes packets of an input, and why there.
pub(crate) fn hook(input: &InputStats) -> Option<String> {
    let why = render::because(input.hook_reason.as_deref());
    Some(input.hook.clone()? + &why)
}

/// Why a rule is not simply up.
pub(crate) fn reason(rule: &RuleStats) -> Option<String> {
    let lasting = |what, seconds| format!("{what} for {}", times::duration(seconds));
    let silent = match rule.condition() {
        Condition::Silent => rule.silent_seconds.map(|s| lasting("no packet", s)),
        Condition::Waiting => Some("nothing has come yet".to_owned()),
        _ => None,
    };
    let why = match (silent, &rule.state_reason) {
        (Some(silent), Some(reason)) => Some(format!("{silent}; {reason}")),
        (Some(silent), None) => Some(silent),
        (None, _) => rule.worst().1.map(str::to_owned),
    };
    let acknowledgement = rule.acknowledged.as_ref().map(|acknowledged| {
        let why = render::because(acknowledged.message.as_deref());
        let since = super::moment(acknowledged.at_ms);
        format!("acknowledged by {} at {since}{why}", acknowledged.by)
    });
    let all: Vec<String> = why.into_iter().chain(acknowledgement).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

const fn word(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
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
    fn rates_come_from_two_samples() {
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
