//! Whether the relayed leg of a failover rule meets the health that the rule requires, and which other
//! leg does: `failover = { on = "degraded" }`.
//!
//! A standby leg is counted but not inspected: it is healthy if it delivers at a rate within the bounds
//! and was not switched away from for its quality within a minute. So two bad legs alternate at most
//! once a minute.

use std::collections::BTreeMap;

use dataplane::counters::{HealthCounters, LinesSeen, Traffic};
use rules::health::Health;
use rules::printable::{count, things};
use rules::rule::Rule;

use super::{SECOND_NS, beyond, loses, unfit};

/// Consecutive seconds for which a leg must be bad; a disturbance of one second lies in two of them.
const BAD: u32 = 3;
/// A leg stays the relayed one for at least this long, unless it falls silent.
const HOLD_NS: u64 = 5 * SECOND_NS;
/// How long a leg that was switched away from is not used again.
const MEMORY_NS: u64 = 60 * SECOND_NS;

/// The quality of a rule's legs.
#[derive(Debug, Default)]
pub(super) struct Quality {
    active: String,
    /// When it was first read as the relayed one.
    since_ns: u64,
    /// The counters at the beginning of the second that is being judged.
    began: Option<Counted>,
    bad_seconds: u32,
    /// When each leg was switched away from.
    switched_ns: BTreeMap<String, u64>,
    /// The switch that the daemon has requested, until it is seen.
    requested: Option<Switch>,
}

#[derive(Debug)]
struct Counted {
    at_ns: u64,
    received: BTreeMap<String, Traffic>,
    inspected: HealthCounters,
}

/// A leg to switch to, and what is wrong with the relayed one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Switch {
    pub(crate) to: String,
    pub(crate) why: String,
}

impl Quality {
    /// Records a reading; returns the switch to make, if the relayed leg is bad.
    pub(super) fn sample(
        &mut self,
        now_ns: u64,
        rule: &Rule,
        seen: &LinesSeen,
        inspected: Option<&HealthCounters>,
    ) -> Option<Switch> {
        let health = rule.health.as_ref()?;
        if self.active != seen.active {
            self.active.clone_from(&seen.active);
            self.since_ns = now_ns;
            self.began = None;
            self.bad_seconds = 0;
        }
        let counted = || Counted {
            at_ns: now_ns,
            received: seen.came.clone(),
            inspected: inspected.copied().unwrap_or_default(),
        };
        let Some(began) = &self.began else {
            self.began = Some(counted());
            return None;
        };
        if now_ns < began.at_ns + SECOND_NS {
            return None;
        }
        let began = self.began.replace(counted())?;
        let now = self.began.as_ref()?;
        let Some(why) = wrong(&began, now, health, &self.active) else {
            self.bad_seconds = 0;
            return None;
        };
        self.bad_seconds += 1;
        self.switched_ns
            .retain(|_, switched_ns| *switched_ns + MEMORY_NS > now_ns);
        if self.bad_seconds < BAD || now_ns < self.since_ns + HOLD_NS {
            return None;
        }
        let mut inputs = rule.inputs.iter().map(ToString::to_string);
        let to = inputs.find(|at| {
            let received = received(&began, now, at);
            *at != self.active
                && !self.switched_ns.contains_key(at)
                && received.packets > 0
                && rate(&began, now, health, received).is_none()
        })?;
        self.switched_ns.insert(self.active.clone(), now_ns);
        let switch = Switch { to, why };
        self.requested = Some(switch.clone());
        Some(switch)
    }

    /// Why another leg is relayed now, if the daemon requested it.
    pub(super) fn why(&mut self, to: &str) -> Option<String> {
        let requested = self.requested.take()?;
        (requested.to == to).then_some(requested.why)
    }
}

/// What is wrong with the relayed leg. Silence does not count here: the paths judge it.
fn wrong(began: &Counted, now: &Counted, health: &Health, active: &str) -> Option<String> {
    let received = received(began, now, active);
    if received.packets == 0 {
        return None;
    }
    let inspected = now.inspected.since(&began.inspected);
    let packets = inspected.lost.saturating_add(inspected.rtp_packets);
    if loses(inspected.lost, packets) {
        let (lost, packets) = (count(inspected.lost), things(packets, "RTP packet"));
        return Some(format!("lost {lost} of {packets}"));
    }
    let errors = inspected.continuity_errors;
    if loses(errors, inspected.ts_packets) {
        let errors = things(errors, "continuity error");
        let packets = things(inspected.ts_packets, "MPEG-TS packet");
        return Some(format!("had {errors} in {packets}"));
    }
    unfit(&inspected, health.inspect.content).or_else(|| rate(began, now, health, received))
}

fn received(began: &Counted, now: &Counted, at: &str) -> Traffic {
    let of = |counted: &Counted| counted.received.get(at).copied().unwrap_or_default();
    of(now).since(of(began))
}

/// How a rate is outside its bounds.
fn rate(began: &Counted, now: &Counted, health: &Health, received: Traffic) -> Option<String> {
    let seconds = now.at_ns.saturating_sub(began.at_ns) as f64 / 1e9;
    let bits = received.bytes as f64 * 8.0;
    beyond(health, received.packets as f64 / seconds, bits / seconds)
}

#[cfg(test)]
mod tests {
    use rules::document::RuleDocument;

