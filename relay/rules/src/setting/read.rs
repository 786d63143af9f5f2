//! Reading tables by their rows.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, Visitor};

use super::{Row, Setting};
use crate::near;

/// Deserialises a key that is one of these rows'.
pub struct Key<'a>(pub &'a [&'static [Row]]);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = &'static Row;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<&'static Row, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = &'static Row;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<&'static Row, E> {
        let rows = || self.0.iter().copied().flatten();
        rows().find(|row| row.key == key).ok_or_else(|| {
            // As serde words it for the fields of a struct.
            let keys: Vec<String> = rows().map(|row| format!("`{}`", row.key)).collect();
            let expected = match keys.as_slice() {
                [one] => one.clone(),
                [one, other] => format!("{one} or {other}"),
                keys => format!("one of {}", keys.join(", ")),
            };
            let hint = near::hint(key, rows().map(|row| row.key));
            E::custom(format!("unknown field `{key}`, expected {expected}{hint}"))
        })
    }
}

/// Deserialises the value of a row's key and checks it; null counts as absent.
pub struct Keyed<T> {
    /// The row.
    pub row: &'static Row,
    /// A further check of the value.
    pub check: fn(T) -> Result<T, String>,
}

impl<'de, T: Setting> DeserializeSeed<'de> for Keyed<T> {
    type Value = Option<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<T>, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de, T: Setting> Visitor<'de> for Keyed<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_none<E>(self) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<T>, D::Error> {
        let read = T::read(self.row, deserializer)?;
        (self.check)(read).map(Some).map_err(D::Error::custom)
    }
}
