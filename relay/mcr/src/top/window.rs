//! The rules that the screen loads: all if they are few, else a window around the selected one, in the chosen
//! order and filter. A key may lead beyond it: that rule is selected once the daemon has sent it.

use api::query::StatsQuery;
use api::reply::Part;

use super::screen::Screen;

/// Rules that are queried at most; far more than any terminal shows.
const WINDOW: usize = 512;

/// Rules on each side of the selected one that must be loaded.
const MARGIN: usize = WINDOW / 4;

impl Screen {
    /// What to query from the daemon.
    pub(crate) fn query(&self) -> StatsQuery {
        let whole = StatsQuery {
            limit: Some(WINDOW as u64),
            ..StatsQuery::default()
        };
        if self.window().is_none() && self.hosts.is_empty() {
            return whole;
        }
        let is_alone = self.goal.is_none() && self.hosts.is_empty();
        let around = self.selected.clone().filter(|_| is_alone);
        StatsQuery {
            filter: self.filter.clone(),
            labels: self.selection.labels.clone(),
            order: self.sort,
            offset: self
                .goal
                .map_or(0, |goal| goal.saturating_sub(WINDOW / 2) as u64),
            around,
            ..whole
        }
    }

    /// Whether rules that are to be shown are not loaded yet.
    pub(crate) fn is_waiting(&self) -> bool {
        let Some(part) = self.window().filter(|_| !self.paused) else {
            return false;
        };
        let rules = self.rules();
        let above = self.position(&rules);
        let below = rules.len().saturating_sub(above);
        let end = part.offset + part.count;
        !self.is_answered()
            || self.goal.is_some()
            || above < MARGIN && part.offset > 0
            || below < MARGIN && end < part.matching
    }

    /// The part that the daemon sent, if it did not send all rules.
    fn window(&self) -> Option<Part> {
        let selection = self.history.last()?.selection.as_ref();
        let part = selection.map(|selection| selection.part);
        part.filter(|part| part.total > WINDOW as u64)
    }

    /// Whether the newest statistics have the chosen order and filter.
    fn is_answered(&self) -> bool {
        let query = self.query();
        let of = |query: &StatsQuery| (query.order, query.filter.clone(), query.labels.clone());
        of(&query) == of(&self.answered)
    }

    /// How many rules precede the loaded ones, and how many there are to choose from.
    fn extent(&self, loaded: usize) -> (usize, usize) {
        let window = self.window().filter(|_| !self.paused && self.is_answered());
        window.map_or((0, loaded), |part| {
            (part.offset as usize, part.matching as usize)
        })
    }

    /// Selects the rule at the goal, once the daemon has sent it.
    pub(super) fn reach_goal(&mut self) {
        let Some(goal) = self.goal else {
            return;
        };
        if !self.is_answered() {
            return;
        }
        let rules = self.rules();
        let (offset, matching) = self.extent(rules.len());
        // Fewer rules may match than when the goal was set.
        let goal = goal.min(matching.saturating_sub(1));
        match goal.checked_sub(offset).and_then(|index| rules.get(index)) {
            Some(rule) => (self.selected, self.goal) = (Some(rule.name.clone()), None),
            None => self.goal = Some(goal).filter(|_| matching > 0),
        }
    }

    /// Selects the rule at this distance from the selected one.
    pub(super) fn step(&mut self, by: isize) {
        let unanswered = self
            .window()
            .filter(|_| !self.paused && !self.is_answered());
        if let Some(part) =
            unanswered.filter(|_| self.goal.is_some() || matches!(by, isize::MIN | isize::MAX))
        {
            // The extent of the requested order is not known yet.
            let to = self.goal.unwrap_or(0).saturating_add_signed(by);
            self.goal = Some(to.min(part.total as usize - 1));
            return;
        }
        let rules = self.rules();
        let (offset, matching) = self.extent(rules.len());
        let Some(last) = matching.checked_sub(1) else {
            return;
        };
        let from = self.goal.unwrap_or(offset + self.position(&rules));
        let to = from.saturating_add_signed(by).min(last);
        match to.checked_sub(offset).and_then(|index| rules.get(index)) {
            Some(rule) => (self.selected, self.goal) = (Some(rule.name.clone()), None),
            None => self.goal = Some(to),
        }
    }
}

#[cfg(test)]
mod tests {
    use api::reply::Selection;
    use ratatui::crossterm::event::KeyCode;

    use super::super::history::tests::stats;
    use super::super::update::Update;
    use super::*;

    const MANY: usize = 2000;

