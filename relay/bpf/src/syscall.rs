//! bpf(2), for operations without a safe call in aya: batches, links by interface index, pins by path.

use std::ffi::CString;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use aya_obj::generated::{
    bpf_attach_type, bpf_attr, bpf_cmd, bpf_insn, bpf_link_info, bpf_map_info, bpf_map_type,
    bpf_prog_info, bpf_prog_type,
};
use sys::memory::{Array, Memory, Plain};

/// Calls bpf(2) with `attr`.
///
/// # Safety
///
/// Every pointer in `attr` that `command` reads or writes through must be valid for the length that
/// the kernel takes from `attr` or from the object, for the duration of the call.
pub(crate) unsafe fn bpf(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<libc::c_long> {
    // SAFETY: `attr` is a whole, initialised bpf_attr; the caller vouches for the pointers in it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_long,
            std::ptr::from_mut(attr),
            size_of::<bpf_attr>(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// An all-zero `bpf_attr`, as the kernel demands of the bytes a command does not use.
pub(crate) fn attr() -> bpf_attr {
    // SAFETY: bpf_attr is a union of plain C structs of integers; all-zero is a value of each.
    unsafe { mem::zeroed() }
}

pub(crate) fn new_descriptor(result: libc::c_long) -> OwnedFd {
    // SAFETY: the command that returned `result` returns a new descriptor that nobody else owns.
    unsafe { OwnedFd::from_raw_fd(result as i32) }
}

fn path_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "path holds a NUL byte"))
}

pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = path_string(path)?;
    let mut attr = attr();
    attr.__bindgen_anon_4.pathname = path.as_ptr() as u64;
    attr.__bindgen_anon_4.bpf_fd = object.as_raw_fd() as u32;
    // SAFETY: `path` is NUL-terminated and lives until the end of this function.
    unsafe { bpf(bpf_cmd::BPF_OBJ_PIN, &mut attr) }.map(drop)
}

pub(crate) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = path_string(path)?;
    let mut attr = attr();
    attr.__bindgen_anon_4.pathname = path.as_ptr() as u64;
    // SAFETY: `path` is NUL-terminated and lives until the end of this function.
    unsafe { bpf(bpf_cmd::BPF_OBJ_GET, &mut attr) }.map(new_descriptor)
}

/// Loads a handwritten program.
pub(crate) fn load(kind: bpf_prog_type, program: &[bpf_insn]) -> io::Result<OwnedFd> {
    let mut attr = attr();
    attr.__bindgen_anon_3.prog_type = kind as u32;
    attr.__bindgen_anon_3.insns = program.as_ptr() as u64;
    attr.__bindgen_anon_3.insn_cnt = program.len() as u32;
    attr.__bindgen_anon_3.license = c"Dual MIT/GPL".as_ptr() as u64;
    let again = |error: &io::Error| error.raw_os_error() == Some(libc::EAGAIN);
    persist(again, || {
        // SAFETY: `insns` points to `insn_cnt` instructions that outlive the call, `license` to a
        // constant.
        unsafe { bpf(bpf_cmd::BPF_PROG_LOAD, &mut attr) }.map(new_descriptor)
    })
}

/// Loads a program again when the verifier was interrupted: it fails with `EAGAIN` at any pending signal
/// (`do_check`), and a busy machine has some.
pub(crate) fn persist<T, E>(
    again: impl Fn(&E) -> bool,
    mut load: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    const ATTEMPTS: u32 = 10;
    for attempt in 1..ATTEMPTS {
        match load() {
            Err(error) if again(&error) => thread::sleep(Duration::from_millis(attempt.into())),
            other => return other,
        }
    }
    load()
}

/// Makes an array of one value of `value_bytes` bytes; an array of maps is given a prototype of its maps.
pub(crate) fn create_array(
    kind: bpf_map_type,
    value_bytes: u32,
    flags: u32,
    inner: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    let mut attr = attr();
    attr.__bindgen_anon_1.map_type = kind as u32;
    attr.__bindgen_anon_1.key_size = 4;
    attr.__bindgen_anon_1.value_size = value_bytes;
    attr.__bindgen_anon_1.max_entries = 1;
    attr.__bindgen_anon_1.map_flags = flags;
    attr.__bindgen_anon_1.inner_map_fd = inner.map_or(0, |map| map.as_raw_fd() as u32);
    // SAFETY: BPF_MAP_CREATE takes no pointers but the name, which is in `attr`.
    unsafe { bpf(bpf_cmd::BPF_MAP_CREATE, &mut attr) }.map(new_descriptor)
}

/// Makes one instruction.
/// Maps a BPF_F_MMAPABLE array of `length` entries, which the kernel checks.
pub(crate) fn map_array<T: Plain>(map: BorrowedFd<'_>, length: u32) -> io::Result<Array<T>> {
    let memory = Memory::map(map, size_of::<T>() * length as usize)?;
    Ok(memory.array(0, length))
}

