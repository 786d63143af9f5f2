//! The table of rules, with rates and sparklines.

use api::reply::RuleStats;
use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Span;
use ratatui::widgets::{Cell, Row, Table, TableState};

use super::columns::{self, Column, LAST_MAX};
use super::history::dropped;
use super::hosts::parts;
use super::screen::Screen;
use super::style::{bad, of_word};
use crate::render;

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws the rules around the selected one.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let rules = screen.rules();
    let position = screen.position(&rules);
    // Only visible rows are built: a thousand rules cost no more than twenty.
    let visible = usize::from(area.height.saturating_sub(1)).max(1);
    let first = position.saturating_sub(visible - 1);
    let shown = || rules.iter().skip(first).take(visible);
    let names = || shown().map(|rule| parts(&rule.name));
    let longest = names().map(|(_, rule)| rule.chars().count()).max();
    let (width, longest) = (usize::from(area.width), longest.unwrap_or(0));
    let host = names().filter_map(|(host, _)| Some(host?.chars().count()));
    let layout = match host.max() {
        Some(host) => columns::layout_with_hosts(width, host, longest),
        None => columns::layout(width, longest),
    };
    let rows = shown().map(|rule| row(screen, rule, &layout));
    let titles = layout.iter().map(|(column, width)| column.title(*width));
    let header = Row::new(titles).style(Style::new().add_modifier(Modifier::BOLD));
    let widths = layout.iter().map(|(_, width)| Constraint::Length(*width));
    let table = Table::new(rows, widths)
        .header(header)
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::default();
    state.select((!rules.is_empty()).then_some(position - first));
    frame.render_stateful_widget(table, area, &mut state);
}

fn row(screen: &Screen, rule: &RuleStats, layout: &[(Column, u16)]) -> Row<'static> {
    let trail = screen.history.trail(&rule.name, usize::from(LAST_MAX));
    let has_stopped = rule.silent_seconds.is_some();
    let cells = layout.iter().map(|(column, width)| {
        let width = usize::from(*width);
        let right = |text: String| format!("{text:>width$}");
        let packets = |rate: f64| right(render::count(rate.round() as u64));
        let (host, name) = parts(&rule.name);
        let text = match column {
            Column::Host => columns::shortened(host.unwrap_or_default(), width),
            Column::Name => columns::shortened(name, width),
            Column::State => rule.word().to_owned(),
            Column::Path if rule.path == "userspace" => "user".to_owned(),
            Column::Path => rule.path.clone(),
            Column::Short if has_stopped => packets(0.0),
            Column::Short => packets(rule.rates.packets_1s),
            Column::Long => packets(rule.rates.packets_10s),
            Column::Rate => right(render::bits_per_second(rule.rates.bits_1s)),
            Column::Dropped => right(render::count(dropped(rule))),
            Column::Last => sparkline(&trail[trail.len().saturating_sub(width)..]),
        };
        let is_growing = || screen.history.drop_rate(&rule.name, 1.0) > 0.0;
        let style = match column {
            Column::State => of_word(rule.word()),
            Column::Short if has_stopped => bad(),
            Column::Dropped if is_growing() => bad(),
            _ => Style::new(),
        };
        Cell::new(Span::styled(text, style))
    });
    Row::new(cells)
}

/// Bars between zero and the highest value; zero is blank, any other value is visible.
pub(super) fn sparkline(values: &[u64]) -> String {
    let highest = values.iter().copied().max().unwrap_or(0);
    let bar = |value: &u64| match value {
        0 => ' ',
        value => BARS[(value * 7).div_ceil(highest.max(1)).min(7) as usize],
    };
    values.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_shows_every_value_that_is_not_zero() {
        assert_eq!(sparkline(&[0, 1, 500, 1000]), " ▂▅█");
        assert_eq!(sparkline(&[0, 0]), "  ");
    }
}
