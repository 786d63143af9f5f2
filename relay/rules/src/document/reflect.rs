//! The keys that a rule which reflects has instead of inputs and outputs.

use std::collections::BTreeSet;

use super::RuleDocument;
use crate::endpoint::{Endpoint, EndpointError, check_interface_name, is_wildcard};
use crate::net::LOOPBACK;
use crate::reflect::{MODE, Reflect, ReflectProblem};
use crate::rule::{OptionsProblem, OutputProblem, OutputSpec, Rule, SourceChoice, Ttl};
use crate::setting::Table;

/// Keys that only rules which reflect have.
pub const REFLECT_KEYS: &[&str] = &["interfaces", "isolated", "group", "source", "ttl", "window"];

/// Keys that rules which reflect do not have: packets of many senders are not a stream.
const OTHER_KEYS: &[&str] = &["input", "inputs", "outputs", "failover", "merge", "health"];

/// How a rule reflects, and the inputs and outputs that result.
type Reflected = (Reflect, (Vec<Endpoint>, Vec<OutputSpec>));

impl RuleDocument {
    /// Returns whether the rule is written as one that reflects.
    pub fn reflects(&self) -> bool {
        self.mode.as_deref() == Some(MODE)
    }

    /// Parses how the rule reflects, if it does.
    pub(super) fn reflected(&self) -> Result<Option<Reflected>, Vec<ReflectProblem>> {
        match self.mode.as_deref() {
            Some(MODE) => {}
            Some(other) => return Err(vec![ReflectProblem::Mode(other.to_owned())]),
            None => {
                return match self.given(REFLECT_KEYS).next() {
                    Some(key) => Err(vec![ReflectProblem::WithoutMode(key)]),
                    None => Ok(None),
                };
            }
        }
        let conflicts = self.given(OTHER_KEYS).map(ReflectProblem::Beside);
        let mut problems: Vec<ReflectProblem> = conflicts.collect();
        let ttl = self.ttl.as_ref().map(ToString::to_string);
        let keys = ReflectKeys {
            interfaces: &self.interfaces,
            group: self.group.as_deref(),
            source: self.source.as_deref(),
            ttl: ttl.as_deref(),
        };
        let ends = keys.ends().map_err(|more| problems.extend(more));
        let reflect = Reflect::parse(self.window.as_deref())
            .and_then(|reflect| {
                let isolated = self.isolated()?;
                Ok(Reflect {
                    isolated,
                    ..reflect
                })
            })
            .map_err(|problem| problems.push(problem));
        match (reflect, ends, problems.is_empty()) {
            (Ok(reflect), Ok(ends), true) => Ok(Some((reflect, ends))),
            _ => Err(problems),
        }
    }

    /// The indices of the interfaces that do not receive from each other.
    fn isolated(&self) -> Result<Vec<usize>, ReflectProblem> {
        let mut indices = BTreeSet::new();
        for name in &self.isolated {
            let index = self.interfaces.iter().position(|other| other == name);
            indices.insert(index.ok_or_else(|| ReflectProblem::IsolatedUnknown(name.clone()))?);
        }
        if indices.len() == self.interfaces.len() && !indices.is_empty() {
            Err(ReflectProblem::AllIsolated)
        } else {
            Ok(indices.into_iter().collect())
        }
    }

    /// The keys among `keys` that are given.
    fn given(&self, keys: &'static [&'static str]) -> impl Iterator<Item = &'static str> {
        let values = self.values().into_iter();
        let given = values.filter_map(|(row, text)| text.map(|_| row.key));
        given.filter(|key| keys.contains(key))
    }
}

