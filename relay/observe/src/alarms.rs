//! Alarms: conditions that are reported when they begin and when they end, judged from successive
//! readings. A row defines one alarm completely: its condition, messages, event kinds, metrics and
//! remedy. Silence is judged here too. An alarm that never began has no state. The state of a watched
//! stream, which depends on the last ten seconds, is in `stats::stream`.

mod bounds;
mod drops;
mod legs;
pub(crate) mod pauses;
mod quality;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use rules::printable::count;

pub(crate) use bounds::{beyond, unfit};
pub(crate) use drops::{DropChange, Losses, lost, starved_because};
pub(crate) use legs::Legs;
pub(crate) use pauses::{Pause, Pauses};

const SECOND_NS: u64 = 1_000_000_000;
/// More than one loss in this many is too many.
const LOSING: u64 = 1_000;
/// A counter that has not grown for this long has stopped.
const QUIET_NS: u64 = 10 * SECOND_NS;

/// When an alarm begins and when it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alarm {
    /// It begins above this level.
    pub(crate) begins: u64,
    /// It may end at or below this level.
    pub(crate) ends: u64,
    /// How long the level must stay at or below that before it ends.
    pub(crate) holds_ns: u64,
}

impl Alarm {
    /// Active while a level is above this.
    pub(crate) const fn above(level: u64) -> Self {
        Self {
            begins: level,
            ends: level,
            holds_ns: 0,
        }
    }

    /// Stays active for this long afterwards.
    pub(crate) const fn held(self, holds_ns: u64) -> Self {
        Self { holds_ns, ..self }
    }

    /// Active while something grows; the level is its growth.
    pub(crate) const fn growth() -> Self {
        Self::above(0).held(QUIET_NS)
    }
}

/// The definition of an alarm that is judged from readings of type `R`.
#[derive(Debug)]
pub(crate) struct Row<R> {
    /// Its names in the documents' table of faults, which may have several.
    #[cfg_attr(not(test), expect(dead_code, reason = "the table is held against it"))]
    pub(crate) faults: &'static [&'static str],
    /// The metrics that show it.
    #[cfg_attr(not(test), expect(dead_code, reason = "the table is held against it"))]
    pub(crate) metrics: &'static [&'static str],
    /// Kind of the event when it begins.
    pub(crate) kind: &'static str,
    /// The level, and the thresholds that make it an alarm.
    pub(crate) condition: fn(&R) -> (u64, Alarm),
    /// The message when it begins, and what to do about it.
    pub(crate) begins: fn(&R) -> String,
    pub(crate) remedy: &'static str,
    /// Event kind and message when it ends; `None` if its end is not reported.
    pub(crate) ends: Option<(&'static str, Words<R>)>,
    /// The text for it while it is active; `None` if it is not shown then.
    pub(crate) stands: Option<Words<R>>,
}

/// The text for an alarm that is or was active.
type Words<R> = fn(&R, &Standing) -> String;

/// Kind and message of an event.
pub(crate) type Report = (&'static str, String);

impl<R> Row<R> {
    /// The report of an alarm that begins or ends, if there is one.
    pub(crate) fn report(&self, reading: &R, edge: &Edge) -> Option<Report> {
        match edge {
            Edge::Begins => Some((self.kind, (self.begins)(reading) + self.remedy)),
            Edge::Ends(standing) => self
                .ends
                .map(|(kind, words)| (kind, words(reading, standing))),
        }
    }
}

/// The beginning or end of an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edge {
    Begins,
    Ends(Standing),
}

/// An alarm that is or was active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    since_ns: u64,
    /// When it was last above the level that ends it.
    last_ns: u64,
    over_ns: u64,
    /// The sum of all levels: the total, if the level is a count.
    pub(crate) sum: u64,
}

impl Standing {
    /// The total and the time it took, as the end of a message.
    pub(crate) fn total(&self) -> String {
        let (sum, seconds) = (self.sum, (self.last_ns - self.since_ns) as f64 / 1e9);
        let were = if sum == 1 { "was" } else { "were" };
        format!("{} {were}, over {seconds:.1} s", count(sum))
    }
}

/// The active alarms, by their subject.
#[derive(Clone, Debug)]
pub(crate) struct Alarms<K>(BTreeMap<K, Standing>);

impl<K: Ord + Copy> Alarms<K> {
    /// Records levels; returns the alarms that begin or end.
    pub(crate) fn sample(
        &mut self,
        now_ns: u64,
        levels: impl IntoIterator<Item = (K, (u64, Alarm))>,
    ) -> Vec<(K, Edge)> {
        let mut edges = Vec::new();
        for (which, (level, alarm)) in levels {
            let over_ns = now_ns + alarm.holds_ns;
            match self.0.entry(which) {
                Entry::Vacant(entry) if level > alarm.begins => {
                    entry.insert(Standing {
                        since_ns: now_ns,
                        last_ns: now_ns,
                        over_ns,
                        sum: level,
                    });
                    edges.push((which, Edge::Begins));
                }
                Entry::Occupied(mut entry) if level > alarm.ends => {
                    let standing = entry.get_mut();
                    standing.last_ns = now_ns;
                    standing.over_ns = over_ns;
                    standing.sum = standing.sum.saturating_add(level);
                }
                Entry::Vacant(_) | Entry::Occupied(_) => {}
            }
        }
        self.0.retain(|which, standing| {
            let is_active = standing.last_ns == now_ns || standing.over_ns > now_ns;
            if !is_active {
                edges.push((*which, Edge::Ends(*standing)));
            }
            is_active
        });
        edges
    }

