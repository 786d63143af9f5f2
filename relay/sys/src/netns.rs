//! Network namespaces: make a named one, run code or a command inside it, remove it again.
//!
//! Only the network namespace ever changes, never the mount namespace: what is mounted outside
//! (bpffs above all) stays visible inside. The names live under `/run/netns`, where `ip`,
//! `nsenter` and `tcpdump` find them. The calling thread never changes its own namespace.

#![expect(
    unsafe_code,
    reason = "a child has to change its namespace between fork and exec"
)]

mod names;

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{FsType, statfs};

use self::names::{DIRECTORY, path_of};
pub use self::names::{abandoned_by, made_by, processes_in, remove, sweep};

/// `NSFS_MAGIC` of linux/magic.h: the file is a namespace and not an empty mount point.
const NSFS_MAGIC: FsType = FsType(0x6e73_6673);

/// What went wrong with a namespace.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call or file operation on the way to a new namespace.
    #[error("network namespace {name}: {step}: {source}")]
    Create {
        /// Name of the namespace.
        name: String,
        /// The operation that failed.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// No namespace of that name.
    #[error("network namespace {name}: cannot open {DIRECTORY}/{name}: {source}")]
    Open {
        /// Name of the namespace.
        name: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The namespace exists but may not be entered.
    #[error("network namespace {name}: cannot enter it: {source} (CAP_SYS_ADMIN is needed)")]
    Enter {
        /// Name of the namespace.
        name: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// A named network namespace. One that was created here is removed when the last clone of it is dropped; one that
/// was opened stays.
///
/// The kernel keeps the namespace itself alive as long as a process, a socket or this value uses
/// it; only the name is removed at once.
#[derive(Clone, Debug)]
pub struct Namespace(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    file: File,
    owned: bool,
}

impl Namespace {
    /// Creates a namespace with a name of its own, `PREFIX-PID-COUNTER-LABEL`. Leftovers of processes that no longer
    /// exist, under the same prefix, are removed first.
    ///
    /// # Errors
    /// [`Error::Create`] when a step fails, mostly for want of `CAP_SYS_ADMIN`.
    pub fn create(prefix: &str, label: &str) -> Result<Self, Error> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        if number == 0 {
            sweep(prefix);
        }
        let name = format!("{prefix}-{}-{number}-{label}", std::process::id());
        Self::create_named(&name)
    }

    /// Creates a namespace of exactly this name.
    ///
    /// # Errors
    /// [`Error::Create`] when the name is taken or a step fails.
    pub fn create_named(name: &str) -> Result<Self, Error> {
        let failed = |step| {
            move |source: io::Error| Error::Create {
                name: name.to_owned(),
                step,
                source,
            }
        };
        let lock = prepare_directory().map_err(failed("preparing /run/netns"))?;
        let path = path_of(name);
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(failed("making its mount point"))?;
        let made = on_a_thread(|| bind_new_namespace(&path));
        drop(lock);
        if let Err(source) = made {
            let _ = fs::remove_file(&path);
            return Err(failed("making it")(source));
        }
        Self::open_as(name, true)
    }

    /// Opens a namespace that another process made.
    ///
    /// # Errors
    /// [`Error::Open`] when there is none of that name.
    pub fn open(name: &str) -> Result<Self, Error> {
        Self::open_as(name, false)
    }

    fn open_as(name: &str, owned: bool) -> Result<Self, Error> {
        let file = File::open(path_of(name)).map_err(|source| Error::Open {
            name: name.to_owned(),
            source,
        })?;
        let name = name.to_owned();
        Ok(Self(Arc::new(Inner { name, file, owned })))
    }

    /// The name, as `ip netns` shows it.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The file that stands for the namespace, for `nsenter --net=FILE`.
    pub fn path(&self) -> PathBuf {
        path_of(&self.0.name)
    }

    /// Runs `work` inside, on a thread of its own, and returns its result. Sockets opened there belong to the
    /// namespace for good. A panic inside is propagated to the caller.
    ///
    /// # Errors
    /// [`Error::Enter`] when the kernel refuses.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        let entered = on_a_thread(|| {
            setns(&self.0.file, CloneFlags::CLONE_NEWNET)?;
            Ok(work())
        });
        entered.map_err(|source| Error::Enter {
            name: self.0.name.clone(),
            source,
        })
    }

    /// Runs `work` inside like [`Namespace::run`], and passes it a directory where the namespace's own sysfs is
    /// mounted, invisible to other processes: `/sys/class/net` outside shows other interfaces.
    ///
    /// # Errors
    /// [`Error::Enter`] when the kernel refuses, also the mount.
    pub fn run_with_sysfs<T: Send>(
        &self,
        work: impl FnOnce(&Path) -> T + Send,
    ) -> Result<T, Error> {
        let entered = on_a_thread(|| {
            setns(&self.0.file, CloneFlags::CLONE_NEWNET)?;
            unshare(CloneFlags::CLONE_NEWNS)?;
            mount_none("/", MsFlags::MS_REC | MsFlags::MS_PRIVATE)?;
            let at = Path::new("/sys");
            mount(
                Some("sysfs"),
                at,
                Some("sysfs"),
                MsFlags::empty(),
                None::<&str>,
            )?;
            Ok(work(at))
        });
        entered.map_err(|source| Error::Enter {
            name: self.0.name.clone(),
            source,
        })
    }

    /// Prepares a command that will run inside. It may be spawned from any thread.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        self.enter_at_exec(&mut command);
        command
    }

    /// Makes `command` run inside.
    pub fn enter_at_exec(&self, command: &mut Command) {
        let inner = Arc::clone(&self.0);
        let enter = move || {
            // SAFETY: `inner` is captured by this closure, so its file is open as long as the
            // closure can be called.
            let file = unsafe { BorrowedFd::borrow_raw(inner.file.as_raw_fd()) };
            setns(file, CloneFlags::CLONE_NEWNET).map_err(io::Error::from)
        };
        // SAFETY: between fork and exec the closure makes one system call and neither allocates
        // nor locks; converting an errno allocates nothing.
        unsafe {
            command.pre_exec(enter);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.owned {
            remove(&self.name);
        }
    }
}

