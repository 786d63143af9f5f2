//! One of several legs that carry the same packets, as `--line` writes it:
//! `239.1.1.1%eth0:5001,lose=5%,burst=10,delay=40ms,jitter=2ms,cut=3s-5s,duplicate=1%`.

use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use rules::duration;
use rules::endpoint::{Endpoint, EndpointError};
use thiserror::Error;

use crate::endpoint::Destination;

/// Keys in the order of the explanation.
const KEYS: [&str; 7] = [
    "lose",
    "burst",
    "delay",
    "jitter",
    "cut",
    "duplicate",
    "reorder",
];
/// Longest delay and jitter: waiting packets are held in memory.
const DELAY_MAX: Duration = Duration::from_secs(10);
/// The most packets lost in a row on purpose.
const BURST_MAX: u64 = 1_000_000;

/// A leg: where it leads, and what goes wrong on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// One group or address, and one port.
    pub destination: Destination,
    /// What goes wrong.
    pub faults: LineFaults,
}

/// What goes wrong on a leg on purpose.
#[derive(Clone, Debug, PartialEq)]
pub struct LineFaults {
    /// Percentage of packets left out.
    pub lose: f64,
    /// Packets left out in a row, at least 1.
    pub burst: u64,
    /// Time by which every packet is late.
    pub delay: Duration,
    /// Longest time beyond `delay`; packets stay in order.
    pub jitter: Duration,
    /// Periods after the start, at the leg's end, in which nothing passes.
    pub cuts: Vec<Range<Duration>>,
    /// Percentage of packets sent twice.
    pub duplicate: f64,
    /// Percentage of packets sent after their successor.
    pub reorder: f64,
}

impl Default for LineFaults {
    fn default() -> Self {
        Self {
            lose: 0.0,
            burst: 1,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            cuts: Vec::new(),
            duplicate: 0.0,
            reorder: 0.0,
        }
    }
}

/// What is wrong with a leg.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum LineError {
    /// Its destination.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A destination that cannot be sent to.
    #[error("{0}")]
    Destination(String),
    /// More than one group or port.
    #[error("{0}: a line is one group and port; give each of several a --line of its own")]
    Several(String),
    /// Not `KEY=VALUE`.
    #[error("line: {0:?} is not KEY=VALUE, as in lose=5%")]
    Form(String),
    /// A key that does not exist.
    #[error("line: there is no key {0:?}; there are {keys}", keys = KEYS.join(", "))]
    Unknown(String),
    /// A key given twice that may occur once.
    #[error("line: {0} is given twice; leave one out")]
    Twice(String),
    /// Not a percentage.
    #[error("line: {0}={1}: give a percentage from 0 to 100, such as 5%")]
    Percentage(&'static str, String),
    /// Not a number of packets.
    #[error("line: burst={0}: give the packets lost in a row, 1 to {BURST_MAX}")]
    Burst(String),
    /// Not a time.
    #[error("line: {0}={1}: give a time up to 10s, such as 40ms")]
    Time(&'static str, String),
    /// Not a range of times.
    #[error("line: cut={0}: give its beginning and its end, such as 3s-5s")]
    Cut(String),
}

impl FromStr for Line {
    type Err = LineError;

    fn from_str(text: &str) -> Result<Self, LineError> {
        let mut parts = text.split(',');
        let endpoint: Endpoint = parts.next().unwrap_or_default().parse()?;
        let resolved = Destination::resolve(&endpoint);
        let mut destinations =
            resolved.map_err(|error| LineError::Destination(error.to_string()))?;
        let (Some(destination), true) = (destinations.pop(), destinations.is_empty()) else {
            return Err(LineError::Several(endpoint.to_string()));
        };
        let mut faults = LineFaults::default();
        let mut seen: Vec<&str> = Vec::new();
        for part in parts {
            let pair = part.split_once('=');
            let (key, value) = pair.ok_or_else(|| LineError::Form(part.to_owned()))?;
            // A leg may be cut several times.
            if key != "cut" && seen.contains(&key) {
                return Err(LineError::Twice(key.to_owned()));
            }
            seen.push(key);
            faults.set(key, value)?;
        }
        Ok(Self {
            destination,
            faults,
        })
    }
}

impl LineFaults {
    fn set(&mut self, key: &str, value: &str) -> Result<(), LineError> {
        match key {
            "lose" => self.lose = percentage("lose", value)?,
            "burst" => self.burst = burst(value)?,
            "delay" => self.delay = time("delay", value)?,
            "jitter" => self.jitter = time("jitter", value)?,
            "cut" => self.cuts.push(cut(value)?),
            "duplicate" => self.duplicate = percentage("duplicate", value)?,
            "reorder" => self.reorder = percentage("reorder", value)?,
            other => return Err(LineError::Unknown(other.to_owned())),
        }
        Ok(())
    }
}

fn percentage(key: &'static str, value: &str) -> Result<f64, LineError> {
    let number = value.strip_suffix('%').unwrap_or(value).parse().ok();
    let percent = number.filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| LineError::Percentage(key, value.to_owned()))
}

