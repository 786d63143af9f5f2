//! Whether the relayed leg of a failover rule is as its rule's health asks, and which other is:
//! `failover = { on = "degraded" }`.
//!
//! A leg that stands by is counted and not inspected: it is well if it delivers at a rate within the
//! bounds and was not left for its quality within a minute. So two bad legs change places at most once
//! a minute.

use std::collections::BTreeMap;

use dataplane::counters::{HealthCounters, LinesSeen, Traffic};
use rules::health::Health;
use rules::printable::{count, things};
use rules::rule::Rule;

use super::{SECOND_NS, beyond, loses, unfit};

/// Seconds in a row that a leg has to be bad; what lasts for one lies in two of them.
const BAD: u32 = 3;
/// An input that has become the relayed one stays so for as long, unless it falls silent.
const HOLD_NS: u64 = 5 * SECOND_NS;
/// For so long a leg that was left is not come back to.
const MEMORY_NS: u64 = 60 * SECOND_NS;

/// What is known of how a rule's legs do.
#[derive(Debug, Default)]
pub(super) struct Quality {
    active: String,
    /// Since when it is, as far as is known.
    since_ns: u64,
    /// What was counted when the second that is being judged began.
    began: Option<Counted>,
    bad_seconds: u32,
    /// When a leg was left.
    left_ns: BTreeMap<String, u64>,
    /// To which leg the daemon switches, and why, until that is seen.
    asked: Option<Leave>,
}

#[derive(Debug)]
struct Counted {
    at_ns: u64,
    came: BTreeMap<String, Traffic>,
    found: HealthCounters,
}

/// A leg to switch to, and what is wrong with the one that is relayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leave {
    pub(crate) to: String,
    pub(crate) why: String,
}

