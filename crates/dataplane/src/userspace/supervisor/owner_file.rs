//! Who owns which of the workers' counters, written down in shared memory that outlives the
//! supervisor, so that the next one counts on under the same names.
//!
//! One entry per slot: the length of the owner's name, 0 for none, the name, and what had been
//! counted before the owner came. The length is written last and cleared first, so an entry that a
//! killed supervisor was about to write is one that is not there.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use packet::residence;
use packet::verdict::DropReason;
use sys::shared_memory::{self, Words};

use crate::owners::name::Kind;
use crate::userspace::shared::counters::{Counted, MAX_INPUTS, MAX_OUTPUTS, MAX_RULES, limit};

/// Words of a name. A longer one is not written down: its counters start anew with a crash.
const NAME: usize = 32;
const COUNTED: usize = 2 + DropReason::SLOTS;
/// Words of what was found in a rule's packets before: sums, last arrival, how long they stayed.
const FOUND: usize = 12 + 1 + residence::WORDS;
const OUTPUT: usize = 1 + NAME + COUNTED;
/// Words of an input; its drops are never any.
const INPUT: usize = OUTPUT;
const RULE: usize = OUTPUT + FOUND;
/// The first words hold how many entries of each kind were ever used, so that reading touches no
/// others.
const RULES_AT: usize = 64;
const OUTPUTS_AT: usize = RULES_AT + MAX_RULES as usize * RULE;
const INPUTS_AT: usize = OUTPUTS_AT + MAX_OUTPUTS as usize * OUTPUT;
/// Words of the file; another number is another layout.
pub(super) const WORDS: usize = INPUTS_AT + MAX_INPUTS as usize * INPUT;

/// The file, mapped.
#[derive(Debug)]
pub(super) struct OwnerFile {
    words: Words,
}

impl OwnerFile {
    /// Makes an empty file. It is sparse: only what is written takes memory.
    ///
    /// # Errors
    /// The system call's.
    pub(super) fn create() -> io::Result<(OwnedFd, Self)> {
        let region = shared_memory::create(c"mcr-book", WORDS * size_of::<AtomicU64>())?;
        let file = Self::map(region.as_fd())?;
        Ok((region, file))
    }

    /// Maps the file of an earlier supervisor.
    ///
    /// # Errors
    /// The system call's.
    pub(super) fn map(region: BorrowedFd<'_>) -> io::Result<Self> {
        let words = Words::map(region, WORDS * size_of::<AtomicU64>())?;
        Ok(Self { words })
    }

    /// Writes down who owns a slot and what had been counted there before.
    pub(super) fn write(&self, kind: Kind, slot: u32, name: &str, base: &Counted) {
        self.erase(kind, slot);
        if name.len() > NAME * size_of::<u64>() {
            return;
        }
        let at = entry_at(kind, slot);
        for (index, chunk) in name.as_bytes().chunks(size_of::<u64>()).enumerate() {
            let mut bytes = [0; size_of::<u64>()];
            bytes[..chunk.len()].copy_from_slice(chunk);
            self.store(at + 1 + index, u64::from_le_bytes(bytes));
        }
        let counted = [base.traffic.packets, base.traffic.bytes];
        let counted = counted.into_iter().chain(base.drops.0);
        let found = found(base).filter(|_| kind == Kind::Rule);
        for (index, value) in counted.chain(found).enumerate() {
            self.store(at + 1 + NAME + index, value);
        }
        let used = u64::from(slot) + 1;
        if self.load(kind as usize) < used {
            self.store(kind as usize, used);
        }
        self.store(at, name.len() as u64);
    }

    /// Notes that nobody owns a slot.
    pub(super) fn erase(&self, kind: Kind, slot: u32) {
        let is_used = u64::from(slot) < self.load(kind as usize);
        if is_used {
            self.store(entry_at(kind, slot), 0);
        }
    }

