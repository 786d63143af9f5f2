//! Values of options, in whichever type it is natural to write them, and the keys that take them.

use std::fmt;

use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Form, Refusal, Row, TextForm};

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
        from.deserialize_any(Value {
            expected: why.strip_prefix("give ").unwrap_or(&why),
            takes_flags: !matches!(row.form, Form::Text(_)),
            takes_numbers: !matches!(row.form, Form::Text(TextForm { numbers: None, .. })),
        })
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Value {
            expected: "a text, a whole number, true or false",
            takes_flags: true,
            takes_numbers: true,
        })
    }
}

/// Deserialises a scalar.
struct Value<'a> {
    expected: &'a str,
    takes_flags: bool,
    takes_numbers: bool,
}

impl Visitor<'_> for Value<'_> {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Scalar, E> {
        if self.takes_flags {
            return Ok(Scalar::Boolean(value));
        }
        Err(E::invalid_type(Unexpected::Bool(value), &self))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Scalar, E> {
        if self.takes_numbers {
            return Ok(Scalar::Integer(value));
        }
        Err(E::invalid_type(Unexpected::Signed(value), &self))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Scalar, E> {
        // No option is that large; as a text it is refused with its key.
        i64::try_from(value).map_or_else(
            |_| Ok(Scalar::Text(value.to_string())),
            |value| self.visit_i64(value),
        )
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Scalar, E> {
        // JSON has one kind of number: 5.0 is as whole as 5.
        const LARGEST: f64 = (1_i64 << f64::MANTISSA_DIGITS) as f64;
        if value.fract() == 0.0 && value.abs() <= LARGEST {
            return self.visit_i64(value as i64);
        }
        Err(E::invalid_value(Unexpected::Float(value), &self))
    }

    fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(value.to_owned()))
    }
}
