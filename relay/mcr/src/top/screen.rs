//! The state that keys change and that is drawn: the selected rule, the order, the filter, the view.

use std::cell::Cell;
use std::cmp::{Ordering, Reverse};
use std::collections::VecDeque;

use api::query::{FILTER_MAX, Order, StatsQuery};
use api::reply::{Event, RuleStats, Status};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::history::History;
use super::hosts::parts;
use super::update::{HostState, Update};
use crate::render;
use crate::rows::Choice;
use crate::selection::Selection;

/// Events that are retained.
const EVENTS_MAX: usize = 500;

/// Orders of the rules, in the sequence of the key that switches them.
pub(crate) const ORDERS: Choice<Order> = &[
    (
        "configured",
        Order::Configured,
        "As the configuration has them",
    ),
    ("name", Order::Name, "By name"),
    ("rate", Order::Rate, "Busiest first"),
    ("drops", Order::Drops, "Most lost first"),
    ("state", Order::State, "Worst first"),
];

fn next(order: Order) -> Order {
    let mut orders = ORDERS.iter().cycle().map(|(_, order, _)| *order);
    orders.find(|one| *one == order);
    orders.next().unwrap_or_default()
}

/// What fills the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum View {
    #[default]
    Rules,
    Detail,
    Events,
    Help,
}

/// The state of the screen.
#[derive(Debug, Default)]
pub(crate) struct Screen {
    /// The hosts, if several are shown, each with the reason why it does not answer.
    pub(crate) hosts: Vec<HostState>,
    pub(crate) history: History,
    pub(crate) status: Option<Status>,
    pub(crate) events: VecDeque<Event>,
    /// Why the daemon does not answer.
    pub(crate) unreachable: Option<String>,
    pub(crate) view: View,
    pub(crate) sort: Order,
    pub(crate) filter: String,
    /// The labels that rules must have.
    pub(crate) selection: Selection,
    /// Whether keys edit the filter.
    pub(crate) typing: bool,
    /// Whether updates are suspended.
    pub(crate) paused: bool,
    /// Name of the selected rule, which so stays selected in another order.
    pub(crate) selected: Option<String>,
    /// Position of the rule that is selected once the daemon has sent it.
    pub(super) goal: Option<usize>,
    /// The query that the newest statistics answer.
    pub(super) answered: StatsQuery,
    /// Lines by which the detail or the events are scrolled; drawing limits it to those that exist.
    pub(crate) scroll: Cell<usize>,
}

impl Screen {
    /// Applies an update.
    pub(crate) fn take(&mut self, update: Update) {
        match update {
            Update::Stats(query, stats, status, hosts) => {
                self.hosts = hosts;
                self.unreachable = None;
                if !self.paused {
                    self.answered = *query;
                    self.history.add(*stats);
                    self.status = Some(*status);
                    self.reach_goal();
                }
            }
            Update::Past(past, interval) => self.history.begin(&past, interval.as_secs_f64()),
            Update::Event(event) => self.remember(event),
            Update::Missed(missed) => self.remember(Event {
                at_ms: self.events.back().map_or(0, |event| event.at_ms),
                kind: "missed".to_owned(),
                message: render::missed(missed),
                ..Event::default()
            }),
            Update::Unreachable(reason) => self.unreachable = Some(reason),
        }
    }

    /// Handles a key; `false` ends the program.
    pub(crate) fn press(&mut self, key: KeyEvent) -> bool {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return false;
        }
        if self.typing {
            self.type_filter(key.code);
            return true;
        }
        match key.code {
            KeyCode::Char('q') if self.view == View::Rules => return false,
            KeyCode::Char('q') | KeyCode::Esc => self.back(),
            KeyCode::Char('?' | 'h') => self.show(View::Help),
            KeyCode::Char('e') => self.show(View::Events),
            KeyCode::Char('s') => self.sort = next(self.sort),
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('/') => {
                self.show(View::Rules);
                self.typing = true;
            }
            KeyCode::Enter if self.selected().is_some() => self.show(View::Detail),
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::PageUp => self.go(-10),
            KeyCode::PageDown => self.go(10),
            KeyCode::Home | KeyCode::Char('g') => self.go(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.go(isize::MAX),
            _ => {}
        }
        true
    }

