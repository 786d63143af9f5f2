//! The fence around a process that has all it needs: no new file, socket, process or program.
//!
//! Landlock closes the file system, seccomp every system call that is not on a short list. What is
//! refused fails with `EPERM`, so that a library which tries something new goes on without it. The
//! calls on the list are answered from the kernel's bitmap (Linux 5.11): 40 ns more for each, of
//! which a worker makes one or two for a batch of up to 256 packets. A kernel without one of the
//! two leaves the other standing.

#![expect(
    unsafe_code,
    reason = "neither fence has a safe interface in the libraries used here"
)]

use std::io;

use libc::{c_long, sock_filter};

/// What workers and keepers do once they are set up: move bytes between descriptors they hold,
/// wait, manage memory, and end.
const ALLOWED: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_getsockopt,
    libc::SYS_gettid,
    libc::SYS_io_uring_enter,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_read,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_set_robust_list,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_write,
    libc::SYS_writev,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

const LOAD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
/// Offsets in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;

/// Closes the fence around the calling thread, and what it starts, for good. For a process of one
/// thread that has given up its capabilities: it also forbids new privileges, and keeps the
/// process from being traced or dumped by anybody but root.
///
/// # Errors
/// The first fence that could not be closed; the others are.
pub fn close() -> io::Result<()> {
    nix::sys::prctl::set_no_new_privs()?;
    let dumpable = nix::sys::prctl::set_dumpable(false).map_err(io::Error::from);
    let files = close_file_system();
    let calls = close_calls();
    dumpable.and(files).and(calls)
}

/// `struct landlock_ruleset_attr` of ABI 6.
#[repr(C)]
struct Ruleset {
    files: u64,
    network: u64,
    scoped: u64,
}

/// Handles every right that the kernel's Landlock knows and allows none of them.
fn close_file_system() -> io::Result<()> {
    const VERSION: u32 = 1;
    // SAFETY: with this flag the call takes no ruleset and returns a number.
    let abi = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<Ruleset>(),
            0_usize,
            VERSION,
        )
    };
    let (files, bytes): (u64, usize) = match abi {
        // Not built in, or not turned on.
        ..=0 => return Ok(()),
        1 => ((1 << 13) - 1, 8),
        2 => ((1 << 14) - 1, 8),
        3 => ((1 << 15) - 1, 8),
        4 => ((1 << 15) - 1, 16),
        5 => ((1 << 16) - 1, 16),
        _ => ((1 << 16) - 1, 24),
    };
    let ruleset = Ruleset {
        files,
        // Binding and connecting TCP.
        network: 0b11,
        // Abstract Unix sockets and signals of others.
        scoped: 0b11,
    };
    // SAFETY: `ruleset` lives during the call and has at least `bytes` bytes, all initialised; the
    // kernel copies it.
    let made = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            &raw const ruleset,
            bytes,
            0_u32,
        )
    };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel made this descriptor for this process with the call above; nobody else
    // owns it, and it is closed at the end of this function.
    let made =
        unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(made as i32) };
    // SAFETY: both arguments are numbers, and the descriptor is open.
    let result = unsafe {
        let number = std::os::fd::AsRawFd::as_raw_fd(&made);
        libc::syscall(libc::SYS_landlock_restrict_self, number, 0_u32)
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn close_calls() -> io::Result<()> {
    let mut filter = filter();
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: `program` and the instructions it points at live during the call, and its length is
    // theirs; the kernel copies and checks them.
    let result = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::c_ulong::from(libc::SECCOMP_MODE_FILTER),
            &raw const program,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Allows the calls of the list, and those alone, of this architecture alone. The numbers of x32
/// have a bit set that none of the list has.
fn filter() -> Vec<sock_filter> {
    let instruction = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let give_back = |action| instruction(RETURN, 0, 0, action);
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut filter = vec![
        instruction(LOAD, 0, 0, ARCHITECTURE_AT),
        instruction(JUMP_EQUAL, 1, 0, ARCHITECTURE),
        give_back(refuse),
        instruction(LOAD, 0, 0, NUMBER_AT),
    ];
    for call in ALLOWED {
        filter.push(instruction(JUMP_EQUAL, 0, 1, *call as u32));
        filter.push(give_back(libc::SECCOMP_RET_ALLOW));
    }
    filter.push(give_back(refuse));
    filter
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{ErrorKind, Read, Write};
    use std::net::UdpSocket;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// The fence belongs to a thread, so each test makes one for itself.
    fn behind_the_fence<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let fenced = std::thread::spawn(|| {
            close().unwrap();
            work()
        });
        fenced.join().unwrap()
    }

    #[test]
    fn what_is_held_can_be_used() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        behind_the_fence(move || {
            here.write_all(b"still here").unwrap();
            let mut answer = [0; 4];
            let mut grown = vec![0_u8; 8 << 20];
            grown.resize(64 << 20, 1);
            there.write_all(b"good").unwrap();
            here.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"good");
        });
    }

    #[test]
    fn nothing_new_can_be_got() {
        let refused = behind_the_fence(|| {
            [
                File::open("/etc/passwd").map(drop),
                File::create("/tmp/mcr-fence").map(drop),
                UdpSocket::bind("127.0.0.1:0").map(drop),
                UnixStream::connect("/run/mcr/mcr.sock").map(drop),
                std::process::Command::new("/bin/true").spawn().map(drop),
                crate::capability::pin_to_cpu(0),
            ]
            .map(|result| result.map_err(|error| error.kind()))
        });
        assert_eq!(refused, [Err(ErrorKind::PermissionDenied); 6]);
    }
}
