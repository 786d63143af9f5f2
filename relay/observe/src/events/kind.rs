//! The kinds of events, a row each, and how much each matters. Names are a contract with scripts.

/// How much an event of a kind matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Something went wrong.
    Trouble,
    /// Something changed.
    News,
    /// What only `mcr log debug` shows.
    Detail,
}

/// Declares the kinds and [`KINDS`], the table of them.
macro_rules! kinds {
    ($($name:ident = $text:literal, $weight:ident;)*) => {
        $(
            /// A kind, by its name.
            pub const $name: &str = $text;
        )*

        /// Each kind and its weight.
        const KINDS: &[(&str, Weight)] = &[$(($name, Weight::$weight),)*];
    };
}

kinds! {
    RULE_ADDED = "rule_added", News;
    RULE_REMOVED = "rule_removed", News;
    RULE_CHANGED = "rule_changed", News;
    SETTINGS_CHANGED = "settings_changed", News;
    RULE_UP = "rule_up", News;
    RULE_DEGRADED = "rule_degraded", Trouble;
    RULE_DOWN = "rule_down", Trouble;
    RULE_DISABLED = "rule_disabled", News;
    OUTPUT_UP = "output_up", Detail;
    OUTPUT_DEGRADED = "output_degraded", Trouble;
    OUTPUT_DOWN = "output_down", Trouble;
    DROPS_BEGAN = "drops_began", Trouble;
    DROPS_ENDED = "drops_ended", News;
    JOINED = "joined", Detail;
    JOIN_FAILED = "join_failed", Trouble;
    STREAM_UP = "stream_up", News;
    STREAM_DEGRADED = "stream_degraded", Trouble;
    STREAM_DOWN = "stream_down", Trouble;
    STREAM_SILENT = "stream_silent", Trouble;
    STREAM_BACK = "stream_back", News;
    LINE_DOWN = "line_down", Trouble;
    LINE_UP = "line_up", News;
    LINE_DEGRADED = "line_degraded", Trouble;
    LINES_DIFFER = "lines_differ", Trouble;
    SKEW_EXCEEDS_WINDOW = "skew_exceeds_window", Trouble;
    STREAM_RESTARTED = "stream_restarted", News;
    INPUT_SWITCHED = "input_switched", Trouble;
    WORKER_RESTARTED = "worker_restarted", Trouble;
    LINK_CHANGED = "link_changed", Detail;
    NAME_RESOLVED = "name_resolved", News;
    NAME_FAILED = "name_failed", Trouble;
    NAME_TRUNCATED = "name_truncated", Trouble;
    ADDRESS_CAME = "address_came", News;
    ADDRESS_GONE = "address_gone", News;
    NEXT_HOP_CHANGED = "next_hop_changed", News;
    RELOADED = "reloaded", News;
    RELOAD_FAILED = "reload_failed", Trouble;
    SHARE_OPENED = "share_opened", News;
    SHARE_SHUT = "share_shut", News;
    RELAY_FENCED = "relay_fenced", Trouble;
    ETCD_AWAY = "etcd_away", Trouble;
    ETCD_BACK = "etcd_back", News;
    FLEET_RULES_APPLIED = "fleet_rules_applied", News;
    FLEET_RULES_REFUSED = "fleet_rules_refused", Trouble;
    QUERIER_CHANGED = "querier_changed", News;
    LISTENERS_REFUSED = "listeners_refused", Trouble;
    OUTPUT_WANTED = "output_wanted", News;
    OUTPUT_IDLE = "output_idle", News;
    BACKLOG_RAISED = "backlog_raised", News;
    BACKLOG_SHORT = "backlog_short", Trouble;
    CHANGE_CONFIRMED = "change_confirmed", News;
    CHANGE_UNDONE = "change_undone", Trouble;
    NOT_SAVED = "not_saved", Trouble;
    SAVED = "saved", News;
    API_UP = "api_up", News;
    API_DEGRADED = "api_degraded", Trouble;
    API_REFUSED = "api_refused", Trouble;
    EXPIRES_SOON = "expires_soon", Trouble;
}

/// The kinds that tell of trouble.
pub fn troubles() -> impl Iterator<Item = &'static str> {
    let troubles = { KINDS.iter() }.filter(|(_, weight)| *weight == Weight::Trouble);
    troubles.map(|(kind, _)| *kind)
}

/// The weight of events of a kind.
pub fn weight(kind: &str) -> Weight {
    let known = KINDS.iter().find(|(name, _)| *name == kind);
    known.map_or(Weight::News, |(_, weight)| *weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_stands_in_the_documents() {
        let documents = [
            include_str!("../../../../docs/watch.md"),
            include_str!("../../../../docs/fleet.md"),
        ];
        for (kind, _) in KINDS {
            let quoted = format!("`{kind}`");
            let is_told = documents.iter().any(|text| text.contains(&quoted));
            assert!(is_told, "{kind}");
        }
    }
}
