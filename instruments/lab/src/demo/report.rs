//! The account of a demonstration: each side's counts, combined.

use anyhow::{Context, Result};
use api::reply::Stats;
use serde::Serialize;
use traffic::latency::Summary;
use traffic::report::ReceiveReport;

use super::stream::{Receiver, STREAMS};

/// The account of a whole run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// One line per output, in the order of the rules.
    pub deliveries: Vec<Delivery>,
    /// Where the accounting law does not hold; `None` when it holds everywhere.
    pub broken_law: Option<String>,
    /// Packets the generator could not send.
    pub send_errors: u64,
}

/// The outcome of one stream at one output.
#[derive(Clone, Debug, Serialize)]
pub struct Delivery {
    /// Rule that relays the stream.
    pub rule: String,
    /// What the rule shows.
    pub shows: &'static str,
    /// Path it ran on.
    pub path: String,
    /// The input of the stream, as the rule writes it.
    pub input: String,
    /// Its output, as the rule writes it.
    pub output: String,
    /// Packets the sender sent.
    pub sent: u64,
    /// Packets the rule received.
    pub received: u64,
    /// Packets the rule's output sent.
    pub relayed: u64,
    /// Packets that arrived at the receiver.
    pub delivered: u64,
    /// Packets sent that did not arrive.
    pub lost: u64,
    /// Packets that arrived damaged or twice.
    pub faulty: u64,
    /// Who received.
    pub receiver: &'static str,
    /// From the intended send time to arrival, in microseconds: median, 99th percentile, longest;
    /// `None` where the receiver cannot measure it.
    pub latency_us: Option<[f64; 3]>,
}

impl Delivery {
    fn is_whole(&self) -> bool {
        let counts = [self.received, self.relayed, self.delivered];
        self.faulty == 0 && counts.iter().all(|count| *count == self.sent)
    }
}

impl Report {
    /// Returns whether every packet was delivered once and every counter adds up.
    pub fn is_success(&self) -> bool {
        let whole = self.deliveries.iter().all(Delivery::is_whole);
        whole && self.broken_law.is_none() && self.send_errors == 0
    }
}

/// Combines the counts of the daemon, `mcr receive` and `socat`.
pub(super) fn deliveries(
    sent: u64,
    stats: &Stats,
    checked: &ReceiveReport,
    stock_packets: u64,
) -> Result<Vec<Delivery>> {
    let mut deliveries = Vec::new();
    for stream in &STREAMS {
        let mut rules = stats.rules.iter();
        let rule = rules
            .find(|rule| rule.name == stream.rule)
            .with_context(|| format!("mcr stats has no rule {}", stream.rule))?;
        for (index, (to, _)) in stream.outputs.iter().enumerate() {
            let at = stream.at(to);
            let endpoint = checked.endpoints.iter().find(|one| one.at == at);
            let tally = endpoint.map(|one| &one.tally);
            let output = rule.outputs.get(index);
            let delivered = match stream.receiver {
                Receiver::Mcr => tally.map_or(0, |tally| tally.packets),
                Receiver::Socat => stock_packets,
            };
            deliveries.push(Delivery {
                rule: rule.name.clone(),
                shows: stream.shows,
                path: rule.path.clone(),
                input: stream.on("veth1"),
                output: (*to).to_owned(),
                sent,
                received: rule.received.packets,
                relayed: output.map_or(0, |output| output.sent.packets),
                delivered,
                lost: sent.saturating_sub(delivered),
                faulty: tally.map_or(0, |tally| tally.duplicated + tally.corrupt),
                receiver: stream.receiver.name(),
                latency_us: tally.and_then(|tally| figures(&tally.latency_us)),
            });
        }
    }
    Ok(deliveries)
}

/// Median, 99th percentile, longest.
fn figures(latency: &Summary) -> Option<[f64; 3]> {
    Some([latency.p50?, latency.p99?, latency.max?])
}
