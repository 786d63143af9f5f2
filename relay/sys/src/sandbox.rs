//! The sandbox of a process that has all it needs: it can get no new file, socket, process or program.
//!
//! Landlock closes the file system, seccomp every system call that is not on a short list. Refused calls fail with
//! `EPERM`, so that a library which tries something new continues without it. The calls on the list are allowed
//! by the kernel's bitmap (Linux 5.11): 40 ns more for each, of which a worker makes one or two for a batch of up
//! to 256 packets. On a kernel without one of the two the other still applies.

use std::io;

use landlock::{ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetError, Scope};
use libc::{c_int, c_long};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, apply_filter,
};

/// The newest Landlock whose rights are known here; an older one closes all that it has.
const LANDLOCK: ABI = ABI::V6;

/// The calls of workers and keepers once they are set up: move bytes between held descriptors, wait, manage memory,
/// and end.
const ALLOWED: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
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
    libc::SYS_write,
    libc::SYS_writev,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// The allowed operations on descriptors. `F_SETOWN` is not among them: with it the kernel would signal any process
/// that is named, with the rights of the descriptor's opener: root.
const FCNTL: &[c_int] = &[
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
];

/// Puts the calling thread into the sandbox, and what it starts, for good. For a process of one
/// thread that has given up its capabilities: it also forbids new privileges, and prevents tracing or dumping of
/// the process by anyone but root. Without `landlock` the file system is left to seccomp.
///
/// # Errors
/// The first part that could not be closed; the others are.
pub fn close(landlock: bool) -> io::Result<()> {
    close_at(landlock.then_some(LANDLOCK))
}

fn close_at(landlock: Option<ABI>) -> io::Result<()> {
    nix::sys::prctl::set_no_new_privs()?;
    let dumpable = nix::sys::prctl::set_dumpable(false).map_err(io::Error::from);
    let files = match landlock {
        Some(newest) => close_file_system(newest).map_err(io::Error::other),
        None => Ok(()),
    };
    let calls = close_calls();
    dumpable.and(files).and(calls)
}

/// Returns whether the kernel has Landlock and it is turned on.
#[expect(unsafe_code, reason = "the library does not tell")]
pub fn has_landlock() -> bool {
    const VERSION: u32 = 1;
    let none = std::ptr::null::<u8>();
    // SAFETY: with this flag the call takes no ruleset and returns a number.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0_usize, VERSION) > 0 }
}

/// Handles every right that the kernel's Landlock has and allows none of them: files, TCP, abstract
/// Unix sockets and signals of others. Does nothing where there is no Landlock.
///
/// Signals are a right only from Linux 6.12 on (version 6), so seccomp closes them too.
fn close_file_system(newest: ABI) -> Result<(), RulesetError> {
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(newest))?
        .handle_access(AccessNet::from_all(newest))?;
    let scopes = Scope::from_all(newest);
    if !scopes.is_empty() {
        rules = rules.scope(scopes)?;
    }
    rules.create()?.restrict_self().map(drop)
}

/// Allows only the calls of the list, and only of this architecture: a call of another ends the process. The
/// numbers of x32 have a bit set that none of the list has.
fn close_calls() -> io::Result<()> {
    let program = filter().map_err(io::Error::other)?;
    apply_filter(&program).map_err(io::Error::other)
}

fn filter() -> Result<BpfProgram, BackendError> {
    let unconditional = ALLOWED.iter().map(|call| (*call, Vec::new()));
    let commands: Result<Vec<_>, _> = FCNTL.iter().map(|c| is(1, *c as u32)).collect();
    // `abort` signals the process itself.
    let own = vec![is(0, std::process::id())?];
    let judged = [(libc::SYS_fcntl, commands?), (libc::SYS_tgkill, own)];
    let allowed = unconditional.chain(judged).collect();
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(allowed, refuse, SeccompAction::Allow, architecture)?.try_into()
}

/// Allows a call whose argument has this value.
fn is(argument: u8, value: u32) -> Result<SeccompRule, BackendError> {
    let (length, equal) = (SeccompCmpArgLen::Dword, SeccompCmpOp::Eq);
    let condition = SeccompCondition::new(argument, length, equal, value.into())?;
    SeccompRule::new(vec![condition])
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{ErrorKind, Read, Write};
    use std::net::UdpSocket;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// The sandbox belongs to a thread, so each test makes its own.
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

    /// As on kernels before 6.12, whose Landlock has no right for signals.
    #[test]
    #[expect(unsafe_code, reason = "the calls that are refused")]
    fn nobody_can_be_signalled() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let victim = child.id() as c_int;
        let (socket, _other) = UnixStream::pair().unwrap();
        let refused = std::thread::spawn(move || {
            close_at(Some(ABI::V5)).unwrap();
            let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
            let own = (std::process::id() as c_int, nix::unistd::gettid().as_raw());
            // F_OWNER_PID of fcntl(2), and whom.
            let owner = [1, victim];
            // SAFETY: none of these calls but F_SETOWN_EX takes a pointer, and that one reads two
            // integers, which live during the call.
            let results = unsafe {
                [
                    libc::syscall(libc::SYS_tgkill, victim, victim, libc::SIGTERM),
                    libc::syscall(libc::SYS_tkill, victim, libc::SIGTERM),
                    libc::syscall(libc::SYS_kill, victim, libc::SIGTERM),
                    libc::fcntl(fd, libc::F_SETOWN, victim).into(),
                    libc::fcntl(fd, F_SETSIG, libc::SIGTERM).into(),
                    libc::fcntl(fd, F_SETOWN_EX, owner.as_ptr()).into(),
                    // What a process may do still works.
                    libc::syscall(libc::SYS_tgkill, own.0, own.1, 0),
                    libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK).into(),
                ]
            };
            results.map(|result| result == 0)
        });
        let refused = refused.join().unwrap();
        let lives = child.try_wait().unwrap().is_none();
        child.kill().unwrap();
        child.wait().unwrap();
        let allowed = [false, false, false, false, false, false, true, true];
        assert_eq!(refused, allowed);
        assert!(lives);
    }

    // asm-generic/fcntl.h.
    const F_SETSIG: c_int = 10;
    const F_SETOWN_EX: c_int = 15;
}
