//! Hash maps and per-CPU arrays, a batch at a time.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use aya_obj::generated::bpf_cmd;

use crate::Error;
use crate::layout::{Plain, Tally};
use crate::syscall::{attr, bpf};

const BATCH: usize = 4096;

/// A hash map or prefix trie with keys `K` and values `V`.
#[derive(Debug)]
pub struct HashMap<K, V> {
    name: &'static str,
    map: Arc<OwnedFd>,
    capacity: u32,
    entries: PhantomData<(K, V)>,
}

/// The same map.
impl<K, V> Clone for HashMap<K, V> {
    fn clone(&self) -> Self {
        let map = Arc::clone(&self.map);
        Self { map, ..*self }
    }
}

impl<K: Plain, V: Plain> HashMap<K, V> {
    pub(crate) fn new(name: &'static str, map: OwnedFd, capacity: u32) -> Self {
        Self {
            name,
            map: Arc::new(map),
            capacity,
            entries: PhantomData,
        }
    }

    /// Its descriptor, for operations of one kind of map.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }

    /// The most entries it can hold.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Adds entries or replaces their values.
    ///
    /// # Errors
    ///
    /// The kernel's, E2BIG when full; entries before the failing one are in.
    pub fn insert(&mut self, keys: &[K], values: &[V]) -> Result<(), Error> {
        assert_eq!(keys.len(), values.len(), "one value per key");
        let mut done = 0;
        while done < keys.len() {
            let (keys, values) = (&keys[done..], &values[done..]);
            match self.batch(bpf_cmd::BPF_MAP_UPDATE_BATCH, keys, Some(values)) {
                Ok(count) if count > 0 => done += count,
                Ok(_) => {
                    return Err(self.failed("update", io::ErrorKind::UnexpectedEof.into()));
                }
                Err(error) => return Err(self.failed("update", error)),
            }
        }
        Ok(())
    }

    /// Removes entries; those that do not exist are no error.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn remove(&mut self, keys: &[K]) -> Result<(), Error> {
        for key in keys {
            let mut attr = attr();
            attr.__bindgen_anon_2.map_fd = self.map.as_raw_fd() as u32;
            attr.__bindgen_anon_2.key = std::ptr::from_ref(key) as u64;
            // SAFETY: `key` is a whole K, whose size is the map's key size.
            let removed = unsafe { bpf(bpf_cmd::BPF_MAP_DELETE_ELEM, &mut attr) };
            if_exists(removed).map_err(|error| self.failed("delete", error))?;
        }
        Ok(())
    }

    /// Removes the entries whose keys are not wanted.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn retain(&mut self, mut wanted: impl FnMut(&K) -> bool) -> Result<(), Error> {
        let keys = self.entries()?.into_iter().map(|(key, _)| key);
        let others: Vec<K> = keys.filter(|key| !wanted(key)).collect();
        self.remove(&others)
    }

    /// Reads one entry.
    ///
    /// # Errors
    ///
    /// The kernel's, except that there is none.
    pub fn get(&self, key: K) -> Result<Option<V>, Error> {
        let mut value = V::default();
        let mut attr = attr();
        attr.__bindgen_anon_2.map_fd = self.map.as_raw_fd() as u32;
        attr.__bindgen_anon_2.key = &raw const key as u64;
        attr.__bindgen_anon_2.__bindgen_anon_1.value = &raw mut value as u64;
        // SAFETY: `key` and `value` are a whole K and V, whose sizes are the map's.
        let result = unsafe { bpf(bpf_cmd::BPF_MAP_LOOKUP_ELEM, &mut attr) };
        let found = if_exists(result).map_err(|error| self.failed("lookup", error))?;
        Ok(found.map(|_| value))
    }

    /// Reads all keys, where values are large.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn keys(&self) -> Result<Vec<K>, Error> {
        let mut keys: Vec<K> = Vec::new();
        let mut next = K::default();
        // If a key is removed meanwhile, iteration restarts from the first.
        while keys.len() < self.capacity as usize {
            let mut attr = attr();
            attr.__bindgen_anon_2.map_fd = self.map.as_raw_fd() as u32;
            attr.__bindgen_anon_2.key = keys.last().map_or(0, |key| std::ptr::from_ref(key) as u64);
            attr.__bindgen_anon_2.__bindgen_anon_1.next_key = &raw mut next as u64;
            // SAFETY: `key` is null or a whole K, and `next` has room for one, whose size is the map's
            // key size.
            let found = unsafe { bpf(bpf_cmd::BPF_MAP_GET_NEXT_KEY, &mut attr) };
            match if_exists(found).map_err(|error| self.failed("iterate", error))? {
                Some(_) => keys.push(next),
                None => break,
            }
        }
        Ok(keys)
    }

    /// Reads all entries.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn entries(&self) -> Result<Vec<(K, V)>, Error> {
        // In parts: otherwise memory for all possible entries would be touched for a few.
        let size = self.capacity as usize;
        let mut keys = vec![K::default(); BATCH.min(size)];
        let mut values = vec![V::default(); BATCH.min(size)];
        let mut entries = Vec::new();
        const { assert!(size_of::<K>() <= 64, "a trie's position is a key") };
        let mut position = [0u8; 64];
        let mut first = true;
        loop {
            let mut attr = attr();
            attr.batch.in_batch = if first { 0 } else { position.as_ptr() as u64 };
            attr.batch.out_batch = position.as_mut_ptr() as u64;
            attr.batch.keys = keys.as_mut_ptr() as u64;
            attr.batch.values = values.as_mut_ptr() as u64;
            attr.batch.count = keys.len() as u32;
            attr.batch.map_fd = self.map.as_raw_fd() as u32;
            // SAFETY: `keys` and `values` have room for `count` entries of the map's sizes; a
            // hash map's position is a u32 bucket number, a trie's a key: `position` has room.
            let result = unsafe { bpf(bpf_cmd::BPF_MAP_LOOKUP_BATCH, &mut attr) };
            // SAFETY: reads the union member that was passed.
            let count = unsafe { attr.batch.count } as usize;
            let found = if_exists(result).map_err(|error| self.failed("lookup", error))?;
            let more = found.is_some() && count > 0;
            entries.extend(
                keys[..count]
                    .iter()
                    .copied()
                    .zip(values[..count].iter().copied()),
            );
            // An LRU map that changes meanwhile may return more entries than it holds.
            if !more || entries.len() >= size {
                return Ok(entries);
            }
            first = false;
        }
    }

    fn batch(&self, command: bpf_cmd, keys: &[K], values: Option<&[V]>) -> io::Result<usize> {
        let count = keys.len().min(BATCH);
        let mut attr = attr();
        attr.batch.keys = keys.as_ptr() as u64;
        attr.batch.values = values.map_or(0, |values| values.as_ptr() as u64);
        attr.batch.count = count as u32;
        attr.batch.map_fd = self.map.as_raw_fd() as u32;
        // SAFETY: `keys` and `values` hold at least `count` entries of the map's key and value
        // sizes; these commands only read them.
        unsafe { bpf(command, &mut attr) }?;
        // SAFETY: reads the union member that was passed.
        Ok(unsafe { attr.batch.count } as usize)
    }

    fn failed(&self, operation: &'static str, error: io::Error) -> Error {
        Error::MapOperation {
            name: self.name,
            operation,
            error,
        }
    }
}

