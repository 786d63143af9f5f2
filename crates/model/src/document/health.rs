//! How a rule's stream is watched, as written: `health = { silence = "2s", content = "rtp" }`.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Scalar;
use super::scalar::{given, written};
use crate::health::{self, Health, HealthProblem};

/// What is watched of a rule's stream; every key may be left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HealthDocument {
    /// Longest time without a packet, as in `2s`; `off`: the stream may be silent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silence: Option<Scalar>,
    /// Least rate of a stream that is well, as in `900pps` or `8Mbit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_min: Option<Scalar>,
    /// Most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_max: Option<Scalar>,
    /// Form of the payload: `auto`, `rtp`, `ts` or `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Scalar>,
    /// Ticks per second of RTP timestamps whose payload type does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<Scalar>,
}

impl HealthDocument {
    /// Reads it.
    ///
    /// # Errors
    ///
    /// Names the first key that cannot be read and what to write.
    pub fn to_health(&self) -> Result<Health, HealthProblem> {
        let pairs = self.pairs();
        health::parse(pairs.iter().map(|(key, value)| (*key, value.as_str())))
    }

    /// Takes what the command line writes: `silence=2s,content=rtp`.
    ///
    /// # Errors
    ///
    /// As [`HealthDocument::to_health`].
    pub fn from_text(text: &str) -> Result<Self, HealthProblem> {
        Ok(Self::from(&health::parse(health::split(text)?)?))
    }

    /// The keys that are given, in their order.
    #[must_use]
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        let values = [
            &self.silence,
            &self.rate_min,
            &self.rate_max,
            &self.content,
            &self.clock,
        ];
        given(health::KEYS, values)
    }
}

impl fmt::Display for HealthDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&written(&self.pairs()))
    }
}

impl From<&Health> for HealthDocument {
    fn from(health: &Health) -> Self {
        let mut document = Self::default();
        for (key, text) in health.texts() {
            let value = match key {
                "silence" => &mut document.silence,
                "rate_min" => &mut document.rate_min,
                "rate_max" => &mut document.rate_max,
                "content" => &mut document.content,
                _ => &mut document.clock,
            };
            *value = Some(Scalar::Text(text));
        }
        document
    }
}
