//! `mcr show`: everything about one rule.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use api::reply::{
    DemandStats, EgressStats, FlowStats, InputStats, ListenerStats, OutputStats, RuleStats, State,
};
use compile::table::LocalDelivery;
use rules::document::RuleDocument;
use serde_json::json;

use super::watch::Watch;
use crate::completion;
use crate::control::Control;
use crate::failure::{Failure, Status};
use crate::global::Global;
use crate::render::{self, because, number};

/// Hosts that the text shows of each output.
const LISTENERS_SHOWN: usize = 32;
/// Flows that the text shows.
const FLOWS_SHOWN: usize = 32;

/// Show everything about one rule: configuration, state, counters.
///
/// Of a rule with a range of groups or ports also its flows: what was seen of each group and port. Of
/// outputs on demand also the hosts that listen, to what, and since when.
///
/// Exits with status 3 if there is no such rule.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr show cam1
  mcr show cam1 --watch")]
pub(crate) struct Args {
    /// Name of the rule
    #[arg(add = completion::rule())]
    name: String,
    #[command(flatten)]
    watch: Watch,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let control = Control::open(global)?;
    args.watch.print(|| report(&control, args, global.json))
}

fn report(control: &Control, args: &Args, json: bool) -> Result<String, Failure> {
    let rule = control.rule(&args.name)?;
    let running = control.stats()?;
    let mut rules = running.rules.into_iter();
    let stats = rules.find(|stats| stats.name == args.name);
    // Removed between the two requests.
    let removed = || format!("no rule {:?} any more", args.name);
    let stats = stats.ok_or_else(|| Failure::new(Status::Rule, removed()))?;
    let flows = control.flows(&args.name)?;
    let is_on_demand = stats.outputs.iter().any(|output| output.wanted.is_some());
    let listeners = if is_on_demand {
        control.listeners(&args.name)?
    } else {
        Vec::new()
    };
    if json {
        let all = json!({ "rule": rule, "stats": stats, "flows": flows, "egress": running.egress,
            "listeners": listeners, "demand": running.demand });
        return Ok(render::json_text(&all)?);
    }
    let receivers = Receivers {
        links: &running.demand,
        hosts: &listeners,
    };
    Ok(text(&rule, &stats, &flows, &running.egress, receivers))
}

fn text(
    rule: &RuleDocument,
    stats: &RuleStats,
    flows: &[FlowStats],
    egress: &[EgressStats],
    receivers: Receivers<'_>,
) -> String {
    let mut lines = Lines(vec![("rule", rule.name.clone())]);
    let reason = because(render::stats::reason(stats).as_deref());
    lines.add("state", format!("{}{reason}", stats.word()));
    lines.add("path", format!("{}: {}", stats.path, stats.path_reason));
    lines.extend("option", render::rule::options(rule));
    for input in &stats.inputs {
        lines.add_input(rule, stats, input);
    }
    lines.0.extend(render::merge::merge(rule, stats));
    lines.add("received", number::volume(stats.received));
    lines.add("", number::rule_rates(&stats.rates));
    lines.continue_with(number::all(RuleStats::COUNTERS, stats));
    let health = stats.health.iter().flat_map(render::stream::health);
    lines.0.extend(health);
    lines.0.extend(render::stream::latency(&stats.residence));
    lines.add_drops("dropped", &stats.dropped);
    for flow in flows.iter().take(FLOWS_SHOWN) {
        let at = SocketAddr::new(flow.group, flow.port);
        lines.add("  flow", format!("{at}  {}", number::volume(flow.received)));
    }
    lines.add_rest("  flow", flows.len(), FLOWS_SHOWN);
    let written = render::rule::outputs(rule);
    for (index, output) in stats.outputs.iter().enumerate() {
        let to = written.get(index).unwrap_or(&output.to);
        lines.add_output(to, output, receivers);
        let links = egress.iter().filter(|link| link.any());
        for link in links.filter(|link| Some(&link.interface) == output.interface.as_ref()) {
            let counted = number::all(EgressStats::COUNTERS, link);
            lines.add("  behind", format!("{}: {counted}", link.interface));
        }
    }
    let texts = lines
        .0
        .iter()
        .map(|(title, text)| format!("{title:<9} {text}"));
    texts.collect::<Vec<String>>().join("\n")
}

