//! A relay's view of its fleet as a reply of the API, the worst first.

use std::collections::BTreeSet;
use std::time::Duration;

use api::reply::{
    FleetCounters, FleetRelay, FleetRelayState, FleetShare, FleetShareState, FleetStatus,
};

use super::Status;

/// A deadline from here on means that there is none.
const NEVER_MS: u64 = u64::MAX / 2_000_000;

/// By this time without a beat a relay has been fenced, if any live relay may do so: promises are given for
/// ten seconds, and a hold is five at most.
const SILENT_MS: u64 = 20_000;

impl Status {
    /// That etcd does not answer, why, and how old what is shown of others is.
    pub(super) fn etcd_problem(&self) -> String {
        let why = self.etcd.reason.as_deref().unwrap_or("no answer");
        let age = self.etcd.last_answer_ms.map_or_else(String::new, |ms| {
            let seconds = ms / 1000;
            format!("; it last answered {seconds} s ago, and rules and other relays are shown as of then")
        });
        format!("etcd: {why}{age}")
    }
}

pub(super) fn status(status: &Status, hold: Duration) -> FleetStatus {
    let member = &status.member;
    let members = member.relays.values();
    let mut relays: Vec<FleetRelay> = members.map(|one| relay(&one.reported, status)).collect();
    relays.sort_by(|a, b| (a.state, &a.name).cmp(&(b.state, &b.name)));
    let names: BTreeSet<&String> = member.shares.keys().chain(status.rules.keys()).collect();
    let mut shares: Vec<FleetShare> = names.into_iter().map(|name| share(name, status)).collect();
    shares.sort_by(|a, b| severity(a).cmp(&severity(b)));
    FleetStatus {
        fleet: member.fleet.clone(),
        relay: member.relay.clone(),
        phase: member.phase.as_str().to_owned(),
        on_isolation: member.policy.as_str().to_owned(),
        hold_ms: hold.as_millis() as u64,
        remaining_ms: Some(member.deadline_ms).filter(|remaining| *remaining < NEVER_MS),
        generation: member.generation,
        rules: status.rules.values().map(Vec::len).sum(),
        takeovers: status.takeovers,
        problems: problems(status, &relays, &shares),
        etcd: status.etcd.clone(),
        relays,
        shares,
    }
}

/// The sorting key of shares: those that nobody forwards first, then others with problems.
fn severity(share: &FleetShare) -> (bool, bool, bool, &str) {
    let is_vacant = share.state == FleetShareState::Vacant;
    let is_shut = share.state == FleetShareState::Shut;
    (!is_vacant, !is_shut, share.problem.is_none(), &share.name)
}

fn relay(relay: &FleetRelay, status: &Status) -> FleetRelay {
    let shares = status.member.shares.values();
    let held = shares.filter(|share| share.relay.as_ref() == Some(&relay.name));
    let rules = held.map(|share| status.rules.get(&share.name).map_or(0, Vec::len));
    let counters = status.counters.get(&relay.name);
    FleetRelay {
        rules: rules.sum(),
        counters: counters.map(|shares| sum(shares.values())),
        ..relay.clone()
    }
}

fn share(name: &str, status: &Status) -> FleetShare {
    let share = status.member.shares.get(name).cloned();
    let relays = status.counters.values();
    let counters = relays.filter_map(|shares| shares.get(name));
    FleetShare {
        name: name.to_owned(),
        rules: status.rules.get(name).cloned().unwrap_or_default(),
        counters: counters.clone().next().map(|_| sum(counters)),
        ..share.unwrap_or_default()
    }
}

fn problems(status: &Status, relays: &[FleetRelay], shares: &[FleetShare]) -> Vec<String> {
    let mut problems = Vec::new();
    let of_shares = |is_vacant: bool| {
        let chosen = shares
            .iter()
            .filter(move |share| (share.state == FleetShareState::Vacant) == is_vacant);
        // That etcd does not answer stands for all that is unknown.
        let chosen = chosen.filter(|share| share.state != FleetShareState::Unknown);
        chosen.filter_map(|FleetShare { name, problem, .. }| {
            Some(format!("share {name:?}: {}", problem.as_ref()?))
        })
    };
    if !status.member.etcd_reachable {
        problems.push(status.etcd_problem());
    }
    problems.extend(status.member.wrong.clone());
    problems.extend(status.unused_rules.clone());
    problems.extend(of_shares(true));
    problems.extend(relays.iter().flat_map(|one| relay_problems(one, status)));
    problems.extend(of_shares(false));
    let refused = status.member.refused.iter();
    problems.extend(refused.map(|(key, why)| format!("etcd key {key}: {why}")));
    problems
}

fn relay_problems(relay: &FleetRelay, status: &Status) -> Vec<String> {
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
    let silent_ms = relay.last_beat_ms.filter(|ago| {
        *ago > SILENT_MS && relay.state > FleetRelayState::Silent && status.member.etcd_reachable
    });
    problems.extend(silent_ms.map(|ago| {
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
    let newest = status.member.generation;
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

    fn example() -> Status {
        let relay = |session, name: &str, state| {
            let reported = FleetRelay {
                name: name.to_owned(),
                state,
                generation: 4,
                ..FleetRelay::default()
            };
            (name.to_owned(), RelayStatus { session, reported })
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
    fn problems_come_first() {
        let status = status(&example(), Duration::from_secs(2));
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
    fn an_etcd_that_is_away_is_named_with_the_age_of_what_is_shown() {
        let mut example = example();
        example.member.etcd_reachable = false;
        example.etcd.reason = Some("cannot connect".to_owned());
        let share = example.member.shares.get_mut("cam").unwrap();
        share.state = FleetShareState::Unknown;
        share.problem = Some("relay-b held it".to_owned());
        for (last_answer_ms, age) in [
            (None, ""),
            (
                Some(12_345),
                "; it last answered 12 s ago, and rules and other relays are shown as of then",
            ),
        ] {
            example.etcd.last_answer_ms = last_answer_ms;
            let problems = status(&example, Duration::from_secs(2)).problems;
            assert_eq!(problems[0], format!("etcd: cannot connect{age}"));
            assert!(
                !problems.iter().any(|it| it.contains("cam")),
                "{problems:?}"
            );
        }
    }

    #[test]
    fn a_relay_that_only_an_operator_may_fence_is_named() {
        let mut example = example();
        for (ago, named) in [(19_000, false), (21_000, true)] {
            let relay = example.member.relays.get_mut("relay-a").unwrap();
            relay.reported.last_beat_ms = Some(ago);
            let problems = status(&example, Duration::from_secs(2)).problems;
            let is_named = |problem: &String| problem.ends_with("mcr fleet fence relay-a");
            assert_eq!(problems.iter().any(is_named), named, "{problems:?}");
        }
    }

    #[test]
    fn counters_of_all_relays_are_summed_by_share() {
        let status = status(&example(), Duration::from_secs(2));
        let received = |counters: Option<FleetCounters>| counters.map(|sum| sum.received);
        assert_eq!(received(status.shares[1].counters), Some(15));
        assert_eq!(received(status.relays[1].counters), Some(10));
        assert_eq!((status.rules, status.relays[1].rules), (2, 2));
        assert_eq!(status.remaining_ms, Some(1000));
    }
}
