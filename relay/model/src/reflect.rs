//! Rules that reflect: what comes by each of their interfaces leaves by all others, `mode = "reflect"`.
//!
//! Such a rule has one input and one output for each interface, in the same order, all of one group
//! and port; packets of an input leave by every output but its own. Whoever else reflects between the
//! same networks sends back what it is sent. So each payload passes once in a while, whichever
//! interface it comes by: nothing leaves twice, and nothing goes round.

use std::time::Duration;

use thiserror::Error;

use crate::duration;
use crate::endpoint::{Endpoint, EndpointProblem};
use crate::host::LOOPBACK;
use crate::merge::{By, DEFAULT_PACKETS, Merge, WINDOW_MAX, WINDOW_MIN};
use crate::rule::{OptionsProblem, OutputProblem, OutputSpec, Rule, SourceChoice};
use crate::setting::OptionProblem;

/// The word for it.
pub const MODE: &str = "reflect";
/// For how long the same payload does not pass again, unless the rule says otherwise. Less than what
/// lies between repetitions that are meant: 250 ms between the probes of RFC 6762 section 8.1.
pub const DEFAULT_WINDOW: Duration = Duration::from_millis(200);

/// How a rule reflects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reflect {
    /// For how long the same payload does not pass again.
    pub window: Duration,
}

/// What a rule that reflects says of its packets, beyond the window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written<'a> {
    pub(crate) interfaces: &'a [String],
    pub(crate) group: Option<&'a str>,
    pub(crate) source: Option<&'a str>,
    pub(crate) ttl: Option<&'a str>,
}

/// What is wrong with a rule that reflects.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReflectProblem {
    /// Another mode.
    #[error("mode = {0:?}: give \"reflect\", or leave it out")]
    Mode(String),
    /// A key of such rules in another one.
    #[error("{0} is for rules with mode = \"reflect\"; add that, or leave {0} out")]
    WithoutMode(&'static str),
    /// A key that such rules do not have.
    #[error("mode = \"reflect\" and {0} do not go together; leave one of them out")]
    Beside(&'static str),
    /// One interface or none.
    #[error(
        "reflects between two interfaces or more; name them, as in interfaces = [\"eth0\", \"eth1\"]"
    )]
    Interfaces,
    /// The same interface twice.
    #[error("interface {0} is there twice; leave one out")]
    Twice(String),
    /// Something that is not the name of an interface.
    #[error("interfaces: {0:?}: {1}")]
    Interface(String, EndpointProblem),
    /// A wildcard.
    #[error("interface {0} may stand for several; name each")]
    Wildcard(String),
    /// The loopback interface.
    #[error(
        "interface {LOOPBACK} hears what it sends, which would go round for ever; leave it out"
    )]
    Loopback,
    /// No group.
    #[error("has no group; give it one with its port, as in group = \"224.0.0.251:5353\"")]
    NoGroup,
    /// A group that cannot be read.
    #[error("group = {0:?}: {1}")]
    Group(String, EndpointProblem),
    /// Something else than one group and one port.
    #[error(
        "group = {0:?}: give one multicast group and one port, as in 224.0.0.251:5353 or \
         [ff02::fb]:5353, and each other one a rule of its own"
    )]
    NotOneGroup(String),
    /// A source that is neither.
    #[error(
        "source = {0:?}: give auto (the address of the interface that a copy leaves by) or keep"
    )]
    Source(String),
    /// A TTL that is none.
    #[error(transparent)]
    Ttl(OptionProblem),
    /// A window that is none.
    #[error("window = {0:?}: give 1ms to 500ms")]
    Window(String),
}

impl Default for Reflect {
    fn default() -> Self {
        Self {
            window: DEFAULT_WINDOW,
        }
    }
}

impl Reflect {
    /// Reads how a rule reflects.
    ///
    /// # Errors
    ///
    /// A window that cannot be one.
    pub fn parse(window: Option<&str>) -> Result<Self, ReflectProblem> {
        let Some(text) = window else {
            return Ok(Self::default());
        };
        let window = duration::parse(text);
        let window = window.filter(|window| (WINDOW_MIN..=WINDOW_MAX).contains(window));
        let window = window.ok_or_else(|| ReflectProblem::Window(text.to_owned()))?;
        Ok(Self { window })
    }

    /// The window as text, unless it is the default.
    #[must_use]
    pub fn window_text(self) -> Option<String> {
        (self.window != DEFAULT_WINDOW).then(|| duration::text(self.window))
    }
}

impl Rule {
    /// What of its packets passes once: of a rule that reflects, each payload. Where copies keep their
    /// sender, another sender's is another packet.
    #[must_use]
    pub fn passes_once(&self) -> Option<Merge> {
        let reflect = self.reflect?;
        let keeps = |output: &OutputSpec| output.source == SourceChoice::Keep;
        Some(Merge {
            by: match self.outputs.iter().all(keeps) {
                true => By::OnceFromEach,
                false => By::Once,
            },
            window: reflect.window,
            packets: DEFAULT_PACKETS,
        })
    }

    /// Says whether packets of that input leave by that output.
    #[must_use]
    pub fn leads(&self, input: usize, output: usize) -> bool {
        self.reflect.is_none() || input != output
    }
}

