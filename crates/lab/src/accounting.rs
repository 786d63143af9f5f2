//! The accounting law: for every rule and each of its outputs,
//! `received = rule dropped + output sent + output dropped`.

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
    fn names_rule_and_output_where_a_packet_is_missing() {
        let message = check(&stats(10, 1, 7, 1)).unwrap_err().to_string();
        assert!(message.contains("\"r\"") && message.contains("239.1.1.1%e:1"));
    }
}
