//! The kinds of events, one row each, and their severities. Scripts rely on the names.

use rules::setting::words;

words! {
    /// How much an event of a kind matters.
    pub enum Weight = News {
        /// What only `mcr log debug` shows, too.
        Detail = "debug",
        /// What changed, and what went wrong.
        News = "info",
        /// What went wrong.
        Trouble = "warning" | "warn",
    }
}

/// A kind, its weight, and the kinds of the same subject that report its end; none if it does not last or its
/// end is not reported.
type Row = (&'static str, Weight, &'static [&'static str]);

/// Declares the kinds and [`KINDS`], the table of them.
macro_rules! kinds {
    ($($name:ident = $text:literal, $weight:ident $(until $($end:ident)+)?;)*) => {
        $(
            /// A kind, by its name.
            pub const $name: &str = $text;
        )*

        const KINDS: &[Row] = &[$(($name, Weight::$weight, &[$($($end),+)?]),)*];
    };
}

kinds! {
    RULE_ADDED = "rule_added", News;
    RULE_REMOVED = "rule_removed", News;
    RULE_CHANGED = "rule_changed", News;
    SETTINGS_CHANGED = "settings_changed", News;
    RULE_UP = "rule_up", News;
    RULE_DEGRADED = "rule_degraded", Trouble until RULE_UP RULE_DOWN RULE_DISABLED RULE_REMOVED;
    RULE_DOWN = "rule_down", Trouble until RULE_UP RULE_DEGRADED RULE_DISABLED RULE_REMOVED;
    RULE_DISABLED = "rule_disabled", News;
    OUTPUT_UP = "output_up", Detail;
    OUTPUT_DEGRADED = "output_degraded", Trouble until OUTPUT_UP OUTPUT_DOWN;
    OUTPUT_DOWN = "output_down", Trouble until OUTPUT_UP;
    DROPS_BEGAN = "drops_began", Trouble until DROPS_ENDED;
    DROPS_ENDED = "drops_ended", News;
    JOINED = "joined", Detail;
    JOIN_FAILED = "join_failed", Trouble until JOINED;
    STREAM_UP = "stream_up", News;
    STREAM_DEGRADED = "stream_degraded", Trouble until STREAM_UP STREAM_DOWN;
    STREAM_DOWN = "stream_down", Trouble until STREAM_UP STREAM_DEGRADED;
    STREAM_SILENT = "stream_silent", Trouble until STREAM_BACK;
    STREAM_BACK = "stream_back", News;
    LINE_DOWN = "line_down", Trouble until LINE_UP;
    LINE_UP = "line_up", News;
    LINE_DEGRADED = "line_degraded", Trouble until LINE_UP LINE_DOWN;
    LINES_DIFFER = "lines_differ", Trouble until LINE_DOWN;
    SKEW_EXCEEDS_WINDOW = "skew_exceeds_window", Trouble until LINE_DOWN;
    STREAM_RESTARTED = "stream_restarted", News;
    INPUT_SWITCHED = "input_switched", Trouble;
    WORKER_RESTARTED = "worker_restarted", Trouble;
    ADDRESS_CONFLICT = "address_conflict", Trouble until ADDRESS_CONFLICT_ENDED;
    ADDRESS_CONFLICT_ENDED = "address_conflict_ended", News;
    CLOCK_STEPPED = "clock_stepped", News;
    LINK_CHANGED = "link_changed", Detail;
    NAME_RESOLVED = "name_resolved", News;
    NAME_FAILED = "name_failed", Trouble until NAME_RESOLVED;
    NAME_TRUNCATED = "name_truncated", Trouble;
    ADDRESS_CAME = "address_came", News;
    ADDRESS_GONE = "address_gone", News;
    NEXT_HOP_CHANGED = "next_hop_changed", News;
    RELOADED = "reloaded", News;
    RELOAD_FAILED = "reload_failed", Trouble until RELOADED;
    SHARE_OPENED = "share_opened", News;
    SHARE_SHUT = "share_shut", News;
    RELAY_FENCED = "relay_fenced", Trouble;
    ETCD_AWAY = "etcd_away", Trouble until ETCD_BACK;
    ETCD_BACK = "etcd_back", News;
    FLEET_RULES_APPLIED = "fleet_rules_applied", News;
    FLEET_RULES_REFUSED = "fleet_rules_refused", Trouble;
    QUERIER_CHANGED = "querier_changed", News;
    LISTENERS_REFUSED = "listeners_refused", Trouble;
    OUTPUT_WANTED = "output_wanted", News;
    OUTPUT_IDLE = "output_idle", News;
    OUTPUT_UNHEARD = "output_unheard", Trouble until OUTPUT_HEARD;
    OUTPUT_HEARD = "output_heard", News;
    BACKLOG_RAISED = "backlog_raised", News;
    BACKLOG_SHORT = "backlog_short", Trouble until BACKLOG_RAISED;
    CHANGE_CONFIRMED = "change_confirmed", News;
    CHANGE_UNDONE = "change_undone", Trouble;
    NOT_SAVED = "not_saved", Trouble until SAVED;
    SAVED = "saved", News;
    API_UP = "api_up", News;
    API_DEGRADED = "api_degraded", Trouble until API_UP;
    API_REFUSED = "api_refused", Trouble;
    EXPIRES_SOON = "expires_soon", Trouble until RENEWED;
    RENEWED = "renewed", News;
    NOTIFY_FAILED = "notify_failed", Trouble until NOTIFY_WORKS;
    NOTIFY_WORKS = "notify_works", News;
    NOTIFY_TEST = "notify_test", Trouble;
}

/// The names of all kinds.
pub fn names() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|(kind, ..)| *kind)
}

/// The kinds that report trouble.
pub fn troubles() -> impl Iterator<Item = &'static str> {
    names().filter(|kind| weight(kind) == Weight::Trouble)
}

fn row(kind: &str) -> Option<&'static Row> {
    KINDS.iter().find(|(name, ..)| *name == kind)
}

/// The weight of events of a kind.
pub fn weight(kind: &str) -> Weight {
    row(kind).map_or(Weight::News, |(_, weight, _)| *weight)
}

/// The kinds whose end an event of this kind reports.
pub fn ended_by(end: &str) -> impl Iterator<Item = &'static str> {
    KINDS
        .iter()
        .filter_map(move |(kind, _, ends)| ends.contains(&end).then_some(*kind))
}

/// Whether the condition that an event of this kind reports lasts until another event reports its end.
pub fn lasts(kind: &str) -> bool {
    row(kind).is_some_and(|(.., ends)| !ends.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_documented() {
        let documents = [
            include_str!("../../../docs/watch.md"),
            include_str!("../../../docs/fleet.md"),
        ];
        for kind in names() {
            let quoted = format!("`{kind}`");
            let is_documented = documents.iter().any(|text| text.contains(&quoted));
            assert!(is_documented, "{kind}");
        }
    }
}
