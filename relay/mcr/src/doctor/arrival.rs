//! Rules that receive nothing, and what arrives instead: their group at another port, from another sender or
//! on another interface, or nothing at all. Listens for some seconds, and only if a rule is silent.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use api::reply::RuleStats;
use rules::endpoint::Endpoint;
use rules::joins::groups_too_many;
use rules::rule::Rule;

use super::finding::{Finding, Severity};
use super::snapshot::{Rules, Snapshot};
use crate::capture::Sockets;
use crate::discover::{self, Interface, Key, Listener};
use crate::failure::Failure;
use crate::render::number;

/// One of several inputs is silent if its last packet arrived longer ago than this, in seconds.
const SILENT: f64 = 10.0;
/// Up to this many silent inputs are reported one by one.
const EACH: usize = 8;
/// Up to this many streams that may be the intended ones are named.
const NAMED: usize = 3;

/// What arrived while the doctor listened.
#[derive(Debug)]
pub(crate) struct Arrivals {
    duration: Duration,
    streams: Vec<ArrivedStream>,
    /// Interfaces and groups of PGM packets that arrived.
    pgm: Vec<(Interface, IpAddr)>,
}

#[derive(Debug)]
struct ArrivedStream {
    interface: Interface,
    key: Key,
    packets: u64,
    /// Whether a rule receives it.
    has_rule: bool,
}

/// Listens if a rule that the daemon runs receives nothing; `None` if every rule receives.
pub(crate) fn listen(rules: &Rules, duration: Duration) -> Result<Option<Arrivals>, Failure> {
    if duration.is_zero() || silent_inputs(rules).is_empty() {
        return Ok(None);
    }
    // A sender on this host may send by lo.
    let mut interfaces = discover::interfaces(&["*".to_owned()])?;
    interfaces.retain(|link| link.up);
    let mut listener = Listener::open(interfaces, &Sockets::Own, discover::at_xdp)?;
    listener.listen(Instant::now() + duration, &AtomicBool::new(false))?;
    let streams = listener.streams.known.iter().filter_map(|(key, stream)| {
        let interface = &listener.interfaces[key.interface];
        (!discover::is_copy(&rules.set, interface, key)).then(|| ArrivedStream {
            interface: interface.clone(),
            key: *key,
            packets: stream.packets,
            has_rule: !key.sent && discover::taker(&rules.set, interface, key).is_some(),
        })
    });
    let pgm = listener
        .streams
        .pgm
        .iter()
        .map(|(number, group)| (listener.interfaces[*number].clone(), *group))
        .collect();
    Ok(Some(Arrivals {
        pgm,
        duration,
        streams: streams.collect(),
    }))
}

pub(super) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let Some(arrivals) = &snapshot.rules.heard else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    let mut unexplained = Vec::new();
    for (stats, rule, input) in silent_inputs(&snapshot.rules) {
        match pgm(arrivals, input).or_else(|| nearest(arrivals, (rule, input))) {
            Some((evidence, remedy)) => {
                let evidence = format!("input {input} receives nothing: {evidence}");
                let finding = Finding::of_rule(Severity::Stops, &rule.name, evidence);
                findings.push(finding.remedy(remedy));
            }
            None if stats.may_be_silent == Some(true) => {}
            None => unexplained.push((rule, input)),
        }
    }
    match unexplained.len() {
        0..=EACH => findings.extend(
            unexplained
                .iter()
                .map(|(rule, input)| absent(arrivals, rule, input)),
        ),
        count => findings.push(many_absent(arrivals, count, unexplained[0])),
    }
    findings
}

/// The joined inputs that receive no packets. Other checks report why further inputs do not receive.
fn silent_inputs(rules: &Rules) -> Vec<(&RuleStats, &Rule, &Endpoint)> {
    let mut silent = Vec::new();
    let all_stats = rules.stats.iter().flat_map(|stats| &stats.rules);
    for (stats, rule) in all_stats.filter_map(|stats| Some((stats, rules.set.get(&stats.name)?))) {
        // Without receivers a stream on demand is not pulled, and a reflecting rule waits for questions.
        if stats.is_idle() || rule.reflect.is_some() {
            continue;
        }
        // The daemon measures the pauses of a stream, and its rule says which are allowed.
        let is_judged_by_daemon = stats.inputs.len() == 1 && stats.may_be_silent.is_none();
        for (status, input) in stats.inputs.iter().zip(&rule.inputs) {
            let is_silent = match status.last_packet_seconds {
                Some(_) if is_judged_by_daemon => stats.silent_seconds.is_some(),
                Some(seconds) => seconds > SILENT,
                None => status.received.packets == 0,
            };
            // The doctor listens for groups only.
            let is_joined = input.is_multicast() && status.joined && status.reason.is_none();
            if is_silent && is_joined {
                silent.push((stats, rule, input));
            }
        }
    }
    silent
}

/// Evidence and remedy if PGM instead of UDP arrives for the input's group.
fn pgm(arrivals: &Arrivals, input: &Endpoint) -> Option<(String, String)> {
    let (interface, group) = arrivals.pgm.iter().find(|(interface, group)| {
        input.destination.contains(*group) && discover::is_on(input, interface)
    })?;
    let evidence = format!(
        "what arrives for {group} on {} is PGM (IP protocol 113, RFC 3208), and MCR relays UDP alone",
        interface.name
    );
    let remedy = "have the senders and receivers encapsulate PGM in UDP (ports 3055 and 3056), or let a \
                  multicast router carry it";
    Some((evidence, remedy.to_owned()))
}

