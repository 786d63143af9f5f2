//! Which of a rule's inputs is relayed: `failover = { silence = "200ms", revert = "30s" }`.
//!
//! The first input goes before the second and so on. What a rule does not say has a default; the
//! text of a failover names it exactly.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::duration;
use crate::endpoint::Endpoint;

/// Silence after which the next line takes over, unless the rule says otherwise.
pub const DEFAULT_SILENCE: Duration = Duration::from_millis(500);
/// The most lines of a rule.
pub const LINES_MAX: usize = 8;
/// Shortest silence: what can be told from the scatter of arrivals.
const SILENCE_MIN: Duration = Duration::from_millis(1);
/// Longest silence.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Longest wait before the way back, a day.
const REVERT_MAX: Duration = Duration::from_secs(86_400);

/// Keys in the order they are printed.
pub const KEYS: [&str; 3] = ["silence", "revert", "on"];

/// When another line takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Failover {
    /// Time without a packet of the active line after which the next takes over.
    pub silence: Duration,
    /// How long a line before the active one must deliver to take over again; `None`: never.
    pub revert: Option<Duration>,
    /// What else than silence has the active line left.
    pub on: On,
}

/// What has the active line left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum On {
    /// Its silence.
    #[default]
    Silence,
    /// That, or that it is not as the rule's health asks, while another is.
    Degraded,
}

impl Default for Failover {
    fn default() -> Self {
        Self {
            silence: DEFAULT_SILENCE,
            revert: None,
            on: On::Silence,
        }
    }
}

/// What is wrong with a failover.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FailoverProblem {
    /// Not `KEY=VALUE`.
    #[error("failover: {0:?} is not KEY=VALUE, as in silence=200ms")]
    Form(String),
    /// A key that does not exist.
    #[error("failover: there is no key {0:?}; there are {keys}", keys = KEYS.join(", "))]
    Unknown(String),
    /// The same key twice.
    #[error("failover: {0} is given twice; leave one out")]
    Twice(String),
    /// Not a time.
    #[error("failover: silence={0}: give a time from 1ms to 1m, such as 200ms or 2s")]
    Silence(String),
    /// Not a time.
    #[error(
        "failover: revert={0}: give a time up to 24h that is not shorter than silence, or never"
    )]
    Revert(String),
    /// Not what a line can be left for.
    #[error("failover: on={0}: give silence, or degraded (what health finds, too)")]
    On(String),
    /// Nothing to judge lines by.
    #[error(
        "failover: on=degraded goes by the rule's health, and it has none; give it one, such as \
         health = {{ rate_min = \"900pps\" }}, or leave on out"
    )]
    NoHealth,
    /// Nothing to fail over to.
    #[error("failover: has one input; give a second one that takes over, or leave failover out")]
    OneInput,
    /// More inputs than can be decided between.
    #[error("failover: has {0} inputs; at most {LINES_MAX} can stand by for each other")]
    TooManyInputs(usize),
    /// An input that is more than one stream.
    #[error(
        "failover: input {0} may be several streams; one falls silent by itself, so give each a \
         rule of its own"
    )]
    SeveralStreams(String),
}

/// Reads keys and values.
///
/// # Errors
///
/// Names the first key that cannot be read and what to write.
pub fn parse<'a>(
    pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Failover, FailoverProblem> {
    let mut failover = Failover::default();
    let mut seen: Vec<&str> = Vec::new();
    let mut revert = "never";
    for (key, value) in pairs {
        if seen.contains(&key) {
            return Err(FailoverProblem::Twice(key.to_owned()));
        }
        seen.push(key);
        match key {
            "silence" => failover.silence = silence(value)?,
            "revert" => revert = value,
            "on" => failover.on = on(value)?,
            key => return Err(FailoverProblem::Unknown(key.to_owned())),
        }
    }
    if revert != "never" {
        let time = duration::parse(revert);
        let time = time.filter(|time| (failover.silence..=REVERT_MAX).contains(time));
        let wrong = || FailoverProblem::Revert(revert.to_owned());
        failover.revert = Some(time.ok_or_else(wrong)?);
    }
    Ok(failover)
}

/// Divides `silence=200ms,revert=30s` into keys and values; a time alone is the silence.
///
/// # Errors
///
/// Names the part that is not `KEY=VALUE`.
pub fn split(text: &str) -> Result<Vec<(&str, &str)>, FailoverProblem> {
    if duration::parse(text).is_some() {
        return Ok(vec![("silence", text)]);
    }
    let wrong = |part: &str| FailoverProblem::Form(part.to_owned());
    let pair = |part| match str::split_once(part, '=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key, value)),
        _ => Err(wrong(part)),
    };
    text.split(',').map(pair).collect()
}

