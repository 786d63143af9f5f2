//! The rules that the screen holds: all if they are few, else a window around the selected one, in the
//! chosen order and filter. Keys may lead beyond it: that rule is selected once the daemon has sent it.

use api::query::StatsQuery;
use api::reply::Part;

use super::screen::Screen;

/// Up to so many rules all are asked for, and as many of more; higher than any terminal by far.
const WINDOW: usize = 512;

/// Rules on each side of the selected one that are not to be missing.
const MARGIN: usize = WINDOW / 4;

impl Screen {
    /// What is to be asked of the daemon.
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
            labels: self.selection.labels().to_vec(),
            order: self.sort,
            offset: self
                .goal
                .map_or(0, |goal| goal.saturating_sub(WINDOW / 2) as u64),
            around,
            ..whole
        }
    }

    /// Says whether rules are missing that are to be shown.
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

    /// What the daemon told of, where it did not tell all rules.
    fn window(&self) -> Option<Part> {
        let selection = self.history.last()?.selection.as_ref();
        let part = selection.map(|selection| selection.part);
        part.filter(|part| part.total > WINDOW as u64)
    }

    /// Says whether the reply has the order and the filter that are chosen.
    fn is_answered(&self) -> bool {
        let query = self.query();
        let of = |query: &StatsQuery| (query.order, query.filter.clone(), query.labels.clone());
        of(&query) == of(&self.asked)
    }

    /// How many rules stand before those that are known, and how many there are to choose from.
    fn extent(&self, known: usize) -> (usize, usize) {
        let window = self.window().filter(|_| !self.paused && self.is_answered());
        window.map_or((0, known), |part| {
            (part.offset as usize, part.matching as usize)
        })
    }

    /// Selects the rule that was gone to, once the daemon has sent it.
    pub(super) fn reach_goal(&mut self) {
        let Some(goal) = self.goal else {
            return;
        };
        if !self.is_answered() {
            return;
        }
        let rules = self.rules();
        let (offset, matching) = self.extent(rules.len());
        // Fewer may match than there were when it was gone to.
        let goal = goal.min(matching.saturating_sub(1));
        let place = goal.checked_sub(offset);
        match place.and_then(|place| rules.get(place)) {
            Some(rule) => (self.selected, self.goal) = (Some(rule.name.clone()), None),
            None => self.goal = Some(goal).filter(|_| matching > 0),
        }
    }

    /// Selects a rule that stands so far from the selected one.
    pub(super) fn step(&mut self, by: isize) {
        let unanswered = self
            .window()
            .filter(|_| !self.paused && !self.is_answered());
        if let Some(part) = unanswered.filter(|_| self.goal.is_some() || is_jump(by)) {
            // Where the ends of the order are that is asked for is not known yet.
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
        let known = to.checked_sub(offset).and_then(|place| rules.get(place));
        match known {
            Some(rule) => (self.selected, self.goal) = (Some(rule.name.clone()), None),
            None => self.goal = Some(to),
        }
    }
}

/// Whether a step leads to the first or the last rule.
const fn is_jump(by: isize) -> bool {
    matches!(by, isize::MIN | isize::MAX)
}

#[cfg(test)]
mod tests {
    use api::reply::Selection;
    use ratatui::crossterm::event::KeyCode;

    use super::super::history::tests::stats;
    use super::super::update::Update;
    use super::*;

    const MANY: usize = 2000;

    /// Answers as the daemon does what a screen asks, of rules whose names are in the order of the
    /// configuration and whose rates are in the other.
    fn answer(screen: &mut Screen, at: f64) {
        let query = screen.query();
        let names: Vec<String> = (0..MANY).map(|n| format!("r{n:04}")).collect();
        let rates = names.iter().zip(0..);
        let all: Vec<(&str, u64)> = rates.map(|(name, rate)| (name.as_str(), rate)).collect();
        let mut told = stats(at, &all);
        told.rules.retain(|rule| rule.contains(&query.filter));
        if query.order == api::query::Order::Rate {
            told.rules.reverse();
        }
        let (matching, limit) = (told.rules.len(), query.limit.unwrap() as usize);
        let named = |name: &String| told.rules.iter().position(|rule| rule.name == *name);
        let offset = match query.around.as_ref().and_then(named) {
            Some(middle) => middle
                .saturating_sub(limit / 2)
                .min(matching.saturating_sub(limit)),
            None => query.offset as usize,
        };
        told.rules = told.rules.into_iter().skip(offset).take(limit).collect();
        let part = Part {
            offset: offset as u64,
            count: told.rules.len() as u64,
            matching: matching as u64,
            total: MANY as u64,
        };
        told.selection = Some(Box::new(Selection {
            part,
            ..Selection::default()
        }));
        let status = serde_json::from_str(
            r#"{"instance":"default","version":"1","pid":1,"uptime_seconds":1,"generation":1,
            "rules":0,"kernel":{"available":true},"userspace":{"available":true},"features":[]}"#,
        );
        let status = Box::new(status.unwrap());
        screen.take(Update::Stats(Box::new(query), Box::new(told), status));
    }

    fn press(screen: &mut Screen, code: KeyCode) {
        assert!(screen.press(code.into()));
        // Whoever is waiting is answered; once is enough.
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
    fn a_picture_that_stands_still_asks_for_nothing() {
        let mut screen = screen();
        press(&mut screen, KeyCode::Char('p'));
        press(&mut screen, KeyCode::End);
        assert_eq!(selected(&screen), format!("r{:04}", WINDOW - 1));
    }

    #[test]
    fn samples_are_of_what_was_told() {
        let mut screen = screen();
        let before = screen.history.trail("r0000", 9);
        press(&mut screen, KeyCode::End);
        answer(&mut screen, 4.0);
        assert_eq!(screen.history.trail("r0000", 9).len(), before.len() + 2);
    }

    #[test]
    fn a_daemon_that_tells_all_is_understood() {
        let mut screen = Screen::default();
        screen.history.add(stats(1.0, &[("b", 0), ("a", 0)]));
        assert!(!screen.is_waiting());
        press(&mut screen, KeyCode::Char('s'));
        press(&mut screen, KeyCode::End);
        assert_eq!(selected(&screen), "b");
        assert_eq!(screen.query().order, api::query::Order::Configured);
    }
}
