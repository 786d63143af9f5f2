//! One rule in full: where it runs and why, inputs and joins, outputs with rates, drops by reason.

use std::collections::BTreeMap;

use api::reply::{RuleStats, Traffic};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph};

use super::draw::{bad, of_state, sparkline};
use super::history::Rate;
use super::screen::Screen;
use crate::render;

/// Draws the selected rule.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let Some(rule) = screen.selected() else {
        frame.render_widget(Paragraph::new("no rule is selected"), area);
        return;
    };
    let block = Block::new()
        .borders(Borders::TOP)
        .title(format!(" rule {} ", rule.name));
    let width = usize::from(area.width.saturating_sub(12));
    let lines = lines(screen, rule, width);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn lines<'a>(screen: &'a Screen, rule: &'a RuleStats, width: usize) -> Vec<Line<'a>> {
    let history = &screen.history;
    let state = render::stats::state(rule.state);
    let mut lines = vec![
        line("state", Span::styled(state, of_state(rule.state))),
        line(
            "path",
            Span::raw(format!("{}: {}", rule.path, rule.path_reason)),
        ),
    ];
    if let Some(reason) = &rule.state_reason {
        lines.push(line(
            "",
            Span::styled(reason.as_str(), of_state(rule.state)),
        ));
    }
    for input in &rule.inputs {
        let joined = match (&input.reason, input.joined) {
            (_, true) => Span::raw(format!("{}  joined", input.at)),
            (reason, false) => {
                let reason = reason.as_deref().unwrap_or("not joined");
                Span::styled(format!("{}  {reason}", input.at), bad())
            }
        };
        lines.push(line("input", joined));
    }
    let (short, long) = (
        history.received(&rule.name, 1.0),
        history.received(&rule.name, 10.0),
    );
    lines.push(line("received", Span::raw(volume(rule.received))));
    lines.push(line("", Span::raw(rates(short, long))));
    lines.push(line(
        "",
        Span::raw(sparkline(&history.trail(&rule.name, width))),
    ));
    lines.extend(dropped(&rule.dropped));
    for (title, text) in rule.health.iter().flat_map(render::health::lines) {
        lines.push(line(title, Span::raw(text)));
    }
    for (title, text) in render::residence::lines(&rule.residence) {
        lines.push(line(title, Span::raw(text)));
    }
    for (index, output) in rule.outputs.iter().enumerate() {
        let state = render::stats::state(output.state);
        let reason = output.reason.as_ref().map(|reason| format!(": {reason}"));
        let text = format!("{}  {state}{}", output.to, reason.unwrap_or_default());
        lines.push(line("output", Span::styled(text, of_state(output.state))));
        lines.push(line("  sent", Span::raw(volume(output.sent))));
        let sent = |seconds| history.sent(&rule.name, index, seconds);
        lines.push(line("", Span::raw(rates(sent(1.0), sent(10.0)))));
        lines.extend(dropped(&output.dropped));
    }
    lines
}

fn line<'a>(title: &'a str, value: Span<'a>) -> Line<'a> {
    Line::from(vec![Span::raw(format!("{title:<10}")), value])
}

fn volume(traffic: Traffic) -> String {
    let (packets, bytes) = (render::count(traffic.packets), render::bytes(traffic.bytes));
    format!("{packets} packets, {bytes}")
}

fn rates(short: Rate, long: Rate) -> String {
    let one = |rate: Rate| {
        let packets = render::count(rate.packets as u64);
        format!("{packets} packets/s {}", render::bits_per_second(rate.bits))
    };
    format!("1 s: {}   10 s: {}", one(short), one(long))
}

fn dropped(drops: &BTreeMap<String, u64>) -> Option<Line<'static>> {
    let occurred = drops.iter().filter(|(_, count)| **count > 0);
    let texts: Vec<String> = occurred
        .map(|(reason, count)| format!("{reason} {}", render::count(*count)))
        .collect();
    let text = texts.join(", ");
    let style = Style::new();
    (!text.is_empty()).then(|| line("  dropped", Span::styled(text, style)))
}
