//! A rule: what the operator writes, parsed once into a form that cannot be malformed.
//!
//! Whether rules are valid, alone and together, is decided by [`crate::ruleset`].

mod demand;
mod options;
mod output;
mod reflect;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub(crate) use options::DESTINATION_PATTERN;
pub use options::{Follows, OptionsProblem, OutputOptions, SourceChoice, Ttl, code_point};
pub use output::{OutputError, OutputProblem, OutputSpec};

use crate::endpoint::Endpoint;
use crate::failover::Failover;
use crate::health::Health;
use crate::limit::RateLimit;
use crate::merge::Merge;
use crate::path::Path;
use crate::reflect::Reflect;
use crate::setting::{ANY, TextForm, words};

/// Names of rules, shares, fleets and relays.
pub const NAME: TextForm = TextForm {
    name: "NAME",
    fits: is_name,
    pattern: "[0-9A-Za-z][0-9A-Za-z._:-]{0,62}",
    remedy: "a letter or digit, then letters, digits, '.', '_', '-' and ':', at most 63 of them",
    ..ANY
};

/// Longest comment and longest value of a label, in bytes.
pub const TEXT_MAX: usize = 255;

/// The most labels of a rule.
pub const LABELS_MAX: usize = 16;

/// Longest name of a rule, in bytes.
pub const NAME_MAX: usize = 63;

/// Incoming streams and the copies to send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    try_from = "crate::document::RuleDocument",
    into = "crate::document::RuleDocument"
)]
pub struct Rule {
    /// Unique name: letters, digits and `.` `_` `-` `:`, at most [`NAME_MAX`] bytes.
    pub name: String,
    /// Where packets come from, at least one.
    pub inputs: Vec<Endpoint>,
    /// Copies to make, at least one.
    pub outputs: Vec<OutputSpec>,
    /// Path the rule is forced to; `None` leaves it to placement.
    pub path: Option<Path>,
    /// What becomes of the packet on this host.
    pub local: LocalDelivery,
    /// Cap on what the rule accepts.
    pub limit: Option<RateLimit>,
    /// Which of its inputs is relayed; `None`: each.
    pub failover: Option<Failover>,
    /// How its inputs become one stream; `None`: each packet is relayed.
    pub merge: Option<Merge>,
    /// Whether it reflects: then inputs and outputs have the same interfaces and one group, and what
    /// arrives by one interface leaves by the others.
    pub reflect: Option<Reflect>,
    /// How the stream is monitored.
    pub health: Option<Health>,
    /// The rules of a fleet that change hands together have the same share, a name like those of rules;
    /// `None`: the rule belongs to no share and forwards on every relay.
    pub share: Option<String>,
    /// Whether it forwards. A disabled rule stays configured, joins nothing and takes no packet from
    /// other rules.
    pub enabled: bool,
    /// A comment for people.
    pub comment: Option<String>,
    /// Keys and values to select rules by, which mean nothing to MCR.
    pub labels: BTreeMap<String, String>,
}

words! {
    /// What becomes of a relayed packet on this host.
    pub enum LocalDelivery = Auto {
        /// Consumed, unless a UDP socket is bound to the port.
        Auto = "auto",
        /// Always passed up to the host's stack as well.
        Yes = "yes",
        /// Always consumed.
        No = "no",
    }
}

/// Returns whether `key` can be a label's key: a letter, then letters, digits and `_`, as in metrics.
pub fn is_label_key(key: &str) -> bool {
    key.len() <= NAME_MAX
        && key.starts_with(|c: char| c.is_ascii_alphabetic())
        && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Makes a name for a rule without one, from its first input: `239.1.1.1%eth0:5001` becomes
/// `eth0-239.1.1.1-5001`. The name may already be taken.
pub fn name_for(input: &Endpoint) -> String {
    let interface = input.interface.as_deref().unwrap_or("any");
    let source = input.sources.first().map(|source| format!("{source}-"));
    let family = if input.is_every_address() && !input.is_ipv4() {
        "6"
    } else {
        ""
    };
    let text = format!(
        "{interface}-{}{}{family}-{}",
        source.unwrap_or_default(),
        input.destination_text(),
        input.ports
    );
    let name: String = text
        .chars()
        .map(|c| if is_name_character(c) { c } else { '_' })
        .take(NAME_MAX)
        .collect();
    name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric())
        .to_owned()
}

/// Returns whether `name` can name a rule.
pub fn is_name(name: &str) -> bool {
    name.len() <= NAME_MAX
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(is_name_character)
}

fn is_name_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makes_a_valid_name_from_any_input() {
        for (input, name) in [
            ("239.1.1.1%eth0:5001", "eth0-239.1.1.1-5001"),
            (
                "10.0.0.5@232.1.1.1%eth0:5001",
                "eth0-10.0.0.5-232.1.1.1-5001",
            ),
            ("239.1.1.0/24%eth*:5001-5010", "eth_-239.1.1.0_24-5001-5010"),
            ("[ff3e::1%eth0]:5001", "eth0-ff3e::1-5001"),
            ("239.1.1.1%_x:5001", "x-239.1.1.1-5001"),
            ("unicast%eth0:7000", "eth0-unicast-7000"),
            (
                "[2001:db8::/64@unicast%eth0]:7000",
                "eth0-2001:db8::_64-unicast6-7000",
            ),
        ] {
            let generated = name_for(&input.parse().unwrap());
            assert_eq!(generated, name);
            assert!(is_name(&generated));
        }
    }

    #[test]
    fn distinguishes_names_from_other_texts() {
        for name in ["cam1", "a", "1", "a.b_c-d:e", &"x".repeat(63)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "-a", "a b", "a/b", "a%b", "é", &"x".repeat(64)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
