//! `mcr show`: everything about one rule.

use std::net::SocketAddr;

use api::reply::{
    DemandStats, EgressStats, FlowStats, InputStats, ListenerStats, OutputStats, RuleStats, State,
    Stats,
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
    let Stats {
        rules,
        egress,
        demand,
        ..
    } = control.stats()?;
    let stats = rules.into_iter().find(|stats| stats.name == args.name);
    // Removed between the two requests.
    let stats = stats.ok_or_else(|| {
        let message = format!("no rule {:?} any more", args.name);
        Failure::new(Status::Rule, message)
    })?;
    let flows = control.flows(&args.name)?;
    let is_on_demand = stats.outputs.iter().any(|output| output.wanted.is_some());
    let listeners = match is_on_demand {
        true => control.listeners(&args.name)?,
        false => Vec::new(),
    };
    Ok(if json {
        render::json_text(
            &json!({ "rule": rule, "stats": stats, "flows": flows, "egress": egress,
                "listeners": listeners, "demand": demand }),
        )?
    } else {
        let told = Listening {
            links: &demand,
            listeners: &listeners,
        };
        text(&rule, &stats, &flows, &egress, told)
    })
}

fn text(
    rule: &RuleDocument,
    stats: &RuleStats,
    flows: &[FlowStats],
    egress: &[EgressStats],
    listening: Listening<'_>,
) -> String {
    let mut lines = vec![format!("rule      {}", rule.name)];
    let mut line = |title: &str, text: String| lines.push(format!("{title:<9} {text}"));
    let reason = because(render::stats::reason(stats).as_deref());
    line("state", format!("{}{reason}", stats.word()));
    line("path", format!("{}: {}", stats.path, stats.path_reason));
    for option in render::rule::options(rule) {
        line("option", option);
    }
    for input in &stats.inputs {
        add_input(&mut line, rule, stats, input);
    }
    render::merge::merge(rule, stats)
        .into_iter()
        .for_each(|(title, text)| line(title, text));
    line("received", number::volume(stats.received));
    let rates = &stats.rates;
    let short = (rates.packets_1s, rates.bits_1s);
    let long = (rates.packets_10s, rates.bits_10s);
    line("", number::rates(short, long));
    more(&mut line, number::all(RuleStats::COUNTERS, stats));
    if let Some(health) = &stats.health {
        render::stream::health(health)
            .into_iter()
            .for_each(|(title, text)| line(title, text));
    }
    render::stream::latency(&stats.residence)
        .into_iter()
        .for_each(|(title, text)| line(title, text));
    for (reason, count) in stats.dropped.iter().filter(|(_, count)| **count > 0) {
        line("dropped", format!("{} {reason}", render::count(*count)));
    }
    for flow in flows.iter().take(FLOWS_SHOWN) {
        let at = SocketAddr::new(flow.group, flow.port);
        line("  flow", format!("{at}  {}", number::volume(flow.received)));
    }
    let more = flows.len().saturating_sub(FLOWS_SHOWN);
    if more > 0 {
        line(
            "  flow",
            format!("and {} more; --json lists them", render::count(more as u64)),
        );
    }
    let written = render::rule::outputs(rule);
    for (index, output) in stats.outputs.iter().enumerate() {
        let to = written.get(index).unwrap_or(&output.to);
        add_output(&mut line, to, output, listening);
        let behind = egress.iter().filter(|egress| egress.any());
        for behind in behind.filter(|behind| Some(&behind.interface) == output.interface.as_ref()) {
            let counted = number::all(EgressStats::COUNTERS, behind);
            line("  behind", format!("{}: {counted}", behind.interface));
        }
    }
    lines.join("\n")
}

/// Adds what is known of an input.
fn add_input(
    line: &mut impl FnMut(&str, String),
    rule: &RuleDocument,
    stats: &RuleStats,
    input: &InputStats,
) {
    let joined = match (&input.reason, input.joined) {
        (_, true) if stats.is_idle() => "joins what is listened to: nothing".to_owned(),
        (_, true) => "joined".to_owned(),
        _ if stats.state == State::Disabled => "disabled".to_owned(),
        (Some(reason), false) => format!("not joined: {reason}"),
        (None, false) => "not joined".to_owned(),
    };
    let mut text = format!("{}  {joined}", input.at);
    match input.active {
        Some(true) => text += ", active",
        Some(false) => text += ", stands by",
        None => {}
    }
    // Of merged inputs it stands in their table.
    if let (Some(trouble), None) = (&input.trouble, &input.line) {
        text += &format!(", {trouble}");
    }
    if stats.inputs.len() > 1 {
        text += &format!("  {}", number::volume(input.received));
    }
    line("input", text);
    if let Some(hook) = render::stats::hook(input) {
        line("  hook", hook);
    }
    if let Some(merging) = &input.merging {
        line("  merging", merging.clone());
    }
    if let Some(takers) = &input.shared_with {
        let text = match rule.local {
            Some(LocalDelivery::No) => format!("local=no keeps it from {takers}"),
            _ => format!("goes on to {takers} as well"),
        };
        line("  original", text);
    }
    more(line, number::all(InputStats::COUNTERS, input));
}