impl Failover {
    /// The keys that are not the default, in their order.
    #[must_use]
    pub fn texts(&self) -> Vec<(&'static str, String)> {
        let silence = (self.silence != DEFAULT_SILENCE).then(|| duration::text(self.silence));
        let revert = self.revert.map(duration::text);
        let on = (self.on == On::Degraded).then(|| "degraded".to_owned());
        let texts = KEYS.into_iter().zip([silence, revert, on]);
        texts.filter_map(|(key, text)| Some((key, text?))).collect()
    }

    /// What keeps it from deciding between `inputs`.
    #[must_use]
    pub fn problem_with(&self, inputs: &[Endpoint]) -> Option<FailoverProblem> {
        match inputs.len() {
            0 => None,
            1 => Some(FailoverProblem::OneInput),
            2..=LINES_MAX => {
                let several = inputs.iter().find(|input| !input.is_one_stream());
                several.map(|input| FailoverProblem::SeveralStreams(input.to_string()))
            }
            more => Some(FailoverProblem::TooManyInputs(more)),
        }
    }
}

fn on(text: &str) -> Result<On, FailoverProblem> {
    match text {
        "silence" => Ok(On::Silence),
        "degraded" => Ok(On::Degraded),
        other => Err(FailoverProblem::On(other.to_owned())),
    }
}

fn silence(text: &str) -> Result<Duration, FailoverProblem> {
    let time = duration::parse(text);
    time.filter(|time| (SILENCE_MIN..=SILENCE_MAX).contains(time))
        .ok_or_else(|| FailoverProblem::Silence(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Failover, FailoverProblem> {
        parse(split(text)?)
    }

    #[test]
    fn reads_every_key() {
        let failover = read("silence=200ms,revert=30s").unwrap();
        assert_eq!(failover.silence, Duration::from_millis(200));
        assert_eq!(failover.revert, Some(Duration::from_secs(30)));
        assert_eq!(read("200ms").unwrap().silence, failover.silence);
        assert_eq!(read("revert=never").unwrap(), Failover::default());
        assert_eq!(parse([]).unwrap(), Failover::default());
        assert_eq!(read("on=degraded").unwrap().on, On::Degraded);
        assert_eq!(read("on=silence").unwrap(), Failover::default());
    }

    #[test]
    fn says_what_to_write() {
        for (text, expected) in [
            (
                "fast",
                "failover: \"fast\" is not KEY=VALUE, as in silence=200ms",
            ),
            (
                "silent=2s",
                "failover: there is no key \"silent\"; there are silence, revert, on",
            ),
            (
                "silence=2s,silence=3s",
                "failover: silence is given twice; leave one out",
            ),
            (
                "silence=2m",
                "failover: silence=2m: give a time from 1ms to 1m, such as 200ms or 2s",
            ),
            (
                "revert=100ms",
                "failover: revert=100ms: give a time up to 24h that is not shorter than silence, or never",
            ),
            (
                "on=loss",
                "failover: on=loss: give silence, or degraded (what health finds, too)",
            ),
        ] {
            assert_eq!(read(text).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn decides_between_single_streams() {
        let inputs = |texts: &[&str]| -> Vec<Endpoint> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let problem = |texts: &[&str]| Failover::default().problem_with(&inputs(texts));
        let (a, b) = ("239.1.1.1%eth0:5001", "239.2.1.1%eth1:5001");
        assert_eq!(problem(&[a, b]), None);
        assert_eq!(problem(&[a]), Some(FailoverProblem::OneInput));
        assert_eq!(problem(&[a; 9]), Some(FailoverProblem::TooManyInputs(9)));
        for several in [
            "239.1.1.0/24%eth0:5001",
            "239.1.1.1%eth*:5001",
            "239.1.1.1%eth0:5001-5002",
        ] {
            let expected = FailoverProblem::SeveralStreams(several.to_owned());
            assert_eq!(problem(&[a, several]), Some(expected));
        }
    }

    proptest! {
        #[test]
        fn survives_printing_and_parsing(failover in crate::samples::failover()) {
            let texts = failover.texts();
            let pairs = texts.iter().map(|(key, value)| (*key, value.as_str()));
            prop_assert_eq!(parse(pairs).unwrap(), failover);
        }
    }
}
