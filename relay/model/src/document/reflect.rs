//! What a rule that reflects has instead of inputs and outputs.

use super::RuleDocument;
use crate::endpoint::Endpoint;
use crate::reflect::{MODE, Reflect, ReflectProblem, Written};
use crate::rule::{OutputSpec, Rule, SourceChoice};
use crate::setting::Table;
use crate::table::Ttl;

/// Keys of rules that reflect alone.
pub const REFLECT_KEYS: &[&str] = &["interfaces", "group", "source", "ttl", "window"];

/// Keys that rules which reflect do not have: many senders of many packets are not a stream.
const OTHER_KEYS: &[&str] = &["input", "inputs", "outputs", "failover", "merge", "health"];

/// How a rule reflects, and the inputs and outputs that this comes to.
type Reflected = (Reflect, (Vec<Endpoint>, Vec<OutputSpec>));

impl RuleDocument {
    /// Says whether the rule is written as one that reflects.
    #[must_use]
    pub fn reflects(&self) -> bool {
        self.mode.as_deref() == Some(MODE)
    }

    /// Reads how the rule reflects, if it does.
    pub(super) fn reflected(&self) -> Result<Option<Reflected>, Vec<ReflectProblem>> {
        match self.mode.as_deref() {
            Some(MODE) => {}
            Some(other) => return Err(vec![ReflectProblem::Mode(other.to_owned())]),
            None => {
                let stray = self
                    .given(REFLECT_KEYS)
                    .next()
                    .map(ReflectProblem::WithoutMode);
                return stray.map_or(Ok(None), |stray| Err(vec![stray]));
            }
        }
        let beside = self.given(OTHER_KEYS).map(ReflectProblem::Beside);
        let mut problems: Vec<ReflectProblem> = beside.collect();
        let ttl = self.ttl.as_ref().map(ToString::to_string);
        let written = Written {
            interfaces: &self.interfaces,
            group: self.group.as_deref(),
            source: self.source.as_deref(),
            ttl: ttl.as_deref(),
        };
        let ends = written.ends().map_err(|more| problems.extend(more));
        let reflect = Reflect::parse(self.window.as_deref());
        let reflect = reflect.map_err(|problem| problems.push(problem));
        match (reflect, ends, problems.is_empty()) {
            (Ok(reflect), Ok(ends), true) => Ok(Some((reflect, ends))),
            _ => Err(problems),
        }
    }

    /// Those of the keys that are given.
    fn given(&self, keys: &'static [&'static str]) -> impl Iterator<Item = &'static str> {
        let values = self.values().into_iter();
        let given = values.filter_map(|(row, text)| text.map(|_| row.key));
        given.filter(|key| keys.contains(key))
    }
}

/// What a rule that reflects says of where its packets come from and go to.
pub(super) fn written(rule: &Rule, reflect: Reflect) -> RuleDocument {
    let names = rule.inputs.iter().filter_map(|i| i.interface.clone());
    let group = rule.inputs.first().map(|input| Endpoint {
        interface: None,
        ..input.clone()
    });
    let options = rule.outputs.first();
    let is_kept = options.is_some_and(|output| output.source == SourceChoice::Keep);
    RuleDocument {
        mode: Some(MODE.to_owned()),
        interfaces: names.collect(),
        group: group.map(|group| group.to_string()),
        source: is_kept.then(|| "keep".to_owned()),
        ttl: options.and_then(|output| match output.ttl {
            Ttl::Keep => None,
            Ttl::Decrement => Some("dec".into()),
            Ttl::Set(ttl) => Some(super::Scalar::Integer(ttl.into())),
        }),
        window: reflect.window_text(),
        ..RuleDocument::default()
    }
}
