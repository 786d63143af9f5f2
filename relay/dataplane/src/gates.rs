//! Gates of shares: until when packets of rules that change hands between relays pass.
//!
//! A gate is one word that both paths read for each packet or batch. Each path has its own gates, found by
//! the share's name, which is stored beside the word: a process that takes over a path recovers their
//! owners, and neither opens nor shuts any. A gate without an owner is shut.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bpf::layout::{GATES, Gate, SHARE_NAME};
use compile::table::Path;
use parking_lot::Mutex;
use sys::field;
use sys::memory::{Array, Field};

use crate::allocator::Indices;
use crate::error::Error;

/// Shares that there is room for on each path.
pub const SHARES: usize = GATES as usize - 1;
/// The gate of routes without a share, which pass at any time.
pub(crate) const NONE: u16 = 0;
/// A gate that does not exist, so nothing passes.
pub(crate) const SHUT: u16 = u16::MAX;

const _: () = assert!(GATES < SHUT as u32, "it is not there");

/// Opens and shuts the gates of shares, from any thread; clones open and shut the same.
#[derive(Clone, Debug, Default)]
pub struct Gates(Arc<Mutex<State>>);

/// The memory of a path's gates.
#[derive(Debug)]
pub(crate) struct GateMemory {
    pub(crate) gates: Array<Gate>,
    /// Since when each is open. What arrived while a gate was shut stays excluded: it may wait in a core's
    /// queue, or in a worker's ring for as long as the worker does not run, and the relay that held the
    /// share before has sent it.
    pub(crate) since: Array<u64>,
}

/// Times are those of the kernel's own clock.
#[derive(Debug, Default)]
struct State {
    /// The last [`Gates::set`] of each share.
    requested: HashMap<String, u64>,
    kernel: Option<GateTable>,
    userspace: Option<GateTable>,
    /// Makes the kernel stamp the arrival of packets, while any share has a gate.
    stamps: Option<OwnedFd>,
}

/// The gate of each share on a path.
#[derive(Debug)]
struct GateTable {
    memory: GateMemory,
    by_share: HashMap<String, u16>,
    indices: Indices,
}

impl Gates {
    /// Lets packets of a share pass until `CLOCK_BOOTTIME` of this process shows `until_ns`
    /// nanoseconds, on both paths and at once: 0 shuts, `u64::MAX` opens for ever. A share that has
    /// no routes yet starts with the last value set.
    pub fn set(&self, share: &str, until_ns: u64) {
        let until = to_kernel_ns(until_ns);
        let mut state = self.0.lock();
        for table in state.tables() {
            if let Some(index) = table.by_share.get(share) {
                table.memory.set(*index, until);
            }
        }
        state.requested.insert(share.to_owned(), until);
    }

    /// Until when packets of a share pass: as last set by [`Gates::set`], or as an earlier process left
    /// it. 0 for an unknown share.
    #[must_use]
    pub fn until(&self, share: &str) -> u64 {
        from_kernel_ns(self.0.lock().until(share))
    }

    /// Sets since when packets are their new path's whose routes change paths, on both paths, by the clock of
    /// receive timestamps; `u64::MAX`: not yet.
    pub(crate) fn hand_over(&self, at_ns: u64) {
        for table in self.0.lock().tables() {
            let since = &table.memory.since;
            since.store(NONE.into(), Field::WHOLE, at_ns);
        }
    }

    /// Takes over the gates of a path, as an earlier process may have left them.
    pub(crate) fn adopt(&self, path: Path, memory: GateMemory) {
        let mut state = self.0.lock();
        let table = GateTable::adopt(memory);
        for (share, index) in &table.by_share {
            if let Some(until) = state.requested.get(share) {
                table.memory.set(*index, *until);
            }
        }
        if table.is_used() {
            state.request_stamps();
        }
        *state.of(path) = Some(table);
    }

