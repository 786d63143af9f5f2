//! The guard of a bench or a demo: a process beside it, `mcr guard`, that takes away what it made if
//! it is killed, and holds what of the machine's own it changes.
//!
//! The guard reads a pipe that its run alone can write to. A run that ends by itself has taken away
//! everything and says so; a pipe that closes without that word tells that the run has died. It
//! tells that no process is about to appear, too: between fork and exec each holds the pipe.
//!
//! What the run made bears its process id (see [`mark`]), and the processes that it started are those
//! in its namespaces. So nothing that belongs to another run is touched.

mod backlog;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use self::backlog::Backlog;
use crate::{binary, mark, wait};

/// Where pins live, below bpffs.
pub(crate) const PINS: &str = "/sys/fs/bpf/mcr";
/// Where running rules live.
pub(crate) const STATE: &str = "/run/mcr";

/// What the guard says once it stands.
const READY: &str = "ready\n";
/// What a run says that leaves nothing to do.
const DONE: &str = "done\n";

/// The guard of this process. Dropping it ends it; what this process made is then its own affair.
#[derive(Debug)]
pub struct Guard(Child);

impl Guard {
    /// Starts a guard for this process.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// Starts a guard that also makes the queue between the cores long (`netdev_max_backlog`) for as
    /// long as this process is there. Where that is not permitted the queue stays as it is.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start_with_backlog() -> Result<Self> {
        Self::start_with(&["--backlog"])
    }

    fn start_with(options: &[&str]) -> Result<Self> {
        let mut command = Command::new(binary::mcr()?);
        command.arg("guard").args(options);
        command.arg(std::process::id().to_string());
        // A process group of its own, which a signal to the run's does not reach.
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let mut guard = Self(child.context("cannot start mcr guard")?);
        let stdout = guard.0.stdout.take().context("its output is a pipe")?;
        let mut said = String::new();
        BufReader::new(stdout).read_line(&mut said)?;
        ensure!(said == READY, "mcr guard did not start, it said {said:?}");
        Ok(guard)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.0.stdin.take() {
            // Fails when the guard itself was killed: then there is nobody to tell.
            let _ = pipe.write_all(DONE.as_bytes());
        }
        let _ = self.0.wait();
    }
}

/// Stands guard over `process`, which has the other end of standard input: returns when that process
/// is gone and nothing of it is left.
///
/// # Errors
/// When standard input cannot be read.
pub fn stand(process: u32, with_backlog: bool) -> Result<()> {
    let _backlog = with_backlog.then(Backlog::lengthen);
    // Nobody reads it if the process has died already.
    let _ = io::stdout().write_all(READY.as_bytes());
    let mut said = String::new();
    io::stdin().read_to_string(&mut said)?;
    if said != DONE {
        take_away(process);
    }
    Ok(())
}

/// Ends the processes in the namespaces that `process` made, and takes away all that it made.
pub(crate) fn take_away(process: u32) {
    let namespaces = sys::netns::made_by(mark::PREFIX, process);
    // Again and again: a daemon starts its workers anew as long as it lives.
    let _ = wait::until("its processes have ended", || {
        let left = sys::netns::processes_in(&namespaces);
        for process in &left {
            let _ = kill(Pid::from_raw(*process), Signal::SIGKILL);
        }
        left.is_empty()
    });
    for name in &namespaces {
        sys::netns::remove(name);
    }
    let instances = mark::instances_of(process);
    take_away_files(Path::new(PINS), &instances);
    take_away_files(Path::new(STATE), &instances);
    for directory in [env::temp_dir().as_path(), Path::new(mark::MEMORY)] {
        take_away_files(directory, &mark::directories_of(process));
    }
}

/// Removes what has a name that begins with `mark`, and all below.
fn take_away_files(directory: &Path, mark: &str) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries {
        if !entry.file_name().to_string_lossy().starts_with(mark) {
            continue;
        }
        let path = entry.path();
        let _ = match entry.file_type() {
            Ok(kind) if kind.is_dir() => fs::remove_dir_all(path),
            _ => fs::remove_file(path),
        };
    }
}
