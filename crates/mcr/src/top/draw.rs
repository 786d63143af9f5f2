//! The picture: a head line, the rules with their rates and sparklines, the newest events, keys.
//! Everything fits 80 columns and 24 lines; colours never carry what is not also written.

use api::reply::{RuleStats, State};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table, TableState, Wrap};

use super::detail;
use super::history::drops;
use super::screen::{Screen, View};
use crate::render;

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const EVENT_LINES: u16 = 5;

/// Draws the whole screen.
pub(crate) fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let [head, body, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(5),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_head(frame, screen, head);
    match screen.view {
        View::Rules => {
            let [rules, events] =
                Layout::vertical([Constraint::Min(4), Constraint::Length(EVENT_LINES + 1)])
                    .areas(body);
            draw_rules(frame, screen, rules);
            draw_events(frame, screen, events);
        }
        View::Detail => detail::draw(frame, screen, body),
        View::Events => draw_events(frame, screen, body),
        View::Help => draw_help(frame, body),
    }
    draw_foot(frame, screen, foot);
}

fn draw_head(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let mut lines = Vec::new();
    match (&screen.gone, screen.history.last()) {
        (Some(reason), _) => lines.push(Line::styled(reason.clone(), bad())),
        (None, None) => lines.push(Line::raw("asking the daemon …")),
        (None, Some(stats)) => {
            let count = |state| stats.rules.iter().filter(|r| r.state == state).count();
            let generation = screen.status.as_ref().map_or(0, |status| status.generation);
            lines.push(Line::from(vec![
                Span::styled("mcr ", Style::new().add_modifier(Modifier::BOLD)),
                Span::raw(format!(
                    "{} {}  up {}  generation {generation}  {} rules: {} up, ",
                    stats.instance,
                    stats.version,
                    render::stats::duration(stats.uptime_seconds),
                    stats.rules.len(),
                    count(State::Up),
                )),
                Span::styled(
                    format!("{} degraded", count(State::Degraded)),
                    unless_zero(count(State::Degraded), half_good()),
                ),
                Span::raw(", "),
                Span::styled(
                    format!("{} down", count(State::Down)),
                    unless_zero(count(State::Down), bad()),
                ),
            ]));
        }
    }
    lines.push(workers(screen));
    frame.render_widget(Paragraph::new(lines), area);
}

fn workers(screen: &Screen) -> Line<'static> {
    let workers = screen.history.last().map(|stats| stats.workers.as_slice());
    let Some(workers) = workers.filter(|workers| !workers.is_empty()) else {
        return Line::raw("workers: none needed");
    };
    let mut spans = vec![Span::raw("workers:")];
    for worker in workers {
        let style = match worker.state.as_str() {
            "running" => good(),
            _ => half_good(),
        };
        spans.push(Span::styled(
            format!(" {}={}", worker.id, worker.state),
            style,
        ));
        spans.push(Span::raw(format!(" cpu {}", worker.cpu)));
        if worker.restarts > 0 {
            spans.push(Span::styled(
                format!(" restarts {}", worker.restarts),
                half_good(),
            ));
        }
        if worker.buffer_exhausted > 0 {
            let lost = render::count(worker.buffer_exhausted);
            spans.push(Span::styled(format!(" lost {lost}"), bad()));
        }
    }
    Line::from(spans)
}

fn draw_rules(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let rules = screen.rules();
    let spark = usize::from(area.width.saturating_sub(60) / 2).clamp(8, 60);
    let position = screen.position(&rules);
    // Only rows that can be seen are made: a thousand rules cost no more than twenty.
    let visible = usize::from(area.height.saturating_sub(1)).max(1);
    let first = position.saturating_sub(visible - 1);
    let rows = rules.iter().skip(first).take(visible);
    let rows = rows.map(|rule| row(screen, rule, spark));
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(8),
        Constraint::Length(6),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(11),
        Constraint::Length(8),
        Constraint::Length(u16::try_from(spark).unwrap_or(8)),
    ];
    let header = [
        "RULE", "STATE", "PATH", "PPS 1s", "PPS 10s", "RATE", "DROPPED", "LAST",
    ];
    let header = Row::new(header).style(Style::new().add_modifier(Modifier::BOLD));
    let table = Table::new(rows, widths)
        .header(header)
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::default();
    state.select((!rules.is_empty()).then_some(position - first));
    frame.render_stateful_widget(table, area, &mut state);
}

fn row(screen: &Screen, rule: &RuleStats, spark: usize) -> Row<'static> {
    let now = screen.history.received(&rule.name, 1.0);
    let long = screen.history.received(&rule.name, 10.0);
    let dropped: u64 = drops(rule).values().sum();
    let dropping = screen.history.dropped(&rule.name, 1.0) > 0.0;
    let path = if rule.path == "userspace" {
        "user"
    } else {
        &rule.path
    };
    Row::new([
        Cell::new(rule.name.clone()),
        Cell::new(Span::styled(
            render::stats::state(rule.worst().0),
            of_state(rule.worst().0),
        )),
        Cell::new(path.to_owned()),
        Cell::new(format!("{:>9}", render::count(now.packets as u64))),
        Cell::new(format!("{:>9}", render::count(long.packets as u64))),
        Cell::new(format!("{:>11}", render::bits_per_second(now.bits))),
        Cell::new(Span::styled(
            format!("{:>8}", render::count(dropped)),
            if dropping { bad() } else { Style::new() },
        )),
        Cell::new(sparkline(&screen.history.trail(&rule.name, spark))),
    ])
}