/// Makes `/run/netns` a shared mount of itself, as iproute2 does, so that names made in one mount
/// namespace appear and disappear in all of them. The lock keeps two processes from doing so at once.
fn prepare_directory() -> io::Result<Flock<File>> {
    fs::create_dir_all(DIRECTORY)?;
    let lock = Flock::lock(File::open(DIRECTORY)?, FlockArg::LockExclusive)
        .map_err(|(_, errno)| io::Error::from(errno))?;
    if mount_none(DIRECTORY, MsFlags::MS_SHARED | MsFlags::MS_REC).is_err() {
        mount(
            Some(DIRECTORY),
            DIRECTORY,
            Some("none"),
            MsFlags::MS_BIND | MsFlags::MS_REC,
            None::<&str>,
        )?;
        mount_none(DIRECTORY, MsFlags::MS_SHARED | MsFlags::MS_REC)?;
    }
    Ok(lock)
}

fn bind_new_namespace(path: &Path) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    mount(
        Some("/proc/thread-self/ns/net"),
        path,
        Some("none"),
        MsFlags::MS_BIND,
        None::<&str>,
    )?;
    if statfs(path)?.filesystem_type() != NSFS_MAGIC {
        return Err(io::Error::other("the mount does not show a namespace"));
    }
    Ok(())
}

fn mount_none(target: &str, flags: MsFlags) -> io::Result<()> {
    mount(Some("none"), target, None::<&str>, flags, None::<&str>)?;
    Ok(())
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_root() -> bool {
        nix::unistd::geteuid().is_root()
    }

    #[test]
    fn opening_an_unknown_name_names_it() {
        let error = Namespace::open("no-such-namespace").unwrap_err();
        assert!(error.to_string().contains("no-such-namespace"), "{error}");
    }

    #[test]
    fn code_runs_inside_and_the_name_goes_on_drop() {
        if !is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let here = fs::read_link("/proc/thread-self/ns/net").unwrap();
        let namespace = Namespace::create("mcrsys", "run").unwrap();
        let read = || fs::read_link("/proc/thread-self/ns/net").unwrap();
        let inside = namespace.run(read).unwrap();
        assert_ne!(here, inside);
        assert_eq!(here, read());
        let path = namespace.path();
        assert!(path.exists());
        drop(namespace);
        assert!(!path.exists());
    }

    #[test]
    fn a_command_runs_inside() {
        if !is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let namespace = Namespace::create("mcrsys", "command").unwrap();
        let output = namespace
            .command("readlink")
            .arg("/proc/self/ns/net")
            .output()
            .unwrap();
        let inside = namespace
            .run(|| fs::read_link("/proc/thread-self/ns/net").unwrap())
            .unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        assert_eq!(shown.trim(), inside.to_str().unwrap());
    }

    #[test]
    fn sysfs_inside_shows_the_namespace_only() {
        if !is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let namespace = Namespace::create("mcrsys", "sysfs").unwrap();
        let names = namespace
            .run_with_sysfs(|sysfs| {
                let list = fs::read_dir(sysfs.join("class/net")).unwrap();
                let names = list.map(|entry| entry.unwrap().file_name().into_string().unwrap());
                names.collect::<Vec<_>>()
            })
            .unwrap();
        assert_eq!(names, ["lo"]);
    }
}