    /// Whether any is active.
    pub(crate) fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// The active ones, in their order.
    pub(crate) fn standing(&self) -> impl Iterator<Item = (K, &Standing)> {
        self.0.iter().map(|(which, standing)| (*which, standing))
    }
}

/// How long nothing has arrived, if that is longer than `longest_ns`: the one definition of silence.
pub fn silence(now_ns: u64, last_ns: u64, longest_ns: u64) -> Option<u64> {
    Some(now_ns.saturating_sub(last_ns)).filter(|silent_ns| *silent_ns > longest_ns)
}

pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Whether `lost` of `of` are too many.
const fn loses(lost: u64, of: u64) -> bool {
    lost.saturating_mul(LOSING) > of
}

/// By how much a counter grew; one that is less than before has restarted from zero.
fn grown(now: u64, before: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

impl<K> Default for Alarms<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::kind::{STREAM_DEGRADED, STREAM_DOWN};

    const DOCUMENT: &str = include_str!("../../../docs/trouble.md");
    const STREAM: &[&str] = &["a watched stream stops, loses, changes"];

    /// The cells of each row of the table of faults.
    fn faults() -> Vec<Vec<&'static str>> {
        let (_, table) = DOCUMENT.split_once("## Faults, and who tells").unwrap();
        let lines = table.lines().skip_while(|line| !line.starts_with("|---"));
        let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
        rows.map(|line| line.split('|').map(str::trim).skip(1).collect())
            .collect()
    }

    /// Faults, event kind and metrics of a row.
    type Summary = (
        &'static [&'static str],
        &'static str,
        &'static [&'static str],
    );

    const fn summary<R>(row: &Row<R>) -> Summary {
        (row.faults, row.kind, row.metrics)
    }

    fn quotes(cell: &str, name: &str) -> bool {
        cell.contains(&format!("`{name}`"))
    }

    /// The summary of each alarm.
    fn all() -> Vec<Summary> {
        // The state of a watched stream has two kinds.
        let stream = |kind| (STREAM, kind, &["mcr_stream_state"][..]);
        let mut rows: Vec<Summary> = legs::ROWS.iter().map(summary).collect();
        rows.extend(drops::ROWS.map(summary));
        rows.push(summary(&crate::stats::EGRESS_DROPS));
        rows.push(summary(&crate::stats::ADDRESS_CONFLICT));
        rows.push(summary(&crate::stats::NOBODY));
        rows.extend([STREAM_DEGRADED, STREAM_DOWN].map(stream));
        rows
    }

    #[test]
    fn the_dashboard_shows_each_metric_of_an_alarm() {
        let dashboard = include_str!("../../../dist/grafana/mcr.json");
        for metric in all().iter().flat_map(|(_, _, metrics)| *metrics) {
            assert!(dashboard.contains(&format!("{metric}{{")), "{metric}");
        }
    }

    #[test]
    fn the_table_of_faults_has_each_row_with_its_event_and_its_metrics() {
        let table = faults();
        for (faults, kind, metrics) in all() {
            let rows: Vec<&Vec<&str>> = faults
                .iter()
                .map(|fault| table.iter().find(|row| row[0] == *fault).expect(fault))
                .collect();
            for row in &rows {
                assert!(quotes(row[2], kind), "{kind}: {row:?}");
            }
            for metric in metrics {
                let is_listed = rows.iter().any(|row| quotes(row[3], metric));
                assert!(is_listed, "{metric}: {rows:?}");
            }
        }
    }

    #[test]
    fn an_alarm_begins_above_one_level_ends_below_another_and_holds() {
        let alarm = Alarm {
            begins: 10,
            ends: 5,
            holds_ns: 3,
        };
        let mut alarms = Alarms::default();
        let mut at = |now_ns, level| {
            let edges = alarms.sample(now_ns, [((), (level, alarm))]);
            edges.first().map(|(_, edge)| *edge)
        };
        assert_eq!(at(1, 10), None);
        assert_eq!(at(2, 11), Some(Edge::Begins));
        assert_eq!(at(3, 6), None);
        assert_eq!(at(5, 5), None, "it holds");
        assert_eq!(at(5, 6), None, "and does so anew");
        let ended = Standing {
            since_ns: 2,
            last_ns: 5,
            over_ns: 8,
            sum: 23,
        };
        assert_eq!(at(8, 0), Some(Edge::Ends(ended)));
        assert_eq!(at(9, 6), None);
    }
}
