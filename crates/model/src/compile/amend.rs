//! What a change of few rules comes to on the same host: the others are not compiled again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::{Links, RuleView, compile_one, keys, under_keys};
use crate::diff::TableDiff;
use crate::host::Host;
use crate::net::Ifindex;
use crate::placement::{PathChoices, Support};
use crate::rule::Rule;
use crate::ruleset::{Piece, RuleSet, Stays};
use crate::table::{Route, RouteKey, Table};

/// Rules as they were compiled last.
#[derive(Clone, Copy, Debug)]
pub struct Before<'a> {
    /// The rules, none of which names an input's interface by a wildcard.
    pub rules: &'a RuleSet,
    /// What can be said about each, in their order.
    pub views: &'a [Arc<RuleView>],
    /// What they came to.
    pub table: &'a Table,
}

/// What can be said about the rules now, and how the table changes.
#[derive(Clone, Debug, Default)]
pub struct Amended {
    /// About each rule, in their order; shared with those of before where the rule is.
    pub rules: Vec<Arc<RuleView>>,
    /// From the table of before to the one of now.
    pub diff: TableDiff,
}

/// Compiles those of `rules` that are not among those of before; `stays` says which are, as
/// [`RuleSet::stays_of`] does. Host, support and choices must be those of before, and no rule may
/// name an input's interface by a wildcard, which one rule more could take from another.
#[must_use]
pub fn amend(
    before: Before<'_>,
    rules: &RuleSet,
    stays: &Stays,
    host: &Host,
    support: &Support,
    choices: &PathChoices,
) -> Amended {
    let links = Links::new(host);
    let mut own = BTreeSet::new();
    let mut routes: BTreeMap<RouteKey, Route> = BTreeMap::new();
    let mut views: Vec<Arc<RuleView>> = Vec::with_capacity(rules.len());
    for piece in stays.pieces() {
        let here = match piece {
            Piece::Stays(there) => {
                views.extend_from_slice(&before.views[there]);
                continue;
            }
            Piece::Comes(here) => here,
        };
        for rule in &rules.rules()[here] {
            let (view, route) = compile_one(rule, host, &links, support, choices, &mut own);
            if let Some(route) = route {
                let under = under_keys(rule, &view, route);
                routes.extend(under.map(|(key, route, _)| (key, route)));
            }
            views.push(Arc::new(view));
        }
    }

    let gone = stays.gone().flatten();
    let gone = gone.map(|there| (&*before.rules.rules()[there], &*before.views[there]));
    let gone: Vec<(&Rule, &RuleView)> = gone.collect();
    let removed = gone.iter().flat_map(|(rule, view)| view_keys(rule, view));
    let removed = removed.filter(|key| !routes.contains_key(key));
    let removed: BTreeSet<RouteKey> = removed.collect();
    let own_added = own.difference(&before.table.own_addresses).copied();
    let own_added: Vec<IpAddr> = own_added.collect();
    let own_removed = own_removed(before.table, &gone, &views, host);
    routes.retain(|key, route| before.table.routes.get(key) != Some(route));
    Amended {
        diff: TableDiff {
            removed: removed.into_iter().collect(),
            set: routes.into_iter().collect(),
            own_removed,
            own_added,
            budget: None,
        },
        rules: views,
    }
}

/// The keys of a rule's routes.
fn view_keys(rule: &Rule, view: &RuleView) -> Vec<RouteKey> {
    if !view.placement.serves {
        return Vec::new();
    }
    let inputs = rule.inputs.iter().zip(&view.inputs);
    inputs
        .flat_map(|(endpoint, input)| keys(endpoint, &input.interfaces))
        .collect()
}

/// Own addresses of links that only rules that are gone sent by.
fn own_removed(
    table: &Table,
    gone: &[(&Rule, &RuleView)],
    views: &[Arc<RuleView>],
    host: &Host,
) -> Vec<IpAddr> {
    let left: BTreeSet<Ifindex> = gone.iter().flat_map(|(_, view)| links_of(view)).collect();
    let in_use = |link: &Ifindex| {
        let mut links = views.iter().flat_map(|view| links_of(view));
        links.any(|used| used == *link)
    };
    if left.iter().all(in_use) {
        return Vec::new();
    }
    let used: BTreeSet<Ifindex> = views.iter().flat_map(|view| links_of(view)).collect();
    let used = used.iter().filter_map(|index| host.interfaces.get(index));
    let own: BTreeSet<IpAddr> = used.flat_map(|link| &link.addresses).copied().collect();
    table.own_addresses.difference(&own).copied().collect()
}

fn links_of(view: &RuleView) -> impl Iterator<Item = Ifindex> {
    view.outputs.iter().filter_map(|output| output.link)
}
