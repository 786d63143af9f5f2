//! Counting at the sinks without sockets: an nftables rule at netdev ingress, which costs less than
//! any socket and cannot be the bottleneck before the link is.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use traffic::driver::Sink;

use super::bed::{Bed, BedKind};
use super::driver;
use super::relay::Relay;
use crate::namespace::Namespace;

/// Counters, their matches, and the bytes of IP and UDP headers, as nftables counts them at ingress.
const COUNTERS: [(&str, &str, u64); 2] = [
    ("arrived4", "ip daddr 224.0.0.0/4", 28),
    ("arrived6", "ip6 daddr ff00::/8", 48),
];

/// Counters at every sink of a bed. They vanish with the bed.
#[derive(Debug)]
pub struct SinkCounters {
    namespaces: Vec<Namespace>,
    /// Of the driver bed.
    driver: Option<Sink>,
}

/// What arrived so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Bytes of UDP payload.
    bytes: u64,
}

impl Arrived {
    /// Counts the datagrams that arrived since `before`, all of `payload` bytes, including each segment of a
    /// super-packet.
    pub fn datagrams_since(self, before: Self, payload: usize) -> u64 {
        (self.bytes - before.bytes) / payload as u64
    }
}

/// What happens to a datagram once it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// It is dropped: nothing else costs time.
    Drop,
    /// It continues to the sockets.
    Accept,
}

impl SinkCounters {
    /// Starts counting multicast datagrams at every sink.
    ///
    /// # Errors
    /// When `nft` refuses.
    pub fn install(bed: &Bed, relay: &Relay, after: After) -> Result<Self> {
        if matches!(bed.kind, BedKind::Driver { .. }) {
            return Ok(Self {
                namespaces: Vec::new(),
                driver: Some(driver::sink(bed, relay.is_at_xdp())?),
            });
        }
        let verdict = match after {
            After::Drop => "drop",
            After::Accept => "accept",
        };
        let mut namespaces: Vec<Namespace> = Vec::new();
        for (namespace, link) in &bed.sinks {
            let mut rules = format!(
                "add table netdev bench\n\
                 add chain netdev bench {link} {{ type filter hook ingress device \"{link}\" \
                 priority 0; }}\n"
            );
            // Chains of one namespace share the counters.
            for (name, what, _) in COUNTERS {
                let _ = write!(
                    rules,
                    "add counter netdev bench {name}\n\
                     add rule netdev bench {link} {what} udp dport 5000-65535 \
                     counter name {name} {verdict}\n"
                );
            }
            nft(namespace, &rules)?;
            if namespaces
                .iter()
                .all(|other| other.name() != namespace.name())
            {
                namespaces.push(namespace.clone());
            }
        }
        Ok(Self {
            namespaces,
            driver: None,
        })
    }

    /// The sink of the driver bed, which measures latencies.
    pub(super) const fn driver(&self) -> Option<&Sink> {
        self.driver.as_ref()
    }

    /// Reads what arrived so far.
    ///
    /// # Errors
    /// When `nft` does not answer.
    pub fn arrived(&self) -> Result<Arrived> {
        let mut total = Arrived {
            bytes: self.driver.as_ref().map_or(0, Sink::arrived),
        };
        for namespace in &self.namespaces {
            let text = namespace.tool("nft", "-j list counters table netdev bench")?;
            let reply: Value = serde_json::from_str(&text)?;
            let all = reply["nftables"].as_array().context("nft -j: no list")?;
            for counter in all.iter().filter_map(|entry| entry.get("counter")) {
                let number = |name: &str| counter[name].as_u64().context("nft -j: no number");
                let row = COUNTERS.iter().find(|(name, ..)| counter["name"] == *name);
                let (.., headers) = row.context("nft -j: a strange counter")?;
                // A super-packet is one packet with one pair of headers and many payloads.
                total.bytes += number("bytes")?.saturating_sub(number("packets")? * headers);
            }
        }
        Ok(total)
    }
}

fn nft(namespace: &Namespace, rules: &str) -> Result<()> {
    let mut command = namespace.command("nft");
    command
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .context("cannot start nft (is it installed?)")?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(rules.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("nft: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
