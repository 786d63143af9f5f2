//! The hosts that listen to outputs on demand.

use api::reply::{DemandStats, ListenerStats, OutputStats};
use igmp::codec::Version;
use igmp::listeners::{LinkStanding, Listeners, Member};
use igmp::router::Querier;
use rules::demand::SourceFilter;
use rules::rule::Rule;

use crate::view::RuleState;

/// The most hosts that are listed for one rule.
const LISTED_MAX: usize = 1000;

/// The interfaces of outputs on demand.
pub(super) fn links(listeners: &Listeners) -> Vec<DemandStats> {
    let standing = listeners.standing().into_iter();
    standing.map(link).collect()
}

fn link(standing: LinkStanding) -> DemandStats {
    let (querier, is_querier) = match standing.querier {
        Querier::Own(address) => (Some(address), true),
        Querier::Other(address) => (Some(address), false),
        Querier::Nobody => (None, false),
    };
    DemandStats {
        interface: standing.interface,
        protocol: if standing.ipv4 { "igmp" } else { "mld" }.to_owned(),
        querier: querier.map(|address| address.to_string()),
        is_querier,
        groups: standing.groups as u64,
        reports: standing.reports,
        refused: standing.refused,
        barred: standing.barred,
        reason: standing.problem,
    }
}

/// Counts the hosts that listen to each of a rule's outputs.
pub(super) fn count_members(
    rule: &Rule,
    state: &RuleState,
    listeners: &Listeners,
    outputs: &mut [OutputStats],
) {
    let ends = rule.outputs.iter().zip(&state.rule.outputs).zip(outputs);
    for ((spec, view), output) in ends {
        let Some(link) = view.link.filter(|_| spec.demand.is_some()) else {
            continue;
        };
        output.members = Some(listeners.count(link, spec.to.destination));
    }
}

/// The hosts that listen to a rule's outputs, output by output.
pub fn members(rule: &Rule, state: &RuleState, listeners: &Listeners) -> Vec<ListenerStats> {
    let mut listed = Vec::new();
    for (spec, view) in rule.outputs.iter().zip(&state.rule.outputs) {
        let Some(link) = view.link.filter(|_| spec.demand.is_some()) else {
            continue;
        };
        let room = LISTED_MAX - listed.len();
        let members = listeners.members(link, spec.to.destination, room);
        let interface = spec.to.interface.as_deref().unwrap_or_default();
        let stats = members.iter();
        listed.extend(stats.map(|member| listener(member, &view.to, interface)));
    }
    listed
}

fn listener(member: &Member, output: &str, interface: &str) -> ListenerStats {
    let protocol = match (member.version, member.group.is_ipv4()) {
        (Version::V1, _) => "igmpv1",
        (Version::V2, true) => "igmpv2",
        (Version::V3, true) => "igmpv3",
        (Version::V2, false) => "mldv1",
        (Version::V3, false) => "mldv2",
    };
    let mode = match member.filter {
        SourceFilter::Include(_) => "include",
        SourceFilter::Exclude(_) => "exclude",
    };
    ListenerStats {
        output: output.to_owned(),
        interface: interface.to_owned(),
        group: member.group.to_string(),
        host: member.host.to_string(),
        protocol: protocol.to_owned(),
        mode: mode.to_owned(),
        sources: member
            .filter
            .sources()
            .iter()
            .map(ToString::to_string)
            .collect(),
        seconds: rounded(member.since.as_secs_f64()),
        silent_seconds: rounded(member.silent.as_secs_f64()),
    }
}

/// To a thousandth.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}
