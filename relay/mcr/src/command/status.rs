//! `mcr status`: the daemon on one screen.

use std::fmt::Write;
use std::path::Path;

use api::reply::{
    ApiStatus, Condition, JoinStatus, PathStatus, PendingChange, Reload, RuleStats, State, Stats,
    Status, TunnelStatus,
};
use rules::printable::printable;
use serde_json::json;

use crate::control::Control;
use crate::failure::Failure;
use crate::global::Global;
use crate::render::{self, because};

/// Troubles that fit one screen.
const TROUBLES_SHOWN: usize = 12;

/// Show the daemon on one screen: paths, rules by state, what is wrong, the worst first.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr status
  mcr status --json | jq -r '.features[] | select(.present == false).meaning'")]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args, global: &Global) -> Result<(), Failure> {
    let control = Control::open(global)?;
    let (status, stats) = (control.status()?, control.stats()?);
    if global.json {
        let mut value = json!(status);
        value["rules_by_state"] = by_state(&stats);
        for condition in [Condition::Silent, Condition::Waiting] {
            let is_counted = |rule: &&RuleStats| rule.condition() == condition;
            let count = stats.rules.iter().filter(is_counted).count();
            value[format!("{}_rules", condition.as_str())] = count.into();
        }
        return Ok(render::json(&value)?);
    }
    Ok(render::text(screen(&status, &stats).trim_end())?)
}

/// How many rules have each state word; `idle` and `waiting` only if there are any.
fn by_word(stats: &Stats) -> String {
    let words = [
        "up", "idle", "waiting", "degraded", "silent", "down", "disabled",
    ];
    let counted = words.into_iter().filter_map(|word| {
        let count = stats.rules.iter().filter(|rule| rule.word() == word);
        match count.count() {
            0 if matches!(word, "idle" | "waiting") => None,
            count => Some(format!("{} {word}", render::count(count as u64))),
        }
    });
    counted.collect::<Vec<String>>().join(", ")
}

/// How many rules are in each state.
fn by_state(stats: &Stats) -> serde_json::Value {
    let states = [State::Up, State::Degraded, State::Down, State::Disabled];
    let counted = states.map(|state| {
        let rules = stats.rules.iter().filter(|rule| rule.state == state);
        (state.as_str(), rules.count())
    });
    counted.into_iter().collect()
}

fn screen(status: &Status, stats: &Stats) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<16} {value}");
    };
    let Status { instance, pid, .. } = status;
    line("daemon", &format!("{instance}, pid {pid}"));
    line("version", &status.version);
    let why = because(status.state_reason.as_deref());
    line("state", &format!("{}{why}", status.state.as_str()));
    if let Some(pending) = &status.pending {
        let PendingChange { generation, by, .. } = pending;
        let waits = format!("{}: generation {generation}", pending.countdown());
        line("change", &format!("{waits} by {by}"));
    }
    line("up", &render::times::duration(status.uptime_seconds));
    if let Some(config) = &status.config {
        line("configuration", &read(config, status.last_reload.as_ref()));
    }
    if let Some(unsaved) = status.unsaved.filter(|unsaved| *unsaved > 0) {
        let changes = render::number::things(unsaved as u64, "change");
        let are = if unsaved == 1 { "is" } else { "are" };
        let message = format!("{changes} {are} not saved: mcr diff --saved, mcr save");
        line("saved", &message);
    }
    line("kernel path", path(&status.kernel));
    line("userspace path", path(&status.userspace));
    let rules = render::count(status.rules as u64);
    line("rules", &format!("{rules}: {}", by_word(stats)));
    if let Some(api) = &status.api {
        line("other hosts", &served(api));
        for ends in &api.expiring {
            line("ends soon", ends);
        }
    }
    for target in &status.notify {
        let (state, why) = (target.state.as_str(), because(target.reason.as_deref()));
        let message = format!("{} {} {state}{why}", target.name, target.to);
        line("told of events", &message);
    }
    for conflict in &status.address_conflicts {
        line("address twice", conflict);
    }
    if !status.joins.is_empty() {
        line("joined by hand", &joined(&status.joins));
    }
    for tunnel in &status.tunnels {
        line("tunnel", &tunnel_text(tunnel));
    }
    let features = status.features.iter();
    for feature in features.filter(|feature| feature.present != Some(true)) {
        let missing = match feature.present {
            None => "not known: this daemon may not find out",
            Some(_) => feature.meaning.as_deref().unwrap_or("missing"),
        };
        line(&feature.name, missing);
    }
    troubles(&mut text, stats);
    text
}

/// Where clients of other hosts are served, how many there are, and how often one was refused.
fn served(api: &ApiStatus) -> String {
    let clients = render::number::things(api.clients as u64, "client");
    let refused = render::count(api.refused);
    let (state, why) = (api.state.as_str(), because(api.reason.as_deref()));
    let listen = &api.listen;
    format!("{listen} {state}, {clients}, {refused} refused{why}")
}

/// How many joins there are beside those of rules, and how many of them are not joined.
fn joined(joins: &[JoinStatus]) -> String {
    let waiting = joins.iter().filter(|join| !join.joined).count();
    match waiting {
        0 => joins.len().to_string(),
        waiting => format!("{}, {waiting} not joined: mcr join", joins.len()),
    }
}

