//! One output as written: a text with options, or a table of the same.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Scalar;
use crate::rule::{OutputError, OutputSpec};

/// One output: its text with options, `239.10.1.1%eth1:6001,ttl=16`, or a table of the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum OutputDocument {
    /// Destination and options in one text.
    Text(String),
    /// Destination and options apart; apart in memory too, for most outputs are texts.
    Table(Box<OutputTable>),
}

/// An output with its options as keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputTable {
    /// Destination: `GROUP%IFACE:PORT` or `ADDRESS[%IFACE]:PORT`.
    pub to: String,
    /// `keep`, `dec` or 1 to 255.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Scalar>,
    /// `auto`, `keep` or an address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Scalar>,
    /// `keep`, 0 to 63 or a name such as `ef`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dscp: Option<Scalar>,
    /// `keep` or 1 to 65535.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sport: Option<Scalar>,
    /// `yes` (true) or `no` (false).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fragment: Option<Scalar>,
    /// Cap on what the output sends, as in `5000pps` or `20Mbit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Scalar>,
    /// Burst the cap allows: packets, or a size such as `1Mbit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<Scalar>,
    /// `igmp`: only the groups leave that hosts on the interface listen to, by IGMP or MLD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demand: Option<Scalar>,
    /// `yes` (true) to ask there who listens, where no other router does; with `demand`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub querier: Option<Scalar>,
}

impl OutputDocument {
    /// Reads the output.
    ///
    /// # Errors
    ///
    /// Names the output as text and the first thing that is wrong with it.
    pub fn to_output(&self) -> Result<OutputSpec, OutputError> {
        match self {
            Self::Text(text) => text.parse(),
            Self::Table(table) => table.to_output(),
        }
    }
}

impl OutputTable {
    fn to_output(&self) -> Result<OutputSpec, OutputError> {
        let options = [
            ("ttl", &self.ttl),
            ("source", &self.source),
            ("dscp", &self.dscp),
            ("sport", &self.sport),
            ("fragment", &self.fragment),
            ("limit", &self.limit),
            ("burst", &self.burst),
            ("demand", &self.demand),
            ("querier", &self.querier),
        ];
        let given: Vec<(&str, String)> = options
            .into_iter()
            .filter_map(|(key, value)| Some((key, value.as_ref()?.to_string())))
            .collect();
        OutputSpec::from_parts(&self.to, &given)
    }
}

impl fmt::Display for OutputDocument {
    /// As one text with options, also where it cannot be read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_output() {
            Ok(output) => output.fmt(f),
            Err(error) => f.write_str(&error.text),
        }
    }
}

impl From<&str> for OutputDocument {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

// By hand, because serde's untagged enums lose the reason: "data did not match any variant".
impl<'de> Deserialize<'de> for OutputDocument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Output;

        impl<'de> Visitor<'de> for Output {
            type Value = OutputDocument;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an output: \"GROUP%IFACE:PORT\" or { to = \"GROUP%IFACE:PORT\", … }")
            }

            fn visit_str<E>(self, text: &str) -> Result<OutputDocument, E> {
                Ok(OutputDocument::Text(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<OutputDocument, A::Error> {
                let table = OutputTable::deserialize(MapAccessDeserializer::new(map))?;
                Ok(OutputDocument::Table(Box::new(table)))
            }
        }

        deserializer.deserialize_any(Output)
    }
}
