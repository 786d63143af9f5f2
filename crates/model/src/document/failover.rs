//! Which of a rule's inputs is relayed, as written: `failover = "500ms"`, or a table.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Scalar;
use super::scalar::{given, written};
use crate::failover::{self, Failover, FailoverProblem};

/// When the next input takes over; every key may be left out, and a text alone is the silence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct FailoverDocument {
    /// Time without a packet of the active input after which the next takes over, from `1ms` to `1m`;
    /// `500ms` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silence: Option<Scalar>,
    /// How long an input that stands before the active one must deliver to take over again, as in
    /// `30s`; `never` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revert: Option<Scalar>,
    /// What has the active input left: `silence`, the default, or `degraded`: that it loses packets or
    /// has a rate outside the rule's `health`, too, while another has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<Scalar>,
}

impl FailoverDocument {
    /// Reads it.
    ///
    /// # Errors
    ///
    /// Names the first key that cannot be read and what to write.
    pub fn to_failover(&self) -> Result<Failover, FailoverProblem> {
        let pairs = self.pairs();
        failover::parse(pairs.iter().map(|(key, value)| (*key, value.as_str())))
    }

    /// Takes what the command line writes: `silence=200ms,revert=30s`, or `200ms`.
    ///
    /// # Errors
    ///
    /// As [`FailoverDocument::to_failover`].
    pub fn from_text(text: &str) -> Result<Self, FailoverProblem> {
        Ok(Self::from(&failover::parse(failover::split(text)?)?))
    }

    fn pairs(&self) -> Vec<(&'static str, String)> {
        given(failover::KEYS, [&self.silence, &self.revert, &self.on])
    }
}

impl fmt::Display for FailoverDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&written(&self.pairs()))
    }
}

impl From<&Failover> for FailoverDocument {
    fn from(failover: &Failover) -> Self {
        let mut document = Self::default();
        for (key, text) in failover.texts() {
            let value = match key {
                "silence" => &mut document.silence,
                "revert" => &mut document.revert,
                _ => &mut document.on,
            };
            *value = Some(Scalar::Text(text));
        }
        document
    }
}

// By hand, because serde's untagged enums lose the reason: "data did not match any variant".
impl<'de> Deserialize<'de> for FailoverDocument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            silence: Option<Scalar>,
            revert: Option<Scalar>,
            on: Option<Scalar>,
        }

        struct Document;

        impl<'de> Visitor<'de> for Document {
            type Value = FailoverDocument;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a silence such as \"500ms\" or { silence = \"500ms\", revert = \"30s\" }",
                )
            }

            fn visit_str<E>(self, text: &str) -> Result<FailoverDocument, E> {
                Ok(FailoverDocument {
                    silence: Some(text.into()),
                    ..FailoverDocument::default()
                })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<FailoverDocument, A::Error> {
                let table = Table::deserialize(MapAccessDeserializer::new(map))?;
                let Table {
                    silence,
                    revert,
                    on,
                } = table;
                Ok(FailoverDocument {
                    silence,
                    revert,
                    on,
                })
            }
        }

        deserializer.deserialize_any(Document)
    }
}