pub(crate) fn instruction(code: u8, (to, from): (u8, u8), off: i16, imm: i32) -> bpf_insn {
    bpf_insn {
        code,
        _bitfield_align_1: [],
        _bitfield_1: bpf_insn::new_bitfield_1(to, from),
        off,
        imm,
    }
}

pub(crate) fn create_tcx_link(program: BorrowedFd<'_>, ifindex: u32) -> io::Result<OwnedFd> {
    let mut attr = attr();
    attr.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
    attr.link_create.__bindgen_anon_2.target_ifindex = ifindex;
    attr.link_create.attach_type = bpf_attach_type::BPF_TCX_INGRESS as u32;
    // SAFETY: this form of BPF_LINK_CREATE takes no pointers.
    unsafe { bpf(bpf_cmd::BPF_LINK_CREATE, &mut attr) }.map(new_descriptor)
}

/// Attaches an XDP program to an interface, only if its driver runs it.
pub(crate) fn create_xdp_link(program: BorrowedFd<'_>, ifindex: u32) -> io::Result<OwnedFd> {
    /// XDP_FLAGS_DRV_MODE of linux/if_link.h.
    const BY_DRIVER: u32 = 1 << 2;
    let mut attr = attr();
    attr.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
    attr.link_create.__bindgen_anon_2.target_ifindex = ifindex;
    attr.link_create.attach_type = bpf_attach_type::BPF_XDP as u32;
    attr.link_create.flags = BY_DRIVER;
    // SAFETY: this form of BPF_LINK_CREATE takes no pointers.
    unsafe { bpf(bpf_cmd::BPF_LINK_CREATE, &mut attr) }.map(new_descriptor)
}

/// Attaches a program to the tracepoint that it was loaded for.
pub(crate) fn create_tracepoint_link(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attr = attr();
    attr.raw_tracepoint.prog_fd = program.as_raw_fd() as u32;
    // SAFETY: without a name BPF_RAW_TRACEPOINT_OPEN takes no pointers.
    unsafe { bpf(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut attr) }.map(new_descriptor)
}

pub(crate) fn update_link(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = attr();
    attr.link_update.link_fd = link.as_raw_fd() as u32;
    attr.link_update.__bindgen_anon_1.new_prog_fd = program.as_raw_fd() as u32;
    // SAFETY: BPF_LINK_UPDATE takes no pointers.
    unsafe { bpf(bpf_cmd::BPF_LINK_UPDATE, &mut attr) }.map(drop)
}

/// A tcx or XDP link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// Its number.
    pub(crate) id: u32,
    /// The number of its program.
    pub(crate) program: u32,
    /// The interface that it is attached to, 0 once that no longer exists.
    pub(crate) ifindex: u32,
}

impl Link {
    /// Returns whether it is at the tcx ingress of that interface of the calling thread's network namespace.
    pub(crate) fn is_at_tcx(self, ifindex: u32) -> bool {
        let here = tcx_ingress(ifindex).unwrap_or_default();
        self.ifindex == ifindex && here.iter().any(|(id, _)| *id == self.id)
    }
}

/// Reads a tcx or XDP link.
pub(crate) fn link(link: BorrowedFd<'_>) -> io::Result<Link> {
    // SAFETY: bpf_link_info is a plain C struct; all-zero is a value of it.
    let mut info: bpf_link_info = unsafe { mem::zeroed() };
    object_info(link, &mut info)?;
    Ok(Link {
        id: info.id,
        program: info.prog_id,
        // SAFETY: every member of the union is plain integers, and the kernel filled in the tcx one or that of
        // XDP, which begins alike, because only such links are ever opened.
        ifindex: unsafe { info.__bindgen_anon_1.tcx.ifindex },
    })
}

/// The links at the tcx ingress of an interface of the calling thread's network namespace, each with
/// the number of its program, in the order in which they see a packet; a program that was attached without a
/// link has link 0.
pub(crate) fn tcx_ingress(ifindex: u32) -> io::Result<Vec<(u32, u32)>> {
    /// BPF_MPROG_MAX of linux/bpf_mprog.h.
    const MOST: usize = 64;
    let (mut programs, mut links) = ([0_u32; MOST], [0_u32; MOST]);
    let mut attr = attr();
    attr.query.__bindgen_anon_1.target_ifindex = ifindex;
    attr.query.attach_type = bpf_attach_type::BPF_TCX_INGRESS as u32;
    attr.query.prog_ids = programs.as_mut_ptr() as u64;
    attr.query.link_ids = links.as_mut_ptr() as u64;
    attr.query.__bindgen_anon_2.count = MOST as u32;
    // SAFETY: both arrays have room for `count` numbers.
    unsafe { bpf(bpf_cmd::BPF_PROG_QUERY, &mut attr) }?;
    // SAFETY: reads the union member that was passed.
    let count = unsafe { attr.query.__bindgen_anon_2.count } as usize;
    Ok(links.into_iter().zip(programs).take(count).collect())
}