    /// Answers a screen's query as the daemon does, with rules whose names are in the order of the
    /// configuration and whose rates are in the opposite order.
    fn answer(screen: &mut Screen, at: f64) {
        let query = screen.query();
        let names: Vec<String> = (0..MANY).map(|n| format!("r{n:04}")).collect();
        let rates = names.iter().zip(0..);
        let all: Vec<(&str, u64)> = rates.map(|(name, rate)| (name.as_str(), rate)).collect();
        let mut reply = stats(at, &all);
        reply.rules.retain(|rule| rule.contains(&query.filter));
        if query.order == api::query::Order::Rate {
            reply.rules.reverse();
        }
        let (matching, limit) = (reply.rules.len(), query.limit.unwrap() as usize);
        let named = |name: &String| reply.rules.iter().position(|rule| rule.name == *name);
        let offset = match query.around.as_ref().and_then(named) {
            Some(middle) => middle
                .saturating_sub(limit / 2)
                .min(matching.saturating_sub(limit)),
            None => query.offset as usize,
        };
        reply.rules = reply.rules.into_iter().skip(offset).take(limit).collect();
        let part = Part {
            offset: offset as u64,
            count: reply.rules.len() as u64,
            matching: matching as u64,
            total: MANY as u64,
        };
        reply.selection = Some(Box::new(Selection {
            part,
            ..Selection::default()
        }));
        let parsed = serde_json::from_str(
            r#"{"instance":"default","version":"1","pid":1,"uptime_seconds":1,"generation":1,
            "rules":0,"kernel":{"available":true},"userspace":{"available":true},"features":[]}"#,
        );
        let status = Box::new(parsed.unwrap());
        screen.take(Update::Stats(
            Box::new(query),
            Box::new(reply),
            status,
            Vec::new(),
        ));
    }

    fn press(screen: &mut Screen, code: KeyCode) {
        assert!(screen.press(code.into()));
        // One answer is enough.
        if screen.is_waiting() {
            answer(screen, 3.0);
        }
        assert!(!screen.is_waiting(), "{code:?}");
    }

    fn selected(screen: &Screen) -> &str {
        &screen.selected().unwrap().name
    }

    fn screen() -> Screen {
        let mut screen = Screen::default();
        answer(&mut screen, 1.0);
        assert_eq!(screen.rules().len(), WINDOW);
        assert!(!screen.is_waiting(), "the first are the first in any case");
        screen
    }

    #[test]
    fn keys_reach_all_of_many_rules() {
        let mut screen = screen();
        for (code, expected) in [
            (KeyCode::Down, "r0001"),
            (KeyCode::End, "r1999"),
            (KeyCode::PageUp, "r1989"),
            (KeyCode::PageDown, "r1999"),
            (KeyCode::Down, "r1999"),
            (KeyCode::Home, "r0000"),
            (KeyCode::Up, "r0000"),
        ] {
            press(&mut screen, code);
            assert_eq!(selected(&screen), expected, "{code:?}");
        }
        for page in 1..200 {
            press(&mut screen, KeyCode::PageDown);
            assert_eq!(selected(&screen), format!("r{:04}", 10 * page));
        }
    }

    #[test]
    fn keys_that_come_before_the_answer_add_up() {
        let mut screen = screen();
        for code in [KeyCode::End, KeyCode::PageUp, KeyCode::Up] {
            assert!(screen.press(code.into()));
        }
        answer(&mut screen, 2.0);
        assert_eq!(selected(&screen), "r1988");
        let rate = [KeyCode::Char('s'), KeyCode::Char('s')];
        for (keys, expected) in [
            (&[rate[0], rate[1], KeyCode::Home][..], "r1999"),
            (&[KeyCode::Char('s'), KeyCode::End, KeyCode::Up], "r1998"),
            (
                &[
                    KeyCode::Char('/'),
                    KeyCode::Char('7'),
                    KeyCode::Enter,
                    KeyCode::End,
                ],
                "r1997",
            ),
        ] {
            for code in keys {
                assert!(screen.press((*code).into()));
            }
            for _ in 0..2 {
                if screen.is_waiting() {
                    answer(&mut screen, 3.0);
                }
            }
            assert!(!screen.is_waiting());
            assert_eq!(selected(&screen), expected);
        }
    }

    #[test]
    fn another_order_and_a_filter_are_the_daemons() {
        let mut screen = screen();
        press(&mut screen, KeyCode::Home);
        press(&mut screen, KeyCode::Char('s'));
        press(&mut screen, KeyCode::Char('s'));
        assert_eq!(selected(&screen), "r0000", "it stays selected");
        assert_eq!(screen.rules()[WINDOW - 1].name, "r0000", "at the end");
        press(&mut screen, KeyCode::Home);
        assert_eq!(selected(&screen), "r1999");
        for letter in "/77".chars() {
            press(&mut screen, KeyCode::Char(letter));
        }
        press(&mut screen, KeyCode::Enter);
        assert!(screen.rules().iter().all(|rule| rule.name.contains("77")));
        assert_eq!(screen.rules().len(), 38);
        assert_eq!(selected(&screen), "r1977");
        press(&mut screen, KeyCode::End);
        assert_eq!(selected(&screen), "r0077");
    }

    #[test]
    fn a_paused_screen_queries_nothing() {
        let mut screen = screen();
        press(&mut screen, KeyCode::Char('p'));
        press(&mut screen, KeyCode::End);
        assert_eq!(selected(&screen), format!("r{:04}", WINDOW - 1));
    }

    #[test]
    fn samples_are_of_the_rules_that_were_sent() {
        let mut screen = screen();
        let before = screen.history.trail("r0000", 9);
        press(&mut screen, KeyCode::End);
        answer(&mut screen, 4.0);
        assert_eq!(screen.history.trail("r0000", 9).len(), before.len() + 2);
    }

    #[test]
    fn a_daemon_that_sends_all_rules_is_understood() {
        let mut screen = Screen::default();
        screen.history.add(stats(1.0, &[("b", 0), ("a", 0)]));
        assert!(!screen.is_waiting());
        press(&mut screen, KeyCode::Char('s'));
        press(&mut screen, KeyCode::End);
        assert_eq!(selected(&screen), "b");
        assert_eq!(screen.query().order, api::query::Order::Configured);
    }
}
