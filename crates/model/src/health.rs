//! How the stream of a rule is watched: `health = { silence = "2s", rate_min = "900pps" }`.
//!
//! What a rule does not say has a default; the text of a health names it exactly.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::duration;
use crate::limit::{self, RateUnit};

/// Silence after which a stream is down, unless the rule says otherwise.
pub const DEFAULT_SILENCE: Duration = Duration::from_secs(2);
/// Ticks per second of RTP timestamps whose payload type does not tell: that of video.
pub const DEFAULT_CLOCK_HZ: u32 = 90_000;
/// Shortest silence: the daemon looks twice a second.
const SILENCE_MIN: Duration = Duration::from_secs(1);
/// Longest silence, a day.
const SILENCE_MAX: Duration = Duration::from_secs(86_400);

/// Keys in the order they are printed.
pub const KEYS: [&str; 5] = ["silence", "rate_min", "rate_max", "content", "clock"];

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// Longest time without a packet; `None`: the stream may be silent.
    pub silence: Option<Duration>,
    /// Least rate of a stream that is well.
    pub rate_min: Option<Rate>,
    /// Most.
    pub rate_max: Option<Rate>,
    /// What the paths look for in the payload.
    pub inspect: Inspect,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            silence: Some(DEFAULT_SILENCE),
            rate_min: None,
            rate_max: None,
            inspect: Inspect::default(),
        }
    }
}

/// A rate to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Packets, or bits of UDP payload.
    pub unit: RateUnit,
    /// How many a second.
    pub rate: u64,
}

/// What the paths look for in each packet's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Inspect {
    /// The payload's form.
    pub content: Content,
    /// Ticks per second of RTP timestamps whose payload type does not tell.
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

/// The form of a payload.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Content {
    /// Found out from each packet.
    #[default]
    Auto,
    /// RTP (RFC 3550), perhaps with MPEG-TS inside (RFC 2250).
    Rtp,
    /// MPEG-TS packets, bare in UDP.
    Ts,
    /// Nothing is looked for: only arrival times count.
    None,
}

impl Content {
    /// Every form.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Rtp, Self::Ts, Self::None];

    /// Its word in rules.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Rtp => "rtp",
            Self::Ts => "ts",
            Self::None => "none",
        }
    }
}

/// What is wrong with a health.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HealthProblem {
    /// Not `KEY=VALUE`.
    #[error("health: {0:?} is not KEY=VALUE, as in silence=2s")]
    Form(String),
    /// A key that does not exist.
    #[error("health: there is no key {0:?}; there are {keys}", keys = KEYS.join(", "))]
    Unknown(String),
    /// The same key twice.
    #[error("health: {0} is given twice; leave one out")]
    Twice(String),
    /// Not a time.
    #[error("health: silence={0}: give a time from 1s to 24h, such as 2s, 1500ms or 5m, or off")]
    Silence(String),
    /// Not a rate.
    #[error(
        "health: {key}={text}: give a rate such as 900pps or 8Mbit \
         (pps, kpps, Mpps, bit, kbit, Mbit, Gbit)"
    )]
    Rate {
        /// `rate_min` or `rate_max`.
        key: &'static str,
        /// What was written.
        text: String,
    },
    /// Bounds that nothing can keep.
    #[error("health: rate_min={0} is above rate_max={1}; no stream can keep both")]
    Bounds(String, String),
    /// Not a content.
    #[error("health: content={0}: give auto, rtp, ts or none")]
    Content(String),
    /// Not a clock rate.
    #[error("health: clock={0}: give the ticks per second of the RTP clock, 1000 to 10000000")]
    Clock(String),
}

/// Reads keys and values.
///
/// # Errors
///
/// Names the first key that cannot be read and what to write.
pub fn parse<'a>(
    pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Health, HealthProblem> {
    let mut health = Health::default();
    let mut seen: Vec<&str> = Vec::new();
    for (key, value) in pairs {
        let known = KEYS.into_iter().find(|known| *known == key);
        let key = known.ok_or_else(|| HealthProblem::Unknown(key.to_owned()))?;
        if seen.contains(&key) {
            return Err(HealthProblem::Twice(key.to_owned()));
        }
        seen.push(key);
        match key {
            "silence" => health.silence = silence(value)?,
            "rate_min" => health.rate_min = Some(rate(key, value)?),
            "rate_max" => health.rate_max = Some(rate(key, value)?),
            "content" => health.inspect.content = content(value)?,
            _ => health.inspect.clock_hz = clock(value)?,
        }
    }
    if let (Some(least), Some(most)) = (health.rate_min, health.rate_max)
        && least.unit == most.unit
        && least.rate > most.rate
    {
        return Err(HealthProblem::Bounds(rate_text(least), rate_text(most)));
    }
    Ok(health)
}

