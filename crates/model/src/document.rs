//! Rules as text stands for them: one shape for the TOML file, the control API and the export.
//!
//! Documents hold what was written; [`Rule`] holds what it means. Unknown keys are refused.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::endpoint::Endpoint;
use crate::limit;
use crate::placement::PathChoice;
use crate::problem::{Part, Problem, Problems, What};
use crate::rule::{OutputError, OutputSpec, Rule, is_name};
use crate::table::LocalDelivery;

/// One rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "name": "cam1",
    "inputs": ["239.1.1.1%eth0:5001"],
    "outputs": ["239.10.1.1%eth1:6001", { "to": "10.9.9.9:7000", "ttl": 32 }],
}))]
pub struct RuleDocument {
    /// Unique name: a letter or digit, then letters, digits and `.` `_` `-` `:`, at most 63.
    pub name: String,
    /// The only input, instead of `inputs`: `[SOURCE@]GROUP%IFACE:PORT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// The inputs, instead of `input`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<String>,
    /// The outputs, at least one.
    pub outputs: Vec<OutputDocument>,
    /// Path to force the rule to; by default placement decides.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_path"
    )]
    pub path: Option<PathChoice>,
    /// Whether this host's own sockets get a copy; by default where one is bound to the port.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_local"
    )]
    pub local: Option<LocalDelivery>,
    /// Cap on what the rule accepts, as in `5000pps` or `20Mbit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Burst the cap allows: packets, or a size such as `1Mbit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<Scalar>,
}

/// One output: its text with options, `239.10.1.1%eth1:6001,ttl=16`, or a table of the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum OutputDocument {
    /// Destination and options in one text.
    Text(String),
    /// Destination and options apart.
    Table(OutputTable),
}

/// An output with its options as keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputTable {
    /// Destination: `GROUP%IFACE:PORT` or `ADDRESS[%IFACE]:PORT`.
    pub to: String,
    /// `keep`, `dec` or 1 to 255.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Scalar>,
    /// `auto`, `keep` or an address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Scalar>,
    /// `keep`, 0 to 63 or a name such as `ef`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dscp: Option<Scalar>,
    /// `keep` or 1 to 65535.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sport: Option<Scalar>,
    /// `yes` (true) or `no` (false).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fragment: Option<Scalar>,
    /// Cap on what the output sends, as in `5000pps` or `20Mbit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Scalar>,
    /// Burst the cap allows: packets, or a size such as `1Mbit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<Scalar>,
}

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

impl RuleDocument {
    /// Reads the rule, which stands at `position` of its list, from 0.
    ///
    /// # Errors
    ///
    /// Every part that cannot be read.
    pub fn to_rule(&self, position: usize) -> Result<Rule, Problems> {
        let mut problems = Problems::default();
        let mut report = |part, text: &str, what| {
            problems.0.push(Problem {
                position,
                rule: self.name.clone(),
                part,
                text: text.to_owned(),
                what,
            });
        };
        if self.name.is_empty() {
            report(Part::Name, "", What::NameEmpty);
        } else if !is_name(&self.name) {
            report(Part::Name, "", What::NameInvalid);
        }
        if self.input.is_some() && !self.inputs.is_empty() {
            report(Part::Rule, "", What::InputAndInputs);
        }
        let mut inputs = Vec::new();
        for (index, text) in self.input.iter().chain(&self.inputs).enumerate() {
            match text.parse::<Endpoint>() {
                Ok(input) => inputs.push(input),
                Err(error) => report(Part::Input(index), text, error.problem.into()),
            }
        }
        let mut outputs = Vec::new();
        for (index, output) in self.outputs.iter().enumerate() {
            match output.to_output() {
                Ok(output) => outputs.push(output),
                Err(error) => report(Part::Output(index), &error.text, error.problem.into()),
            }
        }
        let burst = self.burst.as_ref().map(ToString::to_string);
        let limit = limit::parse(self.limit.as_deref(), burst.as_deref()).unwrap_or_else(|what| {
            report(Part::Limit, "", what.into());
            None
        });
        problems.or(Rule {
            name: self.name.clone(),
            inputs,
            outputs,
            path: self.path.unwrap_or_default().forced(),
            local: self.local.unwrap_or_default(),
            limit,
        })
    }

