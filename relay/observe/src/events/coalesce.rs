//! Many simultaneous events, coalesced into few: a start of a thousand rules, or the loss of their link,
//! must not bury the rest for readers of the log and later subscribers.

use std::collections::BTreeMap;

use api::reply::Event;
use rules::printable::things;

/// Up to this many simultaneous events stay separate.
const ALL: usize = 32;
/// Of more, events of a kind stay separate up to this many.
const EACH: usize = 8;

/// An event, or one that stands for all simultaneous events of its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Coalesced {
    pub(super) event: Event,
    /// How many it stands for.
    pub(super) count: u64,
    /// The position of the last of them.
    pub(super) last: usize,
}

/// Coalesces simultaneous events, in their order.
pub(super) fn coalesce(events: &[Event]) -> Vec<Coalesced> {
    let mut kinds: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    if events.len() > ALL {
        for (position, event) in events.iter().enumerate() {
            kinds.entry(&event.kind).or_default().push(position);
        }
        kinds.retain(|_, positions| positions.len() > EACH);
    }
    let coalesced = events.iter().enumerate().filter_map(|(position, event)| {
        let alone = || Coalesced {
            event: event.clone(),
            count: 1,
            last: position,
        };
        let Some(positions) = kinds.get(event.kind.as_str()) else {
            return Some(alone());
        };
        let is_last = positions.last() == Some(&position);
        is_last.then(|| Coalesced {
            event: together(&events[positions[0]], event, positions.len()),
            count: positions.len() as u64,
            last: position,
        })
    });
    coalesced.collect()
}

/// One event for `count` of a kind: it has the first one's message and no subject.
fn together(first: &Event, last: &Event, count: usize) -> Event {
    Event {
        at_ms: last.at_ms,
        kind: last.kind.clone(),
        subject: String::new(),
        part: None,
        // The number comes first, because the end is cut off where space is short.
        message: format!(
            "first of {}: {}",
            things(count as u64, "event"),
            first.message
        ),
        by: last.by.clone(),
        why: last.why.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::event;
    use super::super::kind::{RULE_DOWN, RULE_UP};
    use super::*;

    fn events(kind: &str, count: usize) -> Vec<Event> {
        let one = |n| event(kind, &format!("cam{n}"), format!("{kind} of cam{n}"));
        (0..count).map(one).collect()
    }

    #[test]
    fn few_events_stay_separate() {
        let few = events(RULE_UP, ALL);
        let coalesced: Vec<Event> = coalesce(&few).into_iter().map(|one| one.event).collect();
        assert_eq!(coalesced, few);
    }

    #[test]
    fn of_many_events_each_kind_is_coalesced_and_rare_kinds_stay_separate() {
        let mut many = events(RULE_UP, 1000);
        many.splice(10..10, events(RULE_DOWN, 2));
        let coalesced = coalesce(&many);
        let counts: Vec<(u64, usize)> = coalesced.iter().map(|one| (one.count, one.last)).collect();
        assert_eq!(counts, [(1, 10), (1, 11), (1000, 1001)]);
        assert_eq!(coalesced[1].event, many[11]);
        let message = "first of 1 000 events: rule_up of cam0";
        assert_eq!(coalesced[2].event.message, message);
        assert_eq!(
            (
                coalesced[2].event.kind.as_str(),
                coalesced[2].event.subject.as_str()
            ),
            (RULE_UP, "")
        );
        assert_eq!(coalesced[2].event.at_ms, many[1001].at_ms);
    }
}
