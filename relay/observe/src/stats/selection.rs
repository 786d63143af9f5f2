//! Which rules a query selects: those that match, in its order, from an offset on. Each rule's statistics
//! are made once and dropped immediately; only a key and an index remain for each matching rule.

use api::query::{Order, StatsQuery};
use api::reply::{Condition, Rates, RuleStats, Selection};

/// What a query selects.
#[derive(Debug, Default)]
pub struct Selected {
    /// What was selected, and the totals.
    pub selection: Selection,
    /// Positions of the selected rules, in the order of the reply.
    pub indices: Vec<usize>,
}

/// The sort key of a rule, the least first, and its index among all.
type Key = (u64, Box<str>, usize);

impl Selected {
    /// `rules`: all rules in the configuration's order, each with the packets that it lost.
    pub fn of(query: &StatsQuery, rules: impl Iterator<Item = (RuleStats, u64)>) -> Self {
        let filter = query.filter.to_lowercase();
        let mut selection = Selection {
            states: Condition::ALL
                .map(|how| (how.as_str().to_owned(), 0))
                .into(),
            ..Selection::default()
        };
        let mut matching: Vec<Key> = Vec::new();
        let mut named = Vec::new();
        let mut middle = None;
        for (index, (rule, lost)) in rules.enumerate() {
            add(&mut selection, &rule, lost);
            if query.rules.contains(&rule.name) {
                named.push(index);
            }
            if query.around.as_ref() == Some(&rule.name) {
                middle = Some(index);
            }
            if matches(query, &filter, &rule) {
                let (number, name) = key(query.order, rule, lost);
                matching.push((number, name, index));
            }
        }
        // The index comes last, so that equal rules stay in the configuration's order.
        matching.sort_unstable();
        let first = first(query, &matching, middle);
        let limit = query.limit.map_or(usize::MAX, to_usize);
        let part = matching.iter().skip(first).take(limit);
        let mut indices: Vec<usize> = part.map(|(_, _, index)| *index).collect();
        selection.part.offset = first as u64;
        selection.part.count = indices.len() as u64;
        selection.part.matching = matching.len() as u64;
        named.retain(|index| !indices.contains(index));
        indices.extend(named);
        Self { selection, indices }
    }
}

/// How many matching rules precede the first selected one.
fn first(query: &StatsQuery, matching: &[Key], middle: Option<usize>) -> usize {
    let center = middle.and_then(|rule| matching.iter().position(|(_, _, index)| *index == rule));
    match (center, query.limit.map(to_usize)) {
        (Some(center), Some(limit)) => {
            // The part is full at the end of the list, too.
            let last = matching.len().saturating_sub(limit);
            center.saturating_sub(limit / 2).min(last)
        }
        _ => to_usize(query.offset).min(matching.len()),
    }
}

fn to_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn matches(query: &StatsQuery, filter: &str, rule: &RuleStats) -> bool {
    query.state.is_none_or(|how| how == rule.condition())
        && query.labels.iter().all(|label| label.is_in(&rule.labels))
        && rule.contains(filter)
}

fn key(order: Order, rule: RuleStats, lost: u64) -> (u64, Box<str>) {
    let number = match order {
        Order::Configured => 0,
        Order::Name => return (0, rule.name.into()),
        Order::State => rule.condition() as u64,
        // Rates are not negative, and the bits of non-negative numbers sort like the numbers.
        Order::Rate => u64::MAX - rule.rates.packets_1s.max(0.0).to_bits(),
        Order::Drops => u64::MAX - lost,
    };
    (number, Box::default())
}

fn add(selection: &mut Selection, rule: &RuleStats, lost: u64) {
    selection.part.total += 1;
    if let Some(count) = selection.states.get_mut(rule.word()) {
        *count += 1;
    }
    let received = &mut selection.received;
    received.packets = received.packets.saturating_add(rule.received.packets);
    received.bytes = received.bytes.saturating_add(rule.received.bytes);
    selection.dropped = selection.dropped.saturating_add(lost);
    let (all, one) = (&mut selection.rates, &rule.rates);
    *all = Rates {
        packets_1s: all.packets_1s + one.packets_1s,
        bits_1s: all.bits_1s + one.bits_1s,
        packets_10s: all.packets_10s + one.packets_10s,
        bits_10s: all.bits_10s + one.bits_10s,
    };
}

#[cfg(test)]
mod tests {
    use api::reply::{Part, State};

    use super::*;

    /// Rules `(name, state, packets in the last second, lost)`.
    const RULES: [(&str, State, f64, u64); 5] = [
        ("d", State::Up, 20.0, 0),
        ("b", State::Down, 0.0, 7),
        ("e", State::Up, 0.5, 0),
        ("a", State::Up, 300.0, 7),
        ("c", State::Degraded, 20.0, 9),
    ];

