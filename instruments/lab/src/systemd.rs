//! A service manager for tests: this host's systemd, booted on an overlay of its root in namespaces
//! of its own. What is installed and enabled in it vanishes with the guard.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::binary;
use crate::namespace::Namespace;
use crate::process::{self, Finished, Process};
use crate::wait;

const MANAGER: &str = "/usr/lib/systemd/systemd";

/// How long it may take to boot, on a busy machine.
const BOOT: Duration = Duration::from_secs(30);

/// How long a command inside may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A booted manager. Dropping it ends everything that it started.
#[derive(Debug)]
pub struct Systemd {
    // The order of the guards: first the processes, then what they used.
    process: Option<Process>,
    cgroup: Cgroup,
    _directory: TempDir,
    manager: u32,
}

/// Why no manager can be booted here; `None` if one can.
pub fn missing() -> Option<String> {
    if !Path::new(MANAGER).exists() {
        return Some(format!("needs {MANAGER}"));
    }
    match Cgroup::new() {
        Ok(_) => None,
        Err(error) => Some(format!("needs a cgroup2 hierarchy to write to: {error:#}")),
    }
}

impl Systemd {
    /// Boots a manager whose network is that of `namespace`, and waits until it is up.
    ///
    /// # Errors
    /// When a step fails; the message has the manager's output.
    pub fn boot(namespace: &Namespace) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("mcrboot").tempdir()?;
        let cgroup = Cgroup::new()?;
        let script = directory.path().join("boot.sh");
        fs::write(&script, include_str!("systemd/boot.sh"))?;
        let root = directory.path().join("root");
        fs::create_dir(&root)?;
        let mut command = namespace.command("sh");
        command.arg(&script).arg(&root).arg(&cgroup.0);
        let mut process = Process::start(command)?;
        let manager = wait::some_within(BOOT, "systemd is process 1", || {
            if !process.is_running() {
                return Some(None);
            }
            process_one(process.id()).map(Some)
        })?
        .ok_or_else(|| anyhow!("no systemd: {}", process.stderr()))?;
        let mut systemd = Self {
            process: Some(process),
            cgroup,
            _directory: directory,
            manager,
        };
        let up = || systemd.systemctl(&["is-active", "lab.target"]).is_ok();
        let booted = wait::some_within(BOOT, "systemd is up", || up().then_some(()));
        if let Err(error) = booted {
            let log = systemd.process.take().map(|process| process.stderr());
            return Err(error.context(log.unwrap_or_default()));
        }
        Ok(systemd)
    }

    /// A path inside, as seen from outside.
    pub fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.manager))
    }

    /// Writes a file inside, with its parent directories.
    ///
    /// # Errors
    /// The file system's.
    pub fn install(&self, from: &Path, inside: &str, mode: u32) -> Result<()> {
        let path = self.path(inside);
        fs::create_dir_all(path.parent().context("no directory")?)?;
        binary::copy(from, &path).with_context(|| format!("cannot install {inside}"))?;
        Ok(fs::set_permissions(
            &path,
            fs::Permissions::from_mode(mode),
        )?)
    }

    /// Runs a program inside.
    ///
    /// # Errors
    /// When it cannot be started or does not end.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<Finished> {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.manager.to_string(), "--all", "--wd=/"]);
        command.arg(program).args(arguments);
        process::run(command, PATIENCE)
    }

    /// Runs `systemctl` inside and returns its output.
    ///
    /// # Errors
    /// When it fails; the message has the journal's last lines.
    pub fn systemctl(&self, arguments: &[&str]) -> Result<String> {
        let finished = self.run("systemctl", arguments)?;
        if finished.status.success() {
            return Ok(finished.stdout);
        }
        let journal = self.run("journalctl", &["--no-pager", "--lines=30"])?;
        ensure!(
            finished.status.success(),
            "systemctl {arguments:?}: {}{}\n{}",
            finished.stdout,
            finished.stderr,
            journal.stdout
        );
        Ok(finished.stdout)
    }

    /// A property of a unit.
    ///
    /// # Errors
    /// As [`Systemd::systemctl`].
    pub fn property(&self, unit: &str, property: &str) -> Result<String> {
        let shown = self.systemctl(&["show", "--value", "--property", property, unit])?;
        Ok(shown.trim().to_owned())
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        // `unshare` kills its child when it dies.
        if let Some(process) = self.process.take() {
            let _ = process.stop(Signal::SIGKILL);
        }
        let empty = || self.cgroup.is_empty().then_some(());
        let _ = wait::some_within(PATIENCE, "its processes are gone", empty);
    }
}

/// The only child of `unshare`, once it has become the manager.
fn process_one(unshare: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).ok()?;
    let child: u32 = children.split_whitespace().next()?.parse().ok()?;
    let name = fs::read_to_string(format!("/proc/{child}/comm")).ok()?;
    (name.trim() == "systemd").then_some(child)
}

/// A control group, removed with its subgroups.
#[derive(Debug)]
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let mut rows = mounts.lines().map(|line| line.split(' '));
        let cgroup2 = rows.find_map(|mut words| {
            let (path, kind) = (words.nth(1)?, words.next()?);
            (kind == "cgroup2").then(|| path.to_owned())
        });
        let hierarchy = cgroup2.context("none is mounted")?;
        let directory = tempfile::Builder::new()
            .prefix("mcrboot")
            .tempdir_in(hierarchy)?;
        Ok(Self(directory.keep()))
    }

    fn is_empty(&self) -> bool {
        let events = fs::read_to_string(self.0.join("cgroup.events"));
        events.is_ok_and(|events| events.contains("populated 0"))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// Groups hold no files that could be removed, only groups.
fn remove(group: &Path) {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    groups.for_each(|entry| remove(&entry.path()));
    if let Err(error) = fs::remove_dir(group)
        && error.kind() != ErrorKind::NotFound
    {
        eprintln!("cannot remove {}: {error}", group.display());
    }
}
