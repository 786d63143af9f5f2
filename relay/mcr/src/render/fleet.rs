//! The status of a fleet as text: problems first, then relays, then shares.

use std::collections::BTreeMap;
use std::fmt::Write;

use api::reply::{
    FleetChange, FleetCounters, FleetEtcd, FleetRelay, FleetShare, FleetShareState, FleetStatus,
};
use comfy_table::Cell;
use rules::document::RuleDocument;
use rules::printable::printable;
use sys::clock::realtime_ms;

use super::number::things;
use super::times::duration;
use super::{Column, count, or_dash};

/// Problems that fit one screen.
const PROBLEMS_SHOWN: usize = 12;

/// All of `mcr fleet status`.
pub(crate) fn screen(status: &FleetStatus) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<16} {}", printable(&value));
    };
    let (rules, relays) = (status.rules, status.relays.len());
    let fleet = format!(
        "{}: {}, {} of generation {}",
        status.fleet,
        things(relays as u64, "relay"),
        things(rules as u64, "rule"),
        status.generation
    );
    line("fleet", fleet);
    line("this relay", this_relay(status));
    line("etcd", etcd(&status.etcd));
    for problem in status.problems.iter().take(PROBLEMS_SHOWN) {
        line("problem", problem.clone());
    }
    if let Some(more) = status.problems.len().checked_sub(PROBLEMS_SHOWN + 1) {
        line("", format!("and {} more; --json has all", more + 1));
    }
    if !status.relays.is_empty() {
        let table = super::table(RELAYS, &status.relays);
        let _ = write!(text, "\n{}\n", super::table_text(&table));
    }
    if !status.shares.is_empty() {
        let table = super::table(SHARES, &status.shares);
        let _ = write!(text, "\n{}\n", super::table_text(&table));
    }
    text
}

fn this_relay(status: &FleetStatus) -> String {
    let remaining = match status.remaining_ms {
        None => String::new(),
        Some(0) => ", forwards nothing".to_owned(),
        Some(ms) => format!(", may forward for {:.2} s", ms as f64 / 1e3),
    };
    let (phase, hold_ms) = (&status.phase, status.hold_ms);
    let (relay, on_isolation) = (&status.relay, &status.on_isolation);
    format!("{relay}: {phase}{remaining}; on_isolation {on_isolation}, hold {hold_ms} ms")
}

fn etcd(etcd: &FleetEtcd) -> String {
    if !etcd.reachable {
        let reason = etcd.reason.as_deref().unwrap_or("no reason given");
        let last = etcd.last_answer_ms.map_or_else(String::new, |ms| {
            format!("; last answered {} ago", duration(ms as f64 / 1e3))
        });
        return format!("cannot be used: {reason}{last}");
    }
    let (endpoint, version) = (etcd.endpoint.as_ref(), etcd.version.as_ref());
    let parts = [
        endpoint.map(|endpoint| format!(" at {endpoint}")),
        version.map(|version| format!(", version {version}")),
        etcd.beat_ms
            .map(|beat_ms| format!(", beat {beat_ms:.1} ms")),
        etcd.db_bytes
            .map(|bytes| format!(", database {}", super::bytes(bytes))),
    ];
    format!("answers{}", parts.into_iter().flatten().collect::<String>())
}

const RELAYS: &[Column<FleetRelay>] = &[
    ("RELAY", |relay| Cell::new(&relay.name)),
    ("STATE", |relay| super::state_cell(relay.state.as_str())),
    ("SINCE", |relay| Cell::new(since(relay.since_ms))),
    ("SHARES", |relay| Cell::new(relay.shares)),
    ("RULES", |relay| Cell::new(relay.rules)),
    ("WEIGHT", |relay| Cell::new(relay.weight)),
    ("PPS", |relay| counted(relay, |sum| sum.pps)),
    ("RELAYED", |relay| counted(relay, |sum| sum.relayed)),
    ("DROPPED", |relay| counted(relay, |sum| sum.dropped)),
    ("VERSION", |relay| Cell::new(&relay.version)),
];

fn counted(relay: &FleetRelay, of: fn(&FleetCounters) -> u64) -> Cell {
    let sum = relay.counters.as_ref();
    Cell::new(sum.map_or_else(String::new, |sum| count(of(sum))))
}

const SHARES: &[Column<FleetShare>] = &[
    ("SHARE", |share| Cell::new(&share.name)),
    ("HOLDER", |share| or_dash(share.relay.as_deref())),
    ("SINCE", |share| {
        Cell::new(share.since_ms.map_or_else(String::new, since))
    }),
    ("STANDBY", |share| or_dash(share.standby.as_deref())),
    ("STATE", |share| super::state_cell(state(share))),
    ("RULES", |share| Cell::new(count(share.rules.len() as u64))),
    ("WHAT", |share| {
        Cell::new(printable(share.problem.as_ref().unwrap_or(&share.why)))
    }),
];

