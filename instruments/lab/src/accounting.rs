//! The accounting law: for every rule and each of its outputs,
//! `received = rule dropped + output sent + output dropped`. A rule that reflects
//! sends each packet by all outputs but one, and an answer by one alone: the law holds for all outputs
//! together.

use anyhow::{Result, bail};
use api::reply::{RuleStats, Stats};

/// Checks the law for every rule, once traffic has stopped.
///
/// # Errors
/// When it does not hold; the message lists every rule and output where it does not.
pub fn check(stats: &Stats) -> Result<()> {
    let broken: Vec<String> = stats.rules.iter().flat_map(broken_at).collect();
    if broken.is_empty() {
        return Ok(());
    }
    bail!("accounting does not add up:\n{}", broken.join("\n"))
}

fn broken_at(rule: &RuleStats) -> Vec<String> {
    let received = rule.received.packets;
    let before: u64 = rule.dropped.values().sum();
    if rule.mode.is_some() {
        return broken_among(rule, received.saturating_sub(before));
    }
    let outputs = rule.outputs.iter();
    let broken = outputs.filter_map(|output| {
        let dropped: u64 = output.dropped.values().sum();
        let sum = before + output.sent.packets + dropped;
        (sum != received).then(|| {
            format!(
                "rule {:?}, output {}: received {received}, but dropped before {:?} + sent {} + \
                 dropped {:?} = {sum}",
                rule.name, output.to, rule.dropped, output.sent.packets, output.dropped
            )
        })
    });
    broken.collect()
}

/// The same for a rule that reflects, `passed` packets of which passed.
fn broken_among(rule: &RuleStats, passed: u64) -> Vec<String> {
    let outputs = rule.outputs.iter();
    let copies: u64 = outputs
        .map(|output| output.sent.packets + output.dropped.values().sum::<u64>())
        .sum();
    let answers = rule.answers.unwrap_or(0);
    let others = (rule.outputs.len() as u64).saturating_sub(1);
    let due = passed.saturating_sub(answers) * others + answers;
    let broken = (copies != due).then(|| {
        format!(
            "rule {:?} reflects: {passed} packets passed, {answers} of them answers, but all outputs \
             have {copies} copies, not {due}",
            rule.name
        )
    });
    broken.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(received: u64, malformed: u64, sent: u64, too_big: u64) -> Stats {
        let json = format!(
            r#"{{"instance":"i","version":"v","uptime_seconds":1.0,"workers":[],"rules":[
            {{"name":"r","state":"up","path":"kernel","path_reason":"","inputs":[],
            "received":{{"packets":{received},"bytes":0}},"dropped":{{"malformed":{malformed}}},
            "outputs":[{{"to":"239.1.1.1%e:1","state":"up",
            "sent":{{"packets":{sent},"bytes":0}},"dropped":{{"too_big":{too_big}}}}}]}}]}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    #[test]
    fn holds_when_every_packet_is_accounted_for() {
        check(&stats(10, 1, 7, 2)).unwrap();
    }

    #[test]
    fn holds_for_all_outputs_together_where_a_rule_reflects() {
        let reflecting = |sent| {
            let mut stats = stats(10, 1, sent, 2);
            let rule = &mut stats.rules[0];
            rule.mode = Some("reflect".to_owned());
            let other = rule.outputs[0].clone();
            rule.outputs.push(other);
            stats
        };
        // Nine passed, one copy of each: 4 were dropped, two at each output.
        assert!(check(&reflecting(2)).is_err());
        let mut stats = reflecting(2);
        stats.rules[0].outputs[1].sent.packets = 3;
        check(&stats).unwrap();
        // Three of the nine are answers, of three interfaces: twelve copies of six, and three.
        let other = stats.rules[0].outputs[1].clone();
        stats.rules[0].outputs.push(other);
        stats.rules[0].answers = Some(3);
        stats.rules[0].outputs[2].sent.packets = 4;
        check(&stats).unwrap();
        stats.rules[0].answers = Some(2);
        assert!(check(&stats).is_err());
    }

    #[test]
    fn names_rule_and_output_where_a_packet_is_missing() {
        let message = check(&stats(10, 1, 7, 1)).unwrap_err().to_string();
        assert!(message.contains("\"r\"") && message.contains("239.1.1.1%e:1"));
    }
}
