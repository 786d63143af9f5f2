//! From the maps' numbers to the seam's [`Counters`].

use bpf::layout::Tally;
use packet::verdict::DropReason;

use crate::Error;
use crate::counters::{Counters, Drops, OutputCounters, Traffic};
use crate::kernel::identity::Hash;
use crate::kernel::{Kernel, health};

/// Adds what the kernel path counted to `counters`.
pub(crate) fn read(kernel: &Kernel, counters: &mut Counters) -> Result<(), Error> {
    let raw = kernel.program.maps.counters.read(kernel.registry.used())?;
    for (name, rule) in kernel.named.iter() {
        let Some((received, dropped)) = one(kernel, &raw, rule.hash) else {
            continue;
        };
        let total = counters.rules.entry(name.clone()).or_default();
        add(&mut total.received, received);
        add_drops(&mut total.dropped, &dropped);
        for (index, hash) in &rule.outputs {
            let Some((sent, dropped)) = one(kernel, &raw, *hash) else {
                continue;
            };
            let output: &mut OutputCounters = total.outputs.entry(*index).or_default();
            add(&mut output.sent, sent);
            add_drops(&mut output.dropped, &dropped);
        }
    }
    health::read(kernel, counters);
    Ok(())
}

fn one(kernel: &Kernel, raw: &[Tally], owner: Hash) -> Option<(Traffic, Drops)> {
    let counter = kernel.registry.find(owner)?;
    let raw = raw.get(counter as usize)?;
    let base = kernel.program.maps.identities.read(counter);
    let traffic = Traffic {
        packets: raw.packets.wrapping_sub(base.packets),
        bytes: raw.bytes.wrapping_sub(base.bytes),
    };
    let drops = kernel.program.maps.drops.read(counter).packets;
    Some((traffic, Drops(drops)))
}

fn add(total: &mut Traffic, more: Traffic) {
    total.packets += more.packets;
    total.bytes += more.bytes;
}

fn add_drops(total: &mut Drops, more: &Drops) {
    for reason in 0..DropReason::SLOTS {
        total.0[reason] += more.0[reason];
    }
}
