//! Numbers with their words: the same ones for tables, `mcr show` and `mcr top`.

use std::collections::BTreeMap;

use api::counter::{Counter, Unit, Value};
use api::reply::{InputStats, LineStats, MergeStats, Rates, RuleStats, Traffic};
pub(crate) use rules::printable::things;

use super::{bits_per_second, bytes, count, times};

/// All counters of `of` that are declared with a text, in one line.
pub(crate) fn all<T>(counters: &[Counter<T>], of: &T) -> String {
    let texts = counters.iter().filter_map(|counter| {
        let value = (counter.value)(of)?;
        let ending = if value == Value::Whole(1) { "" } else { "s" };
        let text = counter.text?.replace("{s}", ending);
        Some(text.replace("{}", &number(counter.unit(), value)))
    });
    texts.collect::<Vec<String>>().join(", ")
}

/// All counters of a rule that are declared with a text, and those of its merge.
pub(crate) fn of_rule(rule: &RuleStats) -> String {
    let stats = rule.merge.as_ref();
    let merge = stats.map(|stats| all(MergeStats::COUNTERS, stats));
    joined(all(RuleStats::COUNTERS, rule), merge)
}

/// The same of an input, and those of it as a leg of a merge.
pub(crate) fn of_input(input: &InputStats) -> String {
    let stats = input.line.as_ref();
    let leg = stats.map(|stats| all(LineStats::COUNTERS, stats));
    joined(all(InputStats::COUNTERS, input), leg)
}

/// Two lists of numbers as one.
pub(crate) fn joined(first: String, second: Option<String>) -> String {
    let both = [Some(first), second].into_iter().flatten();
    let texts: Vec<String> = both.filter(|text| !text.is_empty()).collect();
    texts.join(", ")
}

fn number(unit: Unit, value: Value) -> String {
    match (unit, value) {
        (Unit::Seconds, Value::Real(seconds)) => times::time(seconds),
        (Unit::Ago, Value::Real(seconds)) => times::duration(seconds),
        (_, Value::Whole(n)) => count(n),
        (Unit::Count, Value::Real(_)) => value.to_string(),
    }
}

/// A measured value with one decimal; a dash if there is none.
pub(crate) fn tenths(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}

/// Packets and bytes.
pub(crate) fn volume(traffic: Traffic) -> String {
    let (packets, bytes) = (things(traffic.packets, "packet"), bytes(traffic.bytes));
    format!("{packets}, {bytes}")
}

/// The rates of what a rule receives.
pub(crate) fn rule_rates(of: &Rates) -> String {
    rates((of.packets_1s, of.bits_1s), (of.packets_10s, of.bits_10s))
}

/// Rates over a second and over ten, each of packets and bits.
pub(crate) fn rates(short: (f64, f64), long: (f64, f64)) -> String {
    let one = |(packets, bits): (f64, f64)| {
        let packets = count(packets.round() as u64);
        format!("{packets} packets/s {}", bits_per_second(bits))
    };
    format!("1 s: {}   10 s: {}", one(short), one(long))
}

/// Each reason for which packets were dropped, with their number.
pub(crate) fn drops(drops: &BTreeMap<String, u64>) -> Vec<String> {
    let occurred = drops.iter().filter(|(_, packets)| **packets > 0);
    occurred
        .map(|(reason, packets)| format!("{reason} {}", count(*packets)))
        .collect()
}

#[cfg(test)]
mod tests {
    use api::reply::TsStats;

    use super::*;

    #[test]
    fn one_is_not_many() {
        let one = Traffic::new(1, 7);
        assert_eq!(volume(one), "1 packet, 7 B");
        let ts = TsStats {
            packets: 9000,
            continuity_errors: 1,
            transport_errors: 2,
            sync_errors: 0,
            pids: 1,
        };
        let text = all(TsStats::COUNTERS, &ts);
        assert!(
            text.contains("1 continuity error, 2 transport errors, 0 sync errors, 1 PID"),
            "{text}"
        );
    }
}
