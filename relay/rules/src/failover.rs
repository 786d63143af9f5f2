//! Which of a rule's inputs is relayed: `failover = { silence = "200ms", revert = "30s" }`.
//!
//! Earlier inputs are preferred to later ones. Keys that a rule omits have defaults; the text of a
//! failover round-trips exactly.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::duration;
use crate::endpoint::Endpoint;
use crate::setting::{Form, OptionProblem, options, words};

/// Default of the silence after which the next leg takes over.
pub const DEFAULT_SILENCE: Duration = Duration::from_millis(500);
/// The most legs of a rule.
pub const LINES_MAX: usize = 8;
/// Shortest silence that can be distinguished from jitter.
const SILENCE_MIN: Duration = Duration::from_millis(1);
/// Longest silence.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Longest wait before reverting, a day.
const REVERT_MAX: Duration = Duration::from_secs(86_400);
/// What to write instead of an invalid wait.
const REVERT: &str = "give a time up to 24h that is not shorter than silence, or never";

/// When another leg takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Failover {
    /// Time without a packet of the active leg after which the next takes over.
    pub silence: Duration,
    /// How long a leg preferred to the active one must deliver to take over again; `None`: never.
    pub revert: Option<Duration>,
    /// What makes another leg take over, besides silence.
    pub on: On,
}

words! {
    /// What has the active leg left.
    pub enum On = Silence {
        /// Its silence.
        Silence = "silence",
        /// That, or that it is not as the rule's health asks, while another is.
        Degraded = "degraded",
    }
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
    /// Options that cannot be read.
    #[error(transparent)]
    Option(#[from] OptionProblem),
    /// No health to judge legs by.
    #[error(
        "failover: on=degraded goes by the rule's health, and it has none; give it one, such as \
         health = {{ rate_min = \"900pps\" }}, or leave on out"
    )]
    NoHealth,
    /// Nothing to fail over to.
    #[error("failover: has one input; give a second one that takes over, or leave failover out")]
    OneInput,
    /// More inputs than can be chosen between.
    #[error("failover: has {0} inputs; at most {LINES_MAX} can stand by for each other")]
    TooManyInputs(usize),
    /// An input that is more than one stream.
    #[error(
        "failover: input {0} may be several streams; one falls silent by itself, so give each a \
         rule of its own"
    )]
    SeveralStreams(String),
}

options! {
    /// When the next input takes over; every key may be left out, and a text alone is the silence.
    Failover, FailoverProblem, {
        name: "failover",
        document: "FailoverDocument",
        example: "silence=200ms",
        alone: "silence",
        subject: &[],
        expecting: "a silence such as \"500ms\" or { silence = \"500ms\", revert = \"30s\" }",
    }
    /// Time without a packet of the active input after which the next takes over.
    optional silence: Duration = silence, form: Form::time(SILENCE_MIN, SILENCE_MAX), default: "500ms",
        remedy: "give a time from 1ms to 1m, such as 200ms or 2s";
    /// How long an input that stands before the active one must deliver to take over again, as in
    /// `30s`; not shorter than `silence`.
    optional revert: Option<Duration> = revert, form: Form::Time {
        least: SILENCE_MIN,
        most: REVERT_MAX,
        or: &["never"],
    }, default: "never", remedy: REVERT;
    /// What has the active input left: its silence, or that it loses packets or has a rate outside the
    /// rule's `health`, too, while another has not.
    optional on: On = on, default: "silence",
        remedy: "give silence, or degraded (what health finds, too)";

    impl {
        fn check(self) -> Result<Self, FailoverProblem> {
            match self.revert.filter(|revert| *revert < self.silence) {
                None => Ok(self),
                Some(short) => {
                    let text = duration::text(short);
                    Err(OptionProblem::value(Self::GROUP, "revert", &text, REVERT).into())
                }
            }
        }

        fn alone(text: &str) -> Option<&'static str> {
            duration::parse(text).map(|_| "silence")
        }
    }
}

impl Failover {
    /// What prevents it from choosing between `inputs`.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::setting::{Options, parse, split};

    fn read(text: &str) -> Result<Failover, FailoverProblem> {
        parse(split::<Failover>(text)?)
    }

    #[test]
    fn reads_every_key() {
        let failover = read("silence=200ms,revert=30s").unwrap();
        assert_eq!(failover.silence, Duration::from_millis(200));
        assert_eq!(failover.revert, Some(Duration::from_secs(30)));
        assert_eq!(read("200ms").unwrap().silence, failover.silence);
        assert_eq!(read("revert=never").unwrap(), Failover::default());
        assert_eq!(parse::<Failover>([]).unwrap(), Failover::default());
        assert_eq!(read("on=degraded").unwrap().on, On::Degraded);
        assert_eq!(read("on=silence").unwrap(), Failover::default());
    }

    #[test]
    fn an_error_contains_what_to_write() {
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
            crate::document::check_in_a_rule("failover", text, expected);
        }
    }

    #[test]
    fn chooses_between_single_streams() {
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
            prop_assert_eq!(parse::<Failover>(pairs).unwrap(), failover);
        }
    }
}
