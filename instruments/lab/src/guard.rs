//! The guard of a bench or a demo: a separate process, `mcr guard`, that removes what the run made if
//! it is killed, and holds the machine's settings that the run changes.
//!
//! The guard reads a pipe that only its run can write to. A run that ends by itself has removed
//! everything and writes so; a pipe that closes without that message means that the run has died. It
//! also means that no process is about to appear: between fork and exec each holds the pipe.
//!
//! The run's resources are marked with its process id (see [`mark`]), and its processes are those in
//! its namespaces. So nothing that belongs to another run is touched.

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

/// The guard's message once it is ready.
const READY: &str = "ready\n";
/// A run's message that it has removed everything itself.
const DONE: &str = "done\n";

/// The guard of this process. Dropping it ends it; this process then cleans up by itself.
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

    /// Starts a guard that also lengthens the queue between the cores (`netdev_max_backlog`) for as long
    /// as this process exists. Where that is not permitted the queue stays unchanged.
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
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        ensure!(line == READY, "mcr guard did not start, it said {line:?}");
        Ok(guard)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.0.stdin.take() {
            // Fails when the guard itself was killed: then nothing reads it.
            let _ = pipe.write_all(DONE.as_bytes());
        }
        let _ = self.0.wait();
    }
}

/// Guards `process`, which has the other end of standard input: returns when that process has ended and
/// nothing of it remains.
///
/// # Errors
/// When standard input cannot be read.
pub fn stand(process: u32, with_backlog: bool) -> Result<()> {
    let _backlog = with_backlog.then(Backlog::lengthen);
    // Nothing reads it if the process has died already.
    let _ = io::stdout().write_all(READY.as_bytes());
    let mut message = String::new();
    io::stdin().read_to_string(&mut message)?;
    if message != DONE {
        clean_up(process);
    }
    Ok(())
}

/// Ends the processes in the namespaces that `process` made, and removes all that it made.
pub(crate) fn clean_up(process: u32) {
    let namespaces = sys::netns::made_by(mark::PREFIX, process);
    // Repeatedly: a daemon restarts its workers as long as it runs.
    let _ = wait::until("its processes have ended", || {
        let remaining = sys::netns::processes_in(&namespaces);
        for process in &remaining {
            let _ = kill(Pid::from_raw(*process), Signal::SIGKILL);
        }
        remaining.is_empty()
    });
    for name in &namespaces {
        sys::netns::remove(name);
    }
    let instances = mark::instances_of(process);
    remove_files(Path::new(PINS), &instances);
    remove_files(Path::new(STATE), &instances);
    for directory in [env::temp_dir().as_path(), Path::new(mark::MEMORY)] {
        remove_files(directory, &mark::directories_of(process));
    }
}

/// Removes every entry whose name begins with `mark`, recursively.
fn remove_files(directory: &Path, mark: &str) {
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
