//! How the stream of a rule is monitored: `health = { silence = "2s", rate_min = "900pps" }`.
//!
//! Keys that a rule omits have defaults; the text of a health round-trips exactly.

use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};
use thiserror::Error;

use crate::limit::{self, RateUnit};
use crate::setting::{ANY, Form, OptionProblem, Refusal, Setting, TextForm, options, words};

/// Default of the silence after which a stream is down.
pub const DEFAULT_SILENCE: Duration = Duration::from_secs(2);
/// Default ticks per second of RTP timestamps whose payload type does not determine them: those of video.
pub const DEFAULT_CLOCK_HZ: u32 = 90_000;
/// Shortest silence: the daemon samples twice a second.
const SILENCE_MIN: Duration = Duration::from_secs(1);
/// Longest silence, a day.
const SILENCE_MAX: Duration = Duration::from_secs(86_400);

/// What is monitored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// Longest time without a packet.
    pub silence: Silence,
    /// Lowest rate of a healthy stream.
    pub rate_min: Option<Rate>,
    /// Highest.
    pub rate_max: Option<Rate>,
    /// What the paths inspect in the payload.
    pub inspect: Inspect,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            silence: Silence::After(DEFAULT_SILENCE),
            rate_min: None,
            rate_max: None,
            inspect: Inspect::default(),
        }
    }
}

/// How long a stream may pause before it is silent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Silence {
    /// Derived from its own pauses.
    #[default]
    Auto,
    /// This long.
    After(Duration),
    /// Forever.
    Off,
}

impl Setting for Silence {
    const FORM: Form = Form::Time {
        least: SILENCE_MIN,
        most: SILENCE_MAX,
        or: &["auto", "off"],
    };

    fn parse(text: &str, form: &Form) -> Result<Self, Refusal> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            _ => Duration::parse(text, form).map(Self::After),
        }
    }

    fn text(&self, form: &Form) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::After(time) => time.text(form),
            Self::Off => "off".to_owned(),
        }
    }
}

impl Serialize for Silence {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text(&Self::FORM))
    }
}

/// A rate for comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Packets, or bits of UDP payload.
    pub unit: RateUnit,
    /// How many per second.
    pub rate: u64,
}

/// What the paths inspect in each packet's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Inspect {
    /// The payload's form.
    pub content: Content,
    /// Ticks per second of RTP timestamps whose payload type does not determine them.
    pub clock_hz: u32,
}

impl Default for Inspect {
    fn default() -> Self {
        Self {
            content: Content::Auto,
            clock_hz: DEFAULT_CLOCK_HZ,
        }
    }
}

words! {
    /// The form of a payload.
    pub enum Content = Auto {
        /// Found out from each packet.
        Auto = "auto",
        /// RTP (RFC 3550), perhaps with MPEG-TS inside (RFC 2250).
        Rtp = "rtp",
        /// MPEG-TS packets, bare in UDP.
        Ts = "ts",
        /// Nothing is looked for: only arrival times count.
        None = "none",
    }
}

/// What is wrong with a health.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HealthProblem {
    /// Options that cannot be read.
    #[error(transparent)]
    Option(#[from] OptionProblem),
    /// Bounds that no rate satisfies.
    #[error("health: rate_min={0} is above rate_max={1}; no stream can keep both")]
    Bounds(String, String),
}

options! {
    /// What is watched of a rule's stream; every key may be left out.
    Health, HealthProblem, {
        name: "health",
        document: "HealthDocument",
        example: "silence=2s",
        alone: "",
        subject: &[],
        expecting: "struct HealthDocument",
    }
    /// Longest time without a packet. `auto`: five times its longest pause of late, 2s at least; `off`: the
    /// stream may be silent.
    optional silence: Silence = silence, default: "2s",
        remedy: "give a time from 1s to 24h, such as 2s, 1500ms or 5m, auto, or off";
    /// Least rate of a stream that is well, as in `900pps` or `8Mbit`.
    optional rate_min: Option<Rate> = rate_min;
    /// Most.
    optional rate_max: Option<Rate> = rate_max;
    /// Form of the payload.
    optional content: Content = inspect.content, default: "auto", remedy: "give auto, rtp, ts or none";
    /// Ticks per second of RTP timestamps whose payload type does not tell.
    optional clock: u32 = inspect.clock_hz, form: Form::number(1_000, 10_000_000), default: "90000",
        remedy: "give the ticks per second of the RTP clock, 1000 to 10000000";

    impl {
        fn check(self) -> Result<Self, HealthProblem> {
            match (self.rate_min, self.rate_max) {
                (Some(least), Some(most)) if least.unit == most.unit && least.rate > most.rate => {
                    Err(HealthProblem::Bounds(rate_text(least), rate_text(most)))
                }
                _ => Ok(self),
            }
        }
    }
}

