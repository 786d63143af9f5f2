//! The fence around a process that has all it needs: no new file, socket, process or program.
//!
//! Landlock closes the file system, seccomp every system call that is not on a short list. What is
//! refused fails with `EPERM`, so that a library which tries something new goes on without it. The
//! calls on the list are answered from the kernel's bitmap (Linux 5.11): 40 ns more for each, of
//! which a worker makes one or two for a batch of up to 256 packets. A kernel without one of the
//! two leaves the other standing.

use std::io;

use landlock::{ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetError, Scope};
use libc::c_long;
use seccompiler::{BackendError, BpfProgram, SeccompAction, SeccompFilter, apply_filter};

/// The newest Landlock whose rights are known here; of an older one all it has is closed.
const LANDLOCK: ABI = ABI::V6;

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

/// Closes the fence around the calling thread, and what it starts, for good. For a process of one
/// thread that has given up its capabilities: it also forbids new privileges, and keeps the
/// process from being traced or dumped by anybody but root. Without `landlock` the file system is left
/// to seccomp.
///
/// # Errors
/// The first fence that could not be closed; the others are.
pub fn close(landlock: bool) -> io::Result<()> {
    nix::sys::prctl::set_no_new_privs()?;
    let dumpable = nix::sys::prctl::set_dumpable(false).map_err(io::Error::from);
    let files = if landlock {
        close_file_system().map_err(io::Error::other)
    } else {
        Ok(())
    };
    let calls = close_calls();
    dumpable.and(files).and(calls)
}

/// Says whether the kernel has Landlock and it is turned on.
#[must_use]
#[expect(unsafe_code, reason = "the library does not tell")]
pub fn has_landlock() -> bool {
    const VERSION: u32 = 1;
    let none = std::ptr::null::<u8>();
    // SAFETY: with this flag the call takes no ruleset and returns a number.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0_usize, VERSION) > 0 }
}

/// Handles every right that the kernel's Landlock knows and allows none of them: files, TCP, abstract
/// Unix sockets and signals of others. Does nothing where there is no Landlock.
fn close_file_system() -> Result<(), RulesetError> {
    Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .scope(Scope::from_all(LANDLOCK))?
        .create()?
        .restrict_self()
        .map(drop)
}

/// Allows the calls of the list, and those alone, of this architecture alone: one of another ends the
/// process. The numbers of x32 have a bit set that none of the list has.
fn close_calls() -> io::Result<()> {
    let program = filter().map_err(io::Error::other)?;
    apply_filter(&program).map_err(io::Error::other)
}

fn filter() -> Result<BpfProgram, BackendError> {
    let allowed = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(allowed, refuse, SeccompAction::Allow, architecture)?.try_into()
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
            close(true).unwrap();
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
