//! Statistics as JSON, one rule at a time.

use std::cell::Cell;

use api::reply::{RuleStats, Stats};
use serde::ser::{Serialize, SerializeStruct, Serializer};

/// Serializes like [`Stats`], once; its rules are made while they are written.
pub struct Streamed<R> {
    rest: Stats,
    rules: Cell<Option<R>>,
}

impl<R: Iterator<Item = RuleStats>> Streamed<R> {
    /// `rest`: everything but the rules.
    pub const fn new(rest: Stats, rules: R) -> Self {
        Self {
            rest,
            rules: Cell::new(Some(rules)),
        }
    }
}

impl<R: Iterator<Item = RuleStats>> Serialize for Streamed<R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Stats {
            instance,
            host,
            version,
            fleet,
            uptime_seconds,
            rules: _,
            workers,
            egress,
            xdp,
            demand,
            selection,
        } = &self.rest;
        let mut stats = serializer.serialize_struct("Stats", 11)?;
        stats.serialize_field("instance", instance)?;
        stats.serialize_field("host", host)?;
        stats.serialize_field("version", version)?;
        match fleet {
            Some(fleet) => stats.serialize_field("fleet", fleet)?,
            None => stats.skip_field("fleet")?,
        }
        stats.serialize_field("uptime_seconds", uptime_seconds)?;
        stats.serialize_field("rules", &Consumed(&self.rules))?;
        stats.serialize_field("workers", workers)?;
        stats.serialize_field("egress", egress)?;
        if xdp.is_empty() {
            stats.skip_field("xdp")?
        } else {
            stats.serialize_field("xdp", xdp)?
        }
        if demand.is_empty() {
            stats.skip_field("demand")?
        } else {
            stats.serialize_field("demand", demand)?
        }
        match selection {
            Some(selection) => stats.serialize_field("selection", selection)?,
            None => stats.skip_field("selection")?,
        }
        stats.end()
    }
}

/// A list that is consumed as it is written.
struct Consumed<'a, R>(&'a Cell<Option<R>>);

impl<R: Iterator<Item: Serialize>> Serialize for Consumed<'_, R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.take().into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streamed_statistics_equal_those_written_at_once() {
        let rule = r#"{"name":"a","state":"up","path":"kernel","path_reason":"","inputs":[],
            "received":{"packets":1,"bytes":2},"dropped":{},"outputs":[]}"#;
        for (fleet, demand) in [
            ("", ""),
            (
                r#""fleet":"plant","#,
                r#","demand":[{"interface":"eth1","protocol":"igmp","is_querier":true,
                  "groups":1,"hosts":2,"reports":3,"leaves":4,"queries":5,"refused":6,"malformed":7}]"#,
            ),
            (
                "",
                r#","selection":{"offset":1,"count":2,"matching":3,"total":4,"states":{"up":4},
                  "received":{"packets":1,"bytes":2},"dropped":3,"rates":{"packets_1s":1.0,
                  "bits_1s":2.0,"packets_10s":3.0,"bits_10s":4.0}}"#,
            ),
        ] {
            let text = format!(
                r#"{{"instance":"x","version":"1",{fleet}"uptime_seconds":1.5,"rules":[{rule},{rule}],
                "workers":[],"egress":[]{demand}}}"#
            );
            let stats: Stats = serde_json::from_str(&text).unwrap();
            let streamed = Streamed::new(stats.clone(), stats.rules.clone().into_iter());
            let text = serde_json::to_string(&streamed).unwrap();
            assert_eq!(text, serde_json::to_string(&stats).unwrap());
        }
    }
}
