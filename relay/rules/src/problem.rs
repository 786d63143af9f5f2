//! Everything that can be wrong with rules; each message contains what to change.
//!
//! Problems are collected, never reported one at a time:
//! `rule "cam1": output 239.10.1.1%eth1:6001: what is wrong; what to do`.

use std::fmt;

use thiserror::Error;

use crate::demand::DemandProblem;
use crate::endpoint::EndpointProblem;
use crate::failover::FailoverProblem;
use crate::health::HealthProblem;
use crate::limit::LimitProblem;
use crate::merge::MergeProblem;
use crate::owner::Owner;
use crate::reflect::ReflectProblem;
use crate::rule::{LABELS_MAX, NAME_MAX, OutputProblem, TEXT_MAX};

/// One thing that is wrong with one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Index of the rule in the set, by which its line in a file can be found.
    pub position: usize,
    /// Name of the rule, perhaps not a valid one.
    pub rule: String,
    /// The part of the rule.
    pub part: Part,
    /// That part as the operator wrote it; empty for the rule as a whole.
    pub text: String,
    /// What is wrong with it.
    pub what: What,
}

/// A part of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The rule as a whole.
    Rule,
    /// Its name.
    Name,
    /// Its rate limit.
    Limit,
    /// Which of its inputs is relayed.
    Failover,
    /// How its inputs become one stream.
    Merge,
    /// How its stream is monitored.
    Health,
    /// Which rules change hands with it.
    Share,
    /// Its labels and its comment.
    Labels,
    /// The input of that index.
    Input(usize),
    /// The output of that index.
    Output(usize),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rule.is_empty() {
            write!(f, "rule {}: ", self.position + 1)?;
        } else {
            write!(f, "rule {:?}: ", self.rule)?;
        }
        let kind = match self.part {
            Part::Input(_) => "input",
            Part::Output(_) => "output",
            _ => return write!(f, "{}", self.what),
        };
        write!(
            f,
            "{kind} {}: {}",
            crate::endpoint::shown(&self.text),
            self.what
        )
    }
}

/// One or more problems, in the order of the rules; each prints on a line of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Error)]
#[error("{}", lines(_0))]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// Returns `value` if there are no problems.
    pub(crate) fn or<T>(self, value: T) -> Result<T, Self> {
        if self.0.is_empty() {
            Ok(value)
        } else {
            Err(self)
        }
    }
}

