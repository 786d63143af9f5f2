//! The owners of the workers' counters, recorded in shared memory that outlives the supervisor, so that
//! the next one continues under the same names.
//!
//! One entry per slot: the length of the owner's name, 0 for none, the name, and what had been counted
//! before the owner got the slot. The length is written last and cleared first, so an entry that a killed
//! supervisor was writing does not count.

use bpf::layout::{Drops, Latency};
use sys::field;
use sys::memory::Field;
use zerocopy::{FromBytes, IntoBytes};

use crate::counters::{self, Traffic};
use crate::owners::name::Kind;
use crate::userspace::shared::counted::Counted;
use crate::userspace::shared::layout::{MAX_INPUTS, MAX_OUTPUTS, MAX_RULES, limit};

/// Words of a name. A longer one is not recorded: its counters start anew after a crash.
const NAME: usize = 32;

/// The owner of an output's or an input's slot; the first part of a rule's entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes)]
struct Entry {
    /// Bytes of the owner's name; 0 without an owner.
    length: u64,
    name: [[u8; 8]; NAME],
    packets: u64,
    bytes: u64,
    drops: Drops,
}

/// What else had been counted before a rule got its slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes)]
struct RuleBase {
    health: [u64; 12],
    last_ns: u64,
    latency: Latency,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes)]
struct RuleEntry {
    entry: Entry,
    base: RuleBase,
}

sys::region! {
    /// The file, mapped.
    pub(super) struct OwnerFile as c"mcr-book" {
        /// How many entries of each kind were ever used, so that reading touches no others.
        used: [u64; 64],
        rules: [RuleEntry; MAX_RULES],
        outputs: [Entry; MAX_OUTPUTS],
        inputs: [Entry; MAX_INPUTS],
    }
}

impl OwnerFile {
    /// Records the owner of a slot and what had been counted there before.
    pub(super) fn write(&self, kind: Kind, slot: u32, name: &str, base: &Counted) {
        self.erase(kind, slot);
        if name.len() > size_of::<[[u8; 8]; NAME]>() {
            return;
        }
        let mut entry = Entry {
            length: 0,
            name: Default::default(),
            packets: base.traffic.packets,
            bytes: base.traffic.bytes,
            drops: Drops {
                packets: base.drops.0,
            },
        };
        entry.name.as_flattened_mut()[..name.len()].copy_from_slice(name.as_bytes());
        let latency = &base.latency;
        let base = RuleBase {
            health: base.health.sums(),
            last_ns: base.health.arrivals.last_ns,
            latency: Latency {
                buckets: latency.buckets,
                sum_ns: latency.sum_ns,
                stamped: latency.stamped,
            },
        };
        match kind {
            Kind::Rule => self.rules.write(slot, &RuleEntry { entry, base }),
            Kind::Output => self.outputs.write(slot, &entry),
            Kind::Input => self.inputs.write(slot, &entry),
        }
        if self.used(kind) <= slot {
            let used = u64::from(slot) + 1;
            self.used.store(kind as u32, Field::WHOLE, used);
        }
        self.set_length(kind, slot, name.len() as u64);
    }

    /// Records that a slot has no owner.
    pub(super) fn erase(&self, kind: Kind, slot: u32) {
        if slot < self.used(kind) {
            self.set_length(kind, slot, 0);
        }
    }

