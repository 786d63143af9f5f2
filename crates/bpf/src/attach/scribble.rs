//! Leaves nonsense in pinned maps, to see that nobody believes it.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use aya_obj::generated::{bpf_cmd, bpf_map_info, bpf_map_type};

use crate::syscall;

/// Values that every element of a map is overwritten with, at most; and elements that are added.
const ELEMENTS: usize = 64;

/// Overwrites the first elements of a pinned map, and adds others, with words that `word` makes. Maps
/// with a value on each CPU are left alone.
///
/// # Errors
///
/// When there is no such map.
pub fn scribble(pin: &Path, mut word: impl FnMut() -> u32) -> io::Result<()> {
    let map = syscall::open_pin(pin)?;
    let info = syscall::map_info(map.as_fd())?;
    let kind = info.type_;
    let is_array = kind == bpf_map_type::BPF_MAP_TYPE_ARRAY as u32;
    let others = [
        bpf_map_type::BPF_MAP_TYPE_HASH,
        bpf_map_type::BPF_MAP_TYPE_LPM_TRIE,
    ];
    if !is_array && !others.iter().any(|other| *other as u32 == kind) {
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
        let next = match is_array {
            true => number.to_ne_bytes().to_vec(),
            false => match next_key(&map, &info, key.as_deref()) {
                Some(next) => next,
                None => words(info.key_size),
            },
        };
        // The kernel refuses what is no key; that is no nonsense that anybody could leave.
        let _ = update(&map, &next, &words(info.value_size));
        key = Some(next);
    }
    Ok(())
}

fn next_key(map: &impl AsRawFd, info: &bpf_map_info, key: Option<&[u8]>) -> Option<Vec<u8>> {
    let mut next = vec![0_u8; info.key_size as usize];
    let mut attr = syscall::attr();
    attr.__bindgen_anon_2.map_fd = map.as_raw_fd() as u32;
    attr.__bindgen_anon_2.key = key.map_or(0, |key| key.as_ptr() as u64);
    attr.__bindgen_anon_2.__bindgen_anon_1.next_key = next.as_mut_ptr() as u64;
    // SAFETY: both keys are at least as long as the map's keys.
    unsafe { syscall::bpf(bpf_cmd::BPF_MAP_GET_NEXT_KEY, &mut attr) }.ok()?;
    Some(next)
}

fn update(map: &impl AsRawFd, key: &[u8], value: &[u8]) -> io::Result<()> {
    let mut attr = syscall::attr();
    attr.__bindgen_anon_2.map_fd = map.as_raw_fd() as u32;
    attr.__bindgen_anon_2.key = key.as_ptr() as u64;
    attr.__bindgen_anon_2.__bindgen_anon_1.value = value.as_ptr() as u64;
    // SAFETY: key and value are at least as long as the map's.
    unsafe { syscall::bpf(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut attr) }.map(drop)
}
