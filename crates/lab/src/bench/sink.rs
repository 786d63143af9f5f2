//! Counting at the sinks without sockets: an nftables rule at netdev ingress, which costs less than
//! any socket and cannot be the bottleneck before the link is.

use std::io::Write;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::bed::Bed;
use crate::namespace::Namespace;

/// Bytes of IPv4 and UDP headers, as nftables counts them at ingress.
const HEADERS: u64 = 28;

/// Counters at every sink of a bed. They go with the bed.
#[derive(Debug)]
pub struct SinkCounters {
    namespaces: Vec<Namespace>,
    payload: u64,
}

/// What happens to a datagram once it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// It is dropped: nothing else costs time.
    Drop,
    /// It goes on to the sockets.
    Accept,
}

impl SinkCounters {
    /// Starts counting multicast datagrams of `payload` bytes at every sink.
    ///
    /// # Errors
    /// When `nft` refuses.
    pub fn install(bed: &Bed, payload: usize, after: After) -> Result<Self> {
        let verdict = match after {
            After::Drop => "drop",
            After::Accept => "accept",
        };
        let mut namespaces: Vec<Namespace> = Vec::new();
        for (namespace, link) in &bed.sinks {
            // Chains of one namespace share the counter.
            let rules = format!(
                "add table netdev bench\n\
                 add counter netdev bench arrived\n\
                 add chain netdev bench {link} {{ type filter hook ingress device \"{link}\" \
                 priority 0; }}\n\
                 add rule netdev bench {link} ip daddr 224.0.0.0/4 udp dport 5000-65535 \
                 counter name arrived {verdict}\n"
            );
            nft(namespace, &rules)?;
            if namespaces
                .iter()
                .all(|have| have.name() != namespace.name())
            {
                namespaces.push(namespace.clone());
            }
        }
        Ok(Self {
            namespaces,
            payload: payload as u64,
        })
    }

    /// Counts the datagrams that arrived so far, each segment of a super-packet.
    ///
    /// # Errors
    /// When `nft` does not answer.
    pub fn arrived(&self) -> Result<u64> {
        let counts = self.namespaces.iter().map(|namespace| self.read(namespace));
        counts.sum()
    }

    fn read(&self, namespace: &Namespace) -> Result<u64> {
        let text = namespace.tool("nft", "-j list counter netdev bench arrived")?;
        let reply: Value = serde_json::from_str(&text)?;
        let all = reply["nftables"].as_array().context("nft -j: no list")?;
        let counter = all.iter().find_map(|entry| entry.get("counter"));
        let counter = counter.context("nft -j: no counter")?;
        let number = |name: &str| counter[name].as_u64().context("nft -j: no number");
        let (packets, bytes) = (number("packets")?, number("bytes")?);
        // A super-packet is one packet with one pair of headers and many payloads.
        Ok(bytes.saturating_sub(packets * HEADERS) / self.payload)
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