/// Where a tunnel leads, what fits into it, or why nothing gets through.
fn tunnel_text(tunnel: &TunnelStatus) -> String {
    let (name, state) = (&tunnel.interface, tunnel.state.as_str());
    let (remote, port, id) = (&tunnel.remote, tunnel.port, tunnel.id);
    let ends = format!("{name} {state}, to {remote} port {port} id {id}");
    match (&tunnel.reason, tunnel.mtu, &tunnel.below) {
        (Some(reason), ..) => format!("{ends}: {reason}"),
        (None, Some(mtu), Some(below)) => format!("{ends}, MTU {mtu}, by {below}"),
        (None, ..) => ends,
    }
}

/// The configuration file, and the outcome of the last reload.
fn read(config: &str, last: Option<&Reload>) -> String {
    // A file that may not be examined is not reported as missing.
    let is_missing = matches!(Path::new(config).try_exists(), Ok(false));
    match last {
        None if is_missing => format!("none; {config} is not there"),
        None => config.to_owned(),
        Some(Reload { at_ms, succeeded }) => {
            let outcome = if *succeeded {
                "read again"
            } else {
                "cannot be used, tried"
            };
            format!("{config}, {outcome} {}", render::moment(*at_ms))
        }
    }
}

/// What is wrong, the worst first.
fn troubles(text: &mut String, stats: &Stats) {
    let mut troubled: Vec<&RuleStats> = stats.rules.iter().filter(|it| it.is_troubled()).collect();
    troubled.sort_by_key(|rule| rule.condition());
    let stopped = stats.workers.iter().filter(|it| it.state != "running");
    let workers = stopped.map(|worker| ("worker", format!("{}: {}", worker.id, worker.state)));
    let rules = troubled.iter().map(|rule| {
        let given = render::stats::reason(rule);
        let reason = given.as_deref().unwrap_or("no reason given");
        (rule.word(), format!("{}: {reason}", rule.name))
    });
    let all: Vec<(&str, String)> = workers.chain(rules).collect();
    for (what, reason) in all.iter().take(TROUBLES_SHOWN) {
        let _ = writeln!(text, "{what:<16} {}", printable(reason));
    }
    let more = all.len().saturating_sub(TROUBLES_SHOWN);
    if more > 0 {
        let _ = writeln!(
            text,
            "{:<16} and {} more; mcr top begins with the worst",
            "",
            render::count(more as u64)
        );
    }
}

fn path(path: &PathStatus) -> &str {
    path.reason.as_deref().unwrap_or("available")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_shown_with_its_meaning() {
        let status: Status = serde_json::from_value(json!({
            "instance": "default", "version": "1", "pid": 7, "uptime_seconds": 61.0,
            "generation": 1, "rules": 0, "state": "degraded", "state_reason": "full",
            "kernel": {"available": false, "reason": "no bpf_loop"},
            "userspace": {"available": true},
            "api": {"listen": "10.0.0.1:9471", "state": "degraded", "reason": "no key", "clients": 1,
                    "expiring": ["client ci"], "refused": 7},
            "notify": [{"name": "webhook", "to": "https://noc", "format": "mcr", "state": "degraded",
                        "reason": "no route", "sent": 1, "dropped": 0}],
            "address_conflicts": ["10.0.0.1 of eth1"],
            "tunnels": [
                {"interface": "wan", "remote": "10.9.9.9", "port": 4789, "id": 1, "state": "up",
                 "mtu": 1450, "below": "eth1", "below_mtu": 1500},
                {"interface": "sat", "remote": "10.8.8.8", "port": 4789, "id": 2, "state": "down",
                 "reason": "no route to 10.8.8.8"},
            ],
            "features": [
                {"name": "tcx", "present": true},
                {"name": "bpf_loop", "present": false, "meaning": "no kernel path"},
                {"name": "io_uring"},
            ],
        }))
        .unwrap();
        let stats: Stats = serde_json::from_value(json!({
            "instance": "default", "version": "1", "uptime_seconds": 61.0, "rules": [],
            "workers": [],
        }))
        .unwrap();
        let screen = screen(&status, &stats);
        for expected in [
            "state            degraded: full\n",
            "up               1 min 1 s\n",
            "kernel path      no bpf_loop\n",
            "userspace path   available\n",
            "rules            0: 0 up, 0 degraded, 0 silent, 0 down, 0 disabled\n",
            "other hosts      10.0.0.1:9471 degraded, 1 client, 7 refused: no key\n",
            "ends soon        client ci\n",
            "told of events   webhook https://noc degraded: no route\n",
            "address twice    10.0.0.1 of eth1\n",
            "tunnel           wan up, to 10.9.9.9 port 4789 id 1, MTU 1450, by eth1\n",
            "tunnel           sat down, to 10.8.8.8 port 4789 id 2: no route to 10.8.8.8\n",
            "bpf_loop         no kernel path\n",
            "io_uring         not known",
        ] {
            assert!(screen.contains(expected), "{screen}");
        }
    }
}