    /// Checks that all of `shares` have a gate of the path or can get one.
    ///
    /// # Errors
    /// [`Error::GateRoom`].
    pub(crate) fn check_room<'a>(
        &self,
        path: Path,
        shares: impl Iterator<Item = &'a str>,
    ) -> Result<(), Error> {
        let shares: BTreeSet<&str> = shares.collect();
        if shares.is_empty() {
            return Ok(());
        }
        let mut state = self.0.lock();
        let Some(table) = state.of(path) else {
            return Ok(());
        };
        let mut new = shares
            .iter()
            .filter(|share| !table.by_share.contains_key(**share));
        match new.nth(table.indices.room()) {
            None => Ok(()),
            Some(share) => Err(Error::GateRoom {
                share: (*share).to_owned(),
                limit: SHARES,
            }),
        }
    }

    /// The gate of a share on a path, if it has one.
    pub(crate) fn find(&self, path: Path, share: &str) -> Option<u16> {
        let mut state = self.0.lock();
        state.of(path).as_ref()?.by_share.get(share).copied()
    }

    /// Returns whether the gate of a path has an owner.
    pub(crate) fn is_owned(&self, path: Path, gate: u16) -> bool {
        let mut state = self.0.lock();
        let table = state.of(path).as_ref();
        u32::from(gate) < GATES
            && table.is_some_and(|table| share_of(&table.memory.read(gate)).is_some())
    }

    /// The gate of a share on a path, a new one if it has none, as open as the share is; `None` where
    /// no gate is free.
    pub(crate) fn acquire(&self, path: Path, share: &str) -> Option<u16> {
        let mut state = self.0.lock();
        let until = state.until(share);
        state.request_stamps();
        let table = state.of(path).as_mut()?;
        if let Some(index) = table.by_share.get(share) {
            return Some(*index);
        }
        let name = name_of(share)?;
        let index = table.indices.take()? as u16;
        table.memory.write(index, name, until);
        table.by_share.insert(share.to_owned(), index);
        Some(index)
    }

    /// Shuts and takes back all gates of a path but those that `used` names, once no route has them.
    /// A share's last value is dropped with its last gate if it was shut.
    pub(crate) fn release_others(&self, path: Path, used: impl Iterator<Item = u16>) {
        let mut state = self.0.lock();
        let Some(table) = state.of(path) else {
            return;
        };
        if table.by_share.is_empty() {
            return;
        }
        let used: BTreeSet<u16> = used.collect();
        let GateTable {
            memory,
            by_share,
            indices,
        } = table;
        by_share.retain(|_, index| {
            let is_used = used.contains(index);
            if !is_used {
                memory.clear(*index);
                indices.release(u32::from(*index));
            }
            is_used
        });
        let State {
            requested,
            kernel,
            userspace,
            stamps,
        } = &mut *state;
        let has_gate = |share: &String| {
            let mut tables = kernel.iter().chain(&*userspace);
            tables.any(|table| table.by_share.contains_key(share))
        };
        requested.retain(|share, until| *until > 0 || has_gate(share));
        if !kernel.iter().chain(&*userspace).any(GateTable::is_used) {
            *stamps = None;
        }
    }

    /// Frees the gates taken back before: no packet is judged by them any more.
    pub(crate) fn grace_period_passed(&self, path: Path) {
        if let Some(table) = self.0.lock().of(path) {
            table.indices.grace_period_passed();
        }
    }
}

impl State {
    fn of(&mut self, path: Path) -> &mut Option<GateTable> {
        match path {
            Path::Kernel => &mut self.kernel,
            Path::Userspace => &mut self.userspace,
        }
    }

    /// Without timestamps gates open and shut all the same, but a packet that waits for its core meanwhile
    /// is not recognised as having arrived before.
    fn request_stamps(&mut self) {
        if self.stamps.is_none() {
            self.stamps = sys::udp::ask_for_stamps().ok();
        }
    }

    fn tables(&self) -> impl Iterator<Item = &GateTable> {
        self.kernel.iter().chain(&self.userspace)
    }

    fn until(&self, share: &str) -> u64 {
        if let Some(until) = self.requested.get(share) {
            return *until;
        }
        let deadlines = self.tables().filter_map(|table| {
            let index = table.by_share.get(share)?;
            Some(table.memory.read(*index).until)
        });
        deadlines.max().unwrap_or(0)
    }
}

impl GateTable {
    fn is_used(&self) -> bool {
        !self.by_share.is_empty()
    }

