//! Where news comes from: two threads that ask the daemon, and go on asking after it was gone.

use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::thread;
use std::time::Duration;

use api::client::StreamItem;
use api::reply::{Event, History, Stats, Status};
use api::request::HISTORY_RULES_MAX;

use super::history;
use crate::control::Control;
use crate::global::Global;

/// How long to wait before asking a daemon again that did not answer.
const AGAIN: Duration = Duration::from_secs(1);

/// Events of before that are shown.
const RECENT: u32 = 200;

/// Something new to show.
#[derive(Debug)]
pub(crate) enum News {
    Stats(Box<Stats>, Box<Status>),
    /// What was before the statistics told last, which are asked for at this interval.
    Past(Box<History>, Duration),
    Event(Event),
    Missed(u64),
    /// The daemon does not answer, and why.
    Gone(String),
}

/// News as they come.
pub(crate) struct Feed(Receiver<News>);

impl Feed {
    /// Starts to ask.
    pub(crate) fn start(global: &Global, interval: Duration) -> Self {
        let (sender, news) = channel();
        let (for_stats, for_events) = (global.clone(), global.clone());
        let stats = sender.clone();
        thread::spawn(move || while query_stats(&for_stats, interval, &stats).is_some() {});
        let mut seen_ms = 0;
        thread::spawn(move || while follow_events(&for_events, &sender, &mut seen_ms).is_some() {});
        Self(news)
    }

    /// What came since the last time.
    pub(crate) fn take(&self) -> impl Iterator<Item = News> + '_ {
        self.0.try_iter()
    }
}

/// Asks once a turn; `None` when nobody wants to know any more.
fn query_stats(global: &Global, interval: Duration, news: &Sender<News>) -> Option<()> {
    let control = Control::open(global).ok()?;
    let mut has_past = false;
    loop {
        let told = match control.stats().and_then(|s| Ok((s, control.status()?))) {
            Ok((stats, status)) => {
                let names = stats.rules.iter().map(|rule| rule.name.clone());
                let names: Vec<String> = names.filter(|_| !has_past).collect();
                has_past = true;
                news.send(News::Stats(Box::new(stats), Box::new(status)))
                    .ok()?;
                query_past(&control, interval, &names, news)
            }
            Err(failure) => news.send(News::Gone(failure.to_string())),
        };
        told.ok()?;
        thread::sleep(interval);
    }
}

/// Asks for the past of rules, as many at a time as may be; a daemon that knows none has told all.
fn query_past(
    control: &Control,
    interval: Duration,
    names: &[String],
    news: &Sender<News>,
) -> Result<(), SendError<News>> {
    let kept = interval.as_secs_f64() * history::KEPT as f64;
    for names in names.chunks(HISTORY_RULES_MAX) {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        // A rule that is gone by now takes the others of its chunk along, which begin without a past.
        if let Ok(past) = control.history(&names, kept.clamp(1.0, 3600.0) as u32) {
            news.send(News::Past(Box::new(past), interval))?;
        }
    }
    Ok(())
}

/// Follows events until the daemon ends; those up to `seen_ms` were sent before.
fn follow_events(global: &Global, news: &Sender<News>, seen_ms: &mut u64) -> Option<()> {
    let control = Control::open(global).ok()?;
    let told_before = *seen_ms;
    if let Ok(mut events) = control.events(RECENT, true) {
        while let Ok(Some(told)) = control.next_event(&mut events) {
            let told = match told {
                StreamItem::Event(event) if event.at_ms <= told_before => continue,
                StreamItem::Event(event) => {
                    *seen_ms = event.at_ms;
                    News::Event(event)
                }
                StreamItem::Missed(missed) => News::Missed(missed),
            };
            news.send(told).ok()?;
        }
    }
    thread::sleep(AGAIN);
    Some(())
}