const RATE: TextForm = TextForm {
    name: "RATE",
    fits: |text| limit::parse_rate(text).is_some_and(|(_, rate)| rate > 0),
    pattern: limit::RATE_PATTERN,
    remedy: "a rate such as 900pps or 8Mbit (pps, kpps, Mpps, bit, kbit, Mbit, Gbit)",
    ..ANY
};

impl Setting for Rate {
    const FORM: Form = Form::Text(&RATE);

    fn parse(text: &str, _: &Form) -> Result<Self, Refusal> {
        let (unit, rate) = limit::parse_rate(text).ok_or(Refusal::Form)?;
        Ok(Self { unit, rate })
    }

    fn text(&self, _: &Form) -> String {
        rate_text(*self)
    }
}

/// Writes a rate with its unit.
pub fn rate_text(rate: Rate) -> String {
    match rate.unit {
        RateUnit::Packets => format!("{}pps", rate.rate),
        RateUnit::Bits => limit::bits_text(rate.rate),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::setting::{Options, parse, split};

    fn read(text: &str) -> Result<Health, HealthProblem> {
        parse(split::<Health>(text)?)
    }

    #[test]
    fn reads_every_key() {
        let text = "silence=1500ms,rate_min=900pps,rate_max=8.5Mbit,content=rtp,clock=48000";
        let health = read(text).unwrap();
        let silence = Silence::After(Duration::from_millis(1500));
        assert_eq!(health.silence, silence);
        assert_eq!(health.rate_min.unwrap().rate, 900);
        assert_eq!(health.rate_max.unwrap().rate, 8_500_000);
        assert_eq!(health.inspect.content, Content::Rtp);
        assert_eq!(health.inspect.clock_hz, 48_000);
        assert_eq!(read("silence=off").unwrap().silence, Silence::Off);
        assert_eq!(read("silence=auto").unwrap().silence, Silence::Auto);
        assert_eq!(parse::<Health>([]).unwrap(), Health::default());
    }

    #[test]
    fn an_error_contains_what_to_write() {
        for (text, expected) in [
            (
                "silence",
                "health: \"silence\" is not KEY=VALUE, as in silence=2s",
            ),
            (
                "silent=2s",
                "health: there is no key \"silent\"; there are silence, rate_min, rate_max, content, clock",
            ),
            (
                "content=rtp,content=ts",
                "health: content is given twice; leave one out",
            ),
            (
                "silence=100ms",
                "health: silence=100ms: give a time from 1s to 24h, such as 2s, 1500ms or 5m, auto, or off",
            ),
            (
                "rate_min=fast",
                "health: rate_min=fast: give a rate such as 900pps or 8Mbit (pps, kpps, Mpps, bit, kbit, Mbit, Gbit)",
            ),
            (
                "rate_min=9Mbit,rate_max=8Mbit",
                "health: rate_min=9Mbit is above rate_max=8Mbit; no stream can keep both",
            ),
            (
                "content=h264",
                "health: content=h264: give auto, rtp, ts or none",
            ),
            (
                "clock=0",
                "health: clock=0: give the ticks per second of the RTP clock, 1000 to 10000000",
            ),
        ] {
            assert_eq!(read(text).unwrap_err().to_string(), expected);
            crate::document::check_in_a_rule("health", text, expected);
        }
        for text in [
            "silence=s",
            "silence=2",
            "silence=-2s",
            "silence=25h",
            "silence=+2s",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn survives_printing_and_parsing(health in crate::samples::health()) {
            let texts = health.texts();
            let pairs = texts.iter().map(|(key, value)| (*key, value.as_str()));
            prop_assert_eq!(parse::<Health>(pairs).unwrap(), health);
        }
    }
}