/// Adds what is known of an output that the rule writes as `to`.
fn add_output(
    line: &mut impl FnMut(&str, String),
    to: &str,
    output: &OutputStats,
    listening: Listening<'_>,
) {
    let state = match output.is_idle() && output.state == State::Up {
        true => "idle",
        false => output.state.as_str(),
    };
    let remark = because(output.remark().as_deref());
    line("output", format!("{to}  {state}{remark}"));
    if let Some(address) = &output.address {
        line("  to", address.clone());
    }
    for to in output.addresses.iter().flatten() {
        let (state, reason) = (to.state.as_str(), because(to.reason.as_deref()));
        let sent = number::volume(to.sent);
        line("  to", format!("{}  {state}{reason}  {sent}", to.address));
    }
    if let Some(more) = output.left_out {
        line(
            "  to",
            format!(
                "{} more addresses get no copies; raise max",
                render::count(more)
            ),
        );
    }
    if let Some(how) = leaving(output) {
        line("  leaves", how);
    }
    if let Some(remote) = &output.tunnel {
        line(
            "  tunnel",
            format!("to {remote}; sources are kept unless the output sets one"),
        );
    }
    if let Some(why) = &output.by_socket {
        line("  by socket", why.clone());
    }
    line("  sent", number::volume(output.sent));
    more(line, number::all(OutputStats::COUNTERS, output));
    for (reason, count) in output.dropped.iter().filter(|(_, count)| **count > 0) {
        line("  dropped", format!("{} {reason}", render::count(*count)));
    }
    for (title, text) in listening.lines(output) {
        line(title, text);
    }
}

/// How its copies leave, while they can.
fn leaving(output: &OutputStats) -> Option<String> {
    let interface = output.interface.as_ref()?;
    if output.state == State::Down {
        return None;
    }
    let mtu = { output.mtu }.map_or_else(String::new, |mtu| format!(", MTU {mtu}"));
    let source = match &output.source {
        Some(source) => format!("from {source}"),
        None => "from the sender's own address".to_owned(),
    };
    let next_hop = output.next_hop.as_ref().map(|via| {
        let mac = output.next_hop_mac.as_ref();
        let mac = mac.map_or_else(String::new, |mac| format!(" ({mac})"));
        format!(", next hop {via}{mac}")
    });
    Some(format!(
        "by {interface} {source}{}{mtu}",
        next_hop.unwrap_or_default()
    ))
}

/// Adds a line that goes on with what the one before it says, if there is anything to go on with.
fn more(line: &mut impl FnMut(&str, String), text: String) {
    if !text.is_empty() {
        line("", text);
    }
}

/// Who listens where outputs are on demand.
#[derive(Clone, Copy)]
struct Listening<'a> {
    links: &'a [DemandStats],
    listeners: &'a [ListenerStats],
}

impl Listening<'_> {
    /// What there is to say of an output: who asks on its interface, and which hosts listen.
    fn lines(self, output: &OutputStats) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        if output.wanted.is_none() {
            return lines;
        }
        let protocol = if output.to.contains('[') {
            "mld"
        } else {
            "igmp"
        };
        let is_its = |link: &&DemandStats| {
            Some(&link.interface) == output.interface.as_ref() && link.protocol == protocol
        };
        if let Some(link) = self.links.iter().find(is_its) {
            let querier = match (&link.querier, link.is_querier) {
                (Some(address), true) => format!("this relay, as {address}"),
                (Some(address), false) => address.clone(),
                (None, _) => {
                    "none was heard; hosts are forgotten unless one asks: querier=yes".into()
                }
            };
            let reason = link.reason.iter().map(|reason| format!("; {reason}"));
            lines.push((
                "  querier",
                reason.fold(querier, |text, reason| text + &reason),
            ));
        }
        let hosts = self
            .listeners
            .iter()
            .filter(|host| host.output == output.to);
        let count = hosts.clone().count();
        lines.extend(
            hosts
                .take(LISTENERS_SHOWN)
                .map(|host| ("  host", listener(host))),
        );
        if let Some(more) = count.checked_sub(LISTENERS_SHOWN).filter(|more| *more > 0) {
            lines.push((
                "  host",
                format!("and {} more; --json lists them", render::count(more as u64)),
            ));
        }
        lines
    }
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
