//! What a relay knows of its fleet in the API's words, the worst first.

use std::collections::BTreeSet;
use std::time::Duration;

use api::reply::{
    FleetCounters, FleetRelay, FleetRelayState, FleetShare, FleetShareState, FleetStatus,
};

use super::Status;

/// A deadline from here on stands for none.
const NEVER_MS: u64 = u64::MAX / 2_000_000;

/// A relay is fenced sooner where one is there that may: it is promised on for ten seconds, and a hold counts
/// for five at most.
const UNHEARD_MS: u64 = 20_000;

pub(super) fn status(told: &Status, hold: Duration) -> FleetStatus {
    let member = &told.member;
    let relays = member.relays.values();
    let mut relays: Vec<FleetRelay> = relays.map(|known| relay(&known.told, told)).collect();
    relays.sort_by(|a, b| (a.state, &a.name).cmp(&(b.state, &b.name)));
    let names: BTreeSet<&String> = member.shares.keys().chain(told.rules.keys()).collect();
    let mut shares: Vec<FleetShare> = names.into_iter().map(|name| share(name, told)).collect();
    shares.sort_by(|a, b| order(a).cmp(&order(b)));
    FleetStatus {
        fleet: member.fleet.clone(),
        relay: member.relay.clone(),
        phase: member.phase.as_str().to_owned(),
        on_isolation: member.policy.as_str().to_owned(),
        hold_ms: hold.as_millis() as u64,
        remaining_ms: Some(member.deadline_ms).filter(|left| *left < NEVER_MS),
        generation: member.generation,
        rules: told.rules.values().map(Vec::len).sum(),
        takeovers: told.takeovers,
        problems: problems(told, &relays, &shares),
        etcd: told.etcd.clone(),
        relays,
        shares,
    }
}

/// Shares with something wrong first: those that nobody forwards before all others.
fn order(share: &FleetShare) -> (bool, bool, bool, &str) {
    let is_vacant = share.state == FleetShareState::Vacant;
    let is_shut = share.state == FleetShareState::Shut;
    (!is_vacant, !is_shut, share.problem.is_none(), &share.name)
}

fn relay(known: &FleetRelay, told: &Status) -> FleetRelay {
    let held = told.member.shares.values();
    let held = held.filter(|share| share.relay.as_ref() == Some(&known.name));
    let rules = held.map(|share| told.rules.get(&share.name).map_or(0, Vec::len));
    let counters = told.counters.get(&known.name);
    FleetRelay {
        rules: rules.sum(),
        counters: counters.map(|shares| sum(shares.values())),
        ..known.clone()
    }
}

fn share(name: &str, told: &Status) -> FleetShare {
    let known = told.member.shares.get(name).cloned().unwrap_or_default();
    let counted = told.counters.values().filter_map(|of| of.get(name));
    FleetShare {
        name: name.to_owned(),
        rules: told.rules.get(name).cloned().unwrap_or_default(),
        counters: counted.clone().next().map(|_| sum(counted)),
        ..known
    }
}

fn problems(told: &Status, relays: &[FleetRelay], shares: &[FleetShare]) -> Vec<String> {
    let mut problems = Vec::new();
    let of_shares = |vacant: bool| {
        let shares = shares.iter();
        let shares = shares.filter(move |share| (share.state == FleetShareState::Vacant) == vacant);
        shares.filter_map(|share| {
            Some(format!(
                "share {:?}: {}",
                share.name,
                share.problem.as_ref()?
            ))
        })
    };
    if !told.member.etcd_reachable {
        let why = told.etcd.reason.as_deref().unwrap_or("no answer");
        problems.push(format!("etcd: {why}"));
    }
    problems.extend(told.member.wrong.clone());
    problems.extend(told.unused_rules.clone());
    problems.extend(of_shares(true));
    problems.extend(relays.iter().flat_map(|relay| relay_problems(relay, told)));
    problems.extend(of_shares(false));
    let refused = told.member.refused.iter();
    problems.extend(refused.map(|(key, why)| format!("etcd key {key}: {why}")));
    problems
}

fn relay_problems(relay: &FleetRelay, told: &Status) -> Vec<String> {
    let name = &relay.name;
    let mut problems = match relay.state {
        FleetRelayState::Fenced => {
            vec![format!(
                "relay {name}: was silent and is fenced; look at its host"
            )]
        }
        FleetRelayState::Silent => vec![format!("relay {name}: takes no part; look at its host")],
        _ => Vec::new(),
    };
    let unheard = relay.last_beat_ms.filter(|ago| {
        *ago > UNHEARD_MS && relay.state > FleetRelayState::Silent && told.member.etcd_reachable
    });
    problems.extend(unheard.map(|ago| {
        let seconds = ago / 1000;
        format!(
            "relay {name}: has not beaten for {seconds} s, and nobody that may fence it does; once its host is \
             switched off, mcr fleet fence {name}"
        )
    }));
    problems.extend(relay.unanswered());
    let unfit = relay.unfit.iter();
    problems
        .extend(unfit.map(|(share, why)| format!("relay {name}: serves {share:?} badly: {why}")));
    let newest = told.member.generation;
    if relay.state >= FleetRelayState::Unfit && relay.generation != newest {
        let has = relay.generation;
        problems.push(format!(
            "relay {name}: has rules of generation {has}, not {newest}"
        ));
    }
    problems
}

