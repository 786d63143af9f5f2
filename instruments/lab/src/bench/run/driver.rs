//! The driver bed's generator, bare XDP redirect and sink.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use traffic::driver::{self, STREAMS, Sink, Source};
use traffic::report::SendReport;

use super::bed::{Bed, GENERATOR_CORE};
use super::plan::Family;
use super::shape::{Load, Shape};
use crate::link;

/// The generator's UDP port.
const SOURCE_PORT: u16 = 4000;

/// Counts at the bed's sink, at XDP or at tc.
pub(super) fn sink(bed: &Bed, at_xdp: bool) -> Result<Sink> {
    let (namespace, name) = &bed.sinks[0];
    let index = link::index((namespace, name))?;
    namespace.run(|| Ok(Sink::open(index, at_xdp)?))
}

/// Attaches the bare redirect at the relay's input until the returned link is dropped.
pub(super) fn redirect(bed: &Bed) -> Result<OwnedFd> {
    let relay = &bed.relays[0];
    let index = link::index((relay, "veth1"))?;
    relay.run(|| Ok(driver::redirect(index)?))
}

/// Offers a load from the generator's core.
pub(super) fn send(bed: &Bed, shape: Shape, load: Load) -> Result<SendReport> {
    let is_valid = shape.plan.family == Family::V4 && shape.streams <= STREAMS;
    ensure!(is_valid, "the driver bed has IPv4 and {STREAMS} streams");
    let index = link::index((&bed.sender, "veth0"))?;
    let source = SocketAddr::new(bed.source(Family::V4), SOURCE_PORT);
    let groups: Vec<_> = (1..=shape.streams)
        .map(|stream| shape.plan.input(stream))
        .map(|to| SocketAddr::new(to.group, to.port))
        .collect();
    bed.sender.run(|| {
        let mut core = CpuSet::new();
        core.set(GENERATOR_CORE)?;
        sched_setaffinity(Pid::from_raw(0), &core)?;
        let source = Source::open(index, source, &groups, load.size)?;
        let length = Duration::from_secs_f64(load.length());
        Ok(source.send(load.rate_pps, length)?)
    })
}