    fn rule((name, state, rate, lost): (&str, State, f64, u64)) -> (RuleStats, u64) {
        let text = format!(
            r#"{{"name":"{name}","labels":{{"site":"{name}{name}"}},"state":"up","path":"kernel",
            "path_reason":"","inputs":[{{"at":"239.1.1.1%eth{name}:5001","joined":true}}],
            "received":{{"packets":10,"bytes":100}},"dropped":{{}},
            "rates":{{"packets_1s":{rate},"bits_1s":8,"packets_10s":1,"bits_10s":2}},
            "outputs":[{{"to":"239.10.1.1%veth2:6001","state":"up",
            "sent":{{"packets":1,"bytes":1}},"dropped":{{}}}}]}}"#
        );
        let rule: RuleStats = serde_json::from_str(&text).unwrap();
        (RuleStats { state, ..rule }, lost)
    }

    fn select(query: &StatsQuery) -> (Vec<&'static str>, Selection) {
        let selected = Selected::of(query, RULES.into_iter().map(rule));
        let names = selected.indices.iter().map(|index| RULES[*index].0);
        (names.collect(), selected.selection)
    }

    fn names(query: &StatsQuery) -> Vec<&'static str> {
        select(query).0
    }

    #[test]
    fn rules_are_in_the_requested_order_and_equal_ones_as_configured() {
        for (order, expected) in [
            (Order::Configured, ["d", "b", "e", "a", "c"]),
            (Order::Name, ["a", "b", "c", "d", "e"]),
            (Order::State, ["b", "c", "d", "e", "a"]),
            (Order::Rate, ["a", "d", "c", "e", "b"]),
            (Order::Drops, ["c", "b", "a", "d", "e"]),
        ] {
            let query = StatsQuery {
                order,
                ..StatsQuery::default()
            };
            assert_eq!(names(&query), expected, "{order:?}");
        }
    }

    #[test]
    fn a_filter_matches_everything_that_identifies_a_rule() {
        for (filter, expected) in [
            ("ETHE:", &["e"][..]),
            ("kernel", &["d", "b", "e", "a", "c"]),
            ("degr", &["c"]),
            ("site=a", &["a"]),
            ("VETH2:6001", &["d", "b", "e", "a", "c"]),
            ("nothing", &[]),
        ] {
            let query = StatsQuery {
                filter: filter.to_owned(),
                ..StatsQuery::default()
            };
            assert_eq!(names(&query), expected, "{filter}");
        }
        let of_state = StatsQuery {
            state: Some(Condition::Up),
            labels: vec!["site".parse().unwrap()],
            ..StatsQuery::default()
        };
        assert_eq!(names(&of_state), ["d", "e", "a"]);
        let of_label = StatsQuery {
            labels: vec!["site=cc".parse().unwrap()],
            ..StatsQuery::default()
        };
        assert_eq!(names(&of_label), ["c"]);
    }

    #[test]
    fn a_part_begins_at_an_offset_or_around_a_rule() {
        let ask = |offset, around: &str, limit| {
            let (names, selection) = select(&StatsQuery {
                order: Order::Name,
                around: Some(around.to_owned()),
                offset,
                limit: Some(limit),
                ..StatsQuery::default()
            });
            (names.concat(), selection.part.offset)
        };
        assert_eq!(ask(1, "", 2), ("bc".to_owned(), 1));
        assert_eq!(ask(4, "", 2), ("e".to_owned(), 4));
        assert_eq!(ask(99, "", 2), (String::new(), 5));
        assert_eq!(ask(u64::MAX, "", u64::MAX), (String::new(), 5));
        assert_eq!(ask(0, "", 0), (String::new(), 0));
        assert_eq!(ask(0, "c", 3), ("bcd".to_owned(), 1));
        assert_eq!(ask(3, "a", 3), ("abc".to_owned(), 0));
        assert_eq!(ask(0, "e", 3), ("cde".to_owned(), 2));
        assert_eq!(ask(3, "gone", 3), ("de".to_owned(), 3));
    }

    #[test]
    fn named_rules_are_selected_once_after_the_others() {
        let (names, selection) = select(&StatsQuery {
            filter: "eth".to_owned(),
            limit: Some(2),
            rules: ["c", "b", "gone", "c"].map(str::to_owned).into(),
            ..StatsQuery::default()
        });
        assert_eq!(names, ["d", "b", "c"]);
        let Part {
            count, matching, ..
        } = selection.part;
        assert_eq!((count, matching), (2, 5));
    }

    #[test]
    fn all_rules_are_counted_whichever_are_selected() {
        let (names, selection) = select(&StatsQuery {
            state: Some(Condition::Silent),
            ..StatsQuery::default()
        });
        assert!(names.is_empty());
        assert_eq!((selection.part.matching, selection.part.total), (0, 5));
        let states: Vec<_> = selection.states.into_iter().collect();
        let expected = [
            ("degraded", 1),
            ("disabled", 0),
            ("down", 1),
            ("idle", 0),
            ("silent", 0),
            ("up", 3),
            ("waiting", 0),
        ];
        assert_eq!(states, expected.map(|(word, n)| (word.to_owned(), n)));
        assert_eq!(
            (selection.received.packets, selection.received.bytes),
            (50, 500)
        );
        assert_eq!(selection.dropped, 23);
        assert!((selection.rates.packets_1s - 340.5).abs() < 1e-9);
    }
}
