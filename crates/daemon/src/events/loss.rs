//! What is told of drops: how many, where, why, and what to do.

use api::reply::Event;
use dataplane::counters::DropReason;
use model::host::{Host, Interface};
use model::net::Ifindex;

use super::event::event;
use super::kind::*;
use crate::stats::{EgressDrops, Loss, LossNews};
use crate::view::RuleState;

/// Drops that begin or end at a rule or one of its outputs, and outputs that drop everything.
pub(crate) fn loss(news: &LossNews, rule: &RuleState, host: &Host) -> Event {
    let name = rule.name();
    let output = news
        .output
        .and_then(|index| rule.rule.outputs.get(index as usize));
    let at = output.map_or_else(String::new, |output| format!(": output {}", output.to));
    let why = |reason| why(reason, rule, news.output, host);
    let (kind, what) = match news.what {
        Loss::Began { reason, packets } => {
            let text = format!(
                "drops packets as {reason}, {packets} so far: {}",
                why(reason)
            );
            (DROPS_BEGAN, text)
        }
        Loss::Ended {
            reason,
            packets,
            over_ns,
        } => {
            let text = format!("drops no more packets as {reason}");
            (DROPS_ENDED, ended(&text, packets, over_ns))
        }
        Loss::Everything { reason } => {
            let text = format!(
                "is degraded: {}",
                everything(reason, rule, news.output, host)
            );
            (OUTPUT_DEGRADED, text)
        }
        Loss::Recovered => (OUTPUT_UP, "no longer drops everything".to_owned()),
    };
    event(kind, name, format!("rule {name:?}{at} {what}"))
}

/// Why an output is degraded that drops everything.
pub(crate) fn everything(
    reason: DropReason,
    rule: &RuleState,
    output: Option<u32>,
    host: &Host,
) -> String {
    let why = why(reason, rule, output, host);
    format!("all packets are dropped as {reason}: {why}")
}

/// Drops of a device that outputs leave by, or of its queue, that begin.
pub(crate) fn egress_drops_began(link: &Interface, what: EgressDrops, packets: u64) -> Event {
    let name = &link.name;
    let message = format!(
        "interface {name}: {} behind MCR, {packets} so far; those of rules may be among them: {}",
        what.verb(),
        what.remedy(name)
    );
    event(DROPS_BEGAN, name, message)
}

/// The same that ended.
pub(crate) fn egress_drops_ended(
    link: &Interface,
    what: EgressDrops,
    packets: u64,
    over_ns: u64,
) -> Event {
    let name = &link.name;
    let text = format!("interface {name}: no longer {}", what.verb());
    event(DROPS_ENDED, name, ended(&text, packets, over_ns))
}

fn ended(text: &str, packets: u64, over_ns: u64) -> String {
    let seconds = over_ns as f64 / 1e9;
    let were = if packets == 1 { "was" } else { "were" };
    format!("{text}: {packets} {were}, over {seconds:.1} s")
}

/// What a reason means here, and what to do.
fn why(reason: DropReason, rule: &RuleState, output: Option<u32>, host: &Host) -> String {
    let remedy = reason.remedy();
    let mtus = (reason == DropReason::TooBig).then(|| mtus(rule, output?, host));
    match mtus.flatten() {
        Some(mtus) => format!("{mtus}: {remedy}"),
        None => remedy.to_owned(),
    }
}

/// Both MTUs: the output's and that of the input with the largest.
fn mtus(rule: &RuleState, output: u32, host: &Host) -> Option<String> {
    let link = |index: &Ifindex| host.interfaces.get(index);
    let egress = link(rule.rule.outputs.get(output as usize)?.link.as_ref()?)?;
    let inputs = rule.rule.inputs.iter().flat_map(|input| &input.interfaces);
    let ingress = inputs.filter_map(link).max_by_key(|link| link.mtu)?;
    Some(format!(
        "larger than the MTU of {}, which is {}; that of {} is {}",
        egress.name, egress.mtu, ingress.name, ingress.mtu
    ))
}
