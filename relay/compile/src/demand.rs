//! Rules with outputs on demand: their routes lead only where hosts listen.
//!
//! The route of an input stands for what nobody asked for. Each group of its range that is listened to
//! gets a route of its own, which goes before it because it is the longer prefix, and so does each source
//! that only some outputs want. Routes of one rule share its counters, so neither path knows of this.
//! [`DemandProblem::Overlaps`](rules::demand::DemandProblem::Overlaps) keeps such routes from taking what
//! is another rule's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use rules::demand::{Groups, Listening, SourceFilter, input_groups};
use rules::endpoint::Endpoint;
use rules::joins::{JOINED_GROUPS_MAX, groups_too_many};
use rules::net::{Ports, Prefix};
use rules::rule::Rule;

use super::inputs::keys;
use super::{InputView, Join, RuleView};
use crate::table::{DownReason, Output, OutputState, RouteKey};

/// Sources of one group that are joined each by itself; where there are more all are joined at once, for
/// the kernel has a bound of its own (`igmp_max_msf`).
const JOINED_SOURCES_MAX: usize = 8;

/// A route's key, its input's number, and its outputs if they are not the rule's.
pub(super) type Keyed = (RouteKey, usize, Option<Vec<Output>>);

/// The routes of a rule with outputs on demand. Sets what its view says of them: the keys beyond those of
/// its inputs, the groups that each output was asked for, and what the inputs join.
pub(super) fn routes(
    rule: &Rule,
    view: &mut RuleView,
    outputs: &[Output],
    listening: &Listening,
) -> Vec<Keyed> {
    let demands = Demands::new(rule, view, outputs, listening);
    for (output, demanded) in view.outputs.iter_mut().zip(&demands.0) {
        output.wanted = demanded.as_ref().map(Demanded::count);
    }
    let (mut all, mut divided) = (Vec::new(), Vec::new());
    for (number, endpoint) in rule.inputs.iter().enumerate() {
        let base = keys(endpoint, &view.inputs[number]);
        let pulled = demands.pulled(endpoint);
        for key in &base {
            for part in &pulled {
                // Each source that the input names has keys of its own.
                let names = part
                    .source
                    .is_none_or(|source| key.source.is_none_or(|own| own == Prefix::host(source)));
                let is_left = endpoint.is_multicast() && key.source.is_some();
                if !names || is_left && part.source.is_none() {
                    continue;
                }
                let key = RouteKey {
                    groups: if endpoint.is_multicast() {
                        part.groups
                    } else {
                        key.groups
                    },
                    source: key.source.or(part.source.map(Prefix::host)),
                    ..*key
                };
                let outputs = demands.outputs(outputs, endpoint, part);
                if !base.contains(&key) {
                    divided.push(key);
                }
                all.push((key, number, Some(outputs)));
            }
        }
        if rule.is_on_demand() && endpoint.is_multicast() {
            join(endpoint, &mut view.inputs[number], &pulled);
        }
    }
    view.divided = divided;
    all
}

/// Part of what an input takes: groups, from a source or from any that no other part names.
struct Part {
    groups: Prefix,
    source: Option<IpAddr>,
    /// Which outputs it goes to.
    wanted: Vec<bool>,
}

/// What each output on demand was asked for.
struct Demands<'a>(Vec<Option<Demanded<'a>>>);

/// What an output was asked for.
struct Demanded<'a> {
    /// Its groups.
    to: Prefix,
    /// All that is listened to on its interface.
    groups: Option<&'a Groups>,
    /// The source that its copies have, if they do not keep theirs.
    source: Option<IpAddr>,
}

impl Demanded<'_> {
    /// What is listened to of its groups.
    fn filters(&self) -> impl Iterator<Item = (IpAddr, &SourceFilter)> {
        let range: RangeInclusive<IpAddr> = self.to.address..=self.to.last();
        let groups = self
            .groups
            .into_iter()
            .flat_map(move |groups| groups.range(range.clone()));
        let groups = groups.map(|(group, filter)| (*group, filter));
        // Where the copies have one source, it has to be one that is listened to.
        groups.filter(|(_, filter)| self.source.is_none_or(|source| filter.passes(source)))
    }

    fn count(&self) -> u32 {
        u32::try_from(self.filters().count()).unwrap_or(u32::MAX)
    }

    /// Says whether it was asked for `group`, one of its own, from `source`; `None`: from one that nobody
    /// names.
    fn wants(&self, group: IpAddr, source: Option<IpAddr>) -> bool {
        let filter = self.groups.and_then(|groups| groups.get(&group));
        filter.is_some_and(|filter| match self.source.or(source) {
            Some(source) => filter.passes(source),
            None => filter.passes_others(),
        })
    }
}

impl<'a> Demands<'a> {
    fn new(rule: &Rule, view: &RuleView, outputs: &[Output], listening: &'a Listening) -> Self {
        let ends = rule.outputs.iter().zip(&view.outputs).zip(outputs);
        let demands = ends.map(|((spec, end), output)| {
            spec.demand?;
            let source = match &output.state {
                OutputState::Up(egress) => egress.source,
                // Nothing leaves by it, so nothing is pulled for it.
                OutputState::Down(_) => {
                    return Some(Demanded {
                        to: spec.to.destination,
                        groups: None,
                        source: None,
                    });
                }
            };
            let groups = end.link.and_then(|link| listening.0.get(&link));
            Some(Demanded {
                to: spec.to.destination,
                groups: groups.map(AsRef::as_ref),
                source,
            })
        });
        Self(demands.collect())
    }

