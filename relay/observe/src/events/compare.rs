//! Events derived from the differences between two states.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::reply::{By, Change, Event, State, Via};
use compile::host::{Host, Interface, NextHop};
use compile::{Copies, CopyView};
use rules::shared_map::SharedMap;

use super::event::{done_by, event};
use super::kind::*;
use crate::view::{RuleState, View};

/// The events of a change of rules and settings, with who made it and why.
pub fn of_change(change: &Change, by: &By, why: Option<&str>) -> Vec<Event> {
    let kinds = [
        (RULE_REMOVED, &change.removed, "removed"),
        (RULE_ADDED, &change.added, "added"),
        (RULE_CHANGED, &change.changed, "changed"),
    ];
    let rules = kinds.into_iter().flat_map(|(kind, names, verb)| {
        let add = move |name: &String| event(kind, name, format!("rule {name:?} {verb}"));
        names.iter().map(add)
    });
    let settings = change.settings.iter().map(|text| {
        let message = format!("settings changed: {text}");
        event(SETTINGS_CHANGED, "configuration", message)
    });
    rules
        .chain(settings)
        .map(|event| done_by(event, by, why))
        .collect()
}

/// The events of changed links and changed name resolutions of a host.
pub fn of_host(old: &Host, new: &Host) -> Vec<Event> {
    let mut events = of_links(old, new);
    events.extend(of_names(old, new));
    events
}

/// The events that lead from one view to the next.
pub fn between(old: &View, new: &View) -> Vec<Event> {
    let mut events = of_host(&old.host, &new.host);
    events.extend(of_next_hops(&old.host, &new.host));
    // States are shared between views, so most need no comparison by name.
    let difference = SharedMap::difference(&old.states, &new.states);
    let removed = difference.removed.into_iter();
    let removed: BTreeMap<&str, &Arc<RuleState>> =
        removed.map(|(_, state)| (state.name(), state)).collect();
    for (_, state) in difference.added {
        let before = removed.get(state.name()).copied();
        if before != Some(state) {
            of_state(before.map(AsRef::as_ref), state, &mut events);
        }
    }
    events
}

fn of_state(before: Option<&RuleState>, now: &RuleState, events: &mut Vec<Event>) {
    let rule = now.name();
    let mut add = |kind, part: Option<String>, message: String| {
        let event = event(kind, rule, format!("rule {rule:?}{message}"));
        events.push(Event { part, ..event });
    };
    for (index, (at, input)) in now.inputs().enumerate() {
        if before.and_then(|before| before.inputs().nth(index)) == Some((at, input)) {
            continue;
        }
        let part = Some(at.to_owned());
        match &input.reason {
            Some(reason) if !input.joined => {
                add(JOIN_FAILED, part, format!(": input {at}: {reason}"));
            }
            _ if input.joined => add(JOINED, part, format!(": input {at}: joined")),
            _ => {}
        }
    }
    for (index, (to, down)) in now.outputs().enumerate() {
        if before.and_then(|before| before.outputs().nth(index)) == Some((to, down)) {
            continue;
        }
        let part = Some(to.to_owned());
        match down {
            Some(reason) => add(OUTPUT_DOWN, part, format!(": output {to}: {reason}")),
            None if now.rule.enabled => add(OUTPUT_UP, part, format!(": output {to}: up")),
            None => {}
        }
    }
    let outputs_before = before
        .map(|before| &before.rule.outputs[..])
        .unwrap_or_default();
    for (index, output) in now.rule.outputs.iter().enumerate() {
        let to = &output.to;
        let output_before = outputs_before.get(index);
        if let Some(copies) = &output.copies {
            let earlier = output_before.and_then(|before| before.copies.as_deref());
            of_copies(earlier, copies, &mut |kind, address: Option<&str>, what| {
                let part = address.map(|address| format!("{to} {address}"));
                add(kind, part, format!(": output {to}: {what}"));
            });
        }
        let wanted_before = output_before.and_then(|before| before.wanted);
        let (kind, what) = match (wanted_before.unwrap_or_default(), output.wanted) {
            (0, Some(1..)) if output.copies.is_some() => continue,
            (1.., Some(0)) if output.copies.is_some() => {
                (OUTPUT_IDLE, "its name stands for nobody any more")
            }
            (0, Some(1..)) => (OUTPUT_WANTED, "hosts listen"),
            (1.., Some(0)) => (OUTPUT_IDLE, "no host listens any more"),
            _ => continue,
        };
        add(kind, Some(to.clone()), format!(": output {to}: {what}"));
    }
    if before.map(|before| before.state) == Some(now.state) {
        return;
    }
    let kind = match now.state {
        State::Up => RULE_UP,
        State::Degraded => RULE_DEGRADED,
        State::Down => RULE_DOWN,
        State::Disabled => RULE_DISABLED,
    };
    let (state, reason) = (now.state.as_str(), now.reason.as_ref());
    let suffix = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    add(kind, None, format!(" is {state}{suffix}"));
}