/// Titles, each with a text.
struct Lines(Vec<(&'static str, String)>);

impl Lines {
    fn add(&mut self, title: &'static str, text: String) {
        self.0.push((title, text));
    }

    fn extend(&mut self, title: &'static str, texts: impl IntoIterator<Item = String>) {
        self.0.extend(texts.into_iter().map(|text| (title, text)));
    }

    /// Continues the previous line, if there is any text.
    fn continue_with(&mut self, text: String) {
        if !text.is_empty() {
            self.add("", text);
        }
    }

    /// Adds each reason for which something was dropped.
    fn add_drops(&mut self, title: &'static str, dropped: &BTreeMap<String, u64>) {
        for (reason, count) in dropped.iter().filter(|(_, count)| **count > 0) {
            self.add(title, format!("{} {reason}", render::count(*count)));
        }
    }

    /// Adds how many more there are than are shown.
    fn add_rest(&mut self, title: &'static str, all: usize, shown: usize) {
        if let Some(more) = all.checked_sub(shown).filter(|more| *more > 0) {
            let more = render::count(more as u64);
            self.add(title, format!("and {more} more; --json lists them"));
        }
    }

    /// Adds an input and its state.
    fn add_input(&mut self, rule: &RuleDocument, stats: &RuleStats, input: &InputStats) {
        let joined = match (&input.reason, input.joined) {
            (_, true) if stats.is_idle() => "joins what is listened to: nothing".to_owned(),
            (_, true) => "joined".to_owned(),
            _ if stats.state == State::Disabled => "disabled".to_owned(),
            (reason, false) => format!("not joined{}", because(reason.as_deref())),
        };
        let mut text = format!("{}  {joined}", input.at);
        match input.active {
            Some(true) => text += ", active",
            Some(false) => text += ", stands by",
            None => {}
        }
        // That of merged inputs is in their table.
        if let (Some(trouble), None) = (&input.trouble, &input.line) {
            text += &format!(", {trouble}");
        }
        if stats.inputs.len() > 1 {
            text += &format!("  {}", number::volume(input.received));
        }
        self.add("input", text);
        self.extend("  hook", render::stats::hook(input));
        self.extend("  merging", input.merging.clone());
        if let Some(takers) = &input.shared_with {
            let text = match rule.local {
                Some(LocalDelivery::No) => format!("local=no keeps it from {takers}"),
                _ => format!("goes on to {takers} as well"),
            };
            self.add("  original", text);
        }
        self.continue_with(number::all(InputStats::COUNTERS, input));
    }

    /// Adds an output, which the rule writes as `to`, and its state.
    fn add_output(&mut self, to: &str, output: &OutputStats, receivers: Receivers<'_>) {
        let state = if output.is_idle() && output.state == State::Up {
            "idle"
        } else {
            output.state.as_str()
        };
        let remark = because(output.remark().as_deref());
        self.add("output", format!("{to}  {state}{remark}"));
        self.extend("  to", output.address.clone());
        for to in output.addresses.iter().flatten() {
            let (state, reason) = (to.state.as_str(), because(to.reason.as_deref()));
            let sent = number::volume(to.sent);
            self.add("  to", format!("{}  {state}{reason}  {sent}", to.address));
        }
        if let Some(more) = output.left_out.map(render::count) {
            self.add(
                "  to",
                format!("{more} more addresses get no copies; raise max"),
            );
        }
        self.extend("  leaves", leaving(output));
        if let Some(remote) = &output.tunnel {
            let text = format!("to {remote}; sources are kept unless the output sets one");
            self.add("  tunnel", text);
        }
        self.extend("  by socket", output.by_socket.clone());
        self.add("  sent", number::volume(output.sent));
        self.continue_with(number::all(OutputStats::COUNTERS, output));
        self.add_drops("  dropped", &output.dropped);
        if output.wanted.is_some() {
            self.add_listeners(output, receivers);
        }
    }

    /// Adds the querier on the interface of an output on demand, and the hosts that listen.
    fn add_listeners(&mut self, output: &OutputStats, Receivers { links, hosts }: Receivers<'_>) {
        let protocol = if output.to.contains('[') {
            "mld"
        } else {
            "igmp"
        };
        let is_its_link = |link: &&DemandStats| {
            Some(&link.interface) == output.interface.as_ref() && link.protocol == protocol
        };
        if let Some(link) = links.iter().find(is_its_link) {
            let mut querier = match (&link.querier, link.is_querier) {
                (Some(address), true) => format!("this relay, as {address}"),
                (Some(address), false) => address.clone(),
                (None, _) => {
                    "none was heard; hosts are forgotten unless one asks: querier=yes".into()
                }
            };
            if let Some(reason) = &link.reason {
                querier += &format!("; {reason}");
            }
            self.add("  querier", querier);
        }
        let hosts = hosts.iter().filter(|host| host.output == output.to);
        self.extend("  host", hosts.clone().take(LISTENERS_SHOWN).map(listener));
        self.add_rest("  host", hosts.count(), LISTENERS_SHOWN);
    }
}

/// How the copies of an output leave, unless it is down.
fn leaving(output: &OutputStats) -> Option<String> {
    let interface = output.interface.as_ref()?;
    if output.state == State::Down {
        return None;
    }
    let source = match &output.source {
        Some(source) => format!("from {source}"),
        None => "from the sender's own address".to_owned(),
    };
    let mut text = format!("by {interface} {source}");
    if let Some(via) = &output.next_hop {
        text += &format!(", next hop {via}");
        if let Some(mac) = &output.next_hop_mac {
            text += &format!(" ({mac})");
        }
    }
    if let Some(mtu) = output.mtu {
        text += &format!(", MTU {mtu}");
    }
    Some(text)
}

/// Queriers and hosts that listen where outputs are on demand.
#[derive(Clone, Copy)]
struct Receivers<'a> {
    links: &'a [DemandStats],
    hosts: &'a [ListenerStats],
}

/// A host, what it listens to and since when.
fn listener(host: &ListenerStats) -> String {
    let sources = match (host.mode.as_str(), host.sources.is_empty()) {
        ("include", _) => format!(" from {}", host.sources.join(", ")),
        (_, true) => String::new(),
        _ => format!(" not from {}", host.sources.join(", ")),
    };
    format!(
        "{}  {}{sources}, {}, for {}, said so {} ago",
        host.host,
        host.group,
        host.protocol,
        render::times::duration(host.seconds),
        render::times::duration(host.silent_seconds),
    )
}