/// The document of the inputs and outputs of a rule that reflects.
pub(super) fn document(rule: &Rule, reflect: &Reflect) -> RuleDocument {
    let names = rule.inputs.iter().filter_map(|i| i.interface.clone());
    let interfaces: Vec<String> = names.collect();
    let isolated = reflect.isolated.iter();
    let group = rule.inputs.first().map(|input| Endpoint {
        interface: None,
        ..input.clone()
    });
    let options = rule.outputs.first();
    let keeps_source = options.is_some_and(|output| output.source == SourceChoice::Keep);
    RuleDocument {
        mode: Some(MODE.to_owned()),
        isolated: isolated
            .filter_map(|at| interfaces.get(*at).cloned())
            .collect(),
        interfaces,
        group: group.map(|group| group.to_string()),
        source: keeps_source.then(|| "keep".to_owned()),
        ttl: options.and_then(|output| match output.ttl {
            Ttl::Keep => None,
            Ttl::Decrement => Some("dec".into()),
            Ttl::Set(ttl) => Some(super::Scalar::Integer(ttl.into())),
        }),
        window: reflect.window_text(),
        ..RuleDocument::default()
    }
}

/// The keys that describe the packets of a rule that reflects, beyond the window.
#[derive(Clone, Copy, Debug, Default)]
struct ReflectKeys<'a> {
    interfaces: &'a [String],
    group: Option<&'a str>,
    source: Option<&'a str>,
    ttl: Option<&'a str>,
}

impl ReflectKeys<'_> {
    /// The inputs and the outputs, one of each for each interface.
    ///
    /// # Errors
    ///
    /// Everything that is wrong.
    fn ends(&self) -> Result<(Vec<Endpoint>, Vec<OutputSpec>), Vec<ReflectProblem>> {
        let mut problems = self.problems_of_interfaces();
        let group = self.group().map_err(|problem| problems.push(problem));
        let options = self.options().map_err(|problem| problems.push(problem));
        let (Ok(group), Ok(options), true) = (group, options, problems.is_empty()) else {
            return Err(problems);
        };
        let on = |interface: &String| Endpoint {
            interface: Some(interface.clone()),
            ..group.clone()
        };
        let inputs: Vec<Endpoint> = self.interfaces.iter().map(on).collect();
        let output = |to: &Endpoint| OutputSpec {
            to: to.clone(),
            ..options.clone()
        };
        let outputs = inputs.iter().map(output).collect();
        Ok((inputs, outputs))
    }

    fn problems_of_interfaces(&self) -> Vec<ReflectProblem> {
        let mut problems = Vec::new();
        if self.interfaces.len() < 2 {
            problems.push(ReflectProblem::Interfaces);
        }
        for (at, name) in self.interfaces.iter().enumerate() {
            if let Err(problem) = check_interface_name(name) {
                problems.push(ReflectProblem::Interface(name.clone(), problem));
            } else if is_wildcard(name) {
                problems.push(ReflectProblem::Wildcard(name.clone()));
            } else if name == LOOPBACK {
                problems.push(ReflectProblem::Loopback);
            } else if self.interfaces[..at].contains(name) {
                problems.push(ReflectProblem::Twice(name.clone()));
            }
        }
        problems
    }

    fn group(&self) -> Result<Endpoint, ReflectProblem> {
        let text = self.group.ok_or(ReflectProblem::NoGroup)?;
        let group: Endpoint = text.parse().map_err(|error: EndpointError| {
            ReflectProblem::Group(text.to_owned(), error.problem)
        })?;
        let is_one = (group.is_multicast() || group.is_broadcast()) && group.is_single();
        if is_one && group.interface.is_none() && group.sources.is_empty() {
            Ok(group)
        } else {
            Err(ReflectProblem::NotOneGroup(text.to_owned()))
        }
    }

    /// An output with the options, to an arbitrary destination.
    fn options(&self) -> Result<OutputSpec, ReflectProblem> {
        const ANYWHERE: &str = "224.0.0.1:1";
        let given: Vec<(&str, String)> = [("source", self.source), ("ttl", self.ttl)]
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?.to_owned())))
            .collect();
        let output = OutputSpec::from_parts(ANYWHERE, &given).map_err(|error| error.problem);
        let source = || ReflectProblem::Source(self.source.unwrap_or_default().to_owned());
        match output {
            Ok(output) if !matches!(output.source, SourceChoice::Address(_)) => Ok(output),
            Err(OutputProblem::Option(OptionsProblem::Option(problem))) if problem.key == "ttl" => {
                Err(ReflectProblem::Ttl(problem))
            }
            Ok(_) | Err(_) => Err(source()),
        }
    }
}

#[cfg(test)]
mod tests;
