//! An event: which kinds there are, and which of them tell of trouble.

use std::fmt::Display;
use std::time::SystemTime;

use api::reply::{Event, State};
use dataplane::counters::WorkerCounters;
use model::printable::{plural, printable};

pub(super) const RULE_ADDED: &str = "rule_added";
pub(super) const RULE_REMOVED: &str = "rule_removed";
pub(super) const RULE_CHANGED: &str = "rule_changed";
pub(super) const SETTINGS_CHANGED: &str = "settings_changed";
pub(crate) const RULE_UP: &str = "rule_up";
pub(crate) const RULE_DEGRADED: &str = "rule_degraded";
pub(super) const RULE_DOWN: &str = "rule_down";
pub(super) const RULE_DISABLED: &str = "rule_disabled";
pub(super) const OUTPUT_UP: &str = "output_up";
pub(super) const OUTPUT_DEGRADED: &str = "output_degraded";
pub(super) const OUTPUT_DOWN: &str = "output_down";
pub(super) const DROPS_BEGAN: &str = "drops_began";
pub(super) const DROPS_ENDED: &str = "drops_ended";
pub(super) const JOINED: &str = "joined";
pub(super) const JOIN_FAILED: &str = "join_failed";
pub(super) const STREAM_UP: &str = "stream_up";
pub(super) const STREAM_DEGRADED: &str = "stream_degraded";
pub(super) const STREAM_DOWN: &str = "stream_down";
pub(super) const LINE_DOWN: &str = "line_down";
pub(super) const LINE_UP: &str = "line_up";
pub(super) const LINE_DEGRADED: &str = "line_degraded";
pub(super) const LINES_DIFFER: &str = "lines_differ";
pub(super) const SKEW_EXCEEDS_WINDOW: &str = "skew_exceeds_window";
pub(super) const STREAM_RESTARTED: &str = "stream_restarted";
pub(super) const INPUT_SWITCHED: &str = "input_switched";
pub(super) const WORKER_RESTARTED: &str = "worker_restarted";
pub(super) const LINK_CHANGED: &str = "link_changed";
pub(super) const NAME_RESOLVED: &str = "name_resolved";
pub(super) const NAME_FAILED: &str = "name_failed";
pub(super) const NEXT_HOP_CHANGED: &str = "next_hop_changed";
/// The configuration was read again.
pub(crate) const RELOADED: &str = "reloaded";
/// The configuration could not be read again.
pub(crate) const RELOAD_FAILED: &str = "reload_failed";

/// This relay of a fleet forwards a share from now on.
#[cfg_attr(
    not(feature = "fleet"),
    expect(dead_code, reason = "only a relay of a fleet tells it")
)]
pub(crate) const SHARE_OPENED: &str = "share_opened";
/// This relay forwards a share no more.
#[cfg_attr(
    not(feature = "fleet"),
    expect(dead_code, reason = "only a relay of a fleet tells it")
)]
pub(crate) const SHARE_SHUT: &str = "share_shut";
/// A relay of the fleet was silent, and what it does counts no more.
pub(crate) const RELAY_FENCED: &str = "relay_fenced";
/// No etcd answers.
pub(crate) const ETCD_AWAY: &str = "etcd_away";
/// etcd answers again.
#[cfg_attr(
    not(feature = "fleet"),
    expect(dead_code, reason = "only a relay of a fleet tells it")
)]
pub(crate) const ETCD_BACK: &str = "etcd_back";
/// Rules of the fleet are installed here.
#[cfg_attr(
    not(feature = "fleet"),
    expect(dead_code, reason = "only a relay of a fleet tells it")
)]
pub(crate) const FLEET_RULES_APPLIED: &str = "fleet_rules_applied";
/// Rules of the fleet, or what else stands in etcd, cannot be used.
pub(crate) const FLEET_RULES_REFUSED: &str = "fleet_rules_refused";

/// Another router asks who listens on an interface, or this relay does, or nobody.
pub(crate) const QUERIER_CHANGED: &str = "querier_changed";
/// Hosts listen to more than there is room for.
pub(crate) const LISTENERS_REFUSED: &str = "listeners_refused";
/// Hosts listen to what an output on demand leads to, and none did.
pub(super) const OUTPUT_WANTED: &str = "output_wanted";
/// No host listens any more.
pub(super) const OUTPUT_IDLE: &str = "output_idle";

/// A queue of the host was too short for the copies of a rule, and was lengthened.
pub(crate) const BACKLOG_RAISED: &str = "backlog_raised";
/// It could not be lengthened.
pub(crate) const BACKLOG_SHORT: &str = "backlog_short";

/// What runs cannot be written down.
pub(super) const NOT_SAVED: &str = "not_saved";
/// It could be again.
pub(super) const SAVED: &str = "saved";

/// Something that happened just now.
pub(crate) fn event(kind: &str, subject: &str, message: String) -> Event {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Event {
        at_ms: now.map_or(0, |now| now.as_millis() as u64),
        kind: kind.to_owned(),
        subject: subject.to_owned(),
        message: printable(&message).into_owned(),
    }
}

/// The configuration is there and cannot be used.
pub(crate) fn not_used(why: &dyn Display) -> Event {
    let message = format!("configuration not used, the rules stay: {why}");
    event(RELOAD_FAILED, "configuration", message)
}

/// What runs is not written down.
pub(crate) fn not_saved(why: &str) -> Event {
    event(NOT_SAVED, "daemon", why.to_owned())
}

/// What runs is written down again.
pub(crate) fn saved() -> Event {
    let message = "the running rules are written down again".to_owned();
    event(SAVED, "daemon", message)
}

/// A worker was started again.
pub(crate) fn worker_restarted(worker: &WorkerCounters) -> Event {
    let (id, restarts) = (worker.id, worker.restarts);
    let times = plural(restarts);
    let message = format!("worker {id} ended and was started again, {restarts} time{times} so far");
    event(WORKER_RESTARTED, &id.to_string(), message)
}

/// A watched stream is in another state.
pub(crate) fn stream(rule: &str, state: State, reason: Option<&str>) -> Event {
    let (kind, word) = match state {
        State::Up | State::Disabled => (STREAM_UP, "up"),
        State::Degraded => (STREAM_DEGRADED, "degraded"),
        State::Down => (STREAM_DOWN, "down"),
    };
    let reason = reason.map(|reason| format!(": {reason}"));
    let reason = reason.unwrap_or_default();
    event(
        kind,
        rule,
        format!("rule {rule:?}: the stream is {word}{reason}"),
    )
}

/// Says whether an event of this kind tells of something that went wrong.
pub(super) fn is_trouble(kind: &str) -> bool {
    matches!(
        kind,
        RULE_DOWN
            | RULE_DEGRADED
            | OUTPUT_DOWN
            | OUTPUT_DEGRADED
            | DROPS_BEGAN
            | STREAM_DOWN
            | STREAM_DEGRADED
            | LINE_DOWN
            | LINE_DEGRADED
            | LINES_DIFFER
            | SKEW_EXCEEDS_WINDOW
            | INPUT_SWITCHED
            | JOIN_FAILED
            | NAME_FAILED
            | WORKER_RESTARTED
            | RELOAD_FAILED
            | NOT_SAVED
            | RELAY_FENCED
            | ETCD_AWAY
            | FLEET_RULES_REFUSED
            | LISTENERS_REFUSED
            | BACKLOG_SHORT
    )
}

/// Says whether an event of this kind is a detail that only `mcr log debug` shows.
pub(super) fn is_detail(kind: &str) -> bool {
    matches!(kind, LINK_CHANGED | OUTPUT_UP | JOINED)
}
