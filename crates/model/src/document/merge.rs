//! How a rule's inputs become one stream, as written: `merge = "rtp"`, or a table.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Scalar;
use super::scalar::written;
use crate::merge::{self, By, ByteOrder, Field, Merge, MergeProblem};

/// What tells copies of a packet, in one word or with more keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum MergeDocument {
    /// `rtp`, `moldudp64`, `mdp3` or `payload`; `none`: nothing is merged.
    #[schema(example = "rtp")]
    Text(String),
    /// The same and more; apart in memory, for most are texts.
    Table(Box<MergeTable>),
}

/// How inputs that bring the same become one stream; all but `by` may be left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MergeTable {
    /// What tells copies: `rtp` (RTP's sequence number, of each SSRC by itself), `sequence` (a number
    /// at a place of the payload), `moldudp64`, `mdp3`, or `payload` (all of it, of two inputs).
    pub by: Scalar,
    /// How long one input may lie behind another, from `1ms` to `500ms`; `50ms` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Scalar>,
    /// How many packets of a stream are remembered: 2048, the default, or more up to 65536, rounded
    /// up to a power of two. What comes further behind is `late`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<Scalar>,
    /// Of `by = "sequence"`: bytes of the payload before the number, at most 1400. Required there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<Scalar>,
    /// Of `by = "sequence"`: bytes of the number, 2, 4 or 8. Required there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Scalar>,
    /// Of `by = "sequence"`: `big`, the default, or `little`: which byte of a number comes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Scalar>,
    /// Of `by = "sequence"`: what tells streams of numbers apart, 1 to 16 bytes of the payload, as in
    /// `{ offset = 2, bytes = 8 }`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<FieldDocument>,
    /// Of `by = "sequence"`: how many numbers a packet takes up, in 1, 2 or 4 bytes of the payload;
    /// a packet with 0 is a heartbeat, of which one passes. Without it each takes up one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<FieldDocument>,
}

/// Some bytes of the payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct FieldDocument {
    /// Bytes of the payload before it.
    pub offset: Scalar,
    /// How many it is.
    pub bytes: Scalar,
}

impl MergeDocument {
    /// Reads it; `none` is no merge.
    ///
    /// # Errors
    ///
    /// Names the first key that cannot be read and what to write.
    pub fn to_merge(&self) -> Result<Option<Merge>, MergeProblem> {
        match self {
            Self::Text(text) => merge::parse(merge::split(text)?),
            Self::Table(table) => {
                let pairs = table.pairs();
                merge::parse(pairs.iter().map(|(key, value)| (*key, value.as_str())))
            }
        }
    }

    /// Takes what the command line writes: `rtp`, or `by=sequence,offset=8,bytes=4,session=2:8`.
    ///
    /// # Errors
    ///
    /// As [`MergeDocument::to_merge`].
    pub fn from_text(text: &str) -> Result<Self, MergeProblem> {
        let merge = merge::parse(merge::split(text)?)?;
        let none = || Self::Text("none".to_owned());
        Ok(merge.as_ref().map_or_else(none, Self::from))
    }
}

impl MergeTable {
    fn pairs(&self) -> Vec<(&'static str, String)> {
        let text = |value: &Option<Scalar>| value.as_ref().map(ToString::to_string);
        let field = |field: &Option<FieldDocument>| field.as_ref().map(ToString::to_string);
        let values = [
            Some(self.by.to_string()),
            text(&self.window),
            text(&self.packets),
            text(&self.offset),
            text(&self.bytes),
            text(&self.order),
            field(&self.session),
            field(&self.count),
        ];
        let given = merge::KEYS.into_iter().zip(values);
        given.filter_map(|(key, text)| Some((key, text?))).collect()
    }
}

impl fmt::Display for MergeDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Table(table) => f.write_str(&written(&table.pairs())),
        }
    }
}

impl fmt::Display for FieldDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.offset, self.bytes)
    }
}

impl From<&Merge> for MergeDocument {
    fn from(merge: &Merge) -> Self {
        let word = merge.by.as_str();
        let default = Merge {
            by: merge.by,
            ..Merge::default()
        };
        let sequence = match &merge.by {
            By::Sequence(sequence) => Some(sequence),
            _ if *merge == default => return Self::Text(word.to_owned()),
            _ => None,
        };
        let number = sequence.map(|sequence| FieldDocument::from(sequence.number));
        let order = sequence.map(|sequence| sequence.order);
        let order = order.filter(|order| *order == ByteOrder::Little);
        let own = |key: &str| {
            let texts = merge.texts();
            let own = texts.into_iter().find(|(own, _)| *own == key);
            own.map(|(_, text)| text)
        };
        let is_own = |packets: &u32| *packets != default.packets;
        let packets = Some(merge.packets).filter(is_own);
        Self::Table(Box::new(MergeTable {
            by: word.into(),
            window: own("window").map(Scalar::Text),
            packets: packets.map(|packets| Scalar::Integer(packets.into())),
            offset: number.as_ref().map(|number| number.offset.clone()),
            bytes: number.map(|number| number.bytes),
            order: order.map(|_| "little".into()),
            session: sequence.and_then(|sequence| Some(sequence.session?.into())),
            count: sequence.and_then(|sequence| Some(sequence.count?.into())),
        }))
    }
}

