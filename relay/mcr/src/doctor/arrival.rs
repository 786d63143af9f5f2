//! Rules that receive nothing: what arrives instead, at another port, from another sender, on another
//! interface, or nothing at all. It listens for some seconds, and only where a rule is silent.

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

/// One of several inputs is silent when its last packet came longer ago than this, in seconds.
const SILENT: f64 = 10.0;
/// As many silent inputs are reported one by one.
const EACH: usize = 8;
/// As many streams that might be meant are named.
const NAMED: usize = 3;

/// What arrived while it was listened.
#[derive(Debug)]
pub(crate) struct Arrivals {
    listened: Duration,
    streams: Vec<ArrivedStream>,
    /// Where PGM comes, and to which group.
    pgm: Vec<(Interface, IpAddr)>,
}

#[derive(Debug)]
struct ArrivedStream {
    interface: Interface,
    key: Key,
    packets: u64,
    /// Whether a rule takes it.
    taken: bool,
}

/// Listens where a rule that the daemon runs receives nothing; `None` if all of them do.
pub(crate) fn listen(rules: &Rules, duration: Duration) -> Result<Option<Arrivals>, Failure> {
    if duration.is_zero() || silent(rules).is_empty() {
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
            taken: !key.sent && discover::taker(&rules.set, interface, key).is_some(),
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
        listened: duration,
        streams: streams.collect(),
    }))
}

pub(super) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let Some(heard) = &snapshot.rules.heard else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    let mut nothing = Vec::new();
    for (stats, rule, input) in silent(&snapshot.rules) {
        match pgm(heard, input).or_else(|| elsewhere(heard, (rule, input))) {
            Some(evidence) => findings.push(of(rule, input, evidence)),
            None if stats.may_be_silent == Some(true) => {}
            None => nothing.push((rule, input)),
        }
    }
    match nothing.len() {
        0..=EACH => findings.extend(
            nothing
                .iter()
                .map(|(rule, input)| absent(heard, rule, input)),
        ),
        count => findings.push(many_absent(heard, count, nothing[0])),
    }
    findings
}

/// The joined inputs that no packet comes for; what keeps others from receiving is other checks' to
/// say.
fn silent(rules: &Rules) -> Vec<(&RuleStats, &Rule, &Endpoint)> {
    let mut silent = Vec::new();
    let stats = rules.stats.iter().flat_map(|stats| &stats.rules);
    for (of, rule) in stats.filter_map(|stats| Some((stats, rules.set.get(&stats.name)?))) {
        // Nothing is pulled that nobody listens to, and what reflects waits for questions.
        let expects = !of.is_idle() && rule.reflect.is_none();
        let inputs = of.inputs.iter().filter(|_| expects);
        // The daemon knows what pauses a stream makes, and which its rule allows.
        let is_known = of.inputs.len() == 1 && of.may_be_silent.is_none();
        for (stats, input) in inputs.zip(&rule.inputs) {
            let is_silent = match stats.last_packet_seconds {
                Some(_) if is_known => of.silent_seconds.is_some(),
                Some(seconds) => seconds > SILENT,
                None => stats.received.packets == 0,
            };
            // Only groups are listened for.
            let is_heard = input.is_multicast() && stats.joined && stats.reason.is_none();
            if is_silent && is_heard {
                silent.push((of, rule, input));
            }
        }
    }
    silent
}

fn of(rule: &Rule, input: &Endpoint, (evidence, remedy): (String, String)) -> Finding {
    let evidence = format!("input {input} receives nothing: {evidence}");
    Finding::of_rule(Severity::Stops, &rule.name, evidence).remedy(remedy)
}

/// What comes to the input's group is not UDP.
fn pgm(heard: &Arrivals, input: &Endpoint) -> Option<(String, String)> {
    let mut comes = heard.pgm.iter();
    let (interface, group) = comes.find(|(interface, group)| {
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

/// Where the input's group arrives all the same, with what to do; `None` if it does nowhere.
fn elsewhere(heard: &Arrivals, (rule, input): (&Rule, &Endpoint)) -> Option<(String, String)> {
    let of_group = heard.streams.iter();
    let of_group = of_group.filter(|stream| input.destination.contains(stream.key.group));
    let free = of_group.filter(|stream| !stream.taken || stream.differences(input).is_empty());
    let nearest =
        free.min_by_key(|s| (s.key.sent, s.differences(input).len(), Reverse(s.packets)))?;
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
    let mended = discover::input(&nearest.interface, &nearest.key);
    if nearest.key.sent {
        let port = nearest.key.port;
        let evidence = format!(
            "a program of this host sends {group} at port {port} by {name}, {}",
            why_not(rule, input, nearest)
        );
        let remedy = discover::by_loopback(group);
        return Some((
            evidence,
            format!("write the input as {mended}, and {remedy}"),
        ));
    }
    Some((
        format!("{group} arrives{on} {}", differences.join(" and ")),
        format!("write the input as {mended}, or have the sender send as the rule expects"),
    ))
}

/// Why what a program here sends does not come in by the input.
fn why_not(rule: &Rule, input: &Endpoint, sent: &ArrivedStream) -> String {
    let (group, name) = (sent.key.group, &sent.interface.name);
    let comes_in = discover::takes_looped(rule) && discover::is_on(input, &sent.interface);
    match comes_in {
        true if groups_too_many(input.destination).is_some() => format!(
            "which comes in there where the group is joined: the rule joins none of so many, \
             `mcr join {group}%{name}` does"
        ),
        true => {
            "and has switched IP_MULTICAST_LOOP off, without which it does not come in there".into()
        }
        false => "which this rule relays from lo alone".into(),
    }
}

impl ArrivedStream {
    /// What of it is not as the input says.
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

    /// Whether it may be what the input means, sent to another group.
    fn may_be(&self, input: &Endpoint) -> bool {
        let key = &self.key;
        !self.taken
            && !key.sent
            && key.group.is_ipv4() == input.is_ipv4()
            && discover::is_on(input, &self.interface)
            && (input.ports.contains(key.port)
                || !input.sources.is_empty() && input.listens_to(key.source))
    }
}

const ABSENT: &str = "does the sender send, with a TTL that outlives the routers between? does the \
                      switch see the join (check querier and firewall)?";

fn absent(heard: &Arrivals, rule: &Rule, input: &Endpoint) -> Finding {
    let seconds = heard.listened.as_secs_f64();
    let mut evidence = format!(
        "input {input} receives nothing: nothing for {} arrives on any interface within {seconds} s",
        input.destination
    );
    let others = heard.streams.iter().filter(|stream| stream.may_be(input));
    let others = others.take(NAMED).map(|stream| {
        let key = &stream.key;
        format!("{} at port {} from {}", key.group, key.port, key.source)
    });
    let others: Vec<String> = others.collect();
    if !others.is_empty() {
        evidence += &format!("; there arrives, and no rule takes, {}", others.join("; "));
    }
    Finding::of_rule(Severity::Harms, &rule.name, evidence).remedy(ABSENT)
}

/// A thousand rules whose senders are off are one thing to say.
fn many_absent(heard: &Arrivals, count: usize, (rule, input): (&Rule, &Endpoint)) -> Finding {
    let seconds = heard.listened.as_secs_f64();
    let inputs = number::things(count as u64, "input");
    let evidence = format!(
        "{inputs} receive nothing, and nothing for their groups arrives on any interface \
         within {seconds} s; the first is {input} of rule {:?}",
        rule.name
    );
    Finding::new(Severity::Harms, inputs, evidence).remedy(ABSENT)
}
