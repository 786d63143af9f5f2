//! The full definition of each number of the replies: its metric, its help, its text and its field. The rows are
//! beside the structs that they read; metrics, tables, `top` and the page are made from them, so none of these
//! defines a number of its own.

use std::fmt;

/// A number of a `T`.
#[derive(Debug)]
pub struct Counter<T> {
    /// Name of the metric, with kind and unit, as Prometheus recommends.
    pub metric: &'static str,
    /// What it is, for readers of the metrics.
    pub help: &'static str,
    /// Its form in texts for people, with `{}` for the number and `{s}` for a plural ending; none where texts
    /// have their own form, or omit it.
    pub text: Option<&'static str>,
    /// Its path in the JSON of a `T`, names separated by dots.
    pub json: &'static str,
    /// Reads it; `None` where there is none.
    pub value: fn(&T) -> Option<Value>,
}

/// The kind of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Packets, bytes, times, and 1 for yes.
    Count,
    /// A time.
    Seconds,
    /// A time since something happened, in seconds; the metric is the moment, in seconds since the
    /// epoch.
    Ago,
}

/// The number itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// Counted.
    Whole(u64),
    /// Measured.
    Real(f64),
}

impl<T> Counter<T> {
    /// Its unit.
    pub fn unit(&self) -> Unit {
        match self.metric {
            name if name.ends_with("_timestamp_seconds") => Unit::Ago,
            name if name.ends_with("_seconds") => Unit::Seconds,
            _ => Unit::Count,
        }
    }
}

/// The kind that a metric's name implies.
pub fn kind(metric: &str) -> &'static str {
    if metric.ends_with("_total") {
        "counter"
    } else {
        "gauge"
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(count) => count.fmt(f),
            Self::Real(measure) => measure.fmt(f),
        }
    }
}

/// Makes a [`Value`] of a field.
pub trait Number {
    /// The number, if there is one.
    fn number(&self) -> Option<Value>;
}

impl Number for u64 {
    fn number(&self) -> Option<Value> {
        Some(Value::Whole(*self))
    }
}

impl Number for bool {
    fn number(&self) -> Option<Value> {
        Some(Value::Whole((*self).into()))
    }
}

impl Number for f64 {
    fn number(&self) -> Option<Value> {
        Some(Value::Real(*self))
    }
}

impl Number for Option<u64> {
    fn number(&self) -> Option<Value> {
        self.map(Value::Whole)
    }
}

impl Number for Option<bool> {
    fn number(&self) -> Option<Value> {
        self.and_then(|yes| yes.number())
    }
}

/// A reason counts as 1.
impl Number for Option<String> {
    fn number(&self) -> Option<Value> {
        self.as_ref().map(|_| Value::Whole(1))
    }
}

impl Number for Option<f64> {
    fn number(&self) -> Option<Value> {
        self.map(Value::Real)
    }
}

/// Declares the numbers of a struct: field, metric, help and, if any, its form in texts.
#[macro_export]
macro_rules! counters {
    ($of:ty {
        $($first:ident $(. $field:ident)*: $metric:literal, $help:literal $(, $text:literal)?;)*
    }) => {
        impl $of {
            /// Its numbers, in the order of the metrics.
            pub const COUNTERS: &[$crate::counter::Counter<Self>] = &[$(
                $crate::counter::Counter {
                    metric: $metric,
                    help: $help,
                    text: $crate::counters!(@text $($text)?),
                    json: concat!(stringify!($first) $(, ".", stringify!($field))*),
                    value: |of| $crate::counter::Number::number(&of.$first $(.$field)*),
                },
            )*];
        }
    };
    (@text) => { None };
    (@text $text:literal) => { Some($text) };
}
