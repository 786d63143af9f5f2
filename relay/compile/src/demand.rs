//! Rules with outputs on demand: their routes lead only where hosts listen.
//!
//! An input's own route is for what nobody requested. Each group of its range that is listened to gets a
//! route of its own, which takes precedence as the longer prefix, and so does each source that only some
//! outputs want. Routes of one rule share its counters, so neither path needs to be aware of this.
//! [`DemandProblem::Overlaps`](rules::demand::DemandProblem::Overlaps) prevents such routes from taking
//! packets of another rule.

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

/// The most sources of one group that are joined one by one; if there are more, all are joined at once,
/// because the kernel has a limit of its own (`igmp_max_msf`).
const JOINED_SOURCES_MAX: usize = 8;

/// A route's key, its input's number, and its outputs if they are not the rule's.
pub(super) type Keyed = (RouteKey, usize, Option<Vec<Output>>);

/// The routes of a rule with outputs on demand. Updates its view: the keys beyond those of its inputs, the
/// number of groups requested of each output, and what the inputs join.
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
        let requested = demands.requested(endpoint);
        for key in &base {
            for part in &requested {
                // Each source that the input names has keys of its own.
                let has_source = part
                    .source
                    .is_none_or(|source| key.source.is_none_or(|own| own == Prefix::host(source)));
                let is_specific = endpoint.is_multicast() && key.source.is_some();
                if !has_source || is_specific && part.source.is_none() {
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
            join(endpoint, &mut view.inputs[number], &requested);
        }
    }
    view.divided = divided;
    all
}

/// A part of an input: groups, from one source or from any that no other part names.
struct Part {
    groups: Prefix,
    source: Option<IpAddr>,
    /// Which outputs it goes to.
    wanted: Vec<bool>,
}

/// What is requested of each output on demand.
struct Demands<'a>(Vec<Option<Demanded<'a>>>);

/// What is requested of an output.
struct Demanded<'a> {
    /// Its groups.
    to: Prefix,
    /// Everything that is listened to on its interface.
    groups: Option<&'a Groups>,
    /// The source of its copies, if they do not keep theirs.
    source: Option<IpAddr>,
}

impl Demanded<'_> {
    /// Its groups that are listened to, with their source filters.
    fn filters(&self) -> impl Iterator<Item = (IpAddr, &SourceFilter)> {
        let range: RangeInclusive<IpAddr> = self.to.address..=self.to.last();
        self.groups
            .into_iter()
            .flat_map(move |groups| groups.range(range.clone()))
            .map(|(group, filter)| (*group, filter))
            // If the copies have one source, it must be one that is listened to.
            .filter(|(_, filter)| self.source.is_none_or(|source| filter.passes(source)))
    }

    fn count(&self) -> u32 {
        u32::try_from(self.filters().count()).unwrap_or(u32::MAX)
    }

    /// Returns whether its group `group` is requested from `source`; `None`: from a source that nobody names.
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
                // Nothing leaves by it, so nothing is requested for it.
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

    /// The parts of an input that are requested, preceded by the whole input for what no other part names.
    fn requested(&self, input: &Endpoint) -> Vec<Part> {
        let whole = input.destination;
        let mut named: BTreeMap<Prefix, BTreeSet<IpAddr>> = BTreeMap::new();
        named.insert(whole, BTreeSet::new());
        for demanded in self.0.iter().flatten() {
            for (group, filter) in demanded.filters() {
                // An address of this host is sent to a single group.
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
        // A source of the whole input takes precedence over a group of any source, so the group must name it,
        // too.
        let of_whole = named[&whole].clone();
        let own_sources: BTreeSet<IpAddr> =
            input.sources.iter().map(|source| source.address).collect();
        let mut parts = Vec::new();
        for (groups, mut sources) in named {
            sources.extend(&of_whole);
            if input.is_multicast() && !own_sources.is_empty() {
                sources.clone_from(&own_sources);
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
            // The whole range is for groups that nobody requested.
            let is_whole = groups == input.destination && !groups.is_host();
            !is_whole && demanded.wants(to.carry(groups.address), source)
        });
        wanted.collect()
    }

    /// The outputs of a part, each narrowed to the part's groups.
    fn outputs(&self, outputs: &[Output], input: &Endpoint, part: &Part) -> Vec<Output> {
        let each = outputs.iter().zip(&part.wanted).zip(&self.0);
        let narrowed = each.map(|((output, wanted), demanded)| {
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
        narrowed.collect()
    }
}

/// Joins only the parts of an input that are wanted.
fn join(endpoint: &Endpoint, view: &mut InputView, requested: &[Part]) {
    let mut sources: BTreeMap<Prefix, BTreeSet<Option<IpAddr>>> = BTreeMap::new();
    for part in requested.iter().filter(|part| part.wanted.contains(&true)) {
        // An input that names sources has no part for any source.
        if part.source.is_some() || endpoint.sources.is_empty() {
            sources.entry(part.groups).or_default().insert(part.source);
        }
    }
    let is_whole = |groups: &Prefix| *groups == endpoint.destination;
    let too_many = if sources.keys().any(is_whole) {
        groups_too_many(endpoint.destination)
    } else {
        None
    };
    // Reported for the range if it is joined as a whole.
    view.unjoined.clone_from(&too_many);
    let links = &view.interfaces;
    let wanted = sources
        .into_iter()
        .filter(|(groups, _)| !is_whole(groups) || too_many.is_none());
    let each = wanted.flat_map(|(groups, sources)| {
        let from_any = endpoint.sources.is_empty()
            && (sources.contains(&None) || sources.len() > JOINED_SOURCES_MAX);
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
    let whole = links.iter().filter(|_| too_many.is_some());
    let of_all = whole.map(|interface| Join::of_all(*interface));
    let joins = each.take(JOINED_GROUPS_MAX as usize);
    view.joins = joins.chain(of_all).collect();
}
