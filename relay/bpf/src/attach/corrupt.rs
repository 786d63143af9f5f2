//! Writes invalid data into pinned maps, so that tests can show that nothing trusts it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use aya_obj::generated::bpf_map_type::{
    self, BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_HASH, BPF_MAP_TYPE_LPM_TRIE,
};
use aya_obj::generated::{bpf_attr, bpf_cmd, bpf_map_info};

use crate::syscall;

/// The most elements of a map that are overwritten or added.
const ELEMENTS: usize = 64;

/// Overwrites the first elements of a pinned map, and adds others, with words that `word` makes. Maps
/// with a value on each CPU, and those in which the kernel makes room, are not changed.
///
/// # Errors
///
/// When there is no such map.
pub fn scribble(pin: &Path, mut word: impl FnMut() -> u32) -> io::Result<()> {
    let map = Map::open(pin)?;
    if map.is_exempt() {
        return Ok(());
    }
    let mut words = |bytes: u32| -> Vec<u8> {
        let count = bytes.div_ceil(4);
        let mut made: Vec<u8> = (0..count).flat_map(|_| word().to_ne_bytes()).collect();
        made.resize(bytes.next_multiple_of(8) as usize, 0);
        made
    };
    let mut key = None;
    for number in 0..ELEMENTS as u32 {
        let next = if map.is(BPF_MAP_TYPE_ARRAY) {
            number.to_ne_bytes().to_vec()
        } else {
            match map.next_key(key.as_deref()) {
                Some(next) => next,
                None => words(map.info.key_size),
            }
        };
        // The kernel refuses invalid keys; no process could leave those.
        let _ = map.update(&next, &words(map.info.value_size));
        key = Some(next);
    }
    Ok(())
}

/// Sets every element of a pinned map of any kind to this value.
///
/// # Errors
///
/// When there is no such map, or the kernel refuses the value.
pub fn overwrite(pin: &Path, value: &[u8]) -> io::Result<()> {
    let map = Map::open(pin)?;
    let bytes = map.info.value_size as usize;
    assert_eq!(value.len(), bytes, "a value of {}", pin.display());
    let mut key = map.next_key(None);
    while let Some(one) = key {
        map.update(&one, value)?;
        key = map.next_key(Some(&one));
    }
    Ok(())
}

/// What is done to one element of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// Its value changes.
    Change,
    /// Its value is stored under another key as well.
    Copy,
    /// It is removed.
    Remove,
}

/// Harms one element of a pinned map: the one at `position`, modulo their number. `bytes` replace those of its
/// value, or of its key, from `offset` on, modulo its length. In a map without elements it is one of zeros.
/// The same maps as above are not changed.
///
/// # Errors
///
/// When there is no such map.
pub fn harm(
    pin: &Path,
    harm: Harm,
    position: usize,
    (offset, bytes): (usize, &[u8]),
) -> io::Result<()> {
    let map = Map::open(pin)?;
    if map.is_exempt() {
        return Ok(());
    }
    let keys: Vec<Vec<u8>> =
        std::iter::successors(map.next_key(None), |key| map.next_key(Some(key)))
            .take(map.info.max_entries as usize)
            .collect();
    let none = || vec![0; map.info.key_size as usize];
    let mut key = match keys.len() {
        0 => none(),
        count => keys[position % count].clone(),
    };
    let mut value = map.value(&key);
    let put = |field: &mut Vec<u8>| {
        let length = field.len();
        for (at, byte) in bytes.iter().enumerate() {
            field[(offset + at) % length] = *byte;
        }
    };
    match harm {
        Harm::Change => put(&mut value),
        Harm::Copy => put(&mut key),
        Harm::Remove => {
            let _ = map.delete(&key);
            return Ok(());
        }
    }
    // As above.
    let _ = map.update(&key, &value);
    Ok(())
}

/// A map of any kind.
struct Map {
    map: OwnedFd,
    info: bpf_map_info,
}

impl Map {
    fn open(pin: &Path) -> io::Result<Self> {
        let map = syscall::open_pin(pin)?;
        let info = syscall::map_info(map.as_fd())?;
        Ok(Self { map, info })
    }

    /// Returns whether it is of a kind that has a value on each CPU, or that the kernel makes room in.
    fn is_exempt(&self) -> bool {
        let kinds = [BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_HASH, BPF_MAP_TYPE_LPM_TRIE];
        !kinds.iter().any(|kind| self.is(*kind))
    }

    fn is(&self, kind: bpf_map_type) -> bool {
        self.info.type_ == kind as u32
    }

    fn next_key(&self, key: Option<&[u8]>) -> Option<Vec<u8>> {
        let mut next = vec![0_u8; self.info.key_size as usize];
        let mut attr = self.attr(key);
        attr.__bindgen_anon_2.__bindgen_anon_1.next_key = next.as_mut_ptr() as u64;
        // SAFETY: both keys are at least as long as the map's keys.
        unsafe { syscall::bpf(bpf_cmd::BPF_MAP_GET_NEXT_KEY, &mut attr) }.ok()?;
        Some(next)
    }

    /// The value under a key; zeros where there is none.
    fn value(&self, key: &[u8]) -> Vec<u8> {
        let mut value = vec![0_u8; self.info.value_size.next_multiple_of(8) as usize];
        let mut attr = self.attr(Some(key));
        attr.__bindgen_anon_2.__bindgen_anon_1.value = value.as_mut_ptr() as u64;
        // SAFETY: the key is as long as the map's keys, and `value` has room for a value.
        let _ = unsafe { syscall::bpf(bpf_cmd::BPF_MAP_LOOKUP_ELEM, &mut attr) };
        value
    }

    fn update(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let mut attr = self.attr(Some(key));
        attr.__bindgen_anon_2.__bindgen_anon_1.value = value.as_ptr() as u64;
        // SAFETY: key and value are at least as long as the map's.
        unsafe { syscall::bpf(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut attr) }.map(drop)
    }

    fn delete(&self, key: &[u8]) -> io::Result<()> {
        let mut attr = self.attr(Some(key));
        // SAFETY: the key is at least as long as the map's.
        unsafe { syscall::bpf(bpf_cmd::BPF_MAP_DELETE_ELEM, &mut attr) }.map(drop)
    }

    fn attr(&self, key: Option<&[u8]>) -> bpf_attr {
        let mut attr = syscall::attr();
        attr.__bindgen_anon_2.map_fd = self.map.as_raw_fd() as u32;
        attr.__bindgen_anon_2.key = key.map_or(0, |key| key.as_ptr() as u64);
        attr
    }
}
