//! Groups that are joined on an interface although no rule needs them: `239.1.1.1%eth1`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use rules::endpoint::Endpoint;
use rules::joins::{JOINED_GROUPS_MAX, groups_too_many, joined_groups};
use rules::named::by_text;
use rules::net::{Ports, Prefix};
use rules::setting::{ANY, TextForm};
use serde::{Deserialize, Serialize};

/// Precedes the time at which a join ends.
const UNTIL: &str = ",until=";

/// The notation of a join.
pub(super) const FORM: TextForm = TextForm {
    name: "[SOURCE@]GROUP%IFACE",
    pattern: concat!(
        r"\[?([^\s@%\[\]]+@)?((22[4-9]|23[0-9])[0-9./]+|[Ff][Ff][0-9A-Fa-f:.]+(/[0-9]+)?)",
        r"%[^\s/%,@:*?\[\]]{1,15}\]?(,until=[0-9]+)?",
    ),
    ..ANY
};

/// A group, or each group of a range, that is joined on an interface whatever the rules say.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StaticJoin {
    /// Interface to join on.
    pub interface: String,
    /// Groups, at most as many as are joined of one range.
    pub groups: Prefix,
    /// Sources to include; empty for any.
    pub sources: Vec<IpAddr>,
    /// When it ends, in seconds since the epoch; `None`: when the operator leaves.
    pub until: Option<u64>,
}

impl StaticJoin {
    /// Whether it has the same groups, senders and interface, whenever either ends.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let identity = |join: &Self| Self {
            until: None,
            ..join.clone()
        };
        identity(self) == identity(other)
    }

    /// Whether it is over at `now`, in seconds since the epoch.
    #[must_use]
    pub fn is_over(&self, now: u64) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// Its notation without the time at which it ends.
    #[must_use]
    pub fn at(&self) -> String {
        let sources: Vec<String> = self.sources.iter().map(ToString::to_string).collect();
        let from = match sources.as_slice() {
            [] => String::new(),
            sources => format!("{}@", sources.join(",")),
        };
        format!("{from}{}%{}", self.groups, self.interface)
    }

    /// The number of its memberships.
    #[must_use]
    pub fn memberships(&self) -> usize {
        joined_groups(self.groups, false) * self.sources.len().max(1)
    }

    /// An input that joins the same, with an arbitrary port.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        Endpoint {
            sources: self.sources.iter().copied().map(Prefix::host).collect(),
            destination: self.groups,
            interface: Some(self.interface.clone()),
            ports: Ports::single(1),
            rejoin: None,
        }
    }
}

impl fmt::Display for StaticJoin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.at())?;
        match self.until {
            Some(until) => write!(f, "{UNTIL}{until}"),
            None => Ok(()),
        }
    }
}

impl FromStr for StaticJoin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (membership, until) = match text.split_once(UNTIL) {
            Some((membership, until)) => (membership, Some(until)),
            None => (text, None),
        };
        let until = until.map(|until| {
            until.parse().map_err(|_| {
                format!(
                    "{text:?}: until={until}: give seconds since 1970, as `date +%s` prints them"
                )
            })
        });
        let endpoint = endpoint(membership).map_err(|problem| format!("{text:?}: {problem}"))?;
        Ok(Self {
            interface: endpoint.interface.unwrap_or_default(),
            groups: endpoint.destination,
            sources: endpoint
                .sources
                .iter()
                .map(|source| source.address)
                .collect(),
            until: until.transpose()?,
        })
    }
}

/// Parses a group and an interface in the notation of an input, which also has a port.
fn endpoint(text: &str) -> Result<Endpoint, String> {
    const FORM: &str = "give GROUP%IFACE, as in 239.1.1.1%eth1 or ff3e::1%eth1";
    let bracketed = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let bare = bracketed.unwrap_or(text);
    if bare.is_empty() {
        return Err(FORM.to_owned());
    }
    let (addresses, interface) = bare.split_once('%').unwrap_or((bare, ""));
    if interface.contains(':') || text.contains("]:") {
        return Err(format!(
            "a membership is of a group and has no port; {FORM}"
        ));
    }
    let with_port = if addresses.contains(':') {
        format!("[{bare}]:1")
    } else {
        format!("{bare}:1")
    };
    let endpoint: Endpoint = with_port
        .parse()
        .map_err(|error: rules::endpoint::EndpointError| error.problem.to_string())?;
    if !endpoint.is_multicast() {
        return Err(format!(
            "{} is no multicast group; {FORM}",
            endpoint.destination
        ));
    }
    match &endpoint.interface {
        None => return Err(format!("no interface is named; {FORM}")),
        Some(name) if rules::endpoint::is_wildcard(name) => {
            return Err(format!("%{name}: name one interface"));
        }
        Some(_) => {}
    }
    if groups_too_many(endpoint.destination).is_some() {
        return Err(format!(
            "holds more than {JOINED_GROUPS_MAX} groups; divide the range"
        ));
    }
    Ok(endpoint)
}

by_text!(StaticJoin, String);

/// Checks that no join is there twice.
pub(super) fn check(joins: &[StaticJoin]) -> Result<(), String> {
    duplicate(joins).map_or(Ok(()), |join| Err(format!("{join} is there twice")))
}

/// The first join that is there twice.
fn duplicate(joins: &[StaticJoin]) -> Option<&StaticJoin> {
    let mut rest = joins.iter();
    while let Some(join) = rest.next() {
        if rest.clone().any(|other| other.is_same(join)) {
            return Some(join);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_what_it_parsed() {
        for text in [
            "239.1.1.1%eth1",
            "239.1.1.0/28%eth1",
            "10.0.0.5,10.0.0.6@232.1.1.1%eth1",
            "ff3e::1%eth1",
            "2001:db8::5@ff3e::1%eth1,until=1795471200",
        ] {
            assert_eq!(text.parse::<StaticJoin>().unwrap().to_string(), text);
        }
        let bracketed: StaticJoin = "[ff3e::1%eth1]".parse().unwrap();
        assert_eq!(bracketed.to_string(), "ff3e::1%eth1");
    }

    #[test]
    fn says_what_is_wrong_and_the_remedy() {
        for (text, expected) in [
            ("", "give GROUP%IFACE"),
            ("239.1.1.1", "no interface is named"),
            ("239.1.1.1%eth1:5001", "has no port"),
            ("[ff3e::1%eth1]:5001", "has no port"),
            ("10.0.0.1%eth1", "10.0.0.1 is no multicast group"),
            ("239.1.1.1%eth*", "name one interface"),
            ("239.0.0.0/8%eth1", "holds more than 4096 groups"),
            ("239.1.1.1%eth1,until=soon", "give seconds since 1970"),
        ] {
            let error = text.parse::<StaticJoin>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            // The schema cannot count the groups of a range.
            let refused = crate::schema::tests::errors(&format!("join = [{text:?}]"));
            assert_eq!(
                refused.is_empty(),
                expected.contains("holds more"),
                "{text}: {refused:?}"
            );
        }
    }

    #[test]
    fn ends_at_its_time() {
        let join: StaticJoin = "239.1.1.1%eth1,until=100".parse().unwrap();
        assert!(!join.is_over(99));
        assert!(join.is_over(100));
        let without: StaticJoin = "239.1.1.1%eth1".parse().unwrap();
        assert!(!without.is_over(u64::MAX));
        assert!(without.is_same(&join));
        assert_eq!(duplicate(&[without.clone(), join]), Some(&without));
        assert_eq!(duplicate(&[without]), None);
    }
}
