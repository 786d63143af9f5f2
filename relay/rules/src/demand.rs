//! Outputs on demand, `demand = "igmp"`: they send only the groups that hosts on their interface request
//! by IGMP or MLD.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::net::LOOPBACK;
use crate::net::{Ifindex, Prefix};
use crate::owner::Owner;

/// The value of the option, for both families.
pub const IGMP: &str = "igmp";

/// How an output follows what is listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Whether this relay is querier on the output's interface if no router with a lower address is. One
    /// such output is enough for its interface.
    pub querier: bool,
    /// How many seconds the input stays joined after the last host left.
    pub linger_s: u16,
}

/// Which hosts an output on demand follows, and in how many groups. A report's sender address is not
/// authenticated, so this keeps order and is not a security measure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Only these; all if empty.
    pub allow: Vec<Prefix>,
    /// Except these.
    pub deny: Vec<Prefix>,
    /// The most groups of one host.
    pub groups_each: Option<u16>,
    /// The most groups of all together.
    pub groups_all: Option<u16>,
}

impl Admission {
    /// Returns whether reports of the host are accepted at all.
    pub fn admits(&self, host: IpAddr) -> bool {
        let is_in = |ranges: &[Prefix]| ranges.iter().any(|range| range.contains(host));
        (self.allow.is_empty() || is_in(&self.allow)) && !is_in(&self.deny)
    }
}

/// What is listened to on each interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listening(pub BTreeMap<Ifindex, Arc<Groups>>);

/// The groups that are listened to on an interface, each with its sources.
pub type Groups = BTreeMap<IpAddr, SourceFilter>;

/// Which sources of a group are listened to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceFilter {
    /// These.
    Include(BTreeSet<IpAddr>),
    /// All but these.
    Exclude(BTreeSet<IpAddr>),
}

impl SourceFilter {
    /// Returns whether packets of `source` are listened to.
    pub fn passes(&self, source: IpAddr) -> bool {
        match self {
            Self::Include(sources) => sources.contains(&source),
            Self::Exclude(sources) => !sources.contains(&source),
        }
    }

    /// Returns whether packets of a source that is not named are listened to.
    pub const fn passes_others(&self) -> bool {
        matches!(self, Self::Exclude(_))
    }

    /// The sources that are named.
    pub const fn sources(&self) -> &BTreeSet<IpAddr> {
        match self {
            Self::Include(sources) | Self::Exclude(sources) => sources,
        }
    }
}

/// The groups of an input that an output sends to `group`: all of them if the output has a single group,
/// or the one with the same host bits.
pub fn input_groups(input: Prefix, output: Prefix, group: IpAddr) -> Option<Prefix> {
    if !output.contains(group) {
        None
    } else if output.is_host() {
        Some(input)
    } else if output.length == input.length {
        Some(Prefix::host(input.carry(group)))
    } else {
        None
    }
}

/// What is wrong with an output on demand.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DemandProblem {
    /// No group.
    #[error("demand= is for groups, which hosts can ask for; leave it out")]
    NoGroup,
    /// Copies for each address of a name beside it.
    #[error("demand= and all= do not go together in one rule; give each output a rule of its own")]
    All,
    /// The loopback interface.
    #[error("demand= on {LOOPBACK}: nobody asks there; leave it out")]
    Loopback,
    /// Inputs whose interfaces are unknown until they exist.
    #[error("demand= and input {0} do not go together; name each interface in an input")]
    Wildcard(String),
    /// Packets' own sources, but an input that is not a group.
    #[error(
        "demand= with source=keep is for inputs that are groups, which {0} is not; leave one out"
    )]
    Kept(String),
    /// A group for each port.
    #[error(
        "demand= is for inputs that are groups where the output is a range, and input {0} is none; \
         give each port a rule"
    )]
    PortsToGroups(String),
    /// Monitoring the silence of a stream that is not received while nobody listens.
    #[error(
        "demand= at all outputs and health.silence do not go together: nothing comes while nobody \
         listens; leave one out"
    )]
    Silence,
    /// Inputs in common with another rule.
    #[error(
        "overlaps with input {input} of {owner}; of groups that go out on demand each belongs to one \
         input: separate them"
    )]
    Overlaps {
        /// The other input.
        input: String,
        /// The rule it belongs to.
        owner: Owner,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        let (address, length) = text.split_once('/').unwrap_or((text, "128"));
        Prefix::new(address.parse().unwrap(), length.parse().unwrap())
    }

    #[test]
    fn maps_a_group_that_is_listened_to_back_to_the_input() {
        for (input, output, group, expected) in [
            (
                "239.1.1.0/24",
                "239.9.9.0/24",
                "239.9.9.7",
                Some("239.1.1.7"),
            ),
            (
                "239.1.1.0/24",
                "239.9.9.9",
                "239.9.9.9",
                Some("239.1.1.0/24"),
            ),
            ("239.1.1.1", "239.9.9.9", "239.9.9.9", Some("239.1.1.1")),
            ("239.1.1.0/24", "239.9.9.0/24", "239.9.8.7", None),
            ("239.1.1.1", "239.9.9.9", "239.9.9.8", None),
            ("ff3e::/120", "ff3e::100/120", "ff3e::1ab", Some("ff3e::ab")),
            ("239.1.1.0/24", "239.9.9.0/24", "ff3e::7", None),
        ] {
            let groups = input_groups(prefix(input), prefix(output), group.parse().unwrap());
            assert_eq!(groups, expected.map(prefix), "{input} {output} {group}");
        }
    }

    #[test]
    fn a_filter_passes_what_it_names_or_all_else() {
        let named: IpAddr = "10.0.0.5".parse().unwrap();
        let other: IpAddr = "10.0.0.6".parse().unwrap();
        let include = SourceFilter::Include([named].into());
        assert!(include.passes(named) && !include.passes(other) && !include.passes_others());
        let exclude = SourceFilter::Exclude([named].into());
        assert!(!exclude.passes(named) && exclude.passes(other) && exclude.passes_others());
    }
}
