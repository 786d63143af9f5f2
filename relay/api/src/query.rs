//! Which rules, and how many of them, a client requests. There may be 100,000, of which some hundred at most
//! are displayed at a time.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::str::FromStr;

use rules::named::named;
use rules::rule::is_label_key;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::reply::Condition;

/// The longest text of a filter, in bytes.
pub const FILTER_MAX: usize = 256;

/// The most labels of one request.
pub const LABELS_MAX: usize = 16;

named! {
    /// Order of rules; those that are equal in it keep the configuration's.
    #[derive(
        Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
    )]
    #[serde(rename_all = "lowercase")]
    pub enum Order {
        /// As the configuration has them.
        #[default]
        Configured = "configured",
        /// By name.
        Name = "name",
        /// By how they do, the worst first.
        State = "state",
        /// By packets received in the last second, the busiest first.
        Rate = "rate",
        /// By packets lost, most first.
        Drops = "drops",
    }
}

/// A label that a rule must have: `KEY=VALUE`, or `KEY` with any value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Label {
    /// Its key.
    pub key: String,
    /// Its value, if it matters.
    pub value: Option<String>,
}

/// The error for a text that is not a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is written KEY=VALUE, as in site=y, or KEY")]
pub struct NoLabel;

impl FromStr for Label {
    type Err = NoLabel;

    fn from_str(text: &str) -> Result<Self, NoLabel> {
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (text, None),
        };
        if !is_label_key(key) {
            return Err(NoLabel);
        }
        Ok(Self {
            key: key.to_owned(),
            value,
        })
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        match &self.value {
            Some(value) => write!(f, "={value}"),
            None => Ok(()),
        }
    }
}

impl Label {
    /// Returns whether it is among the labels of a rule.
    pub fn is_in(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        value.is_some_and(|value| self.value.as_ref().is_none_or(|wanted| wanted == value))
    }
}

/// Which rules' statistics are asked for, and in which order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct StatsQuery {
    /// Only rules of which the name, an endpoint, the path, the state or a label as `key=value`
    /// contains this, without regard to case.
    #[param(max_length = 256, required = false)]
    pub filter: String,
    /// Only rules with this label, `KEY=VALUE` or `KEY`; of several, at most 16, all must hold.
    #[param(value_type = Vec<String>, rename = "label", required = false, max_items = 16)]
    pub labels: Vec<Label>,
    /// Only rules that do so.
    #[param(nullable = false, inline)]
    pub state: Option<Condition>,
    /// In which order they are told; `configured` if it is left out.
    #[param(required = false, inline)]
    pub order: Order,
    /// Begins with the rule that so many stand before; 0 if it is left out.
    #[param(required = false, minimum = 0, maximum = 131_072)]
    pub offset: u64,
    /// Begins so that the rule of this name stands in the middle of `limit` rules, and where it is not
    /// among them with `offset`.
    #[param(nullable = false)]
    pub around: Option<String>,
    /// Tells so many rules at most; all if it is left out.
    #[param(nullable = false, minimum = 0, maximum = 131_072)]
    pub limit: Option<u64>,
    /// Names of rules that are told in any case, with commas between them, at most 100; behind the
    /// others where they are not among them.
    #[param(value_type = String, required = false)]
    pub rules: Vec<String>,
}

impl StatsQuery {
    /// The path of the request.
    pub fn path(&self) -> String {
        let mut query = QueryText::default();
        query.add("filter", &self.filter);
        query.add_labels(&self.labels);
        query.add("state", self.state.map_or("", Condition::as_str));
        query.add("order", self.order.as_str());
        query.add("around", self.around.as_deref().unwrap_or_default());
        query.add_part(self.offset, self.limit);
        query.add("rules", &self.rules.join(","));
        format!("/v1/stats?{}", query.0)
    }
}

/// Which rules are asked for, as configured and in that order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct RulesQuery {
    /// Only rules with this label, `KEY=VALUE` or `KEY`; of several, at most 16, all must hold.
    #[param(value_type = Vec<String>, rename = "label", required = false, max_items = 16)]
    pub labels: Vec<Label>,
    /// Begins with the rule that so many stand before; 0 if it is left out.
    #[param(required = false, minimum = 0, maximum = 131_072)]
    pub offset: u64,
    /// Tells so many rules at most; all if it is left out.
    #[param(nullable = false, minimum = 0, maximum = 131_072)]
    pub limit: Option<u64>,
}

impl RulesQuery {
    /// The path of the request.
    pub fn path(&self) -> String {
        let mut query = QueryText::default();
        query.add_labels(&self.labels);
        query.add_part(self.offset, self.limit);
        format!("/v1/rules?{}", query.0)
    }
}