    /// The rules that pass the filter, in order.
    pub(crate) fn rules(&self) -> Vec<&RuleStats> {
        let Some(stats) = self.history.last() else {
            return Vec::new();
        };
        let passing = stats.rules.iter().filter(|rule| self.passes(rule));
        let mut rules: Vec<&RuleStats> = passing.collect();
        match self.sort {
            Order::Configured => {}
            Order::Name => rules.sort_by(|a, b| parts(&a.name).1.cmp(parts(&b.name).1)),
            Order::State => rules.sort_by_key(|rule| rule.condition()),
            Order::Drops => {
                rules.sort_by_cached_key(|rule| Reverse(super::history::dropped(rule)));
            }
            Order::Rate => {
                let rate = |rule: &RuleStats| rule.rates.packets_1s;
                rules.sort_by(|a, b| rate(b).partial_cmp(&rate(a)).unwrap_or(Ordering::Equal));
            }
        }
        rules
    }

    /// The selected rule; the first one if none was chosen or it was removed.
    pub(crate) fn selected(&self) -> Option<&RuleStats> {
        let rules = self.rules();
        rules.get(self.position(&rules)).copied()
    }

    /// The position of the selected rule among `rules`.
    pub(crate) fn position(&self, rules: &[&RuleStats]) -> usize {
        let is_selected = |rule: &&RuleStats| Some(&rule.name) == self.selected.as_ref();
        rules.iter().position(is_selected).unwrap_or(0)
    }

    fn passes(&self, rule: &RuleStats) -> bool {
        self.selection.takes(&rule.labels) && rule.contains(&self.filter.to_lowercase())
    }

    fn type_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char(letter) if self.filter.len() + letter.len_utf8() <= FILTER_MAX => {
                self.filter.push(letter);
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.filter.clear();
                self.typing = false;
            }
            _ => {}
        }
    }

    fn back(&mut self) {
        if self.view == View::Rules {
            self.filter.clear();
        }
        self.show(View::Rules);
    }

    fn show(&mut self, view: View) {
        self.view = view;
        self.scroll.set(0);
    }

    /// Goes to another rule, or scrolls; the newest events are at the end.
    fn go(&mut self, by: isize) {
        let by = match self.view {
            View::Rules => return self.step(by),
            View::Detail if by.unsigned_abs() == 1 => {
                self.scroll.set(0);
                return self.step(by);
            }
            View::Detail | View::Help => by,
            View::Events => by.saturating_neg(),
        };
        let to = self.scroll.get().saturating_add_signed(by);
        self.scroll.set(to);
    }

    fn remember(&mut self, event: Event) {
        self.events.push_back(event);
        if self.events.len() > EVENTS_MAX {
            self.events.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::tests::stats;
    use super::*;

    fn screen() -> Screen {
        let mut screen = Screen::default();
        screen
            .history
            .add(stats(1.0, &[("b", 0), ("a", 0), ("c", 0)]));
        screen
            .history
            .add(stats(2.0, &[("b", 10), ("a", 30), ("c", 20)]));
        screen
    }

    fn press(screen: &mut Screen, keys: &str) {
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                key => KeyCode::Char(key),
            };
            assert!(screen.press(code.into()));
        }
    }

    fn names(screen: &Screen) -> Vec<&str> {
        screen
            .rules()
            .iter()
            .map(|rule| rule.name.as_str())
            .collect()
    }

    #[test]
    fn s_goes_through_the_orders() {
        let mut screen = screen();
        assert_eq!(names(&screen), ["b", "a", "c"]);
        press(&mut screen, "s");
        assert_eq!(names(&screen), ["a", "b", "c"]);
        press(&mut screen, "s");
        assert_eq!(names(&screen), ["a", "c", "b"]);
    }

    #[test]
    fn the_selected_rule_stays_selected_in_another_order() {
        let mut screen = screen();
        press(&mut screen, "js");
        assert_eq!(screen.selected().unwrap().name, "a");
        assert_eq!(screen.position(&screen.rules()), 0);
    }

    #[test]
    fn the_filter_takes_letters_until_enter() {
        let mut screen = screen();
        press(&mut screen, "/c\n");
        // "c" is in no endpoint and no state, but in the name of one rule.
        assert_eq!(names(&screen), ["c"]);
        assert!(screen.press(KeyCode::Esc.into()));
        assert_eq!(names(&screen).len(), 3);
        assert!(!screen.press(KeyCode::Char('q').into()));
    }
}