    /// Recovers the owners. Of two gates of one name the first is adopted; one with an invalid name is cleared.
    fn adopt(memory: GateMemory) -> Self {
        let mut by_share = HashMap::new();
        for index in 1..GATES as u16 {
            let gate = memory.read(index);
            if gate == Gate::default() {
                continue;
            }
            match share_of(&gate).filter(|share| !by_share.contains_key(share)) {
                Some(share) => {
                    by_share.insert(share, index);
                }
                None => {
                    memory.clear(index);
                }
            }
        }
        let mut indices = Indices::new(GATES);
        let used = by_share.values().map(|index| u32::from(*index));
        indices.occupy(used.chain([u32::from(NONE)]));
        Self {
            memory,
            by_share,
            indices,
        }
    }
}

impl GateMemory {
    fn read(&self, index: u16) -> Gate {
        self.gates.read(index.into())
    }

    /// Writes a gate that no packet reads yet; the word that opens it is written last.
    fn write(&self, index: u16, share: [u8; SHARE_NAME], until: u64) {
        self.gates.write(index.into(), &Gate { until: 0, share });
        self.set(index, until);
    }

    /// Changes until when packets pass, for all packets at once. Whoever sees a gate open also sees since
    /// when.
    fn set(&self, index: u16, until: u64) {
        let (gate, now) = (u32::from(index), sys::clock::kernel_boottime_ns());
        let word = field!(Gate, until);
        if until > now && self.gates.load(gate, word) <= now {
            self.since.store(gate, Field::WHOLE, now);
        }
        self.gates.store(gate, word, until);
    }

    /// Shuts a gate and removes its owner.
    fn clear(&self, index: u16) {
        self.set(index, 0);
        self.gates.write(index.into(), &Gate::default());
    }
}

/// A share's name as stored beside its gate.
fn name_of(share: &str) -> Option<[u8; SHARE_NAME]> {
    let mut name = [0; SHARE_NAME];
    let is_name = rules::rule::is_name(share);
    name.get_mut(..share.len())
        .filter(|name| is_name && name.len() < SHARE_NAME)?
        .copy_from_slice(share.as_bytes());
    Some(name)
}

fn share_of(gate: &Gate) -> Option<String> {
    let name = gate.share.split(|byte| *byte == 0).next()?;
    let share = std::str::from_utf8(name).ok()?;
    (name_of(share)? == gate.share).then(|| share.to_owned())
}

/// Converts this process's time into the kernel's; 0 and `u64::MAX` are no times.
fn to_kernel_ns(ns: u64) -> u64 {
    match ns {
        0 | u64::MAX => ns,
        ns => sys::clock::to_kernel_boottime_ns(ns),
    }
}

fn from_kernel_ns(ns: u64) -> u64 {
    match ns {
        0 | u64::MAX => ns,
        ns => sys::clock::from_kernel_boottime_ns(ns),
    }
}

#[cfg(test)]
mod tests {
    use sys::shared_memory::Region;

    use super::*;
    use crate::userspace::shared::gates::SharedGates;

    /// Gates of one path, and the memory behind them.
    fn gates(region: &std::os::fd::OwnedFd) -> Gates {
        let gates = Gates::default();
        adopt(&gates, region);
        gates
    }

    fn adopt(gates: &Gates, region: &std::os::fd::OwnedFd) {
        use std::os::fd::AsFd;
        let shared = SharedGates::map(region.as_fd()).unwrap();
        gates.adopt(Path::Userspace, shared.memory());
    }

    fn word(region: &std::os::fd::OwnedFd, gate: u16) -> u64 {
        use std::os::fd::AsFd;
        SharedGates::map(region.as_fd()).unwrap().until(gate)
    }

    const PATH: Path = Path::Userspace;

    #[test]
    fn a_share_starts_with_the_value_set_before_it_had_a_gate() {
        let (region, _) = SharedGates::create().unwrap();
        let gates = gates(&region);
        gates.set("a", u64::MAX);
        let a = gates.acquire(PATH, "a").unwrap();
        let b = gates.acquire(PATH, "b").unwrap();
        assert_eq!(gates.acquire(PATH, "a"), Some(a));
        assert_ne!(a, NONE);
        assert_eq!([word(&region, a), word(&region, b)], [u64::MAX, 0]);
        gates.clone().set("b", 77);
        gates.set("a", 0);
        assert_eq!([gates.until("a"), gates.until("b")], [0, 77]);
        assert_eq!(word(&region, a), 0);
        assert_ne!(word(&region, b), 0);
        assert_eq!(word(&region, SHUT), 0);
    }