    /// Writes a single input as `input`, as a person would.
    #[must_use]
    pub fn with_short_input(mut self) -> Self {
        if self.inputs.len() == 1 && self.input.is_none() {
            self.input = self.inputs.pop();
        }
        self
    }
}

impl TryFrom<RuleDocument> for Rule {
    type Error = Problems;

    fn try_from(document: RuleDocument) -> Result<Self, Problems> {
        document.to_rule(0)
    }
}

impl From<Rule> for RuleDocument {
    fn from(rule: Rule) -> Self {
        Self::from(&rule)
    }
}

impl From<&Rule> for RuleDocument {
    /// Writes the rule in its canonical form: `inputs` as a list, each output as one text,
    /// nothing that is the default.
    fn from(rule: &Rule) -> Self {
        let limit = rule.limit.as_ref();
        let texts = rule.outputs.iter().map(ToString::to_string);
        Self {
            name: rule.name.clone(),
            input: None,
            inputs: rule.inputs.iter().map(ToString::to_string).collect(),
            outputs: texts.map(OutputDocument::Text).collect(),
            path: rule.path.map(PathChoice::from),
            local: Some(rule.local).filter(|local| *local != LocalDelivery::Auto),
            limit: limit.map(limit::rate_text),
            burst: limit.and_then(limit::burst_text).map(Scalar::Text),
        }
    }
}

impl OutputDocument {
    /// Reads the output.
    ///
    /// # Errors
    ///
    /// Names the output as text and the first thing that is wrong with it.
    pub fn to_output(&self) -> Result<OutputSpec, OutputError> {
        match self {
            Self::Text(text) => text.parse(),
            Self::Table(table) => table.to_output(),
        }
    }
}

impl OutputTable {
    fn to_output(&self) -> Result<OutputSpec, OutputError> {
        let options = [
            ("ttl", &self.ttl),
            ("source", &self.source),
            ("dscp", &self.dscp),
            ("sport", &self.sport),
            ("fragment", &self.fragment),
            ("limit", &self.limit),
            ("burst", &self.burst),
        ];
        let given: Vec<(&str, String)> = options
            .into_iter()
            .filter_map(|(key, value)| Some((key, value.as_ref()?.to_string())))
            .collect();
        OutputSpec::from_parts(&self.to, &given)
    }
}

impl From<&str> for OutputDocument {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
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

/// Reads a path by a text that says what there is to choose from.
pub(crate) fn path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathChoice, D::Error> {
    match Scalar::deserialize(deserializer)?.to_string().as_str() {
        "auto" => Ok(PathChoice::Auto),
        "kernel" => Ok(PathChoice::Kernel),
        "userspace" => Ok(PathChoice::Userspace),
        other => Err(D::Error::custom(format!(
            "path = {other:?}: give \"auto\", \"kernel\" or \"userspace\""
        ))),
    }
}

fn some_path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathChoice>, D::Error> {
    path(deserializer).map(Some)
}

fn some_local<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<LocalDelivery>, D::Error> {
    match Scalar::deserialize(deserializer)?.to_string().as_str() {
        "auto" => Ok(Some(LocalDelivery::Auto)),
        "yes" => Ok(Some(LocalDelivery::Yes)),
        "no" => Ok(Some(LocalDelivery::No)),
        other => Err(D::Error::custom(format!(
            "local = {other:?}: give \"auto\", \"yes\" or \"no\""
        ))),
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
                OutputTable::deserialize(MapAccessDeserializer::new(map)).map(OutputDocument::Table)
            }
        }

        deserializer.deserialize_any(Output)
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Value;

