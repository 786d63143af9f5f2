//! Follows a rule while it is captured, by a separate thread that queries the daemon. A daemon that does not
//! answer neither changes nor delays anything, because the kernel path goes on without it.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use super::capture_point::{CapturePoints, query_points};
use crate::control::Control;
use crate::failure::Status;

/// The time between two requests.
const INTERVAL: Duration = Duration::from_secs(1);

/// The current state of a rule.
pub(crate) enum RuleState {
    Present(CapturePoints),
    Removed,
}

/// Begins to query the states of a rule; with `output` only that output of it.
pub(crate) fn follow(control: Control, name: String, output: Option<usize>) -> Receiver<RuleState> {
    let (sender, states) = sync_channel(1);
    thread::spawn(move || while query(&control, &name, output, &sender).is_some() {});
    states
}

/// Queries once; `None` when nobody receives the states any more.
fn query(
    control: &Control,
    name: &str,
    output: Option<usize>,
    sender: &SyncSender<RuleState>,
) -> Option<()> {
    thread::sleep(INTERVAL);
    let state = match control.rule(name) {
        Ok(rule) => query_points(control, &rule, output)
            .map(RuleState::Present)
            .ok(),
        Err(failure) if failure.is(Status::Rule) => Some(RuleState::Removed),
        Err(_) => None,
    };
    state.map_or(Some(()), |state| sender.send(state).ok())
}
