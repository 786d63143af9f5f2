//! Times that are counted in nanoseconds and shown in seconds.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::counter::{Number, Value};

/// A time; JSON and metrics have it as a number of seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seconds {
    /// Nanoseconds.
    pub ns: u64,
}

impl Seconds {
    /// So many nanoseconds.
    pub const fn from_ns(ns: u64) -> Self {
        Self { ns }
    }

    /// As a number.
    pub const fn as_f64(self) -> f64 {
        self.ns as f64 / 1e9
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.as_f64())
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        Ok(Self::from_ns((seconds * 1e9).round() as u64))
    }
}

impl Number for Seconds {
    fn number(&self) -> Option<Value> {
        Some(Value::Real(self.as_f64()))
    }
}
