//! Draws the screen: a header, the rules with their rates and sparklines, the newest events, the keys.
//! Everything fits 80 columns and 24 lines; colours never carry what is not also written.

#[cfg(test)]
mod tests;

use api::query::Order;
use api::reply::Event;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, Wrap};

use super::screen::{Screen, View};
use super::scroll::{self, wrapped};
use super::style::{bad, half_good};
use super::{detail, header, rules};
use crate::render;

const EVENT_LINES: u16 = 5;

/// Draws the whole screen.
pub(crate) fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let [top, body, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(5),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    header::draw(frame, screen, top);
    match screen.view {
        View::Rules => {
            let [table, events] =
                Layout::vertical([Constraint::Min(4), Constraint::Length(EVENT_LINES + 1)])
                    .areas(body);
            rules::draw(frame, screen, table);
            draw_newest(frame, screen, events);
        }
        View::Detail => detail::draw(frame, screen, body),
        View::Events => draw_events(frame, screen, body),
        View::Help => draw_help(frame, body),
    }
    draw_foot(frame, screen, foot);
}

/// Draws the newest events that fit, one per line.
fn draw_newest(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let block = Block::new().borders(Borders::TOP).title(" events ");
    let visible = usize::from(area.height.saturating_sub(1));
    let events = screen.events.iter().rev().take(visible).rev();
    let lines: Vec<Line<'_>> = events
        .map(|event| {
            let time = format!("{} ", render::moment(event.at_ms));
            let message = Span::styled(event.message.as_str(), of_event(event));
            Line::from(vec![Span::raw(time), message])
        })
        .collect();
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// Draws all remembered events in full, the newest at the end.
fn draw_events(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let events = screen.events.iter().flat_map(|event| {
        let time = render::moment(event.at_ms);
        wrapped(&time, &event.message, of_event(event), area.width)
    });
    let lines: Vec<Line<'_>> = events.collect();
    // Without scrolling the end is shown.
    let first = |by, hidden| hidden - by;
    scroll::draw(frame, screen, (" events ", lines), area, first);
}

fn of_event(event: &Event) -> Style {
    match event.kind.as_str() {
        kind if kind.ends_with("down") || kind.ends_with("failed") => bad(),
        "rule_degraded" | "stream_degraded" | "worker_restarted" | "missed" => half_good(),
        _ => Style::new(),
    }
}

fn draw_foot(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let paused = if screen.paused { "PAUSED  " } else { "" };
    let text = match screen.view {
        View::Rules if screen.typing => format!("/{}_  (Enter keeps, Esc clears)", screen.filter),
        View::Rules => {
            let filter = match screen.filter.as_str() {
                "" => "/ filter".to_owned(),
                filter => format!("/ filter: {filter}"),
            };
            let sort = match screen.sort {
                Order::Configured => "config",
                order => order.as_str(),
            };
            format!("q quit  Enter detail  s sort: {sort}  {filter}  e events  p pause  ? help")
        }
        View::Detail => {
            "q back  Up Down another rule  PgUp PgDn scroll  p pause  ? help".to_owned()
        }
        View::Events => "q back  Up Down PgUp PgDn scroll  p pause  ? help".to_owned(),
        View::Help => "q back".to_owned(),
    };
    let style = Style::new().add_modifier(Modifier::REVERSED);
    frame.render_widget(Paragraph::new(format!("{paused}{text}")).style(style), area);
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let text = "\
Up Down j k g G PgUp PgDn   choose a rule, scroll
Enter   the rule's inputs, outputs, drops, stream and time in MCR
/       filter by name, endpoint, path or state
s       next order: config, name, rate, drops, state
e       events
p       stand still, go on
q Esc   back; q leaves

PPS 1s, PPS 10s   packets received a second, over the last 1 and 10 seconds;
                  a red 0: packets came within the last minutes, none come now
RATE              UDP payload received, over the last second
DROPPED           packets of the rule and copies of its outputs; red: growing
LAST              packets a second between looks, against the highest shown; at first
                  what the daemon knows of the time before, by steps of 10 s
A narrow terminal, or long names, leave columns out.";
    let block = Block::new().borders(Borders::TOP).title(" help ");
    let help = Paragraph::new(text).block(block).wrap(Wrap { trim: false });
    frame.render_widget(help, area);
}
