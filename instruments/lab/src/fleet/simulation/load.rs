//! A fleet's load on etcd while nothing happens.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use procfs::process::Process;
use serde::Serialize;

use crate::fleet::etcd::Cluster;
use crate::usage;

/// A fleet's load per second.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Load {
    /// Over how many seconds it was measured.
    pub seconds: f64,
    /// Transactions that etcd committed, a second.
    pub writes: f64,
    /// Bytes between etcd and its clients, both ways, a second.
    pub client_bytes: f64,
    /// Bytes that one member, the leader, wrote to its disk, a second; 0 where its directory is memory.
    pub disk_bytes: f64,
    /// Cores that all members of etcd use together.
    pub etcd_cores: f64,
    /// Cores that all relays use together.
    pub relays_cores: f64,
}

/// Reads counters, waits and reads them again.
pub(super) fn measure(etcd: &Cluster, time: Duration) -> Result<Load> {
    let leader = etcd.wait_for_leader()?;
    let begin = Instant::now();
    let before = Counters::read(etcd, leader)?;
    thread::sleep(time);
    let after = Counters::read(etcd, leader)?;
    let seconds = begin.elapsed().as_secs_f64();
    let rate = |of: fn(&Counters) -> f64| (of(&after) - of(&before)) / seconds;
    Ok(Load {
        seconds,
        writes: rate(|now| now.proposals),
        client_bytes: rate(|now| now.client_bytes),
        disk_bytes: rate(|now| now.disk_bytes),
        etcd_cores: rate(|now| now.etcd_seconds),
        relays_cores: rate(|now| now.relays_seconds),
    })
}

struct Counters {
    proposals: f64,
    client_bytes: f64,
    disk_bytes: f64,
    etcd_seconds: f64,
    relays_seconds: f64,
}

impl Counters {
    fn read(etcd: &Cluster, leader: usize) -> Result<Self> {
        let processes = etcd.processes();
        let mut client_bytes = 0.0;
        for member in 0..etcd.len() {
            for direction in ["received", "sent"] {
                let name = format!("etcd_network_client_grpc_{direction}_bytes_total");
                client_bytes += etcd.metric(member, &name)?;
            }
        }
        let mut etcd_seconds = 0.0;
        for process in &processes {
            etcd_seconds += usage::processor_time(*process)?.as_secs_f64();
        }
        let leader_process = processes.get(leader).context("all members run")?;
        let written = Process::new(i32::try_from(*leader_process)?)?
            .io()?
            .write_bytes;
        Ok(Self {
            proposals: etcd.metric(leader, "etcd_server_proposals_committed_total")?,
            client_bytes,
            disk_bytes: written as f64,
            etcd_seconds,
            relays_seconds: usage::processor_time(std::process::id())?.as_secs_f64(),
        })
    }
}