fn state(share: &FleetShare) -> &'static str {
    match share.state {
        FleetShareState::Vacant => "vacant",
        FleetShareState::Shut => "shut",
        FleetShareState::Handing => "handing",
        FleetShareState::Open => "open here",
        FleetShareState::Elsewhere => "held",
        FleetShareState::Unknown => "unknown",
    }
}

/// The fleet's rules, each with the relay that forwards it.
pub(crate) fn rules(rules: &[RuleDocument], status: &FleetStatus) -> String {
    let mut shares: BTreeMap<&str, &FleetShare> = BTreeMap::new();
    for share in &status.shares {
        shares.extend(share.rules.iter().map(|rule| (rule.as_str(), share)));
    }
    let header = ["RULE", "SHARE", "RELAY", "INPUTS", "OUTPUTS", "OPTIONS"];
    let mut table = super::empty_table(&header);
    for rule in rules {
        let share = shares.get(rule.name.as_str());
        let relay = share.and_then(|share| share.relay.as_deref());
        let share_name = share.map(|share| share.name.as_str());
        let first = [
            Cell::new(&rule.name),
            or_dash(share_name.or(rule.share.as_deref())),
            or_dash(relay),
        ];
        table.add_row(first.into_iter().chain(super::rule::cells(rule)));
    }
    super::table_text(&table)
}

/// What applying rules changed, or would change.
pub(crate) fn change(change: &FleetChange) -> String {
    let marked = |mark: &str, names: &[String]| {
        let lines = names.iter().map(|name| format!("{mark} {name}\n"));
        lines.collect::<String>()
    };
    let lines = [
        marked("-", &change.removed),
        marked("+", &change.added),
        marked("~", &change.changed),
    ];
    let (unchanged, generation) = (count(change.unchanged as u64), change.generation);
    format!(
        "{}{unchanged} unchanged, generation {generation}",
        lines.concat()
    )
}

/// How long ago a moment was.
fn since(at_ms: u64) -> String {
    duration(realtime_ms().saturating_sub(at_ms) as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status() -> FleetStatus {
        let now_ms = realtime_ms();
        serde_json::from_value(json!({
            "fleet": "plant", "relay": "relay-a", "phase": "joined", "on_isolation": "peers",
            "hold_ms": 1200, "remaining_ms": 1080, "generation": 4, "rules": 2, "takeovers": 1,
            "etcd": {"reachable": true, "endpoint": "http://e1:2379", "beat_ms": 4.24},
            "problems": ["share \"news\": nobody forwards it"],
            "relays": [
                {"name": "relay-b", "state": "fenced", "since_ms": now_ms - 3000, "shares": 0,
                 "rules": 0, "weight": 100, "roles": [], "version": "0.1.0", "generation": 4},
                {"name": "relay-a", "state": "up", "since_ms": now_ms - 7_860_000, "shares": 1,
                 "rules": 1, "weight": 100, "roles": ["red"], "version": "0.1.0", "generation": 4,
                 "counters": {"received": 5, "relayed": 4, "dropped": 1, "standby": 0, "pps": 2}},
            ],
            "shares": [
                {"name": "news", "rules": ["news1"], "state": "vacant", "why": "",
                 "problem": "nobody forwards it"},
                {"name": "cam", "rules": ["cam1"], "state": "open", "relay": "relay-a",
                 "since_ms": now_ms - 7_860_000, "why": "moved by an operator",
                 "standby": "relay-c"},
            ],
        }))
        .unwrap()
    }

    #[test]
    fn a_fleet_is_shown_with_its_problems_first() {
        let screen = screen(&status());
        let expected = [
            "fleet            plant: 2 relays, 2 rules of generation 4\n",
            "this relay       relay-a: joined, may forward for 1.08 s; on_isolation peers, hold",
            "etcd             answers at http://e1:2379, beat 4.2 ms\n",
            "problem          share \"news\": nobody forwards it\n",
        ];
        for expected in expected {
            assert!(screen.contains(expected), "{screen}");
        }
        let at = |text: &str| {
            screen
                .find(text)
                .unwrap_or_else(|| panic!("{text}: {screen}"))
        };
        assert!(at("relay-b  fenced") < at("relay-a  up"), "{screen}");
        assert!(at("\nnews") < at("\ncam"), "{screen}");
    }

    #[test]
    fn a_rule_is_listed_with_who_forwards_it() {
        let rule = RuleDocument {
            name: "cam1".to_owned(),
            inputs: vec!["239.1.1.1%red:5001".to_owned()],
            outputs: vec!["239.10.1.1%out:6001".into()],
            ..RuleDocument::default()
        };
        let table = rules(&[rule], &status());
        let line = table.lines().nth(1).unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(
            words,
            [
                "cam1",
                "cam",
                "relay-a",
                "239.1.1.1%red:5001",
                "239.10.1.1%out:6001"
            ]
        );
    }
}
