//! Where packets can vanish between generator and sink, read before and after a trial.

use std::collections::BTreeMap;
use std::fs;

use anyhow::Result;

use super::bed::Bed;
use super::results::Drops;
use crate::link::{self, Statistics};

/// Counters of every link of a bed and of the kernel's per-core queues.
#[derive(Clone, Debug)]
pub struct Hops {
    links: BTreeMap<String, Statistics>,
    backlog_dropped: u64,
}

impl Hops {
    /// Reads them all.
    ///
    /// # Errors
    /// When a link is gone.
    pub fn read(bed: &Bed) -> Result<Self> {
        let links = bed.links().into_iter().map(|(namespace, name)| {
            let role = namespace.name().rsplit('-').next().unwrap_or_default();
            let statistics = link::statistics((namespace, name))?;
            Ok((format!("{role} {name}"), statistics))
        });
        Ok(Self {
            links: links.collect::<Result<_>>()?,
            backlog_dropped: backlog_dropped(),
        })
    }

    /// Lists what was dropped since `before`. A drop ahead of the relay costs `copies` copies, one
    /// behind it costs one.
    #[must_use]
    pub fn drops_since(&self, before: &Self, copies: u64) -> Vec<Drops> {
        let mut drops = Vec::new();
        for (name, now) in &self.links {
            let then = before.links.get(name).copied().unwrap_or_default();
            // A veth that sends into its peer's full receive ring counts the drop as its own.
            let dropped = now.transmit_dropped - then.transmit_dropped + now.receive_dropped
                - then.receive_dropped;
            let ahead = name.starts_with("sender");
            let weight = if ahead { copies } else { 1 };
            push(&mut drops, format!("{name}: ring full"), dropped * weight);
        }
        // The backlog is the machine's: whose packets it dropped cannot be told.
        let dropped = self.backlog_dropped - before.backlog_dropped;
        push(&mut drops, "softnet backlog".into(), dropped);
        drops
    }
}

fn push(drops: &mut Vec<Drops>, at: String, copies: u64) {
    if copies > 0 {
        drops.push(Drops { at, copies });
    }
}

/// Adds the second column of `/proc/net/softnet_stat`: packets dropped at `netdev_max_backlog`.
fn backlog_dropped() -> u64 {
    let text = fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    let columns = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1));
    let counts = columns.filter_map(|column| u64::from_str_radix(column, 16).ok());
    counts.sum()
}