impl Written<'_> {
    /// The inputs and the outputs, one of each for each interface.
    ///
    /// # Errors
    ///
    /// Everything that is wrong.
    pub(crate) fn ends(&self) -> Result<(Vec<Endpoint>, Vec<OutputSpec>), Vec<ReflectProblem>> {
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
        let outputs = inputs.iter().map(|to| OutputSpec {
            to: to.clone(),
            ..options.clone()
        });
        let outputs = outputs.collect();
        Ok((inputs, outputs))
    }

    fn problems_of_interfaces(&self) -> Vec<ReflectProblem> {
        let mut problems = Vec::new();
        if self.interfaces.len() < 2 {
            problems.push(ReflectProblem::Interfaces);
        }
        for (at, name) in self.interfaces.iter().enumerate() {
            if let Err(problem) = crate::endpoint::check_interface_name(name) {
                problems.push(ReflectProblem::Interface(name.clone(), problem));
            } else if crate::endpoint::is_wildcard(name) {
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
        let group: Endpoint = text
            .parse()
            .map_err(|error: crate::endpoint::EndpointError| {
                ReflectProblem::Group(text.to_owned(), error.problem)
            })?;
        let is_one = group.is_multicast() && group.is_single();
        match is_one && group.interface.is_none() && group.sources.is_empty() {
            true => Ok(group),
            false => Err(ReflectProblem::NotOneGroup(text.to_owned())),
        }
    }

    /// An output of no matter where with the options.
    fn options(&self) -> Result<OutputSpec, ReflectProblem> {
        const ANYWHERE: &str = "224.0.0.1:1";
        let given = [("source", self.source), ("ttl", self.ttl)];
        let given = given
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?.to_owned())));
        let given: Vec<(&str, String)> = given.collect();
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
mod tests {
    use super::*;
    use crate::document::RuleDocument;

    fn problems(json: &str) -> Vec<String> {
        let document: RuleDocument = serde_json::from_str(json).unwrap();
        let problems = document.to_rule(0).unwrap_err();
        let lines = problems.to_string();
        let lines = lines
            .lines()
            .map(|line| line.replacen("rule \"m\": ", "", 1));
        lines.collect()
    }

    #[test]
    fn has_an_input_and_an_output_for_each_interface() {
        let json = r#"{"name":"m","mode":"reflect","interfaces":["eth0","eth1","wlan0"],
            "group":"[ff02::fb]:5353","ttl":255,"window":"100ms"}"#;
        let document: RuleDocument = serde_json::from_str(json).unwrap();
        let rule = document.to_rule(0).unwrap();
        let inputs: Vec<String> = rule.inputs.iter().map(ToString::to_string).collect();
        let outputs: Vec<String> = rule.outputs.iter().map(ToString::to_string).collect();
        let on = |link: &str| format!("[ff02::fb%{link}]:5353");
        assert_eq!(inputs, ["eth0", "eth1", "wlan0"].map(on));
        let with_ttl = inputs.iter().map(|text| format!("{text},ttl=255"));
        assert_eq!(outputs, with_ttl.collect::<Vec<_>>());
        assert!(rule.leads(0, 1) && !rule.leads(1, 1));
        assert_eq!(RuleDocument::from(&rule), document);
        let once = rule.passes_once().unwrap();
        assert_eq!((once.by, once.window.as_millis()), (By::Once, 100));
    }

    #[test]
    fn another_senders_packet_is_another_one_where_senders_are_kept() {
        let json = r#"{"name":"m","mode":"reflect","interfaces":["a","b"],
            "group":"239.255.255.250:1900","source":"keep"}"#;
        let document: RuleDocument = serde_json::from_str(json).unwrap();
        let rule = document.to_rule(0).unwrap();
        assert_eq!(rule.passes_once().unwrap().by, By::OnceFromEach);
        assert_eq!(RuleDocument::from(&rule), document);
    }

    #[test]
    fn names_everything_that_is_wrong() {
        assert_eq!(
            problems(
                r#"{"name":"m","mode":"reflect","interfaces":["eth0","eth0","eth*","lo","a b"],
                    "group":"239.1.1.0/24:5000","source":"10.0.0.1","window":"5s",
                    "merge":"rtp","outputs":["10.9.9.9:7000"]}"#
            ),
            [
                "mode = \"reflect\" and outputs do not go together; leave one of them out",
                "mode = \"reflect\" and merge do not go together; leave one of them out",
                "interface eth0 is there twice; leave one out",
                "interface eth* may stand for several; name each",
                "interface lo hears what it sends, which would go round for ever; leave it out",
                "interfaces: \"a b\": holds white space; write it without",
                "group = \"239.1.1.0/24:5000\": give one multicast group and one port, as in \
                 224.0.0.251:5353 or [ff02::fb]:5353, and each other one a rule of its own",
                "source = \"10.0.0.1\": give auto (the address of the interface that a copy leaves \
                 by) or keep",
                "window = \"5s\": give 1ms to 500ms",
            ]
        );
        assert_eq!(
            problems(r#"{"name":"m","mode":"mirror"}"#),
            ["mode = \"mirror\": give \"reflect\", or leave it out"]
        );
        assert_eq!(
            problems(r#"{"name":"m","group":"239.1.1.1:1","outputs":[]}"#),
            ["group is for rules with mode = \"reflect\"; add that, or leave group out"]
        );
        assert_eq!(
            problems(r#"{"name":"m","mode":"reflect","interfaces":["a"]}"#),
            [
                "reflects between two interfaces or more; name them, as in interfaces = [\"eth0\", \
                 \"eth1\"]",
                "has no group; give it one with its port, as in group = \"224.0.0.251:5353\"",
            ]
        );
    }
}
