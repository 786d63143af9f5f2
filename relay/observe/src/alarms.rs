//! Alarms: conditions that are reported when they begin and when they end, judged from successive
//! readings. A row is all there is to one alarm: its condition, its words, the kinds of its events, its
//! metrics and its remedy. Silence is judged here too. Nothing is remembered of what never began. The
//! state of a watched stream, which goes by the last ten seconds, is `stats::stream`'s.

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
/// What loses more than one of so many is not well.
const LOSING: u64 = 1_000;
/// What grew and has not for so long has stopped.
const QUIET_NS: u64 = 10 * SECOND_NS;

/// When an alarm begins and when it is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alarm {
    /// Above this level it begins.
    pub(crate) begins: u64,
    /// Up to this level it may end.
    pub(crate) ends: u64,
    /// For so long it must not have been above that.
    pub(crate) holds_ns: u64,
}

impl Alarm {
    /// Stands while a level is above this.
    pub(crate) const fn above(level: u64) -> Self {
        Self {
            begins: level,
            ends: level,
            holds_ns: 0,
        }
    }

    /// Stands for so long behind that, too.
    pub(crate) const fn held(self, holds_ns: u64) -> Self {
        Self { holds_ns, ..self }
    }

    /// Stands while something grows, of which the level is by how much it did.
    pub(crate) const fn growth() -> Self {
        Self::above(0).held(QUIET_NS)
    }
}

/// An alarm of which an `R` is read: all that is known of it.
#[derive(Debug)]
pub(crate) struct Row<R> {
    /// How the documents' table of faults calls it; it may be several there.
    #[cfg_attr(not(test), expect(dead_code, reason = "the table is held against it"))]
    pub(crate) faults: &'static [&'static str],
    /// The metrics that show it.
    #[cfg_attr(not(test), expect(dead_code, reason = "the table is held against it"))]
    pub(crate) metrics: &'static [&'static str],
    /// Kind of the event with which it begins.
    pub(crate) kind: &'static str,
    /// The level, and which ones make it an alarm.
    pub(crate) condition: fn(&R) -> (u64, Alarm),
    /// The words with which it begins, and what to do about it.
    pub(crate) begins: fn(&R) -> String,
    pub(crate) remedy: &'static str,
    /// Kind and words with which it ends; none where its end is not reported.
    pub(crate) ends: Option<(&'static str, Words<R>)>,
    /// Words for it while it stands; none where nothing shows it then.
    pub(crate) stands: Option<Words<R>>,
}

/// Words of an alarm that stands, or did.
type Words<R> = fn(&R, &Standing) -> String;

/// Kind and words of an event.
pub(crate) type Report = (&'static str, String);

impl<R> Row<R> {
    /// What is to be reported, if anything is.
    pub(crate) fn told(&self, read: &R, turn: &Turn) -> Option<Report> {
        match turn {
            Turn::Begins => Some((self.kind, (self.begins)(read) + self.remedy)),
            Turn::Ends(standing) => self.ends.map(|(kind, words)| (kind, words(read, standing))),
        }
    }
}

/// What became of an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Begins,
    Ends(Standing),
}

/// An alarm that stands, or did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    since_ns: u64,
    /// When it was last above what ends it.
    last_ns: u64,
    over_ns: u64,
    /// All levels together: where the level is how many were counted, all of them.
    pub(crate) sum: u64,
}

impl Standing {
    /// How many were counted, over how long, as the end of a text.
    pub(crate) fn total(&self) -> String {
        let (sum, seconds) = (self.sum, (self.last_ns - self.since_ns) as f64 / 1e9);
        let were = if sum == 1 { "was" } else { "were" };
        format!("{} {were}, over {seconds:.1} s", count(sum))
    }
}

/// The alarms that stand, by what they are of.
#[derive(Clone, Debug)]
pub(crate) struct Alarms<K>(BTreeMap<K, Standing>);

impl<K: Ord + Copy> Alarms<K> {
    /// Takes in levels; gives the alarms that begin and those that are over.
    pub(crate) fn sample(
        &mut self,
        now_ns: u64,
        levels: impl IntoIterator<Item = (K, (u64, Alarm))>,
    ) -> Vec<(K, Turn)> {
        let mut turns = Vec::new();
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
                    turns.push((which, Turn::Begins));
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
            let stands = standing.last_ns == now_ns || standing.over_ns > now_ns;
            if !stands {
                turns.push((*which, Turn::Ends(*standing)));
            }
            stands
        });
        turns
    }

    /// Whether any stands.
    pub(crate) fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Those that stand, in their order.
    pub(crate) fn standing(&self) -> impl Iterator<Item = (K, &Standing)> {
        self.0.iter().map(|(which, standing)| (*which, standing))
    }
}

/// For how long nothing has come, if that is longer than `longest_ns`: whatever is silent is so by this.
pub fn silence(now_ns: u64, last_ns: u64, longest_ns: u64) -> Option<u64> {
    Some(now_ns.saturating_sub(last_ns)).filter(|silent_ns| *silent_ns > longest_ns)
}

pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Whether so many lost of all are too many.
const fn loses(lost: u64, of: u64) -> bool {
    lost.saturating_mul(LOSING) > of
}

/// By how much a counter grew; one that counts less than before began anew.
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
        let lines = lines.skip(1).take_while(|line| line.starts_with('|'));
        let rows = lines.map(|line| line.split('|').map(str::trim).skip(1).collect());
        rows.collect()
    }

    type Said = (
        &'static [&'static str],
        &'static str,
        &'static [&'static str],
    );

    const fn said<R>(row: &Row<R>) -> Said {
        (row.faults, row.kind, row.metrics)
    }

    fn quotes(cell: &str, name: &str) -> bool {
        cell.contains(&format!("`{name}`"))
    }

    /// What is said of each alarm.
    fn all() -> Vec<Said> {
        let rows = legs::ROWS.iter().map(said);
        let rows = rows.chain(drops::ROWS.map(said));
        let rows = rows.chain([said(&crate::stats::EGRESS_DROPS)]);
        let rows = rows.chain([
            said(&crate::stats::ADDRESS_CONFLICT),
            said(&crate::stats::NOBODY),
        ]);
        // The state of a watched stream has two kinds.
        let stream = |kind| (STREAM, kind, &["mcr_stream_state"][..]);
        let rows = rows.chain([STREAM_DEGRADED, STREAM_DOWN].map(stream));
        rows.collect()
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
                let is_told = rows.iter().any(|row| quotes(row[3], metric));
                assert!(is_told, "{metric}: {rows:?}");
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
            let turns = alarms.sample(now_ns, [((), (level, alarm))]);
            turns.first().map(|(_, turn)| *turn)
        };
        assert_eq!(at(1, 10), None);
        assert_eq!(at(2, 11), Some(Turn::Begins));
        assert_eq!(at(3, 6), None);
        assert_eq!(at(5, 5), None, "it holds");
        assert_eq!(at(5, 6), None, "and does so anew");
        let ended = Standing {
            since_ns: 2,
            last_ns: 5,
            over_ns: 8,
            sum: 23,
        };
        assert_eq!(at(8, 0), Some(Turn::Ends(ended)));
        assert_eq!(at(9, 6), None);
    }
}