    #[test]
    fn another_process_finds_gates_by_their_names_and_changes_none() {
        let (region, _) = SharedGates::create().unwrap();
        let before = gates(&region);
        before.set("a", u64::MAX);
        let both = ["b", "a"].map(|share| before.acquire(PATH, share).unwrap());
        let after = gates(&region);
        assert_eq!(
            ["b", "a"].map(|share| after.find(PATH, share)),
            both.map(Some)
        );
        assert_eq!([after.until("a"), after.until("b")], [u64::MAX, 0]);
        assert_eq!(word(&region, both[1]), u64::MAX);
        let third = after.acquire(PATH, "c").unwrap();
        assert!(!both.contains(&third));
        // A value set before the gates were adopted holds.
        let late = Gates::default();
        late.set("a", 0);
        late.set("b", 5);
        adopt(&late, &region);
        assert_eq!([late.until("a"), late.until("b")], [0, 5]);
        assert_eq!(word(&region, both[1]), 0);
    }

    #[test]
    fn a_gate_that_is_given_back_is_shut_and_waits_for_packets_in_flight() {
        let (region, _) = SharedGates::create().unwrap();
        let gates = gates(&region);
        let a = gates.acquire(PATH, "a").unwrap();
        let b = gates.acquire(PATH, "b").unwrap();
        gates.set("a", u64::MAX);
        gates.set("b", u64::MAX);
        gates.release_others(PATH, [b].into_iter());
        assert_eq!([word(&region, a), word(&region, b)], [0, u64::MAX]);
        assert_eq!(gates.find(PATH, "a"), None);
        assert_ne!(gates.acquire(PATH, "c"), Some(a));
        gates.grace_period_passed(PATH);
        assert_eq!(gates.acquire(PATH, "d"), Some(a));
        assert_eq!(word(&region, a), 0);
    }

    #[test]
    fn more_shares_than_room_are_refused_by_name() {
        let (region, _) = SharedGates::create().unwrap();
        let gates = gates(&region);
        let names: Vec<String> = (0..=SHARES).map(|n| format!("s{n:04}")).collect();
        let all = || names.iter().map(String::as_str);
        assert!(gates.check_room(PATH, all().take(SHARES)).is_ok());
        let error = gates.check_room(PATH, all()).unwrap_err().to_string();
        assert!(
            error.contains("\"s4095\"") && error.contains("4095"),
            "{error}"
        );
        for share in all().take(SHARES) {
            assert!(gates.acquire(PATH, share).is_some());
        }
        assert_eq!(gates.acquire(PATH, "more"), None);
        assert!(gates.check_room(PATH, all().take(SHARES)).is_ok());
        assert!(gates.check_room(PATH, ["more"].into_iter()).is_err());
    }

    #[test]
    fn what_makes_no_sense_is_nobodys_and_shut() {
        let (region, _) = SharedGates::create().unwrap();
        let before = gates(&region);
        let [a, b, c] = ["a", "b", "c"].map(|share| before.acquire(PATH, share).unwrap());
        use std::os::fd::AsFd;
        let memory = SharedGates::map(region.as_fd()).unwrap().memory();
        let open = |share: &[u8]| {
            let mut gate = Gate {
                until: u64::MAX,
                ..Gate::default()
            };
            gate.share[..share.len()].copy_from_slice(share);
            gate
        };
        memory.gates.write(a.into(), &open(b"no name"));
        memory.gates.write(b.into(), &open(&[b'x'; SHARE_NAME]));
        memory.gates.write(100, &open(b"c"));
        memory.gates.write(101, &open(b""));
        let after = gates(&region);
        assert_eq!(after.find(PATH, "c"), Some(c));
        for gate in [a, b, 100, 101] {
            assert_eq!(word(&region, gate), 0, "{gate}");
            assert!(!after.is_owned(PATH, gate), "{gate}");
        }
    }
}