    use super::*;

    const HALF: u64 = SECOND_NS / 2;
    const LINES: [&str; 3] = [
        "239.1.1.1%eth0:5001",
        "239.2.1.1%eth1:5001",
        "239.3.1.1%eth2:5001",
    ];

    /// Legs that are read every half second.
    struct Bed {
        rule: Rule,
        quality: Quality,
        now_ns: u64,
        seen: LinesSeen,
        inspected: HealthCounters,
        /// Packets of each leg in half a second, and of them lost in a thousand.
        sends: [(u64, u64); 3],
    }

    impl Bed {
        fn new(health: &str) -> Self {
            let text = format!(
                r#"{{"name": "news", "inputs": {LINES:?}, "outputs": ["10.9.9.9:7000"],
                    "failover": {{"on": "degraded"}}, "health": {health}}}"#
            );
            let document: RuleDocument = serde_json::from_str(&text).unwrap();
            Self {
                rule: document.to_rule(0).unwrap(),
                quality: Quality::default(),
                now_ns: 100 * SECOND_NS,
                seen: LinesSeen {
                    active: LINES[0].to_owned(),
                    ..LinesSeen::default()
                },
                inspected: HealthCounters::default(),
                sends: [(500, 0); 3],
            }
        }

        /// Runs until a switch is requested, for `seconds` at most, and makes that switch.
        fn run(&mut self, seconds: u64) -> Option<(u64, String)> {
            for reading in 1..=2 * seconds {
                self.now_ns += HALF;
                for (at, (packets, lost)) in LINES.into_iter().zip(self.sends) {
                    let traffic = self.seen.came.entry(at.to_owned()).or_default();
                    let lost = packets * lost / 1_000;
                    traffic.add(Traffic::new(packets - lost, 100 * (packets - lost)));
                    if at == self.seen.active {
                        self.inspected.rtp_packets += packets - lost;
                        self.inspected.lost += lost;
                    }
                }
                let inspected = Some(&self.inspected);
                let switch = self
                    .quality
                    .sample(self.now_ns, &self.rule, &self.seen, inspected);
                if let Some(Switch { to, why }) = switch {
                    self.seen.active = to;
                    return Some((reading / 2, why));
                }
            }
            None
        }
    }

    #[test]
    fn a_leg_that_loses_is_replaced_by_the_first_healthy_one() {
        let mut bed = Bed::new("{}");
        assert_eq!(bed.run(100), None);
        bed.sends[0] = (500, 200);
        let (after, why) = bed.run(10).unwrap();
        assert!((2..=4).contains(&after), "{after}");
        assert_eq!(why, "lost 200 of 1 000 RTP packets");
        assert_eq!(bed.seen.active, LINES[1]);
        assert_eq!(bed.quality.why(LINES[1]), Some(why));
        assert_eq!(bed.quality.why(LINES[1]), None, "it is told once");
        assert_eq!(bed.run(300), None, "and stays with what is well");
    }

    #[test]
    fn one_bad_second_and_a_loss_in_two_thousand_are_tolerated() {
        let mut bed = Bed::new("{}");
        bed.run(20);
        bed.sends[0].1 = 200;
        assert_eq!(bed.run(1), None);
        bed.sends[0].1 = 0;
        assert_eq!(bed.run(20), None);
        bed.inspected.lost += 1;
        bed.sends = [(5_000, 0); 3];
        assert_eq!(bed.run(20), None);
    }

    #[test]
    fn a_rate_out_of_bounds_is_bad_for_any_leg() {
        let mut bed = Bed::new(r#"{"rate_min": "900pps"}"#);
        bed.run(10);
        bed.sends = [(300, 0), (400, 0), (500, 0)];
        let (_, why) = bed.run(10).unwrap();
        assert_eq!(why, "the rate was 600pps, below rate_min = 900pps");
        assert_eq!(bed.seen.active, LINES[2], "the second is not well either");
    }

    #[test]
    fn legs_that_are_all_bad_alternate_once_a_minute_at_most() {
        let mut bed = Bed::new("{}");
        bed.sends = [(500, 200); 3];
        let start_ns = bed.now_ns;
        let mut switches = 0;
        while bed.run(600).is_some() && bed.now_ns < start_ns + 300 * SECOND_NS {
            switches += 1;
        }
        // Each of three legs once a minute, with the hold in between.
        assert!((3..=15).contains(&switches), "{switches}");
    }

    #[test]
    fn the_leg_that_has_just_become_the_relayed_one_is_held() {
        let mut bed = Bed::new("{}");
        bed.run(20);
        bed.sends = [(500, 200), (500, 200), (500, 0)];
        bed.run(10).unwrap();
        assert_eq!(bed.seen.active, LINES[1]);
        let (after, _) = bed.run(20).unwrap();
        assert!((5..=7).contains(&after), "{after}");
        assert_eq!(bed.seen.active, LINES[2]);
    }

    #[test]
    fn a_bad_leg_stays_if_no_other_delivers() {
        let mut bed = Bed::new("{}");
        bed.sends = [(500, 200), (0, 0), (0, 0)];
        assert_eq!(bed.run(60), None);
        bed.sends[2] = (500, 0);
        bed.run(10).unwrap();
        assert_eq!(bed.seen.active, LINES[2]);
    }
}