/// Prints each on a line of its own.
pub fn lines(problems: &[impl fmt::Display]) -> String {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// What is wrong with a part of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum What {
    /// An endpoint that cannot be read.
    #[error(transparent)]
    Endpoint(#[from] EndpointProblem),
    /// An output that cannot be read.
    #[error(transparent)]
    Output(#[from] OutputProblem),
    /// A limit that cannot be read.
    #[error(transparent)]
    Limit(#[from] LimitProblem),
    /// A failover that cannot be parsed or is impossible.
    #[error(transparent)]
    Failover(#[from] FailoverProblem),
    /// A merge that cannot be parsed or is impossible.
    #[error(transparent)]
    Merge(#[from] MergeProblem),
    /// Something that a rule which reflects cannot have, or lacks.
    #[error(transparent)]
    Reflect(#[from] ReflectProblem),
    /// An output on demand that is impossible.
    #[error(transparent)]
    Demand(#[from] DemandProblem),
    /// A health that cannot be read.
    #[error(transparent)]
    Health(#[from] HealthProblem),
    /// No name.
    #[error("has no name; give it one, as in name = \"cam1\"")]
    NameEmpty,
    /// An invalid name.
    #[error(
        "the name must start with a letter or digit and hold only letters, digits, \
         '.', '_', '-' and ':', at most {NAME_MAX} of them"
    )]
    NameInvalid,
    /// An invalid share.
    #[error(
        "the share must start with a letter or digit and hold only letters, digits, \
         '.', '_', '-' and ':', at most {NAME_MAX} of them"
    )]
    ShareInvalid,
    /// A name taken by an earlier rule.
    #[error("the name is taken by an earlier rule; give each rule its own")]
    NameTaken {
        /// Index of that rule in the set.
        first: usize,
    },
    /// An invalid key of a label.
    #[error(
        "label {0:?}: a key begins with a letter and has letters, digits and '_', at most {NAME_MAX} \
         of them"
    )]
    LabelKey(String),
    /// More labels than a rule may have.
    #[error("has more than {LABELS_MAX} labels; leave some out")]
    TooManyLabels,
    /// A comment or a label's value.
    #[error("a comment or label is one line of at most {TEXT_MAX} bytes; make it shorter")]
    Text,
    /// Neither `input` nor `inputs`, or an empty list.
    #[error("has no input; give one, as in input = \"239.1.1.1%eth0:5001\"")]
    NoInput,
    /// Both `input` and `inputs`.
    #[error("has both input and inputs; put all of them into inputs")]
    InputAndInputs,
    /// No outputs.
    #[error("has no output; give one, as in outputs = [\"239.10.1.1%eth1:6001\"]")]
    NoOutput,
    /// An input or multicast output without an interface.
    #[error("names no interface; write {0}")]
    InterfaceMissing(String),
    /// An input that is a range but not of groups.
    #[error(
        "{0} is no range of multicast groups; name a group or a range within 224.0.0.0/4 or ff00::/8, \
         one address of this host, or unicast for all of the interface"
    )]
    AddressRange(String),
    /// An input at an address that no interface has.
    #[error("{0} is no address that packets come to; write it as IPv4")]
    Unreceivable(String),
    /// A link-local input.
    #[error(
        "{0} is link-local, where routing protocols and discovery live, and is not relayed \
         by default; --allow-link-local, or allow_link_local = true in the file, permits it"
    )]
    LinkLocal(String),
    /// The same key in two rules, or twice in one.
    #[error(
        "is an input of {0} already; a stream belongs to one rule, which may have many outputs"
    )]
    InputTaken(Owner),
    /// One address of an interface, and all of them.
    #[error(
        "takes the same packets as input {input} of {owner}: unicast stands for every address of the \
         interface; name an address in both, or leave one out"
    )]
    AddressTaken {
        /// The other input.
        input: String,
        /// The rule it belongs to.
        owner: Owner,
    },
    /// The same key in two rules of which one reflects.
    #[error(
        "is an input of {0} already; a stream belongs to one rule: where both reflect it, name all \
         interfaces in one of them"
    )]
    ReflectedTwice(Owner),
    /// Two keys that overlap without either being the more specific one.
    #[error(
        "overlaps with input {input} of {owner}, and neither is the more specific one; \
         make the ranges the same, separate, or of different sizes"
    )]
    InputAmbiguous {
        /// The other input.
        input: String,
        /// The rule it belongs to.
        owner: Owner,
    },
    /// The same copy twice.
    #[error("is there twice; leave one out, or give each its own source= or sport=")]
    OutputTwice,
    /// A wildcard where one interface is needed.
    #[error("an output needs one interface, and {0} may stand for several; name each in an output")]
    OutputWildcard(String),
    /// A range of unicast addresses.
    #[error("{0} is a range of unicast addresses; name one address, and one output for each")]
    UnicastRange(String),
    /// A destination nothing can be sent to.
    #[error("{0} is no address to send to; give a multicast group or a host's address")]
    Unsendable(String),
    /// Input and output of different families.
    #[error("is {own} and input {input} is {other}; a rule stays within one family")]
    Family {
        /// The input it disagrees with.
        input: String,
        /// `IPv4` or `IPv6`.
        own: &'static str,
        /// The input's.
        other: &'static str,
    },
    /// A range of groups of another size than the input's.
    #[error("the range of groups {own} does not fit input {input}; {remedy}")]
    GroupRange {
        /// The output's range.
        own: String,
        /// The input it disagrees with.
        input: String,
        /// What would fit.
        remedy: String,
    },
    /// A range of ports of another size than the input's.
    #[error("the range of {count} ports {own} does not fit input {input}; {remedy}")]
    PortRange {
        /// The output's ports.
        own: String,
        /// How many they are.
        count: u32,
        /// The input it disagrees with.
        input: String,
        /// What would fit.
        remedy: String,
    },
    /// An output into an input of its own rule.
    #[error(
        "feeds the rule's own input {0}, so packets would go round for ever; change the group, the port or the interface"
    )]
    FeedsItself(String),
    /// Outputs into inputs in a circle of rules.
    #[error(
        "feeds a loop: {0}, so packets would go round for ever; change a group, a port or an interface on the way"
    )]
    Loop(Circle),
}

impl What {
    /// Returns whether packets would loop.
    pub const fn is_loop(&self) -> bool {
        matches!(self, Self::FeedsItself(_) | Self::Loop(_))
    }
}

/// A circle of rules, from one back to itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circle(pub Vec<Feed>);

/// One step of a circle: an output of `from` arrives at `input` of `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feed {
    /// Rule that sends.
    pub from: String,
    /// Index of its output.
    pub output: usize,
    /// The output as text.
    pub output_text: String,
    /// Rule that receives.
    pub to: String,
    /// The input as text.
    pub input_text: String,
}

impl fmt::Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, feed) in self.0.iter().enumerate() {
            if position == 0 {
                write!(f, "{:?}", feed.from)?;
            }
            write!(f, " -> {} -> {:?}", feed.output_text, feed.to)?;
        }
        Ok(())
    }
}
