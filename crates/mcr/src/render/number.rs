//! Numbers in words: the same ones for tables, `mcr show` and `mcr top`.

use std::collections::BTreeMap;

use api::counter::{Counter, Unit, Value};
use api::reply::Traffic;

use super::{bits_per_second, bytes, count, stats, stream};

/// All numbers of `of` that are declared with a text, in one line.
pub(crate) fn all<T>(counters: &[Counter<T>], of: &T) -> String {
    let texts = counters.iter().filter_map(|counter| {
        let number = number(counter.unit(), (counter.value)(of)?);
        Some(counter.text?.replace("{}", &number))
    });
    texts.collect::<Vec<String>>().join(", ")
}

fn number(unit: Unit, value: Value) -> String {
    match (unit, value) {
        (Unit::Seconds, Value::Real(seconds)) => stream::time(seconds),
        (Unit::Ago, Value::Real(seconds)) => stats::duration(seconds),
        (_, Value::Whole(n)) => count(n),
        (Unit::Count, Value::Real(_)) => value.to_string(),
    }
}

/// Packets and bytes.
pub(crate) fn volume(traffic: Traffic) -> String {
    let (packets, bytes) = (count(traffic.packets), bytes(traffic.bytes));
    format!("{packets} packets, {bytes}")
}

/// Rates over a second and over ten, each of packets and bits.
pub(crate) fn rates(short: (f64, f64), long: (f64, f64)) -> String {
    let one = |(packets, bits): (f64, f64)| {
        let packets = count(packets.round() as u64);
        format!("{packets} packets/s {}", bits_per_second(bits))
    };
    format!("1 s: {}   10 s: {}", one(short), one(long))
}

/// Each reason for which packets were dropped, and how many.
pub(crate) fn drops(drops: &BTreeMap<String, u64>) -> Vec<String> {
    let occurred = drops.iter().filter(|(_, packets)| **packets > 0);
    occurred
        .map(|(reason, packets)| format!("{reason} {}", count(*packets)))
        .collect()
}