impl From<Field> for FieldDocument {
    fn from(field: Field) -> Self {
        Self {
            offset: Scalar::Integer(field.offset.into()),
            bytes: Scalar::Integer(field.bytes.into()),
        }
    }
}

// By hand, because serde's untagged enums lose the reason: "data did not match any variant".
impl<'de> Deserialize<'de> for MergeDocument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Document;

        impl<'de> Visitor<'de> for Document {
            type Value = MergeDocument;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "what tells copies, such as \"rtp\", or { by = \"rtp\", window = \"50ms\" }",
                )
            }

            fn visit_str<E>(self, text: &str) -> Result<MergeDocument, E> {
                Ok(MergeDocument::Text(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<MergeDocument, A::Error> {
                let table = MergeTable::deserialize(MapAccessDeserializer::new(map))?;
                Ok(MergeDocument::Table(Box::new(table)))
            }
        }

        deserializer.deserialize_any(Document)
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
                let (offset, bytes) = text.split_once(':').ok_or_else(wrong)?;
                let number =
                    |text: &str| text.parse().map_or_else(|_| text.into(), Scalar::Integer);
                Ok(FieldDocument {
                    offset: number(offset),
                    bytes: number(bytes),
                })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<FieldDocument, A::Error> {
                let Table { offset, bytes } = Table::deserialize(MapAccessDeserializer::new(map))?;
                Ok(FieldDocument { offset, bytes })
            }
        }

        deserializer.deserialize_any(Bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn document(json: &str) -> Result<MergeDocument, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn a_table_says_what_the_command_line_does() {
        let table = r#"{"by": "sequence", "offset": 10, "bytes": 8, "session": {"offset": 0,
            "bytes": 10}, "count": "18:2", "window": "20ms", "packets": 3000}"#;
        let text = "by=sequence,window=20ms,packets=4096,offset=10,bytes=8,session=0:10,count=18:2";
        let read = document(table).unwrap().to_merge().unwrap().unwrap();
        assert_eq!(
            Ok(Some(read)),
            MergeDocument::from_text(text).unwrap().to_merge()
        );
        assert_eq!(MergeDocument::from(&read).to_string(), text);
        let json = serde_json::to_string(&MergeDocument::from(&read)).unwrap();
        assert_eq!(
            json,
            r#"{"by":"sequence","window":"20ms","packets":4096,"offset":10,"bytes":8,"session":{"offset":0,"bytes":10},"count":{"offset":18,"bytes":2}}"#
        );
    }

    #[test]
    fn a_word_alone_stays_one() {
        let read = document(r#"{"by": "mdp3"}"#)
            .unwrap()
            .to_merge()
            .unwrap()
            .unwrap();
        let json = serde_json::to_string(&MergeDocument::from(&read)).unwrap();
        assert_eq!(json, r#""mdp3""#);
        assert_eq!(document(r#""none""#).unwrap().to_merge(), Ok(None));
        assert_eq!(
            MergeDocument::from_text("none").unwrap().to_string(),
            "none"
        );
    }

    #[test]
    fn refuses_what_it_cannot_be_by_name() {
        for (json, expected) in [
            ("5", "expected what tells copies, such as \"rtp\""),
            (r#"{"window": "5ms"}"#, "missing field `by`"),
            (r#"{"by": "rtp", "widow": 5}"#, "unknown field `widow`"),
            (
                r#"{"by": "sequence", "session": 5}"#,
                "expected bytes of the payload: ",
            ),
            (
                r#"{"by": "sequence", "session": "5"}"#,
                "expected bytes of the payload: ",
            ),
            (
                r#"{"by": "sequence", "session": {"at": 5}}"#,
                "unknown field `at`",
            ),
        ] {
            let error = document(json).unwrap_err();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }

    proptest! {
        #[test]
        fn survives_both_ways_of_writing(merge in crate::samples::merge()) {
            let document = MergeDocument::from(&merge);
            let text = document.to_string();
            let again = MergeDocument::from_text(&text).unwrap().to_merge();
            prop_assert_eq!(again, Ok(Some(merge)));
            let json = serde_json::to_string(&document).unwrap();
            let again: MergeDocument = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(again.to_merge(), Ok(Some(merge)));
        }
    }
}