/// Which addresses of a name were added or removed, or no longer get copies.
fn of_copies(
    before: Option<&Copies>,
    now: &Copies,
    add: &mut dyn FnMut(&'static str, Option<&str>, String),
) {
    let none = Vec::new();
    let old = before.map_or(&none, |before| &before.all);
    let of = |copies: &[CopyView], index| copies.iter().find(|copy| copy.index == index).cloned();
    for copy in &now.all {
        let address = &copy.address;
        let previous = of(old, copy.index);
        if previous.is_none() {
            let message = format!("{address} gets copies from now on");
            add(ADDRESS_CAME, Some(address), message);
        }
        match (&copy.down, previous.map(|previous| previous.down)) {
            (Some(down), Some(None) | None) => {
                let message = format!("{address}: {}", down.text);
                add(OUTPUT_DOWN, Some(address), message);
            }
            (None, Some(Some(_))) => add(OUTPUT_UP, Some(address), format!("{address}: up")),
            _ => {}
        }
    }
    for copy in old.iter().filter(|copy| of(&now.all, copy.index).is_none()) {
        let message = format!("{} gets copies no more", copy.address);
        add(ADDRESS_GONE, Some(&copy.address), message);
    }
    let left_out = before.map_or(0, |before| before.left_out);
    if now.left_out > 0 && left_out == 0 {
        let message = format!(
            "{} addresses of its name get no copies, for there are more than max; raise it",
            now.left_out
        );
        add(NAME_TRUNCATED, None, message);
    }
}

fn of_links(old: &Host, new: &Host) -> Vec<Event> {
    let mut events = Vec::new();
    let mut add = |link: &Interface, what: String| {
        let message = format!("interface {}: {what}", link.name);
        let event = event(LINK_CHANGED, &link.name, message);
        let by = By::of(Via::Link, Some(link.name.clone()));
        events.push(done_by(event, &by, None));
    };
    for (index, link) in &new.interfaces {
        match old.interfaces.get(index) {
            None => add(link, "is there".to_owned()),
            Some(before) if before != link => add(link, difference(before, link)),
            Some(_) => {}
        }
    }
    for (index, link) in &old.interfaces {
        if !new.interfaces.contains_key(index) {
            add(link, "is gone".to_owned());
        }
    }
    events
}

/// Names that resolve to other addresses than before, or whose lookups now fail.
fn of_names(old: &Host, new: &Host) -> Vec<Event> {
    let names = new.names.iter();
    let changed = names.filter(|(name, now)| old.names.get(*name) != Some(*now));
    let events = changed.map(|(name, now)| {
        let both = [now.address(true), now.address(false)];
        let texts: Vec<String> = both.iter().flatten().map(ToString::to_string).collect();
        let addresses = texts.join(" and ");
        let (kind, message) = match (&now.problem, addresses.is_empty()) {
            (None, true) => (NAME_FAILED, format!("{name} has no address")),
            (None, false) => (NAME_RESOLVED, format!("{name} is {addresses}")),
            (Some(why), true) => (NAME_FAILED, format!("{name} cannot be looked up: {why}")),
            (Some(why), false) => {
                let message = format!("{name} cannot be looked up, {addresses} stays: {why}");
                (NAME_FAILED, message)
            }
        };
        let by = By::of(Via::Name, Some(name.to_string()));
        done_by(event(kind, name.as_str(), message), &by, None)
    });
    events.chain(of_all_names(old, new)).collect()
}

/// Names that are resolved to all addresses, and whose lookups now fail or no longer do.
fn of_all_names<'a>(old: &'a Host, new: &'a Host) -> impl Iterator<Item = Event> + 'a {
    new.all.iter().filter_map(|(destination, now)| {
        let before = old
            .all
            .get(destination)
            .and_then(|before| before.problem.as_ref());
        let name = destination.to_string();
        let (kind, message) = match (&now.problem, before) {
            (Some(why), before) if before != Some(why) => (
                NAME_FAILED,
                format!("{name} cannot be looked up, what it had stays: {why}"),
            ),
            (None, Some(_)) => (NAME_RESOLVED, format!("{name} is looked up again")),
            _ => return None,
        };
        let by = By::of(Via::Name, Some(name.clone()));
        Some(done_by(event(kind, &name, message), &by, None))
    })
}

/// Destinations that are reached by another way than before.
fn of_next_hops(old: &Host, new: &Host) -> Vec<Event> {
    // A destination is reported once, however many outputs it has.
    let mut changes = BTreeSet::new();
    for (query, now) in &new.next_hops {
        if old.next_hops.get(query).is_none_or(|before| before == now) {
            continue;
        }
        let destination = query.destination.to_string();
        let message = match now {
            NextHop::Resolved {
                interface,
                via,
                mac,
                ..
            } => {
                let link = new.interfaces.get(interface);
                let name = link.map_or_else(|| interface.0.to_string(), |link| link.name.clone());
                let at = mac.map_or_else(String::new, |mac| format!(" at {mac}"));
                format!("{destination} is now reached by {name} via {via}{at}")
            }
            NextHop::Here { .. } => format!("{destination} is now this host"),
            NextHop::Routed { why, .. } => {
                format!("{destination} is now reached by a socket: {why}")
            }
            NextHop::NoRoute(_) | NextHop::Unresolved { .. } => continue,
        };
        changes.insert((destination, message));
    }
    changes
        .into_iter()
        .map(|(destination, message)| event(NEXT_HOP_CHANGED, &destination, message))
        .collect()
}

fn difference(before: &Interface, now: &Interface) -> String {
    let mut parts = Vec::new();
    if before.name != now.name {
        parts.push(format!("was called {}", before.name));
    }
    if before.up != now.up {
        parts.push(if now.up { "is up" } else { "is down" }.to_owned());
    }
    if before.mtu != now.mtu {
        parts.push(format!("MTU {} was {}", now.mtu, before.mtu));
    }
    if before.mac != now.mac {
        parts.push("has another Ethernet address".to_owned());
    }
    if before.addresses != now.addresses {
        let addresses: Vec<String> = now.addresses.iter().map(ToString::to_string).collect();
        parts.push(format!("addresses: {}", addresses.join(" ")));
    }
    if before.gro_list != now.gro_list {
        let switched = if now.gro_list { "on" } else { "off" };
        parts.push(format!("rx-gro-list is {switched}"));
    }
    parts.join(", ")
}
