//! The memberships the rules need: computed without I/O, then held equal to what is joined.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use model::compile::{Compiled, Join};
use model::net::{Ifindex, Prefix};
use sys::membership::{Error, Membership, Memberships};

/// Every membership that the rules need. A group that some rule wants from any source is joined
/// for any, whatever sources others name.
pub(crate) fn wanted(compiled: &Compiled) -> BTreeSet<Membership> {
    let inputs = compiled.rules.iter().flat_map(|rule| &rule.inputs);
    let mut wanted: BTreeSet<Membership> = inputs
        .flat_map(|input| &input.joins)
        .flat_map(of_join)
        .collect();
    let any: BTreeSet<Membership> = wanted
        .iter()
        .filter(|membership| membership.source.is_none())
        .copied()
        .collect();
    wanted.retain(|membership| membership.source.is_none() || !any.contains(&of_any(membership)));
    wanted
}

/// The memberships one join stands for: each group of its range, each source.
pub(crate) fn of_join(join: &Join) -> impl Iterator<Item = Membership> + '_ {
    let sources: Vec<Option<IpAddr>> = if join.sources.is_empty() {
        vec![None]
    } else {
        join.sources.iter().copied().map(Some).collect()
    };
    groups(join.groups).flat_map(move |group| {
        let membership = move |source| Membership {
            interface: join.interface.0,
            group,
            source,
        };
        sources.clone().into_iter().map(membership)
    })
}

fn groups(range: Prefix) -> impl Iterator<Item = IpAddr> {
    let count = 1_u128.checked_shl(range.host_bits().into()).unwrap_or(0);
    (0..count).map(move |offset| match range.address {
        IpAddr::V4(base) => Ipv4Addr::from_bits(base.to_bits() | offset as u32).into(),
        IpAddr::V6(base) => Ipv6Addr::from_bits(base.to_bits() | offset).into(),
    })
}

fn of_any(membership: &Membership) -> Membership {
    Membership {
        source: None,
        ..*membership
    }
}

/// What is joined and what could not be.
#[derive(Debug, Default)]
pub(crate) struct Joined {
    set: Memberships,
    failed: BTreeMap<Membership, String>,
}

impl Joined {
    /// Joins what is wanted and not joined yet; nothing is left. All or nothing: if a join fails,
    /// those made before it are undone.
    pub(crate) fn require(&mut self, wanted: &BTreeSet<Membership>) -> Result<(), Error> {
        let mut made = Vec::new();
        for membership in wanted {
            // What failed before this change is not this change's fault.
            if self.set.holds(membership) || self.failed.contains_key(membership) {
                continue;
            }
            if let Err(error) = self.set.join(*membership) {
                for membership in made {
                    self.set.leave(membership);
                }
                return Err(error);
            }
            made.push(*membership);
        }
        Ok(())
    }

    /// Joins and leaves until exactly `wanted` is joined; what fails is remembered and tried again
    /// by the next call.
    pub(crate) fn settle(&mut self, wanted: &BTreeSet<Membership>) {
        let errors = self.set.reconcile(wanted);
        self.failed = errors.into_iter().filter_map(failure).collect();
    }

    /// Forgets what was joined on links that were deleted; a link that has the number now is
    /// another one.
    pub(crate) fn renew(&mut self, links: &BTreeSet<Ifindex>) {
        if links.is_empty() {
            return;
        }
        let here = |held: &Membership| links.contains(&Ifindex(held.interface));
        let held: Vec<Membership> = self.held().filter(here).collect();
        for membership in held {
            self.set.leave(membership);
        }
    }

    /// Tells a link that came back what is joined on it.
    pub(crate) fn rejoin(&mut self, link: Ifindex) {
        for error in self.set.rejoin(link.0) {
            self.failed.extend(failure(error));
        }
    }

    /// Says whether packets of a membership are asked for.
    pub(crate) fn holds(&self, membership: &Membership) -> bool {
        self.set.holds(membership) || self.set.holds(&of_any(membership))
    }

    /// Why a membership could not be joined.
    pub(crate) fn failure(&self, membership: &Membership) -> Option<&str> {
        let failed = self.failed.get(membership);
        let failed = failed.or_else(|| self.failed.get(&of_any(membership)));
        failed.map(String::as_str)
    }

    /// What is joined.
    pub(crate) const fn set(&self) -> &Memberships {
        &self.set
    }

    /// Takes over a socket of an earlier run.
    pub(crate) fn adopt(&mut self, number: u32, socket: OwnedFd, claims: Vec<Membership>) {
        if let Err(error) = self.set.adopt(number, socket, claims) {
            tracing::warn!(%error, "memberships of an earlier run");
        }
    }

    /// Says whether some join failed and should be tried again.
    pub(crate) fn is_incomplete(&self) -> bool {
        !self.failed.is_empty()
    }

    fn held(&self) -> impl Iterator<Item = Membership> + '_ {
        self.set.sockets().flat_map(|held| held.memberships)
    }
}

fn failure(error: Error) -> Option<(Membership, String)> {
    match &error {
        Error::Join { membership, .. } => Some((*membership, error.to_string())),
        _ => {
            tracing::error!(%error, "memberships");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use model::compile::{InputView, RuleView};
    use model::placement::Placement;
    use model::table::Path;

    use super::*;

    fn join(groups: &str, sources: &[&str]) -> Join {
        let (address, length) = groups.split_once('/').unwrap_or((groups, "32"));
        Join {
            interface: Ifindex(2),
            groups: Prefix::new(address.parse().unwrap(), length.parse().unwrap()),
            sources: sources.iter().map(|s| s.parse().unwrap()).collect(),
        }
    }

    fn compiled(joins: Vec<Join>) -> Compiled {
        let input = InputView {
            at: String::new(),
            interfaces: Vec::new(),
            joins,
            pending: None,
        };
        let rule = RuleView {
            name: "a".to_owned(),
            placement: Placement {
                path: Path::Kernel,
                serves: true,
                reason: String::new(),
            },
            inputs: vec![input],
            outputs: Vec::new(),
        };
        Compiled {
            rules: vec![rule],
            ..Compiled::default()
        }
    }

    fn shown(joins: Vec<Join>) -> Vec<String> {
        let shown = |m: &Membership| match m.source {
            None => m.group.to_string(),
            Some(source) => format!("{source}@{}", m.group),
        };
        wanted(&compiled(joins)).iter().map(shown).collect()
    }

    #[test]
    fn wants_each_group_of_a_range_and_each_source() {
        assert_eq!(
            shown(vec![join("239.1.1.0/30", &[])]),
            ["239.1.1.0", "239.1.1.1", "239.1.1.2", "239.1.1.3"]
        );
        assert_eq!(
            shown(vec![join("232.1.1.1", &["10.0.0.5", "10.0.0.6"])]),
            ["10.0.0.5@232.1.1.1", "10.0.0.6@232.1.1.1"]
        );
    }

    #[test]
    fn wants_any_source_where_some_rule_does() {
        assert_eq!(
            shown(vec![
                join("232.1.1.1", &["10.0.0.5"]),
                join("232.1.1.1", &[]),
                join("232.1.1.2", &["10.0.0.5"]),
            ]),
            ["232.1.1.1", "10.0.0.5@232.1.1.2"]
        );
    }
}
