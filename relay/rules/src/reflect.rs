//! Rules that reflect: what arrives by each of their interfaces leaves by all others, `mode = "reflect"`.
//!
//! Such a rule has one input and one output for each interface, in the same order, all of one group and
//! port; packets of an input leave by every output but its own. Another reflector between the same
//! networks sends back what it receives. So a payload passes once within a window, whichever interface it
//! arrives by: nothing leaves twice, and nothing loops.

use std::time::Duration;

use thiserror::Error;

use crate::duration;
use crate::endpoint::EndpointProblem;
use crate::merge::{WINDOW_MAX, WINDOW_MIN};
use crate::net::LOOPBACK;
use crate::setting::OptionProblem;

/// The value of `mode`.
pub const MODE: &str = "reflect";
/// Default of how long the same payload does not pass again. Shorter than the interval of intended
/// repetitions: 250 ms between the probes of RFC 6762 section 8.1.
pub const DEFAULT_WINDOW: Duration = Duration::from_millis(200);

/// How a rule reflects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reflect {
    /// How long the same payload does not pass again.
    pub window: Duration,
    /// The indices of its interfaces that do not receive from each other.
    pub isolated: Vec<usize>,
}

/// What is wrong with a rule that reflects.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReflectProblem {
    /// Another mode.
    #[error("mode = {0:?}: give \"reflect\", or leave it out")]
    Mode(String),
    /// A key of rules that reflect in another one.
    #[error("{0} is for rules with mode = \"reflect\"; add that, or leave {0} out")]
    WithoutMode(&'static str),
    /// A key that rules which reflect do not have.
    #[error("mode = \"reflect\" and {0} do not go together; leave one of them out")]
    Beside(&'static str),
    /// Fewer than two interfaces.
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
    /// An isolated interface that is not one of the rule's.
    #[error("isolated: {0} is none of the rule's interfaces; name it there too, or leave it out")]
    IsolatedUnknown(String),
    /// All interfaces are isolated.
    #[error("isolated has all interfaces, so none hears another; leave out the one that all hear")]
    AllIsolated,
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
    /// Something other than one group and one port.
    #[error(
        "group = {0:?}: give one multicast group and one port, as in 224.0.0.251:5353 or \
         [ff02::fb]:5353, or 255.255.255.255:PORT for broadcasts, and each other one a rule of its own"
    )]
    NotOneGroup(String),
    /// A source that is neither `auto` nor `keep`.
    #[error(
        "source = {0:?}: give auto (the address of the interface that a copy leaves by) or keep"
    )]
    Source(String),
    /// An invalid TTL.
    #[error(transparent)]
    Ttl(OptionProblem),
    /// An invalid window.
    #[error("window = {0:?}: give 1ms to 500ms")]
    Window(String),
}

impl Default for Reflect {
    fn default() -> Self {
        Self {
            window: DEFAULT_WINDOW,
            isolated: Vec::new(),
        }
    }
}

impl Reflect {
    /// Returns whether what arrives by one of its interfaces leaves by another.
    pub fn leads(&self, input: usize, output: usize) -> bool {
        let is_isolated = |interface| self.isolated.contains(&interface);
        input != output && !(is_isolated(input) && is_isolated(output))
    }

    /// Parses how a rule reflects.
    ///
    /// # Errors
    ///
    /// An invalid window.
    pub fn parse(window: Option<&str>) -> Result<Self, ReflectProblem> {
        let Some(text) = window else {
            return Ok(Self::default());
        };
        let window = duration::parse(text)
            .filter(|window| (WINDOW_MIN..=WINDOW_MAX).contains(window))
            .ok_or_else(|| ReflectProblem::Window(text.to_owned()))?;
        Ok(Self {
            window,
            ..Self::default()
        })
    }

    /// The window as text, unless it is the default.
    pub fn window_text(&self) -> Option<String> {
        (self.window != DEFAULT_WINDOW).then(|| duration::text(self.window))
    }
}
