//! Bytes of the payload that an option names, as text or as a table.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::{Form, Row, Scalar, schema};

/// Some bytes of the payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldDocument {
    /// Bytes of the payload before it.
    pub offset: Scalar,
    /// How many it is.
    pub bytes: Scalar,
}

impl FieldDocument {
    /// Its keys.
    pub const ROWS: &[Row] = &[
        Row {
            is_required: true,
            ..Row::new(
                "offset",
                &["Bytes of the payload before it."],
                Form::number(0, 1400),
            )
        },
        Row {
            is_required: true,
            ..Row::new("bytes", &["How many it is."], Form::number(1, 16))
        },
    ];
}

impl PartialSchema for FieldDocument {
    fn schema() -> RefOr<Schema> {
        schema(Self::ROWS, &["Some bytes of the payload."]).into()
    }
}

impl ToSchema for FieldDocument {}

impl fmt::Display for FieldDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.offset, self.bytes)
    }
}

impl FieldDocument {
    /// Parses the text `OFFSET:BYTES`, if it is one.
    pub(crate) fn of(value: &Scalar) -> Option<Self> {
        let text = value.to_string();
        let (offset, bytes) = text.split_once(':')?;
        let number = |text: &str| text.parse().map_or_else(|_| text.into(), Scalar::Integer);
        Some(Self {
            offset: number(offset),
            bytes: number(bytes),
        })
    }
}

impl<'de> Deserialize<'de> for FieldDocument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            offset: Scalar,
            bytes: Scalar,
        }

        struct Bytes;

        impl<'de> Visitor<'de> for Bytes {
            type Value = FieldDocument;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes of the payload: { offset = 2, bytes = 8 } or \"2:8\"")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<FieldDocument, E> {
                let wrong = || E::invalid_value(serde::de::Unexpected::Str(text), &self);
                FieldDocument::of(&text.into()).ok_or_else(wrong)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<FieldDocument, A::Error> {
                let Table { offset, bytes } = Table::deserialize(MapAccessDeserializer::new(map))?;
                Ok(FieldDocument { offset, bytes })
            }
        }

        deserializer.deserialize_any(Bytes)
    }
}