    /// What is wanted of an input: first the whole of it, for what no other part names.
    fn pulled(&self, input: &Endpoint) -> Vec<Part> {
        let whole = input.destination;
        let mut named: BTreeMap<Prefix, BTreeSet<IpAddr>> = BTreeMap::new();
        named.insert(whole, BTreeSet::new());
        for demanded in self.0.iter().flatten() {
            for (group, filter) in demanded.filters() {
                // Of an address of this host one group is made.
                let groups = if input.is_multicast() {
                    input_groups(whole, demanded.to, group)
                } else {
                    Some(whole)
                };
                let Some(groups) = groups else { continue };
                let sources = named.entry(groups).or_default();
                if demanded.source.is_none() {
                    sources.extend(filter.sources());
                }
            }
        }
        // A source of the whole goes before a group of any source, so it has to be named there too.
        let of_whole = named[&whole].clone();
        let given: BTreeSet<IpAddr> = input.sources.iter().map(|source| source.address).collect();
        let mut parts = Vec::new();
        for (groups, mut sources) in named {
            sources.extend(&of_whole);
            if input.is_multicast() && !given.is_empty() {
                sources.clone_from(&given);
            }
            if !input.is_multicast() {
                sources.clear();
            }
            let from = std::iter::once(None).chain(sources.into_iter().map(Some));
            parts.extend(from.map(|source| Part {
                groups,
                source,
                wanted: self.wanted(input, groups, source),
            }));
        }
        parts
    }

    /// Which outputs a part of an input goes to.
    fn wanted(&self, input: &Endpoint, groups: Prefix, source: Option<IpAddr>) -> Vec<bool> {
        let wanted = self.0.iter().map(|demanded| {
            let Some(demanded) = demanded else {
                return true;
            };
            let to = demanded.to;
            if to.is_host() {
                return demanded.wants(to.address, source);
            }
            // What is left of a range nobody asked for.
            let is_whole = groups == input.destination && !groups.is_host();
            !is_whole && demanded.wants(to.carry(groups.address), source)
        });
        wanted.collect()
    }

    /// The outputs of a part, each for the part's groups alone.
    fn outputs(&self, outputs: &[Output], input: &Endpoint, part: &Part) -> Vec<Output> {
        let outputs = outputs.iter().zip(&part.wanted).zip(&self.0);
        let outputs = outputs.map(|((output, wanted), demanded)| {
            let mut output = output.clone();
            let state = &mut output.state;
            match state {
                OutputState::Up(_) if demanded.is_some() && !wanted => {
                    *state = OutputState::Down(DownReason::NotWanted);
                }
                OutputState::Up(egress) if part.groups != input.destination => {
                    let group = part.groups.address;
                    if !egress.destination.is_host() {
                        egress.destination = Prefix::host(egress.destination.carry(group));
                    }
                    if !egress.ports.is_single() && input.ports.is_single() {
                        let number = input.destination.number_of(group);
                        egress.ports = Ports::single(egress.ports.first.saturating_add(number));
                    }
                }
                OutputState::Up(_) | OutputState::Down(_) => {}
            }
            output
        });
        outputs.collect()
    }
}

/// Joins what is wanted of an input, and nothing else.
fn join(endpoint: &Endpoint, view: &mut InputView, pulled: &[Part]) {
    let mut sources: BTreeMap<Prefix, BTreeSet<Option<IpAddr>>> = BTreeMap::new();
    for part in pulled.iter().filter(|part| part.wanted.contains(&true)) {
        // The part of any source is of no input that names some.
        if part.source.is_some() || endpoint.sources.is_empty() {
            sources.entry(part.groups).or_default().insert(part.source);
        }
    }
    let is_whole = |groups: &Prefix| *groups == endpoint.destination;
    let too_many = sources
        .keys()
        .any(is_whole)
        .then(|| groups_too_many(endpoint.destination));
    let too_many = too_many.flatten();
    // Said of the range where all of it is joined at once.
    view.unjoined.clone_from(&too_many);
    let links = &view.interfaces;
    let wanted = sources
        .into_iter()
        .filter(|(groups, _)| !is_whole(groups) || too_many.is_none());
    let joins = wanted.flat_map(|(groups, sources)| {
        let from_any = sources.contains(&None) || sources.len() > JOINED_SOURCES_MAX;
        let from_any = from_any && endpoint.sources.is_empty();
        let sources: Vec<IpAddr> = if from_any {
            Vec::new()
        } else {
            sources.into_iter().flatten().collect()
        };
        links.iter().map(move |interface| Join {
            interface: *interface,
            groups,
            sources: sources.clone(),
        })
    });
    let all = links.iter().filter(|_| too_many.is_some());
    let all = all.map(|interface| Join::of_all(*interface));
    view.joins = joins.take(JOINED_GROUPS_MAX as usize).chain(all).collect();
}
