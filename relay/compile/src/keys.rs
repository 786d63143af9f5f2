//! A rule's route and its keys in the table.

use std::iter::repeat_n;

use rules::demand::Listening;
use rules::rule::Rule;

use super::RuleView;
use super::demand::{self, Keyed};
use super::inputs::keys;
use crate::table::{FailoverLegs, LocalDelivery, MergeLegs, Output, Route, RouteKey};

/// The route of a rule's packets.
pub(super) fn route(rule: &Rule, view: &RuleView, outputs: Vec<Output>) -> Route {
    Route {
        rule: rule.name.clone(),
        input: None,
        path: view.placement.path,
        local: rule.local,
        limit: rule.limit,
        failover: rule.failover.map(|when| {
            let inputs = view.inputs.iter();
            let lines = inputs.map(|input| input.at.clone()).collect();
            Box::new(FailoverLegs { when, lines })
        }),
        merge: rule.merge.or_else(|| rule.passes_once()).map(|how| {
            let inputs = view.inputs.iter();
            let lines = inputs.map(|input| input.at.clone()).collect();
            Box::new(MergeLegs { how, lines })
        }),
        share: rule.share.clone(),
        inspect: rule.health.map(|health| health.inspect),
        outputs,
    }
}

/// How generally an input names its packets: the least general takes precedence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Generality {
    by_wildcard: bool,
    every_address: bool,
}

/// A rule's route for every key of its inputs, each with its generality. The last one is the route
/// itself, not a clone: of ten thousand rules most have one key.
pub(super) fn under_keys(
    rule: &Rule,
    view: &mut RuleView,
    route: Option<Route>,
    listening: &Listening,
) -> impl Iterator<Item = (RouteKey, Route, Generality)> {
    let keys: Vec<Keyed> = match &route {
        Some(route) if rule.has_demand() => demand::routes(rule, view, &route.outputs, listening),
        _ => {
            let inputs = rule.inputs.iter().zip(&view.inputs).enumerate();
            let keyed = inputs.flat_map(|(number, (endpoint, input))| {
                let keys = keys(endpoint, input).into_iter();
                keys.map(move |key| (key, number, None))
            });
            keyed.collect()
        }
    };
    let view = &*view;
    let routes = route.map(|route| repeat_n(route, keys.len()));
    let entries = keys.into_iter().zip(routes.into_iter().flatten());
    let has_several = rule.inputs.len() > 1;
    entries.map(move |((key, number, outputs), mut route)| {
        let (endpoint, input) = (&rule.inputs[number], &view.inputs[number]);
        if let Some(outputs) = outputs {
            route.outputs = outputs;
        }
        route.input = has_several.then(|| input.at.clone());
        if rule.reflect.is_some() {
            let leads = |output: &Output| rule.leads(number, output.index as usize);
            route.outputs.retain(leads);
        }
        let is_shared = input.shared.iter().any(|(link, _)| *link == key.ingress);
        if is_shared && route.local == LocalDelivery::Auto {
            route.local = LocalDelivery::Yes;
        }
        let rank = Generality {
            by_wildcard: endpoint.has_wildcard(),
            every_address: endpoint.is_every_address(),
        };
        (key, route, rank)
    })
}

/// The keys of a rule's routes in the table.
pub(super) fn route_keys(rule: &Rule, view: &RuleView) -> impl Iterator<Item = RouteKey> {
    let inputs = rule.inputs.iter().zip(&view.inputs);
    let served = inputs.filter(|_| view.placement.serves);
    let keys = served.flat_map(|(endpoint, input)| keys(endpoint, input));
    keys.chain(view.divided.iter().copied())
}
