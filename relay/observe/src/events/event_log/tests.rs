use super::super::coalesce::coalesce;
use super::super::event::event;
use super::super::kind::{RULE_DOWN, RULE_UP};
use super::super::subscriber::Delivery;
use super::*;

impl EventLog {
    fn append_together(&self, events: Vec<Event>) {
        let coalesced = coalesce(&events);
        self.append(events, coalesced);
    }
}

fn up(n: usize) -> Event {
    event(RULE_UP, &format!("cam{n}"), n.to_string())
}

/// A log of so many events, appended one after the other.
fn log(events: usize) -> EventLog {
    let log = EventLog::default();
    (0..events).for_each(|n| log.append_together(vec![up(n)]));
    log
}

/// All that a subscriber can receive now: messages, and how many events it missed.
fn received(subscriber: &mut Subscriber) -> (Vec<String>, u64) {
    let (mut messages, mut missed) = (Vec::new(), 0);
    while let Some(delivery) = futures::FutureExt::now_or_never(subscriber.next()).flatten() {
        match delivery {
            Delivery::Event(numbered) => messages.push(numbered.event.message),
            Delivery::Missed(count) => missed += count,
        }
    }
    (messages, missed)
}

fn retained(log: &EventLog) -> Vec<Numbered> {
    let retained = log.retained.lock();
    let events = retained.events.iter();
    events.map(|event| event.numbered.clone()).collect()
}

#[test]
fn a_later_subscriber_gets_the_last_events_and_the_next() {
    let log = log(5);
    let mut subscriber = log.subscribe(Begin::Recent(2), false);
    assert_eq!(received(&mut subscriber), (vec!["3".into(), "4".into()], 0));
    log.append_together(vec![up(5)]);
    assert_eq!(received(&mut subscriber), (vec!["5".into()], 0));
    for (count, expected) in [(0, 0), (KEPT, 6)] {
        let mut subscriber = log.subscribe(Begin::Recent(count), false);
        assert_eq!(received(&mut subscriber).0.len(), expected);
    }
}

#[test]
fn a_subscriber_that_returns_continues_where_it_was() {
    let log = log(KEPT + 10);
    let all = retained(&log);
    let after = |number| received(&mut log.subscribe(Begin::After(number), false));
    let (events, missed) = after(all[KEPT - 3].number);
    assert_eq!((events.len(), missed), (2, 0));
    let (events, missed) = after(all[0].number - 4);
    assert_eq!((events.len(), missed), (KEPT, 3));
    // Numbers of the previous daemon, also if the clock was set back since.
    for number in [7, all[KEPT - 1].number + 1, u64::MAX] {
        assert_eq!((after(number).0.len(), after(number).1), (KEPT, 0));
    }
    assert_eq!(after(all[KEPT - 1].number), (Vec::new(), 0));
}

#[test]
fn simultaneous_events_are_delivered_in_full_and_retained_coalesced() {
    let log = log(5);
    let mut subscriber = log.subscribe(Begin::Recent(0), false);
    let mut coalesced = log.subscribe(Begin::Recent(0), true);
    let many = 20_000;
    log.append_together((0..many).map(up).collect());
    let all: Vec<String> = (0..many).map(|n| n.to_string()).collect();
    assert_eq!(received(&mut subscriber), (all, 0));
    let (events, missed) = received(&mut coalesced);
    assert_eq!((events.len(), missed), (1, 0));
    let retained = retained(&log);
    assert_eq!(retained.len(), 6);
    assert_eq!(retained[5].event.message, events[0]);
    // A subscriber that left amid them gets all again, and misses nothing.
    let (events, missed) =
        received(&mut log.subscribe(Begin::After(retained[5].number - 7), false));
    assert_eq!((events.len(), missed), (1, 0));
    let (events, missed) = received(&mut log.subscribe(Begin::After(retained[4].number), false));
    assert_eq!((events.len(), missed), (1, 0));
    let (events, missed) = received(&mut log.subscribe(Begin::After(retained[5].number), false));
    assert_eq!((events.len(), missed), (0, 0));
}

#[test]
fn trouble_and_its_end_are_retained_longest() {
    let log = log(3);
    let down = |name: &str| event(RULE_DOWN, name, format!("{name} is down"));
    log.append_together(vec![down("cam1")]);
    log.append_together(vec![event(RULE_UP, "cam1", "cam1 is up again".to_owned())]);
    (0..1000).for_each(|n| log.append_together(vec![up(10 + n)]));
    let messages: Vec<String> = retained(&log)
        .into_iter()
        .map(|k| k.event.message)
        .collect();
    assert_eq!(messages.len(), KEPT);
    assert_eq!(messages[..2], ["cam1 is down", "cam1 is up again"]);
    let newest: Vec<String> = (910..1010).map(|n| n.to_string()).collect();
    assert_eq!(messages[NEWEST..], newest);
    // Endless trouble is evicted by newer events.
    (0..1000).for_each(|n| log.append_together(vec![down(&format!("x{n}"))]));
    let numbers: Vec<u64> = retained(&log)
        .iter()
        .map(|retained| retained.number)
        .collect();
    assert!(numbers.windows(2).all(|two| two[0] < two[1]));
    assert_eq!(numbers[0] + KEPT as u64 - 1, numbers[KEPT - 1]);
}

#[test]
fn a_reader_that_stalls_holds_no_more_than_there_is_room_for() {
    let log = log(0);
    let mut slow = log.subscribe(Begin::Recent(0), false);
    let mut coalesced = log.subscribe(Begin::Recent(0), true);
    let burst = WAITING / 4;
    for _ in 0..10 {
        log.append_together((0..burst).map(up).collect());
        assert!(log.waiting.load(Ordering::Relaxed) <= WAITING);
    }
    let (events, missed) = received(&mut slow);
    assert_eq!((events.len(), missed), (4 * burst, 6 * burst as u64));
    let (events, missed) = received(&mut coalesced);
    assert_eq!((events.len(), missed), (10, 0));
    assert_eq!(log.waiting.load(Ordering::Relaxed), 0);
    // If there are more bursts than fit, the oldest are missed.
    let mut slow = log.subscribe(Begin::Recent(0), false);
    (0..BACKLOG + 5).for_each(|n| log.append_together(vec![up(n)]));
    let (events, missed) = received(&mut slow);
    assert_eq!((events.len(), missed), (BACKLOG, 5));
}
