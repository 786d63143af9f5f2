//! One output as written: a text with options, or a table of the same.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::rule::{DESTINATION_PATTERN, OutputError, OutputOptions, OutputSpec};
use crate::setting::{Options, Schemas, Written, text_or_table};

/// One output: its text with options, `239.10.1.1%eth1:6001,ttl=16`, or a table of the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum OutputDocument {
    /// Destination and options in one text.
    Text(String),
    /// Destination and options apart; boxed, because most outputs are texts.
    Table(Box<OutputTable>),
}

impl PartialSchema for OutputDocument {
    fn schema() -> RefOr<Schema> {
        let description = "Destination and options: `239.10.1.1%eth1:6001,ttl=16`, or a table.";
        let option = OutputOptions::GROUP.pattern();
        let pattern = format!("({DESTINATION_PATTERN})(,({option}|all))*");
        text_or_table::<OutputOptions>(description, &pattern)
    }
}

impl ToSchema for OutputDocument {
    fn schemas(list: &mut Schemas) {
        list.push((OutputTable::name().into(), OutputTable::schema()));
        OutputTable::schemas(list);
    }
}

/// An output with its options as keys.
pub type OutputTable = Written<OutputOptions>;

impl OutputDocument {
    /// Parses the output.
    ///
    /// # Errors
    ///
    /// Names the output as text and the first thing that is wrong with it.
    pub fn to_output(&self) -> Result<OutputSpec, OutputError> {
        match self {
            Self::Text(text) => text.parse(),
            Self::Table(table) => OutputSpec::from_parts(&table.subject(), &table.texts()),
        }
    }
}

impl fmt::Display for OutputDocument {
    /// As one text with options, even if it cannot be parsed.
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