fn sum<'a>(counters: impl Iterator<Item = &'a FleetCounters>) -> FleetCounters {
    counters.fold(FleetCounters::default(), |sum, one| FleetCounters {
        received: sum.received.wrapping_add(one.received),
        relayed: sum.relayed.wrapping_add(one.relayed),
        dropped: sum.dropped.wrapping_add(one.dropped),
        standby: sum.standby.wrapping_add(one.standby),
        pps: sum.pps.wrapping_add(one.pps),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::member::RelayStatus;

    fn told() -> Status {
        let relay = |session, name: &str, state| {
            let told = FleetRelay {
                name: name.to_owned(),
                state,
                generation: 4,
                ..FleetRelay::default()
            };
            (name.to_owned(), RelayStatus { session, told })
        };
        let share = |name: &str, holder: Option<&str>, state, problem: Option<&str>| {
            let share = FleetShare {
                name: name.to_owned(),
                relay: holder.map(str::to_owned),
                state,
                problem: problem.map(str::to_owned),
                ..FleetShare::default()
            };
            (name.to_owned(), share)
        };
        let text = str::to_owned;
        Status {
            member: crate::member::Status {
                fleet: text("plant"),
                relay: text("relay-a"),
                policy: config::OnIsolation::Peers,
                session: 5,
                phase: crate::member::PhaseName::Joined,
                etcd_reachable: true,
                last_ack_ms: Some(3),
                deadline_ms: 1000,
                generation: 4,
                relays: BTreeMap::from([
                    relay(5, "relay-a", FleetRelayState::Up),
                    relay(6, "relay-b", FleetRelayState::Fenced),
                ]),
                shares: BTreeMap::from([
                    share("cam", Some("relay-a"), FleetShareState::Open, None),
                    share(
                        "news",
                        None,
                        FleetShareState::Vacant,
                        Some("nobody holds it"),
                    ),
                ]),
                refused: BTreeMap::new(),
                wrong: Vec::new(),
            },
            unused_rules: None,
            etcd: api::reply::FleetEtcd::default(),
            rules: BTreeMap::from([(text("cam"), vec![text("cam1"), text("cam2")])]).into(),
            takeovers: 0,
            counters: BTreeMap::from([
                (text("relay-a"), counted(10)),
                (text("relay-b"), counted(5)),
            ]),
        }
    }

    fn counted(received: u64) -> BTreeMap<String, FleetCounters> {
        let counters = FleetCounters {
            received,
            ..FleetCounters::default()
        };
        BTreeMap::from([("cam".to_owned(), counters)])
    }

    #[test]
    fn what_is_wrong_comes_first() {
        let status = status(&told(), Duration::from_secs(2));
        let relays: Vec<&str> = status.relays.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(relays, ["relay-b", "relay-a"]);
        let shares: Vec<&str> = status.shares.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(shares, ["news", "cam"]);
        assert_eq!(
            status.problems,
            [
                "share \"news\": nobody holds it",
                "relay relay-b: was silent and is fenced; look at its host",
            ]
        );
    }

    #[test]
    fn a_relay_that_only_an_operator_may_fence_is_named() {
        let mut told = told();
        for (ago, named) in [(19_000, false), (21_000, true)] {
            let relay = told.member.relays.get_mut("relay-a").unwrap();
            relay.told.last_beat_ms = Some(ago);
            let problems = status(&told, Duration::from_secs(2)).problems;
            let is_named = |problem: &String| problem.ends_with("mcr fleet fence relay-a");
            assert_eq!(problems.iter().any(is_named), named, "{problems:?}");
        }
    }

    #[test]
    fn counters_of_all_relays_are_summed_by_share() {
        let status = status(&told(), Duration::from_secs(2));
        let received = |counters: Option<FleetCounters>| counters.map(|sum| sum.received);
        assert_eq!(received(status.shares[1].counters), Some(15));
        assert_eq!(received(status.relays[1].counters), Some(10));
        assert_eq!((status.rules, status.relays[1].rules), (2, 2));
        assert_eq!(status.remaining_ms, Some(1000));
    }
}