    /// All entries: slot, name, and what had been counted before.
    pub(super) fn read(&self, kind: Kind) -> impl Iterator<Item = (u32, String, Counted)> + '_ {
        (0..self.used(kind)).filter_map(move |slot| {
            let RuleEntry { entry, base } = match kind {
                Kind::Rule => self.rules.read(slot),
                Kind::Output => self.outputs.read(slot).into(),
                Kind::Input => self.inputs.read(slot).into(),
            };
            let length = usize::try_from(entry.length).ok().filter(|n| *n > 0)?;
            let name = entry.name.as_flattened().get(..length)?.to_vec();
            let mut counted = Counted {
                traffic: Traffic::new(entry.packets, entry.bytes),
                drops: counters::Drops(entry.drops.packets),
                latency: counters::latency(&base.latency),
                ..Counted::default()
            };
            let sums = counted.health.sums_mut().into_iter();
            sums.zip(base.health).for_each(|(sum, base)| *sum = base);
            counted.health.arrivals.last_ns = base.last_ns;
            Some((slot, String::from_utf8(name).ok()?, counted))
        })
    }

    /// Slots of a kind from 0 on that were ever used.
    fn used(&self, kind: Kind) -> u32 {
        self.used.read(kind as u32).min(limit(kind).into()) as u32
    }

    fn set_length(&self, kind: Kind, slot: u32, length: u64) {
        match kind {
            Kind::Rule => self
                .rules
                .store(slot, field!(RuleEntry, entry.length), length),
            Kind::Output => self.outputs.store(slot, field!(Entry, length), length),
            Kind::Input => self.inputs.store(slot, field!(Entry, length), length),
        }
    }
}

impl From<Entry> for RuleEntry {
    fn from(entry: Entry) -> Self {
        let base = RuleBase::default();
        Self { entry, base }
    }
}

/// Reads a file that holds `words` at its beginning and where each kind's entries begin.
#[cfg(feature = "rehearsal")]
pub(super) fn read_all(words: &[u64]) {
    use sys::shared_memory::Region;

    let Ok((_, file)) = OwnerFile::create() else {
        return;
    };
    let regions = [
        file.used.all(),
        file.rules.all(),
        file.outputs.all(),
        file.inputs.all(),
    ];
    for (word, value) in regions.iter().flat_map(|region| region.iter().zip(words)) {
        word.store(*value, std::sync::atomic::Ordering::Release);
    }
    for kind in Kind::ALL {
        for (_, name, _) in file.read(kind).take(words.len()) {
            let _ = crate::owners::name::Name::parse(kind, &name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use packet::verdict::DropReason;

    use sys::shared_memory::Region;

    use super::*;

    #[test]
    fn another_process_reads_what_was_written() {
        let (region, file) = OwnerFile::create().unwrap();
        let mut base = Counted::default();
        base.traffic.packets = 7;
        base.drops.0[DropReason::SLOTS - 1] = 3;
        let output = base.clone();
        base.health.lost = 5;
        base.health.pids = 2;
        base.health.arrivals.last_ns = 9;
        base.latency.buckets[4] = 6;
        base.latency.stamped = 8;
        file.write(Kind::Rule, 0, "cam1", &base);
        file.write(Kind::Rule, 2, "a", &Counted::default());
        file.write(Kind::Output, MAX_OUTPUTS - 1, "cam1 0", &output);
        file.write(Kind::Input, MAX_INPUTS - 1, "cam1 1", &output);
        let successor = OwnerFile::map(region.as_fd()).unwrap();
        let rules: Vec<_> = successor.read(Kind::Rule).collect();
        let a = (2, "a".to_owned(), Counted::default());
        assert_eq!(rules, [(0, "cam1".to_owned(), base.clone()), a]);
        let outputs: Vec<_> = successor.read(Kind::Output).collect();
        let first = (MAX_OUTPUTS - 1, "cam1 0".to_owned(), output.clone());
        assert_eq!(outputs, [first]);
        let inputs: Vec<_> = successor.read(Kind::Input).collect();
        assert_eq!(inputs, [(MAX_INPUTS - 1, "cam1 1".to_owned(), output)]);
    }

    #[test]
    fn an_erased_slot_has_no_owner() {
        let (_region, file) = OwnerFile::create().unwrap();
        file.write(Kind::Rule, 1, "cam1", &Counted::default());
        file.erase(Kind::Rule, 1);
        file.erase(Kind::Rule, 9);
        assert_eq!(file.read(Kind::Rule).count(), 0);
    }

    #[test]
    fn a_name_that_is_too_long_is_not_recorded() {
        let (_region, file) = OwnerFile::create().unwrap();
        let name = "x".repeat(NAME * 8 + 1);
        file.write(Kind::Output, 0, &name, &Counted::default());
        assert_eq!(file.read(Kind::Output).count(), 0);
    }
}