        impl Visitor<'_> for Value {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a whole number, true or false")
            }

            fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
                Ok(Scalar::Boolean(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
                Ok(Scalar::Integer(value))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
                // No option is that large; as a text it is refused with its name.
                Ok(i64::try_from(value)
                    .map_or_else(|_| Scalar::Text(value.to_string()), Scalar::Integer))
            }

            fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
                Ok(Scalar::Text(value.to_owned()))
            }
        }

        deserializer.deserialize_any(Value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn document(json: &str) -> RuleDocument {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn reads_an_output_as_text_and_as_table() {
        let rule = document(
            r#"{"name": "cam1", "input": "239.1.1.1%eth0:5001", "outputs": [
                "239.10.1.1%eth1:6001,ttl=16",
                {"to": "10.9.9.9:7000", "ttl": "dec", "fragment": true, "dscp": 34}
            ]}"#,
        )
        .to_rule(0)
        .unwrap();
        let outputs: Vec<String> = rule.outputs.iter().map(ToString::to_string).collect();
        assert_eq!(
            outputs,
            [
                "239.10.1.1%eth1:6001,ttl=16",
                "10.9.9.9:7000,ttl=dec,dscp=34,fragment=yes"
            ]
        );
    }

    #[test]
    fn reports_every_part_that_cannot_be_read() {
        let problems = document(
            r#"{"name": "cam 1", "input": "239.1.1.1%eth0:0", "limit": "fast",
                "outputs": ["239.10.1.1%eth1", {"to": "10.9.9.9:7000", "ttl": 0}]}"#,
        )
        .to_rule(0)
        .unwrap_err();
        assert_eq!(
            problems.to_string().lines().collect::<Vec<_>>(),
            [
                "rule \"cam 1\": the name must start with a letter or digit and hold only letters, digits, '.', '_', '-' and ':', at most 63 of them",
                "rule \"cam 1\": input 239.1.1.1%eth0:0: port 0 cannot be used; give 1 to 65535",
                "rule \"cam 1\": output 239.10.1.1%eth1: has no port; write 239.10.1.1%eth1:PORT, as in 239.10.1.1%eth1:5001",
                "rule \"cam 1\": output 10.9.9.9:7000,ttl=0: ttl=0: give 1 to 255, dec (one less, as a router) or keep",
                "rule \"cam 1\": limit=fast: give a rate such as 5000pps or 20Mbit (pps, kpps, Mpps, bit, kbit, Mbit, Gbit)",
            ]
        );
    }

    #[test]
    fn refuses_unknown_keys_by_name() {
        for (json, expected) in [
            (
                r#"{"name": "a", "outputs": [], "inptu": "x"}"#,
                "unknown field `inptu`",
            ),
            (
                r#"{"name": "a", "outputs": [{"to": "x", "tll": 1}]}"#,
                "unknown field `tll`",
            ),
            (r#"{"name": "a", "outputs": [5]}"#, "expected an output: "),
            (
                r#"{"name": "a", "outputs": [], "path": "fast"}"#,
                "path = \"fast\": give \"auto\", \"kernel\" or \"userspace\"",
            ),
        ] {
            let error = serde_json::from_str::<RuleDocument>(json).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn writes_a_single_input_short_only_when_asked() {
        let json = r#"{"name":"a","inputs":["239.1.1.1%eth0:1"],"outputs":["10.9.9.9:7000"]}"#;
        let long = document(json);
        assert_eq!(serde_json::to_string(&long).unwrap(), json);
        let short = long.clone().with_short_input();
        assert_eq!(short.input.as_deref(), Some("239.1.1.1%eth0:1"));
        assert_eq!(short.to_rule(0), long.to_rule(0));
    }

    proptest! {
        #[test]
        fn survives_the_way_to_a_rule_and_back(rule in crate::samples::rule()) {
            let document = RuleDocument::from(&rule);
            prop_assert_eq!(document.to_rule(0).unwrap(), rule.clone());
            let json = serde_json::to_string(&document).unwrap();
            prop_assert_eq!(serde_json::from_str::<Rule>(&json).unwrap(), rule);
        }
    }
}