    /// Everything written down: slot, name, what had been counted before.
    pub(super) fn read(&self, kind: Kind) -> impl Iterator<Item = (u32, String, Counted)> + '_ {
        let used = self.load(kind as usize).min(u64::from(limit(kind))) as u32;
        (0..used).filter_map(move |slot| {
            let at = entry_at(kind, slot);
            let (name, mut counted) = self.entry(at)?;
            if kind == Kind::Rule {
                self.read_found(at + OUTPUT, &mut counted);
            }
            Some((slot, name, counted))
        })
    }

    fn entry(&self, at: usize) -> Option<(String, Counted)> {
        let length = usize::try_from(self.load(at)).ok()?;
        if length == 0 || length > NAME * size_of::<u64>() {
            return None;
        }
        let words = length.div_ceil(size_of::<u64>());
        let words = (at + 1..).take(words);
        let mut bytes: Vec<u8> = words.flat_map(|at| self.load(at).to_le_bytes()).collect();
        bytes.truncate(length);
        let mut counted = Counted::default();
        let at = at + 1 + NAME;
        counted.traffic.packets = self.load(at);
        counted.traffic.bytes = self.load(at + 1);
        for (drop, at) in counted.drops.0.iter_mut().zip(at + 2..) {
            *drop = self.load(at);
        }
        Some((String::from_utf8(bytes).ok()?, counted))
    }

    fn read_found(&self, at: usize, counted: &mut Counted) {
        let health = &mut counted.health;
        for (sum, at) in health.sums_mut().into_iter().zip(at..) {
            *sum = self.load(at);
        }
        health.arrivals.last_ns = self.load(at + 12);
        for (count, at) in counted.residence.words_mut().zip(at + 13..) {
            *count = self.load(at);
        }
    }

    fn load(&self, at: usize) -> u64 {
        let word = self.words.as_slice().get(at);
        word.map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn store(&self, at: usize, value: u64) {
        if let Some(word) = self.words.as_slice().get(at) {
            word.store(value, Ordering::Release);
        }
    }
}

const fn entry_at(kind: Kind, slot: u32) -> usize {
    let (first, size) = match kind {
        Kind::Rule => (RULES_AT, RULE),
        Kind::Output => (OUTPUTS_AT, OUTPUT),
        Kind::Input => (INPUTS_AT, INPUT),
    };
    first + slot as usize * size
}

/// What is written down of what was found in a rule's packets.
fn found(base: &Counted) -> impl Iterator<Item = u64> {
    let health = &base.health;
    let sums = health.sums().into_iter();
    sums.chain([health.arrivals.last_ns])
        .chain(base.residence.words())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_in_another_process() {
        let (region, file) = OwnerFile::create().unwrap();
        let mut base = Counted::default();
        base.traffic.packets = 7;
        base.drops.0[DropReason::SLOTS - 1] = 3;
        let output = base.clone();
        base.health.lost = 5;
        base.health.pids = 2;
        base.health.arrivals.last_ns = 9;
        base.residence.buckets[4] = 6;
        base.residence.stamped = 8;
        file.write(Kind::Rule, 0, "cam1", &base);
        file.write(Kind::Rule, 2, "a", &Counted::default());
        file.write(Kind::Output, MAX_OUTPUTS - 1, "cam1 0", &output);
        file.write(Kind::Input, MAX_INPUTS - 1, "cam1 1", &output);
        let successor = OwnerFile::map(region.as_fd()).unwrap();
        let read: Vec<_> = successor.read(Kind::Rule).collect();
        let a = (2, "a".to_owned(), Counted::default());
        assert_eq!(read, [(0, "cam1".to_owned(), base.clone()), a]);
        let read: Vec<_> = successor.read(Kind::Output).collect();
        let first = (MAX_OUTPUTS - 1, "cam1 0".to_owned(), output.clone());
        assert_eq!(read, [first]);
        let read: Vec<_> = successor.read(Kind::Input).collect();
        assert_eq!(read, [(MAX_INPUTS - 1, "cam1 1".to_owned(), output)]);
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
    fn a_name_that_is_too_long_is_left_out() {
        let (_region, file) = OwnerFile::create().unwrap();
        let name = "x".repeat(NAME * 8 + 1);
        file.write(Kind::Output, 0, &name, &Counted::default());
        assert_eq!(file.read(Kind::Output).count(), 0);
    }
}