/// What of a rule is captured.
#[derive(Clone, Debug, PartialEq, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct TapQuery {
    /// For so many seconds.
    #[serde(default = "some_seconds")]
    #[param(required = false, minimum = 0.001, maximum = 60, default = 5)]
    pub seconds: f64,
    /// So many packets at most.
    #[param(nullable = false)]
    pub count: Option<u64>,
    /// Bytes to keep of each packet.
    #[param(nullable = false, minimum = 1, maximum = 262_144)]
    pub snaplen: Option<u32>,
    /// Only this output, counted from 1.
    #[param(nullable = false, minimum = 1)]
    pub output: Option<usize>,
    /// Only packets that it takes, as `mcr tap` has it.
    #[serde(default)]
    #[param(required = false)]
    pub filter: String,
}

impl TapQuery {
    /// The path of the request for a rule.
    #[must_use]
    pub fn path(&self, rule: &str) -> String {
        let mut query = QueryText::default();
        let number = |number: Option<u64>| number.map_or_else(String::new, |n| n.to_string());
        query.add("seconds", &self.seconds.to_string());
        query.add("count", &number(self.count));
        query.add("snaplen", &number(self.snaplen.map(u64::from)));
        query.add("output", &number(self.output.map(|output| output as u64)));
        query.add("filter", &self.filter);
        format!("/v1/rules/{}/tap?{}", escaped(rule), query.0)
    }
}

/// Where it is listened to what arrives.
#[derive(Clone, Debug, PartialEq, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct DiscoverQuery {
    /// For so many seconds.
    #[serde(default = "some_seconds")]
    #[param(required = false, minimum = 0.001, maximum = 60, default = 5)]
    pub seconds: f64,
    /// Names of interfaces with commas between them, `*` and `?` stand for any text and character; those
    /// that are up if it is left out.
    #[serde(default)]
    #[param(required = false)]
    pub interfaces: String,
    /// Groups to ask for meanwhile, with commas between them.
    #[serde(default)]
    #[param(required = false)]
    pub join: String,
}

impl DiscoverQuery {
    /// The path of the request.
    #[must_use]
    pub fn path(&self) -> String {
        let mut query = QueryText::default();
        query.add("seconds", &self.seconds.to_string());
        query.add("interfaces", &self.interfaces);
        query.add("join", &self.join);
        format!("/v1/discover?{}", query.0)
    }
}

const fn some_seconds() -> f64 {
    5.0
}

/// The query of a path; empty values are omitted.
#[derive(Default)]
struct QueryText(String);

impl QueryText {
    fn add(&mut self, name: &str, value: &str) {
        if value.is_empty() {
            return;
        }
        let separator = if self.0.is_empty() { "" } else { "&" };
        let _ = write!(self.0, "{separator}{name}={}", escaped(value));
    }

    fn add_labels(&mut self, labels: &[Label]) {
        for label in labels {
            self.add("label", &label.to_string());
        }
    }

    /// Always adds the offset: a request with parameters gets a `selection` in its reply.
    fn add_part(&mut self, offset: u64, limit: Option<u64>) {
        self.add("offset", &offset.to_string());
        let limit = limit.map(|limit| limit.to_string());
        self.add("limit", &limit.unwrap_or_default());
    }
}

/// Escapes characters that a rule's name may have, but not a path segment or a query's value.
pub(crate) fn escaped(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b':' => {
                text.push(char::from(byte));
            }
            _ => text += &format!("%{byte:02X}"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_written_as_an_address() {
        let query = StatsQuery {
            filter: "a&b=ü".to_owned(),
            labels: vec!["site=x,y".parse().unwrap(), "floor".parse().unwrap()],
            state: Some(Condition::Silent),
            order: Order::Rate,
            limit: Some(7),
            rules: vec!["r1".to_owned(), "r2".to_owned()],
            ..StatsQuery::default()
        };
        assert_eq!(
            query.path(),
            "/v1/stats?filter=a%26b%3D%C3%BC&label=site%3Dx%2Cy&label=floor&state=silent&order=rate\
             &offset=0&limit=7&rules=r1%2Cr2"
        );
        assert_eq!(RulesQuery::default().path(), "/v1/rules?offset=0");
    }

    #[test]
    fn a_label_is_selected_with_its_value_or_with_any() {
        let labels = [("site", "y"), ("customer", "x")];
        let labels = BTreeMap::from(labels.map(|(key, value)| (key.to_owned(), value.to_owned())));
        for (text, is_in) in [
            ("site=y", true),
            ("customer", true),
            ("customer=z", false),
            ("floor", false),
        ] {
            let label: Label = text.parse().unwrap();
            assert_eq!(
                (label.is_in(&labels), label.to_string()),
                (is_in, text.to_owned())
            );
        }
        assert_eq!("si te=y".parse::<Label>(), Err(NoLabel));
    }
}
