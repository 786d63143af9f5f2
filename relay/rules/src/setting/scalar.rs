//! Values of options, in whichever type it is natural to write them, and the keys that take them.

use std::fmt;

use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Refusal, Row};

/// An option's value, in whichever type it is natural to write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Scalar {
    /// `true` is `yes`, `false` is `no`.
    Boolean(bool),
    /// A number.
    Integer(i64),
    /// Anything else.
    Text(String),
}

impl From<&str> for Scalar {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean(true) => f.write_str("yes"),
            Self::Boolean(false) => f.write_str("no"),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl Scalar {
    /// Deserialises the value of a row's key; errors use the row's wording.
    pub(super) fn of<'de, D: Deserializer<'de>>(row: &Row, from: D) -> Result<Self, D::Error> {
        let why = row.why(Refusal::Form);
        from.deserialize_any(Value(why.strip_prefix("give ").unwrap_or(&why)))
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Value("a text, a whole number, true or false"))
    }
}

/// Deserialises a scalar where this is expected.
struct Value<'a>(&'a str);

impl Visitor<'_> for Value<'_> {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
        Ok(Scalar::Boolean(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
        Ok(Scalar::Integer(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
        // No option is that large; as a text it is refused with its key.
        Ok(i64::try_from(value).map_or_else(|_| Scalar::Text(value.to_string()), Scalar::Integer))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Scalar, E> {
        // JSON has one kind of number: 5.0 is as whole as 5.
        const LARGEST: f64 = (1_i64 << f64::MANTISSA_DIGITS) as f64;
        if value.fract() == 0.0 && value.abs() <= LARGEST {
            return Ok(Scalar::Integer(value as i64));
        }
        Err(E::invalid_value(serde::de::Unexpected::Float(value), &self))
    }

    fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(value.to_owned()))
    }
}
