//! The resources of one instance: its lock and its directory; and the bpffs that all instances share.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use nix::unistd::geteuid;

use crate::error::DaemonError;
use crate::options::Options;

/// How long a dying process may hold the lock; one that was just killed may not show it for the latter time.
const DYING: Duration = Duration::from_secs(5);
const JUST_NOW: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(10);
/// In the flags of `/proc/PID/stat`, include/linux/sched.h.
const PF_EXITING: u64 = 0x4;

/// An instance, claimed for this process until drop.
#[derive(Debug)]
pub(crate) struct Instance {
    name: String,
    directory: PathBuf,
    state: PathBuf,
    lock_path: PathBuf,
    _lock: Flock<File>,
}

impl Instance {
    /// Claims the instance; the error names the process that has it.
    pub(crate) fn claim(options: &Options) -> Result<Self, DaemonError> {
        let directory = options.run_directory.join(&options.instance);
        make_directory(&options.run_directory, 0o755)?;
        require_own(&options.run_directory)?;
        let lock_path = options
            .run_directory
            .join(format!("{}.lock", options.instance));
        let lock = lock(&lock_path, &options.instance)?;
        make_directory(&directory, 0o700)?;
        require_own(&directory)?;
        Ok(Self {
            name: options.instance.clone(),
            state: options.state_directory.join(&options.instance),
            directory,
            lock_path,
            _lock: lock,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The lock, for the watch over it.
    pub(crate) fn lock(&self) -> OwnFile {
        let consequence = "another daemon of the name could start beside this one";
        OwnFile::new(&self.lock_path, consequence)
    }

    /// The directory of the running rules.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The directory of persistent state; its users create it.
    pub(crate) fn state(&self) -> &Path {
        &self.state
    }
}

/// A file by which others find this daemon.
#[derive(Debug)]
pub(crate) struct OwnFile {
    path: PathBuf,
    inode: Option<u64>,
    /// The consequence of its removal.
    consequence: &'static str,
}

impl OwnFile {
    pub(crate) fn new(path: &Path, consequence: &'static str) -> Self {
        Self {
            path: path.to_owned(),
            inode: inode(path),
            consequence,
        }
    }

    /// Logs once that it was removed or replaced.
    pub(crate) fn watch(&mut self) {
        let now = inode(&self.path);
        if self.inode.is_some() && now != self.inode {
            let (path, consequence) = (self.path.display(), self.consequence);
            tracing::error!("{path} was removed or replaced: {consequence}; restart the daemon");
            self.inode = None;
        }
    }
}

fn inode(path: &Path) -> Option<u64> {
    Some(fs::symlink_metadata(path).ok()?.ino())
}

impl Drop for Instance {
    fn drop(&mut self) {
        // A process that waits for the lock checks that the file it locked is still the one at the path.
        let _ = fs::remove_file(&self.lock_path);
        // Removed only if empty: the running rules of a daemon that continues to forward stay.
        let _ = fs::remove_file(self.directory.join(dataplane::VERIFIER_LOG));
        let _ = fs::remove_dir(&self.directory);
    }
}

/// The error of a failed operation on `path`.
fn failed(path: &Path, operation: &'static str) -> impl FnOnce(io::Error) -> DaemonError {
    move |source| DaemonError::File {
        path: path.to_owned(),
        operation,
        source,
    }
}

fn lock(path: &Path, name: &str) -> Result<Flock<File>, DaemonError> {
    let failed = |operation| failed(path, operation);
    let begun = Instant::now();
    loop {
        // Other users may not open it, so they cannot lock it.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)
            .map_err(failed("open the lock"))?;
        let mut lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((mut file, _)) => {
                let mut pid = String::new();
                let _ = file.read_to_string(&mut pid);
                let waited = begun.elapsed();
                if waited < JUST_NOW || waited < DYING && is_dying(pid.trim()) {
                    thread::sleep(PAUSE);
                    continue;
                }
                return Err(DaemonError::AlreadyRunning {
                    name: name.to_owned(),
                    holder: match pid.trim() {
                        "" => "another process".to_owned(),
                        pid => format!("process {pid}"),
                    },
                });
            }
        };
        let held = lock.metadata().map_err(failed("read the lock"))?;
        // The previous owner may have removed the file between open and lock.
        if fs::metadata(path).is_ok_and(|current| current.ino() == held.ino()) {
            // The file of an earlier version may be accessible to others.
            lock.set_permissions(Permissions::from_mode(0o600))
                .map_err(failed("restrict the lock"))?;
            lock.set_len(0).map_err(failed("write the lock"))?;
            // The number only helps to name the process; the disk may be full.
            if let Err(error) = writeln!(lock, "{}", std::process::id()) {
                tracing::warn!(path = %path.display(), %error, "cannot write the process id to the lock");
            }
            return Ok(lock);
        }
    }
}

/// Returns whether a process will release the lock by itself: it has been killed, or is exiting. One that could
/// not write its number counts as staying.
fn is_dying(pid: &str) -> bool {
    if pid.is_empty() {
        return false;
    }
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return true;
    };
    // The process name before may contain anything.
    let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    let is_zombie = matches!(fields.next(), Some("Z" | "X"));
    let flags = fields.nth(5).and_then(|flags| flags.parse::<u64>().ok());
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mut pending = status.lines().filter_map(|line| {
        let mask = line
            .strip_prefix("SigPnd:")
            .or(line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    });
    let is_killed = pending.any(|mask| mask & (1 << (libc::SIGKILL - 1)) != 0);
    is_zombie || is_killed || flags.unwrap_or(0) & PF_EXITING != 0
}

fn make_directory(path: &Path, mode: u32) -> Result<(), DaemonError> {
    let made = DirBuilder::new().recursive(true).mode(mode).create(path);
    made.map_err(failed(path, "make the directory"))
}

/// Refuses a directory in which other users could place links for this process to follow, or files for it
/// to trust. Restricts this user's own directory.
fn require_own(path: &Path) -> Result<(), DaemonError> {
    let failed = |operation| failed(path, operation);
    let metadata = fs::symlink_metadata(path).map_err(failed("look at the directory"))?;
    let own = geteuid().as_raw();
    let refused = |problem: String| {
        Err(DaemonError::Directory {
            path: path.to_owned(),
            problem,
        })
    };
    if !metadata.is_dir() {
        return refused("is no directory; remove it".to_owned());
    }
    if metadata.uid() != own && metadata.uid() != 0 {
        let uid = metadata.uid();
        return refused(format!(
            "belongs to user {uid}, who could mislead a daemon of user {own}; run it as user {uid}, \
             or give the directory to user {own}"
        ));
    }
    match metadata.mode() & 0o022 {
        0 => Ok(()),
        _ if metadata.uid() == own => {
            let mode = Permissions::from_mode(metadata.mode() & 0o7755);
            fs::set_permissions(path, mode).map_err(failed("restrict the directory"))
        }
        _ => refused("may be written by others; take that away with chmod go-w".to_owned()),
    }
}

/// Mounts bpffs if it is missing. A failure is only logged: the kernel path then reports itself why it is
/// not available.
pub(crate) fn mount_bpffs(path: &Path) {
    if statfs(path).is_ok_and(|stat| stat.filesystem_type() == BPF_FS_MAGIC) {
        return;
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC | MsFlags::MS_RELATIME;
    match mount(Some("bpf"), path, Some("bpf"), flags, Some("mode=0700")) {
        Ok(()) => tracing::info!(path = %path.display(), "mounted bpffs"),
        Err(error) => tracing::warn!(path = %path.display(), %error, "cannot mount bpffs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(directory: &Path) -> Options {
        Options {
            run_directory: directory.join("run"),
            ..Options::default()
        }
    }

    #[test]
    fn refuses_a_second_claim_by_name_and_process() {
        let directory = tempfile::tempdir().unwrap();
        let options = options(directory.path());
        let first = Instance::claim(&options).unwrap();
        let error = Instance::claim(&options).unwrap_err();
        assert_eq!(error.exit_code(), 69);
        let expected = format!(
            "instance \"default\" is run by process {} already",
            std::process::id()
        );
        assert!(error.to_string().starts_with(&expected), "{error}");
        drop(first);
        let again = Instance::claim(&options).unwrap();
        assert_eq!(again.name(), "default");
    }

    #[test]
    fn a_lock_without_a_number_is_a_lock() {
        let directory = tempfile::tempdir().unwrap();
        let options = options(directory.path());
        let first = Instance::claim(&options).unwrap();
        fs::write(&first.lock_path, "").unwrap();
        let error = Instance::claim(&options).unwrap_err().to_string();
        let expected = "instance \"default\" is run by another process already";
        assert!(error.starts_with(expected), "{error}");
        drop(first);
        drop(Instance::claim(&options).unwrap());
    }

    #[test]
    fn waits_for_a_process_that_is_dying() {
        let directory = tempfile::tempdir().unwrap();
        let options = options(directory.path());
        make_directory(&options.run_directory, 0o755).unwrap();
        let lock = options.run_directory.join("default.lock");
        let mut rounds = 0;
        while rounds < 5 {
            let mut holder = std::process::Command::new("sh")
                .args([
                    "-c",
                    "exec 9>>\"$0\"; flock 9; echo $$ >\"$0\"; exec sleep 60",
                ])
                .arg(&lock)
                .spawn()
                .unwrap();
            let is_held = || fs::read_to_string(&lock).is_ok_and(|pid| !pid.is_empty());
            while !is_held() {
                thread::sleep(PAUSE);
            }
            let begun = Instant::now();
            let (claimed, killed) = thread::scope(|scope| {
                let killer = scope.spawn(|| {
                    thread::sleep(JUST_NOW / 2);
                    holder.kill().unwrap();
                    begun.elapsed()
                });
                let claimed = Instance::claim(&options);
                (claimed, killer.join().unwrap())
            });
            holder.wait().unwrap();
            // On a busy machine the kill may come too late for the claim.
            if killed < JUST_NOW {
                drop(claimed.unwrap());
                rounds += 1;
            }
        }
    }

    #[test]
    fn leaves_nothing_behind_but_running_rules() {
        let directory = tempfile::tempdir().unwrap();
        let options = options(directory.path());
        drop(Instance::claim(&options).unwrap());
        assert_eq!(fs::read_dir(&options.run_directory).unwrap().count(), 0);
        let second = Instance::claim(&options).unwrap();
        let rules = second.directory().join("running.json");
        fs::write(&rules, "{}").unwrap();
        drop(second);
        assert!(rules.exists());
    }

    #[test]
    fn the_lock_becomes_accessible_to_its_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let options = options(directory.path());
        make_directory(&options.run_directory, 0o755).unwrap();
        let lock = options.run_directory.join("default.lock");
        fs::write(&lock, "1").unwrap();
        fs::set_permissions(&lock, Permissions::from_mode(0o666)).unwrap();
        for _ in 0..2 {
            let claimed = Instance::claim(&options).unwrap();
            assert_eq!(fs::metadata(&lock).unwrap().mode() & 0o777, 0o600);
            drop(claimed);
        }
    }

    #[test]
    fn follows_no_links_and_enters_no_directory_of_others() {
        let directory = tempfile::tempdir().unwrap();
        let options = options(directory.path());
        make_directory(&options.run_directory, 0o755).unwrap();
        let precious = directory.path().join("precious");
        fs::write(&precious, "precious").unwrap();
        let lock = options.run_directory.join("default.lock");
        std::os::unix::fs::symlink(&precious, &lock).unwrap();
        let error = Instance::claim(&options).unwrap_err().to_string();
        assert!(
            error.contains("default.lock: cannot open the lock"),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        fs::remove_file(&lock).unwrap();

        let open = Permissions::from_mode(0o777);
        fs::set_permissions(&options.run_directory, open).unwrap();
        drop(Instance::claim(&options).unwrap());
        let mode = fs::metadata(&options.run_directory).unwrap().mode();
        assert_eq!(mode & 0o777, 0o755, "closed to others");

        let inner = options.run_directory.join("default");
        std::os::unix::fs::symlink(directory.path(), &inner).unwrap();
        let error = Instance::claim(&options).unwrap_err().to_string();
        assert!(error.contains("is no directory"), "{error}");
        fs::remove_file(&inner).unwrap();

        if !geteuid().is_root() {
            eprintln!("skipped: giving a directory away needs root");
            return;
        }
        let somebody = nix::unistd::Uid::from_raw(65_534);
        nix::unistd::chown(&options.run_directory, Some(somebody), None).unwrap();
        let error = Instance::claim(&options).unwrap_err();
        assert_eq!(error.exit_code(), 69);
        let expected = "belongs to user 65534, who could mislead a daemon of user 0";
        assert!(error.to_string().contains(expected), "{error}");
    }
}
