//! The process guard: starts a program, captures its output, ends it and nothing else.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::wait;

/// How long a program gets to end after SIGTERM before SIGKILL follows.
const GRACE: Duration = Duration::from_secs(5);

/// How long a receiver may take to join where others keep the machine busy.
const JOINING: Duration = Duration::from_secs(30);

/// A running program. Dropping it sends SIGTERM and, where that does not help, SIGKILL.
#[derive(Debug)]
pub struct Process {
    what: String,
    child: Child,
    // Unnamed files: they vanish with the last process that has them open.
    stdout: File,
    stderr: File,
}

/// The result of a program.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Its exit status.
    pub status: ExitStatus,
    /// All it wrote to standard output.
    pub stdout: String,
    /// All it wrote to standard error.
    pub stderr: String,
}

impl Process {
    /// Starts a command in a process group of its own, so that Ctrl-C reaches the lab alone, with its
    /// output captured in files.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(mut command: Command) -> Result<Self> {
        let what = describe(&command);
        let stdout = tempfile::tempfile()?;
        let stderr = tempfile::tempfile()?;
        let child = command
            .stdin(Stdio::null())
            .stdout(stdout.try_clone()?)
            .stderr(stderr.try_clone()?)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {what}"))?;
        Ok(Self {
            what,
            child,
            stdout,
            stderr,
        })
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it wrote to standard output so far.
    pub fn stdout(&self) -> String {
        read(&self.stdout)
    }

    /// What it wrote to standard error so far.
    pub fn stderr(&self) -> String {
        read(&self.stderr)
    }

    /// Returns whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a signal, if it still runs. Waits after SIGSTOP until all its threads have stopped, which
    /// `kill` alone does not.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.is_running() {
            // The child is not reaped yet, so its id cannot belong to anybody else.
            let id = Pid::from_raw(i32::try_from(self.id())?);
            kill(id, signal)?;
            if signal == Signal::SIGSTOP {
                let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
                waitid(Id::Pid(id), flags)?;
            }
        }
        Ok(())
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// When it still runs after `patience`; the message has what it wrote.
    pub fn wait(mut self, patience: Duration) -> Result<Finished> {
        match self.wait_status(patience) {
            Some(status) => Ok(self.finished(status)),
            None => bail!(
                "{} still runs after {} s; it wrote: {}{}",
                self.what,
                patience.as_secs_f64(),
                self.stdout(),
                self.stderr()
            ),
        }
    }

    /// Sends `signal`, waits until it ends, kills it if it does not.
    ///
    /// # Errors
    /// When it had to be killed, or could not be.
    pub fn stop(mut self, signal: Signal) -> Result<Finished> {
        self.signal(signal)?;
        if let Some(status) = self.wait_status(GRACE) {
            return Ok(self.finished(status));
        }
        self.child.kill()?;
        self.child.wait()?;
        bail!(
            "{} did not end within {} s of {signal}; it wrote: {}{}",
            self.what,
            GRACE.as_secs(),
            self.stdout(),
            self.stderr()
        )
    }

    fn wait_status(&mut self, patience: Duration) -> Option<ExitStatus> {
        let child = &mut self.child;
        let exit_status = || child.try_wait().ok().flatten();
        wait::some_within(patience, "the process ends", exit_status).ok()
    }

    fn finished(&self, status: ExitStatus) -> Finished {
        Finished {
            status,
            stdout: self.stdout(),
            stderr: self.stderr(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.signal(Signal::SIGTERM);
        if self.wait_status(GRACE).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Runs a command to its end.
///
/// # Errors
/// When it cannot be started or still runs after `patience`.
pub fn run(command: Command, patience: Duration) -> Result<Finished> {
    Process::start(command)?.wait(patience)
}

impl Finished {
    /// Returns standard output if the program ended with status 0.
    ///
    /// # Errors
    /// When it did not; the message has what it wrote.
    pub fn success(self) -> Result<String> {
        if !self.status.success() {
            bail!("{}: {}{}", self.status, self.stdout, self.stderr);
        }
        Ok(self.stdout)
    }
}

fn describe(command: &Command) -> String {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect();
    words.join(" ")
}

/// Reads a file from its start, without moving its offset, which the program shares and writes at.
fn read(file: &File) -> String {
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    let mut bytes = vec![0; length as usize];
    if file.read_exact_at(&mut bytes, 0).is_err() {
        return String::new();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Starts `mcr receive` and returns once it has joined everything.
///
/// # Errors
/// When it does not start, or not in time.
pub fn start_receiver(command: Command) -> Result<Process> {
    let receiver = Process::start(command)?;
    let joined = || receiver.stderr().contains("receiving on");
    wait::until_within(JOINING, "mcr receive has joined", joined)
        .with_context(|| receiver.stderr())?;
    Ok(receiver)
}