/// Divides `silence=2s,content=rtp` into keys and values.
///
/// # Errors
///
/// Names the part that is not `KEY=VALUE`.
pub fn split(text: &str) -> Result<Vec<(&str, &str)>, HealthProblem> {
    let parts = text.split(',');
    let pair = |part: &'_ str| -> Option<(usize, usize)> {
        let at = part.find('=')?;
        (at > 0 && at + 1 < part.len()).then_some((at, at + 1))
    };
    parts
        .map(|part| {
            let (end, start) = pair(part).ok_or_else(|| HealthProblem::Form(part.to_owned()))?;
            Ok((&part[..end], &part[start..]))
        })
        .collect()
}

impl Health {
    /// The keys that are not the default, in their order.
    #[must_use]
    pub fn texts(&self) -> Vec<(&'static str, String)> {
        let default = Self::default();
        let mut texts = Vec::new();
        if self.silence != default.silence {
            let text = self.silence.map_or("off".to_owned(), duration::text);
            texts.push(("silence", text));
        }
        texts.extend(self.rate_min.map(|rate| ("rate_min", rate_text(rate))));
        texts.extend(self.rate_max.map(|rate| ("rate_max", rate_text(rate))));
        let inspect = self.inspect;
        if inspect.content != default.inspect.content {
            texts.push(("content", inspect.content.as_str().to_owned()));
        }
        if inspect.clock_hz != default.inspect.clock_hz {
            texts.push(("clock", inspect.clock_hz.to_string()));
        }
        texts
    }
}

/// Writes a rate with its unit.
#[must_use]
pub fn rate_text(rate: Rate) -> String {
    match rate.unit {
        RateUnit::Packets => format!("{}pps", rate.rate),
        RateUnit::Bits => limit::bits_text(rate.rate),
    }
}

fn silence(text: &str) -> Result<Option<Duration>, HealthProblem> {
    if text == "off" {
        return Ok(None);
    }
    let time = duration::parse(text);
    time.filter(|time| (SILENCE_MIN..=SILENCE_MAX).contains(time))
        .map(Some)
        .ok_or_else(|| HealthProblem::Silence(text.to_owned()))
}

fn rate(key: &'static str, text: &str) -> Result<Rate, HealthProblem> {
    let read = limit::parse_rate(text).filter(|(_, rate)| *rate > 0);
    let wrong = || HealthProblem::Rate {
        key,
        text: text.to_owned(),
    };
    read.map(|(unit, rate)| Rate { unit, rate })
        .ok_or_else(wrong)
}

fn content(text: &str) -> Result<Content, HealthProblem> {
    let mut all = Content::ALL.into_iter();
    all.find(|content| content.as_str() == text)
        .ok_or_else(|| HealthProblem::Content(text.to_owned()))
}

fn clock(text: &str) -> Result<u32, HealthProblem> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let clock = digits.then(|| text.parse().ok()).flatten();
    clock
        .filter(|clock| (1_000..=10_000_000).contains(clock))
        .ok_or_else(|| HealthProblem::Clock(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Health, HealthProblem> {
        parse(split(text)?)
    }

    #[test]
    fn reads_every_key() {
        let health =
            read("silence=1500ms,rate_min=900pps,rate_max=8.5Mbit,content=rtp,clock=48000");
        let health = health.unwrap();
        assert_eq!(health.silence, Some(Duration::from_millis(1500)));
        assert_eq!(health.rate_min.unwrap().rate, 900);
        assert_eq!(health.rate_max.unwrap().rate, 8_500_000);
        assert_eq!(health.inspect.content, Content::Rtp);
        assert_eq!(health.inspect.clock_hz, 48_000);
        assert_eq!(read("silence=off").unwrap().silence, None);
        assert_eq!(parse([]).unwrap(), Health::default());
    }

    #[test]
    fn says_what_to_write() {
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
                "health: silence=100ms: give a time from 1s to 24h, such as 2s, 1500ms or 5m, or off",
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
            prop_assert_eq!(parse(pairs).unwrap(), health);
        }
    }
}
