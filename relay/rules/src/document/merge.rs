//! How a rule's inputs become one stream, as written: `merge = "rtp"` or a table.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::merge::{ByWord, Merge, MergeKeys, MergeProblem};
use crate::setting::{Options, Schemas, Setting, Written, parse, split, text_or_table};

/// How copies of a packet are recognised, in one word or with more keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum MergeDocument {
    /// `rtp`, `moldudp64`, `mdp3` or `payload`; `none`: nothing is merged.
    Text(String),
    /// The same and more; boxed, because most are texts.
    Table(Box<MergeTable>),
}

impl PartialSchema for MergeDocument {
    fn schema() -> RefOr<Schema> {
        let group = MergeKeys::GROUP;
        let (option, word) = (group.pattern(), ByWord::FORM.pattern());
        let pattern = format!("{word}|({option})(,({option}))*");
        text_or_table::<MergeKeys>(
            "What tells copies of a packet, in one word or with more keys.",
            &pattern,
        )
    }
}

impl ToSchema for MergeDocument {
    fn schemas(list: &mut Schemas) {
        list.push((MergeTable::name().into(), MergeTable::schema()));
        MergeTable::schemas(list);
    }
}

/// The same in a table.
pub type MergeTable = Written<MergeKeys>;

impl MergeDocument {
    /// Parses it; `none` is no merge.
    ///
    /// # Errors
    ///
    /// Names the first key that cannot be parsed and what to write.
    pub fn to_merge(&self) -> Result<Option<Merge>, MergeProblem> {
        match self {
            Self::Text(text) => parse::<MergeKeys>(split::<MergeKeys>(text)?)?.merge(),
            Self::Table(table) => table.read()?.merge(),
        }
    }

    /// Parses what the command line writes: `rtp`, or `by=sequence,offset=8,bytes=4,session=2:8`.
    ///
    /// # Errors
    ///
    /// As [`MergeDocument::to_merge`].
    pub fn from_text(text: &str) -> Result<Self, MergeProblem> {
        let merge = Self::Text(text.to_owned()).to_merge()?;
        let none = || Self::Text("none".to_owned());
        Ok(merge.as_ref().map_or_else(none, Self::from))
    }
}

impl fmt::Display for MergeDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Table(table) => table.fmt(f),
        }
    }
}

impl From<&Merge> for MergeDocument {
    fn from(merge: &Merge) -> Self {
        let keys = MergeKeys::from(merge);
        match keys.texts().as_slice() {
            [(_, word)] => Self::Text(word.clone()),
            _ => {
                let is_number =
                    |key: &str| matches!(key, "packets" | "streams" | "offset" | "bytes");
                Self::Table(Box::new(Written::new(&keys, is_number)))
            }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn document(json: &str) -> Result<MergeDocument, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn a_table_is_equal_to_the_text_of_the_command_line() {
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
    fn refuses_invalid_values_by_name() {
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
