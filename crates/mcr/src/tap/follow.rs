//! What becomes of a rule while it is captured. Asked on a thread of its own: a daemon that does not
//! answer changes nothing, for the kernel path goes on without it, and holds nothing up.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use super::point::{Points, points};
use crate::control::Control;
use crate::failure::Status;

/// How often is asked.
const LOOK: Duration = Duration::from_secs(1);

/// What a rule has become.
pub(crate) enum Seen {
    There(Points),
    Removed,
}

/// Who asks.
pub(crate) struct Follower(Receiver<Seen>);

impl Follower {
    /// Begins to ask for a rule; of its outputs with `output` for that one alone.
    pub(crate) fn start(control: Control, name: String, output: Option<usize>) -> Self {
        let (told, seen) = sync_channel(1);
        thread::spawn(move || while ask(&control, &name, output, &told).is_some() {});
        Self(seen)
    }

    /// What was seen since the last time, if anything was.
    pub(crate) fn seen(&self) -> Option<Seen> {
        self.0.try_recv().ok()
    }
}

/// Asks once; `None` when nobody wants to know any more.
fn ask(
    control: &Control,
    name: &str,
    output: Option<usize>,
    told: &SyncSender<Seen>,
) -> Option<()> {
    thread::sleep(LOOK);
    let seen = match control.rule(name) {
        Ok(rule) => points(control, &rule, output).map(Seen::There).ok(),
        Err(failure) if failure.is(Status::Rule) => Some(Seen::Removed),
        Err(_) => None,
    };
    seen.map_or(Some(()), |seen| told.send(seen).ok())
}