/// The per-CPU counters.
#[derive(Clone, Debug)]
pub struct Counters {
    map: Arc<OwnedFd>,
    length: u32,
    cpus: usize,
}

impl Counters {
    pub(crate) fn new(map: OwnedFd, length: u32, cpus: usize) -> Self {
        Self {
            map: Arc::new(map),
            length,
            cpus,
        }
    }

    /// Number of counters.
    pub fn len(&self) -> u32 {
        self.length
    }

    /// Returns whether there are no counters, which the kernel does not allow.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Reads the next of the first `count` counters, each summed over all CPUs, after those in `sums`: some
    /// thousand at most.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn read_on(&self, sums: &mut Vec<Tally>, count: u32) -> Result<(), Error> {
        let count = count.min(self.length) as usize;
        sums.reserve_exact(count.saturating_sub(sums.len()));
        let more = self.read_run(sums.len() as u32, count.saturating_sub(sums.len()))?;
        sums.extend(more);
        Ok(())
    }

    /// Reads the next `count` counters from `first` on, each summed over all CPUs: some thousand at
    /// most, and none after the last one.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn read_run(&self, first: u32, count: usize) -> Result<Vec<Tally>, Error> {
        let behind = self.length.saturating_sub(first) as usize;
        let wanted = count.min(behind).min(BATCH);
        if wanted == 0 {
            return Ok(Vec::new());
        }
        let mut values = vec![Tally::default(); wanted * self.cpus];
        let mut keys = vec![0u32; wanted];
        let mut position = first.wrapping_sub(1);
        let mut attr = attr();
        attr.batch.in_batch = if first == 0 {
            0
        } else {
            &raw const position as u64
        };
        attr.batch.out_batch = &raw mut position as u64;
        attr.batch.keys = keys.as_mut_ptr() as u64;
        attr.batch.values = values.as_mut_ptr() as u64;
        attr.batch.count = wanted as u32;
        attr.batch.map_fd = self.map.as_fd().as_raw_fd() as u32;
        // SAFETY: `keys` has room for `wanted` keys and `values` for `wanted` values on each
        // possible CPU; an array's position is a u32 key, the last one read.
        let result = unsafe { bpf(bpf_cmd::BPF_MAP_LOOKUP_BATCH, &mut attr) };
        // SAFETY: reads the union member that was passed.
        let got = unsafe { attr.batch.count } as usize;
        if_exists(result).map_err(|error| self.failed(error))?;
        if got == 0 {
            return Err(self.failed(io::ErrorKind::UnexpectedEof.into()));
        }
        let summed = values[..got * self.cpus].chunks_exact(self.cpus).map(sum);
        Ok(summed.collect())
    }

    /// Reads one counter, summed over all CPUs.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn read_one(&self, counter: u32) -> Result<Tally, Error> {
        let mut values = vec![Tally::default(); self.cpus];
        let mut attr = attr();
        attr.__bindgen_anon_2.map_fd = self.map.as_raw_fd() as u32;
        attr.__bindgen_anon_2.key = &raw const counter as u64;
        attr.__bindgen_anon_2.__bindgen_anon_1.value = values.as_mut_ptr() as u64;
        // SAFETY: the key is a u32, and `values` has room for one value on each possible CPU.
        let result = unsafe { bpf(bpf_cmd::BPF_MAP_LOOKUP_ELEM, &mut attr) };
        result.map_err(|error| self.failed(error))?;
        Ok(sum(&values))
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::MapOperation {
            name: "counters",
            operation: "lookup",
            error,
        }
    }
}

fn sum(per_cpu: &[Tally]) -> Tally {
    per_cpu.iter().fold(Tally::default(), Tally::with)
}

/// Turns a missing entry into `None`.
fn if_exists<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        other => other.map(Some),
    }
}