fn burst(value: &str) -> Result<u64, LineError> {
    let packets = value.parse().ok();
    let in_range = packets.filter(|packets| (1..=BURST_MAX).contains(packets));
    in_range.ok_or_else(|| LineError::Burst(value.to_owned()))
}

fn time(key: &'static str, value: &str) -> Result<Duration, LineError> {
    let time = duration::parse(value).filter(|&time| time <= DELAY_MAX);
    time.ok_or_else(|| LineError::Time(key, value.to_owned()))
}

fn cut(value: &str) -> Result<Range<Duration>, LineError> {
    let ends = value.split_once('-').and_then(|(from, to)| {
        let range = duration::parse(from)?..duration::parse(to)?;
        (!range.is_empty()).then_some(range)
    });
    ends.ok_or_else(|| LineError::Cut(value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_documented() {
        let text = "239.1.1.1%eth0:5001,lose=5%,burst=10,delay=40ms,jitter=2ms,cut=3s-5s,\
                    cut=8s-9s,duplicate=1,reorder=0.5%";
        let line: Line = text.parse().unwrap();
        let seconds = Duration::from_secs;
        assert_eq!(line.destination.address.to_string(), "239.1.1.1:5001");
        assert_eq!(line.destination.interface.as_deref(), Some("eth0"));
        let expected = LineFaults {
            lose: 5.0,
            burst: 10,
            delay: Duration::from_millis(40),
            jitter: Duration::from_millis(2),
            cuts: vec![seconds(3)..seconds(5), seconds(8)..seconds(9)],
            duplicate: 1.0,
            reorder: 0.5,
        };
        assert_eq!(line.faults, expected);
        let plain: Line = "[ff3e::1%eth0]:5001".parse().unwrap();
        assert_eq!(plain.faults, LineFaults::default());
    }

    #[test]
    fn what_is_wrong_with_a_line_is_named() {
        for (options, word) in [
            ("lose=101", "percentage"),
            ("lose=nan", "percentage"),
            ("lose", "KEY=VALUE"),
            ("loss=5%", "there are lose, burst"),
            ("burst=0", "in a row"),
            ("delay=40", "40ms"),
            ("jitter=11s", "up to 10s"),
            ("cut=5s-3s", "beginning"),
            ("cut=3s", "3s-5s"),
            ("delay=1ms,delay=2ms", "twice"),
        ] {
            let parsed = format!("239.1.1.1%eth0:5001,{options}").parse::<Line>();
            let error = parsed.unwrap_err().to_string();
            assert!(error.contains(word), "{options}: {error}");
        }
        for endpoint in ["239.1.1.0/30%eth0:5001", "239.1.1.1%eth0:5001-5002"] {
            let error = endpoint.parse::<Line>().unwrap_err().to_string();
            assert!(error.contains("--line of its own"), "{error}");
        }
        let error = "10.0.0.1@239.1.1.1:5001".parse::<Line>().unwrap_err();
        assert!(error.to_string().contains("--source"), "{error}");
    }
}
