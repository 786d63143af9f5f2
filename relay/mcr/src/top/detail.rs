//! One rule in full: its path and the reason for it, inputs and joins, outputs with rates, drops by reason.

use api::reply::{OutputStats, RuleStats};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use super::rules::sparkline;
use super::screen::Screen;
use super::scroll::{self, wrapped};
use super::style::{bad, of_word};
use crate::render::{self, because, number};

/// Draws the selected rule.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let Some(rule) = screen.selected() else {
        frame.render_widget(Paragraph::new("no rule is selected"), area);
        return;
    };
    let title = format!(" rule {} ", rule.name);
    let lines = lines(screen, rule, area.width);
    scroll::draw(frame, screen, (&title, lines), area, |by, _| by);
}

fn lines(screen: &Screen, rule: &RuleStats, width: u16) -> Vec<Line<'static>> {
    let (history, plain) = (&screen.history, Style::new());
    let mut lines = Vec::new();
    let mut add = |title: &str, text: &str, style| {
        lines.extend(wrapped(title, text, style, width));
    };
    let of_rule = of_word(rule.word());
    add("state", rule.word(), of_rule);
    let path = format!("{}: {}", rule.path, rule.path_reason);
    add("path", &path, plain);
    if let Some(reason) = render::stats::reason(rule) {
        add("", &reason, of_rule);
    }
    for (index, input) in rule.inputs.iter().enumerate() {
        match (&input.reason, input.joined) {
            (_, true) => add("input", &format!("{}  joined", input.at), plain),
            (reason, false) => {
                let reason = reason.as_deref().unwrap_or("not joined");
                add("input", &format!("{}  {reason}", input.at), bad());
            }
        }
        if rule.inputs.len() > 1 {
            add("", &number::volume(input.received), plain);
            let rate = |seconds| history.input_rate(&rule.name, index, seconds).pair();
            add("", &number::rates(rate(1.0), rate(10.0)), plain);
        }
        if let Some(trouble) = &input.trouble {
            add("", trouble, bad());
        }
        if let Some(hook) = render::stats::hook(input) {
            add("  hook", &hook, plain);
        }
        add_more(&mut add, &number::of_input(input));
    }
    add("received", &number::volume(rule.received), plain);
    add("", &number::rule_rates(&rule.rates), plain);
    add_more(&mut add, &number::of_rule(rule));
    let length = usize::from(width.saturating_sub(12));
    let trail = sparkline(&history.trail(&rule.name, length));
    // Its blanks are values, no places to break the line.
    add("", &trail.replace(' ', "\u{a0}"), plain);
    let drops = number::drops(&rule.dropped);
    if !drops.is_empty() {
        add("  dropped", &drops.join(", "), plain);
    }
    for (title, text) in rule.health.iter().flat_map(render::stream::health) {
        let style = match (title, &rule.health) {
            ("stream", Some(health)) => of_word(health.state.as_str()),
            _ => plain,
        };
        add(title, &text, style);
    }
    for (title, text) in render::stream::latency(&rule.residence) {
        add(title, &text, plain);
    }
    for (index, output) in rule.outputs.iter().enumerate() {
        let (state, remark) = (output.state.as_str(), output.remark());
        let text = format!("{}  {state}{}", output.to, because(remark.as_deref()));
        add("output", &text, of_word(state));
        if let Some(address) = &output.address {
            add("  to", address, plain);
        }
        add("  sent", &number::volume(output.sent), plain);
        let rate = |seconds| history.output_rate(&rule.name, index, seconds).pair();
        add("", &number::rates(rate(1.0), rate(10.0)), plain);
        add_more(&mut add, &number::all(OutputStats::COUNTERS, output));
        let drops = number::drops(&output.dropped);
        if !drops.is_empty() {
            add("  dropped", &drops.join(", "), plain);
        }
    }
    lines
}

/// Adds a line that continues the previous one, unless it is empty.
fn add_more(add: &mut impl FnMut(&str, &str, Style), text: &str) {
    if !text.is_empty() {
        add("", text, Style::new());
    }
}