/// Opens an object by the kernel's number; `command` determines its kind.
/// Needs CAP_SYS_ADMIN.
pub(crate) fn open_by_id(command: bpf_cmd, id: u32) -> io::Result<OwnedFd> {
    let mut attr = attr();
    attr.__bindgen_anon_6.__bindgen_anon_1.start_id = id;
    // SAFETY: the commands that open by number take no pointers.
    unsafe { bpf(command, &mut attr) }.map(new_descriptor)
}

/// Detaches a link from its interface, whoever else holds it.
pub(crate) fn detach_link(link: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = attr();
    attr.link_detach.link_fd = link.as_raw_fd() as u32;
    // SAFETY: BPF_LINK_DETACH takes no pointers.
    unsafe { bpf(bpf_cmd::BPF_LINK_DETACH, &mut attr) }.map(drop)
}

/// The name of a program, and the numbers of its maps.
pub(crate) fn program_maps(program: BorrowedFd<'_>) -> io::Result<(String, Vec<u32>)> {
    /// MAX_USED_MAPS of linux/bpf_verifier.h.
    const MOST: usize = 64;
    let mut maps = [0_u32; MOST];
    // SAFETY: bpf_prog_info is a plain C struct; all-zero is a value of it, and asks for no arrays.
    let mut info: bpf_prog_info = unsafe { mem::zeroed() };
    info.map_ids = maps.as_mut_ptr() as u64;
    info.nr_map_ids = MOST as u32;
    object_info(program, &mut info)?;
    let count = MOST.min(info.nr_map_ids as usize);
    Ok((name(&info.name), maps[..count].to_vec()))
}

/// The text of an object's name.
pub(crate) fn name(bytes: &[libc::c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|byte| *byte as u8).collect();
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Reads the value of a key, of `bytes` bytes; in a per-CPU map, the values of all CPUs.
pub(crate) fn value(map: BorrowedFd<'_>, key: u32, bytes: usize) -> io::Result<Vec<u8>> {
    // The kernel rounds values up to 8 bytes.
    let mut value = vec![0_u8; bytes.next_multiple_of(8)];
    element(bpf_cmd::BPF_MAP_LOOKUP_ELEM, map, key, value.as_mut_ptr())?;
    value.truncate(bytes);
    Ok(value)
}

/// Stores a value in the form in which [`value`] reads it.
pub(crate) fn set_value(map: BorrowedFd<'_>, key: u32, mut value: Vec<u8>) -> io::Result<()> {
    value.resize(value.len().next_multiple_of(8), 0);
    element(bpf_cmd::BPF_MAP_UPDATE_ELEM, map, key, value.as_mut_ptr())
}

/// `value` has room for a value of the map, whose keys are numbers of 32 bits.
fn element(command: bpf_cmd, map: BorrowedFd<'_>, key: u32, value: *mut u8) -> io::Result<()> {
    let mut attr = attr();
    attr.__bindgen_anon_2.map_fd = map.as_raw_fd() as u32;
    attr.__bindgen_anon_2.key = &raw const key as u64;
    attr.__bindgen_anon_2.__bindgen_anon_1.value = value as u64;
    // SAFETY: `key` is a u32, as the map's keys are, and the callers' buffers have the size of its values,
    // which they know from its own information or have made it with.
    unsafe { bpf(command, &mut attr) }.map(drop)
}

pub(crate) fn map_info(map: BorrowedFd<'_>) -> io::Result<bpf_map_info> {
    // SAFETY: bpf_map_info is a plain C struct; all-zero is a value of it.
    let mut info: bpf_map_info = unsafe { mem::zeroed() };
    object_info(map, &mut info)?;
    Ok(info)
}

#[cfg(feature = "test-support")]
pub(crate) fn program_info(program: BorrowedFd<'_>) -> io::Result<bpf_prog_info> {
    // SAFETY: bpf_prog_info is a plain C struct; all-zero is a value of it, and asks for no arrays.
    let mut info: bpf_prog_info = unsafe { mem::zeroed() };
    object_info(program, &mut info)?;
    Ok(info)
}

fn object_info<T>(object: BorrowedFd<'_>, info: &mut T) -> io::Result<()> {
    let mut attr = attr();
    attr.info.bpf_fd = object.as_raw_fd() as u32;
    attr.info.info = std::ptr::from_mut(info) as u64;
    attr.info.info_len = size_of::<T>() as u32;
    // SAFETY: `info` is valid for `info_len` bytes, and the kernel writes no more.
    unsafe { bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_load_is_tried_again_and_no_other_is() {
        let mut remaining = 3;
        let loaded = persist(
            |_: &i32| true,
            || {
                remaining -= 1;
                if remaining == 0 { Ok(()) } else { Err(0) }
            },
        );
        assert_eq!((loaded, remaining), (Ok(()), 0));
        let mut tried = 0;
        let refused = persist(
            |_: &i32| false,
            || {
                tried += 1;
                Err::<(), _>(0)
            },
        );
        assert_eq!((refused, tried), (Err(0), 1));
    }
}