/// How the input's group arrives nevertheless, and the remedy; `None` if it does not arrive anywhere.
fn nearest(arrivals: &Arrivals, (rule, input): (&Rule, &Endpoint)) -> Option<(String, String)> {
    let streams = arrivals.streams.iter();
    let of_group = streams.filter(|stream| input.destination.contains(stream.key.group));
    let candidates = of_group.filter(|s| !s.has_rule || s.differences(input).is_empty());
    let nearest =
        candidates.min_by_key(|s| (s.key.sent, s.differences(input).len(), Reverse(s.packets)))?;
    let (group, name) = (nearest.key.group, &nearest.interface.name);
    let differences = nearest.differences(input);
    let on = if discover::is_on(input, &nearest.interface) {
        format!(" on {name}")
    } else {
        String::new()
    };
    if differences.is_empty() {
        let evidence = format!("{group} arrives{on} as it says, and does not reach the rule");
        let remedy =
            "something takes it before MCR: see hook and firewall; mcr tap shows what arrives";
        return Some((evidence, remedy.to_owned()));
    }
    let corrected = discover::input(&nearest.interface, &nearest.key);
    if nearest.key.sent {
        let port = nearest.key.port;
        let evidence = format!(
            "a program of this host sends {group} at port {port} by {name}, {}",
            why_not_received(rule, input, nearest)
        );
        let remedy = discover::by_loopback(group);
        return Some((
            evidence,
            format!("write the input as {corrected}, and {remedy}"),
        ));
    }
    Some((
        format!("{group} arrives{on} {}", differences.join(" and ")),
        format!("write the input as {corrected}, or have the sender send as the rule expects"),
    ))
}

/// Why the input does not receive what a local program sends.
fn why_not_received(rule: &Rule, input: &Endpoint, sent: &ArrivedStream) -> String {
    let (group, name) = (sent.key.group, &sent.interface.name);
    if !discover::takes_looped(rule) || !discover::is_on(input, &sent.interface) {
        "which this rule relays from lo alone".into()
    } else if groups_too_many(input.destination).is_some() {
        format!(
            "which comes in there where the group is joined: the rule joins none of so many, \
             `mcr join {group}%{name}` does"
        )
    } else {
        "and has switched IP_MULTICAST_LOOP off, without which it does not come in there".into()
    }
}

impl ArrivedStream {
    /// How it differs from what the input describes.
    fn differences(&self, input: &Endpoint) -> Vec<String> {
        let Key {
            vlan, port, source, ..
        } = self.key;
        let mut differences = Vec::new();
        if self.key.sent {
            differences.push("from this host".to_owned());
        }
        if !discover::is_on(input, &self.interface) {
            let wanted = input.interface.as_deref().unwrap_or("any");
            differences.push(format!("on {}, not {wanted}", self.interface.name));
        }
        if let Some(vlan) = vlan {
            differences.push(format!("tagged for VLAN {vlan}, not untagged"));
        }
        if !input.ports.contains(port) {
            differences.push(format!("at port {port}, not {}", input.ports));
        }
        if !input.listens_to(source) {
            let wanted: Vec<String> = input.sources.iter().map(ToString::to_string).collect();
            differences.push(format!("from {source}, not {}", wanted.join(", ")));
        }
        differences
    }

    /// Whether it may be the stream that the input describes, sent to another group.
    fn may_match(&self, input: &Endpoint) -> bool {
        let key = &self.key;
        !self.has_rule
            && !key.sent
            && key.group.is_ipv4() == input.is_ipv4()
            && discover::is_on(input, &self.interface)
            && (input.ports.contains(key.port)
                || !input.sources.is_empty() && input.listens_to(key.source))
    }
}

const ABSENT: &str = "does the sender send, with a TTL that outlives the routers between? does the \
                      switch see the join (check querier and firewall)?";

fn absent(arrivals: &Arrivals, rule: &Rule, input: &Endpoint) -> Finding {
    let seconds = arrivals.duration.as_secs_f64();
    let mut evidence = format!(
        "input {input} receives nothing: nothing for {} arrives on any interface within {seconds} s",
        input.destination
    );
    let candidates = arrivals.streams.iter().filter(|s| s.may_match(input));
    let named = candidates.take(NAMED).map(|ArrivedStream { key, .. }| {
        format!("{} at port {} from {}", key.group, key.port, key.source)
    });
    let others: Vec<String> = named.collect();
    if !others.is_empty() {
        evidence += &format!("; there arrives, and no rule takes, {}", others.join("; "));
    }
    Finding::of_rule(Severity::Harms, &rule.name, evidence).remedy(ABSENT)
}

/// One finding for many inputs: a thousand rules may wait for senders that are off.
fn many_absent(arrivals: &Arrivals, count: usize, (rule, input): (&Rule, &Endpoint)) -> Finding {
    let seconds = arrivals.duration.as_secs_f64();
    let inputs = number::things(count as u64, "input");
    let evidence = format!(
        "{inputs} receive nothing, and nothing for their groups arrives on any interface \
         within {seconds} s; the first is {input} of rule {:?}",
        rule.name
    );
    Finding::new(Severity::Harms, inputs, evidence).remedy(ABSENT)
}