impl Quality {
    /// Takes in a reading; says what to switch to, if the relayed leg is to be left.
    pub(super) fn sample(
        &mut self,
        now_ns: u64,
        rule: &Rule,
        seen: &LinesSeen,
        found: Option<&HealthCounters>,
    ) -> Option<Leave> {
        let health = rule.health.as_ref()?;
        if self.active != seen.active {
            self.active.clone_from(&seen.active);
            self.since_ns = now_ns;
            self.began = None;
            self.bad_seconds = 0;
        }
        let counted = || Counted {
            at_ns: now_ns,
            came: seen.came.clone(),
            found: found.copied().unwrap_or_default(),
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
        self.left_ns
            .retain(|_, left_ns| *left_ns + MEMORY_NS > now_ns);
        if self.bad_seconds < BAD || now_ns < self.since_ns + HOLD_NS {
            return None;
        }
        let others = rule.inputs.iter().map(ToString::to_string);
        let mut others = others.filter(|at| *at != self.active && !self.left_ns.contains_key(at));
        let to = others.find(|at| {
            let came = came(&began, now, at);
            came.packets > 0 && rate(&began, now, health, came).is_none()
        })?;
        self.left_ns.insert(self.active.clone(), now_ns);
        let leave = Leave { to, why };
        self.asked = Some(leave.clone());
        Some(leave)
    }

    /// Why another leg is relayed now, if that is the daemon's doing.
    pub(super) fn why(&mut self, to: &str) -> Option<String> {
        let asked = self.asked.take().filter(|asked| asked.to == to);
        asked.map(|asked| asked.why)
    }
}

/// What is wrong with the relayed leg. Silence is not: that is the paths' to judge.
fn wrong(began: &Counted, now: &Counted, health: &Health, active: &str) -> Option<String> {
    let came = came(began, now, active);
    if came.packets == 0 {
        return None;
    }
    let found = now.found.since(&began.found);
    let packets = found.lost.saturating_add(found.rtp_packets);
    if loses(found.lost, packets) {
        let (lost, packets) = (count(found.lost), things(packets, "RTP packet"));
        return Some(format!("lost {lost} of {packets}"));
    }
    let errors = found.continuity_errors;
    if loses(errors, found.ts_packets) {
        let errors = things(errors, "continuity error");
        let packets = things(found.ts_packets, "MPEG-TS packet");
        return Some(format!("had {errors} in {packets}"));
    }
    unfit(&found, health.inspect.content).or_else(|| rate(began, now, health, came))
}

fn came(began: &Counted, now: &Counted, at: &str) -> Traffic {
    let of = |counted: &Counted| counted.came.get(at).copied().unwrap_or_default();
    of(now).since(of(began))
}

/// How a rate is outside its bounds.
fn rate(began: &Counted, now: &Counted, health: &Health, came: Traffic) -> Option<String> {
    let seconds = now.at_ns.saturating_sub(began.at_ns) as f64 / 1e9;
    let bits = came.bytes as f64 * 8.0;
    beyond(health, came.packets as f64 / seconds, bits / seconds)
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
        found: HealthCounters,
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
                found: HealthCounters::default(),
                sends: [(500, 0); 3],
            }
        }

        /// Goes on until a leg is left, for so many seconds at most; does what is asked then.
        fn goes_on(&mut self, seconds: u64) -> Option<(u64, String)> {
            for reading in 1..=2 * seconds {
                self.now_ns += HALF;
                for (at, (packets, lost)) in LINES.into_iter().zip(self.sends) {
                    let came = self.seen.came.entry(at.to_owned()).or_default();
                    let lost = packets * lost / 1_000;
                    came.add(Traffic::new(packets - lost, 100 * (packets - lost)));
                    if at == self.seen.active {
                        self.found.rtp_packets += packets - lost;
                        self.found.lost += lost;
                    }
                }
                let found = Some(&self.found);
                let left = self
                    .quality
                    .sample(self.now_ns, &self.rule, &self.seen, found);
                if let Some(Leave { to, why }) = left {
                    self.seen.active = to;
                    return Some((reading / 2, why));
                }
            }
            None
        }
    }

    #[test]
    fn a_line_that_loses_is_left_for_the_first_other_that_is_well() {
        let mut bed = Bed::new("{}");
        assert_eq!(bed.goes_on(100), None);
        bed.sends[0] = (500, 200);
        let (after, why) = bed.goes_on(10).unwrap();
        assert!((2..=4).contains(&after), "{after}");
        assert_eq!(why, "lost 200 of 1 000 RTP packets");
        assert_eq!(bed.seen.active, LINES[1]);
        assert_eq!(bed.quality.why(LINES[1]), Some(why));
        assert_eq!(bed.quality.why(LINES[1]), None, "it is told once");
        assert_eq!(bed.goes_on(300), None, "and stays with what is well");
    }

    #[test]
    fn one_bad_second_and_a_loss_in_two_thousand_are_borne() {
        let mut bed = Bed::new("{}");
        bed.goes_on(20);
        bed.sends[0].1 = 200;
        assert_eq!(bed.goes_on(1), None);
        bed.sends[0].1 = 0;
        assert_eq!(bed.goes_on(20), None);
        bed.found.lost += 1;
        bed.sends = [(5_000, 0); 3];
        assert_eq!(bed.goes_on(20), None);
    }

    #[test]
    fn a_rate_out_of_bounds_is_bad_of_any_line() {
        let mut bed = Bed::new(r#"{"rate_min": "900pps"}"#);
        bed.goes_on(10);
        bed.sends = [(300, 0), (400, 0), (500, 0)];
        let (_, why) = bed.goes_on(10).unwrap();
        assert_eq!(why, "the rate was 600pps, below rate_min = 900pps");
        assert_eq!(bed.seen.active, LINES[2], "the second is not well either");
    }

    #[test]
    fn lines_that_are_all_bad_change_places_once_a_minute_at_most() {
        let mut bed = Bed::new("{}");
        bed.sends = [(500, 200); 3];
        let start_ns = bed.now_ns;
        let mut left = 0;
        while bed.goes_on(600).is_some() && bed.now_ns < start_ns + 300 * SECOND_NS {
            left += 1;
        }
        // Each of three legs once a minute, with the hold in between.
        assert!((3..=15).contains(&left), "{left}");
    }

    #[test]
    fn what_has_just_become_the_relayed_one_is_held() {
        let mut bed = Bed::new("{}");
        bed.goes_on(20);
        bed.sends = [(500, 200), (500, 200), (500, 0)];
        bed.goes_on(10).unwrap();
        assert_eq!(bed.seen.active, LINES[1]);
        let (after, _) = bed.goes_on(20).unwrap();
        assert!((5..=7).contains(&after), "{after}");
        assert_eq!(bed.seen.active, LINES[2]);
    }

    #[test]
    fn a_bad_line_stays_where_no_other_delivers() {
        let mut bed = Bed::new("{}");
        bed.sends = [(500, 200), (0, 0), (0, 0)];
        assert_eq!(bed.goes_on(60), None);
        bed.sends[2] = (500, 0);
        bed.goes_on(10).unwrap();
        assert_eq!(bed.seen.active, LINES[2]);
    }
}
