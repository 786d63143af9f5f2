//! The time that packets spend on the kernel path, of which the program counts a sample.

use std::collections::HashMap;

use bpf::layout::{self, Settings};
use model::table::Path;
use sys::field;

use crate::counters::{Counters, latency};
use crate::error::Error;
use crate::kernel::Kernel;

impl Kernel {
    /// Tells the program how the clock of receive timestamps stands to its own. To be called again
    /// and again: somebody may set the clock.
    pub(super) fn set_clock(&mut self) {
        let before = sys::clock::kernel_monotonic_ns();
        let real = sys::clock::realtime_ns();
        let between = before.midpoint(sys::clock::kernel_monotonic_ns());
        let offset = real.wrapping_sub(between);
        let at = field!(Settings, clock_ns);
        self.program.maps.settings.store(0, at, offset);
    }

    /// Makes room for how long packets of new rules stay, by their counters. Without it they are
    /// relayed all the same.
    pub(super) fn begin_latency(&mut self, counters: &[u32]) {
        let none = vec![layout::Latency::default(); counters.len()];
        if let Err(error) = self.program.maps.latency.insert(counters, &none) {
            tracing::debug!("how long packets of new rules stay is not counted: {error}");
        }
    }

    /// Gives up that of a rule that no longer exists.
    pub(super) fn end_latency(&mut self, counter: u32) {
        if let Err(error) = self.program.maps.latency.remove(&[counter]) {
            tracing::debug!("how long packets of an old rule stayed is not forgotten: {error}");
        }
    }
}

/// Adds how long each rule's packets stayed.
pub(super) fn read(kernel: &Kernel, counters: &mut Counters) -> Result<(), Error> {
    // A sample of a quiet rule's packets is empty, and most rules may be quiet.
    let seen = kernel.program.maps.latency.entries()?.into_iter();
    let seen = seen.filter(|(_, counted)| *counted != layout::Latency::default());
    let seen: HashMap<u32, _> = seen.collect();
    if seen.is_empty() {
        return Ok(());
    }
    for (name, rule) in kernel.known.iter() {
        let owner = kernel.owners.find(&rule.hash);
        if let Some(counted) = owner.and_then(|owner| seen.get(&owner.slot)) {
            let rule = counters.rules.entry(name.to_string()).or_default();
            let sum = rule.latency.entry(Path::Kernel).or_default();
            sum.add(&latency(counted));
        }
    }
    Ok(())
}