/// Bars between zero and the highest value; a value of zero is blank, any other can be seen.
pub(super) fn sparkline(values: &[u64]) -> String {
    let highest = values.iter().copied().max().unwrap_or(0);
    let bar = |value: &u64| match value {
        0 => ' ',
        value => BARS[(value * 7).div_ceil(highest.max(1)).min(7) as usize],
    };
    values.iter().map(bar).collect()
}

fn draw_events(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let block = Block::new().borders(Borders::TOP).title(" events ");
    let visible = usize::from(area.height.saturating_sub(1));
    let events = screen.events.iter().rev().take(visible).rev();
    let lines: Vec<Line<'_>> = events
        .map(|event| {
            let kind = event.kind.as_str();
            let style = match kind {
                _ if kind.ends_with("down") || kind.ends_with("failed") => bad(),
                "rule_degraded" | "stream_degraded" | "worker_restarted" | "missed" => half_good(),
                _ => Style::new(),
            };
            let time = render::time_of_day(event.at_ms);
            Line::from(vec![
                Span::raw(format!("{time} ")),
                Span::styled(event.message.clone(), style),
            ])
        })
        .collect();
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn draw_foot(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let text = if screen.typing {
        format!("/{}_  (Enter keeps, Esc clears)", screen.filter)
    } else {
        let filter = match screen.filter.as_str() {
            "" => "/ filter".to_owned(),
            filter => format!("/ filter: {filter}"),
        };
        let paused = if screen.paused { "  PAUSED" } else { "" };
        format!(
            "q quit  Enter detail  s sort: {}  {filter}  e events  p pause  ? help{paused}",
            screen.sort.name()
        )
    };
    let style = Style::new().add_modifier(Modifier::REVERSED);
    frame.render_widget(Paragraph::new(text).style(style), area);
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let text = "\
Up Down j k PgUp PgDn   choose a rule         Enter   its inputs, outputs and drops
/  filter by name, endpoint, path or state    s       next order
e  events                                     p       stand still, go on
q Esc  back; q leaves

PPS 1s, PPS 10s   packets received per second, over the last 1 and 10 seconds
RATE              UDP payload received, over the last second
DROPPED           packets of the rule and copies of its outputs, red while growing
LAST              packets per second between looks, against the highest shown";
    let block = Block::new().borders(Borders::TOP).title(" help ");
    let help = Paragraph::new(text).block(block).wrap(Wrap { trim: false });
    frame.render_widget(help, area);
}

pub(super) const fn of_state(state: State) -> Style {
    match state {
        State::Up => good(),
        State::Degraded => half_good(),
        State::Down => bad(),
    }
}

const fn unless_zero(count: usize, style: Style) -> Style {
    if count == 0 { Style::new() } else { style }
}

const fn good() -> Style {
    Style::new().fg(Color::Green)
}

const fn half_good() -> Style {
    Style::new().fg(Color::Yellow)
}

pub(super) const fn bad() -> Style {
    Style::new().fg(Color::Red)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::history::tests::stats;
    use super::*;

    fn drawn(screen: &Screen) -> String {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| draw(frame, screen)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn a_sparkline_shows_every_value_that_is_not_zero() {
        assert_eq!(sparkline(&[0, 1, 500, 1000]), " ▂▅█");
        assert_eq!(sparkline(&[0, 0]), "  ");
    }

    #[test]
    fn eighty_columns_hold_name_state_rates_and_drops() {
        let mut screen = Screen::default();
        screen.history.add(stats(1.0, &[("camera-1", 0)]));
        screen.history.add(stats(2.0, &[("camera-1", 12_345)]));
        let text = drawn(&screen);
        let line = text.lines().find(|line| line.contains("camera-1")).unwrap();
        for part in ["up", "kernel", "12 345", "98.8 Mbit/s", " 3 ", "█"] {
            assert!(line.contains(part), "no {part:?} in {line}");
        }
    }

    #[test]
    fn a_thousand_rules_leave_the_selected_one_in_sight() {
        let names: Vec<String> = (0..1000).map(|n| format!("r{n:04}")).collect();
        let rules: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let mut screen = Screen::default();
        screen.history.add(stats(1.0, &rules));
        screen.selected = Some("r0777".to_owned());
        assert!(drawn(&screen).contains("r0777"));
    }

    #[test]
    fn the_detail_names_inputs_outputs_and_reasons() {
        let mut screen = Screen::default();
        screen.history.add(stats(1.0, &[("a", 5)]));
        screen.view = View::Detail;
        let text = drawn(&screen);
        for part in [
            "239.1.1.1%eth0:5001",
            "239.10.1.1%eth1:6001",
            "too_big 3",
            "fits",
        ] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
    }
}
