//! Who owns which of the workers' counters, written down in shared memory that outlives the
//! supervisor, so that the next one counts on under the same names.
//!
//! One entry per slot: the length of the owner's name, 0 for none, the name, and what had been
//! counted before the owner came. The length is written last and cleared first, so an entry that a
//! killed supervisor was about to write is one that is not there.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use sys::shared_memory::{self, Words};

use crate::owners::name::Kind;
use crate::userspace::shared::counted::{self, Counted};
use crate::userspace::shared::layout::{MAX_INPUTS, MAX_OUTPUTS, MAX_RULES, limit};

/// Words of a name. A longer one is not written down: its counters start anew with a crash.
const NAME: usize = 32;
/// Words of an entry: the name's length, the name, and what was counted before.
const fn entry_words(kind: Kind) -> usize {
    1 + NAME + base_words(kind)
}

const fn base_words(kind: Kind) -> usize {
    match kind {
        Kind::Rule => counted::WORDS_OF_A_RULE,
        Kind::Output | Kind::Input => counted::WORDS,
    }
}

/// The first words hold how many entries of each kind were ever used, so that reading touches no
/// others.
const RULES_AT: usize = 64;
const OUTPUTS_AT: usize = RULES_AT + MAX_RULES as usize * entry_words(Kind::Rule);
const INPUTS_AT: usize = OUTPUTS_AT + MAX_OUTPUTS as usize * entry_words(Kind::Output);
/// Words of the file; another number is another layout.
pub(super) const WORDS: usize = INPUTS_AT + MAX_INPUTS as usize * entry_words(Kind::Input);

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
        let base = base.words().take(base_words(kind));
        for (index, value) in base.enumerate() {
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
            let name = self.name(at)?;
            let base = (at + 1 + NAME..).take(base_words(kind));
            let base = Counted::from_words(base.map(|at| self.load(at)));
            Some((slot, name, base))
        })
    }

    fn name(&self, at: usize) -> Option<String> {
        let length = usize::try_from(self.load(at)).ok()?;
        if length == 0 || length > NAME * size_of::<u64>() {
            return None;
        }
        let words = length.div_ceil(size_of::<u64>());
        let words = (at + 1..).take(words);
        let mut bytes: Vec<u8> = words.flat_map(|at| self.load(at).to_le_bytes()).collect();
        bytes.truncate(length);
        String::from_utf8(bytes).ok()
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
    let first = match kind {
        Kind::Rule => RULES_AT,
        Kind::Output => OUTPUTS_AT,
        Kind::Input => INPUTS_AT,
    };
    first + slot as usize * entry_words(kind)
}

/// Reads a file that says `words` at its beginning and where each kind's entries begin.
#[cfg(feature = "rehearsal")]
pub(super) fn read_all(words: &[u64]) {
    let Ok((_, file)) = OwnerFile::create() else {
        return;
    };
    for (at, word) in words.iter().enumerate() {
        for start in [0, RULES_AT, OUTPUTS_AT, INPUTS_AT] {
            file.store(start + at, *word);
        }
    }
    for kind in Kind::ALL {
        for (_, name, _) in file.read(kind).take(words.len()) {
            let _ = crate::owners::name::Name::parse(kind, &name);
        }
    }
}

#[cfg(test)]
mod tests {
    use packet::verdict::DropReason;

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
        base.latency.buckets[4] = 6;
        base.latency.stamped = 8;
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
