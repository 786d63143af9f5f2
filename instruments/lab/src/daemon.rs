//! The daemon guard: `mcr run` in a namespace, with a socket, an instance and pins of its own.

#[cfg(feature = "test-support")]
mod in_tests;
mod orphans;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::reply::{RuleStats, Stats};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::guard::{PINS, STATE};
use crate::namespace::Namespace;
use crate::process::{self, Finished, Process};
use crate::{binary, control, keep, mark, wait};

/// Where daemons keep a fleet's rules and the log of changes.
const CACHE: &str = "/var/lib/mcr";

/// How a daemon is started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `--path`: `auto`, `kernel` or `userspace`, or `xdp` for the kernel path at XDP where possible;
    /// `None` passes no such option.
    pub path: Option<String>,
    /// A configuration to start with, TOML.
    pub config: Option<String>,
    /// Further arguments of `mcr run`.
    pub arguments: Vec<String>,
    /// A program that starts `mcr run`, and its arguments: `setpriv`, `unshare`.
    pub under: Vec<String>,
    /// Cores that the daemon and its workers are bound to; empty for all.
    pub cores: Vec<usize>,
}

impl Options {
    /// Starts with an empty rule set on this path.
    pub fn path(path: &str) -> Self {
        Self {
            path: Some(path.to_owned()),
            ..Self::default()
        }
    }
}

/// A running daemon. Dropping it stops it and removes its pins and state.
#[derive(Debug)]
pub struct Daemon {
    namespace: Namespace,
    instance: String,
    directory: TempDir,
    options: Options,
    process: Option<Process>,
    // Where it ran before.
    former_namespaces: Vec<Namespace>,
    // Logs of former runs, oldest first: a restart must not lose them.
    logs: Vec<String>,
}

impl Daemon {
    /// Starts a daemon and waits until it answers.
    ///
    /// # Errors
    /// When it ends or does not answer in time; the message has its log.
    pub fn start(namespace: &Namespace, options: Options) -> Result<Self> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let directory = mark::directory()?;
        if let Some(config) = &options.config {
            fs::write(directory.path().join("mcr.toml"), config)?;
        }
        let mut daemon = Self {
            namespace: namespace.clone(),
            instance: format!("{}{number}", mark::instances_of(std::process::id())),
            directory,
            options,
            process: None,
            former_namespaces: Vec::new(),
            logs: Vec::new(),
        };
        daemon.start_again()?;
        Ok(daemon)
    }

    /// Starts the daemon again after `kill` or `stop`, as the same instance.
    ///
    /// # Errors
    /// When it ends or does not answer in time; the message has its log.
    pub fn start_again(&mut self) -> Result<()> {
        let mut process = self.launch()?;
        let answered = wait::some_within(wait::PATIENCE, "the daemon answers", || {
            if !process.is_running() {
                return Some(false);
            }
            self.stats().is_ok().then_some(true)
        });
        let log = process.stderr();
        ensure!(
            answered.with_context(|| log.clone())?,
            "mcr run ended: {log}"
        );
        self.process = Some(process);
        Ok(())
    }

    /// Starts with another path from the next time on.
    pub fn choose_path(&mut self, path: &str) {
        self.options.path = Some(path.to_owned());
    }

    fn launch(&self) -> Result<Process> {
        let mut command = self.command_under(&self.options.under)?;
        command.arg("run");
        if let Some(path) = &self.options.path {
            match path.as_str() {
                "xdp" => command.args(["--path", "kernel", "--xdp", "on"]),
                path => command.args(["--path", path]),
            };
        }
        if self.options.config.is_some() {
            command.arg("--config").arg(self.config_file());
        }
        command.args(&self.options.arguments);
        Process::start(command)
    }

    /// The daemon's control socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("mcr.sock")
    }

    /// The daemon's configuration file; it exists if [`Options::config`] was given.
    pub fn config_file(&self) -> PathBuf {
        self.directory.path().join("mcr.toml")
    }

    /// The process id, 0 while it does not run.
    pub fn id(&self) -> u32 {
        self.process.as_ref().map_or(0, Process::id)
    }

    /// What the daemon logged so far, former runs first.
    pub fn log(&self) -> String {
        let now = self.process.as_ref().map(Process::stderr);
        let all = self.logs.iter().cloned().chain(now);
        all.collect::<Vec<_>>().join("---\n")
    }

    /// Runs `mcr` with this daemon's socket and returns its result, whatever its status.
    ///
    /// # Errors
    /// When it cannot be started or does not end in time.
    pub fn client(&self, arguments: &[&str]) -> Result<Finished> {
        let mut command = self.command()?;
        command.args(arguments);
        process::run(command, Duration::from_secs(60))
    }

    /// Runs `mcr` like [`Daemon::client`] and requires success.
    ///
    /// # Errors
    /// When it fails; the message has its arguments and its error.
    pub fn mcr(&self, arguments: &[&str]) -> Result<String> {
        let finished = self.client(arguments)?;
        finished
            .success()
            .with_context(|| format!("mcr {}", arguments.join(" ")))
    }

    /// Applies a configuration, TOML, as `mcr apply FILE` does.
    ///
    /// # Errors
    /// When it is refused.
    pub fn apply(&self, config: &str) -> Result<()> {
        let path = self.directory.path().join("apply.toml");
        fs::write(&path, config)?;
        let file = path.to_str().context("temporary directory")?;
        self.mcr(&["apply", file]).map(drop)
    }

    /// Reads all counters, as `mcr stats --json` shows them, directly through the API: waits read them
    /// often, and a program that starts each time would keep the machine busy.
    ///
    /// # Errors
    /// When the daemon does not answer, or not in the documented form.
    pub fn stats(&self) -> Result<Stats> {
        let text = control::read(&self.socket(), "/v1/stats")?;
        serde_json::from_str(&text).with_context(|| format!("GET /v1/stats: {text}"))
    }

    /// Reads the counters of one rule.
    ///
    /// # Errors
    /// When there is no such rule.
    pub fn rule(&self, name: &str) -> Result<RuleStats> {
        let stats = self.stats()?;
        let mut rules = stats.rules.into_iter();
        rules
            .find(|rule| rule.name == name)
            .with_context(|| format!("mcr stats has no rule {name}"))
    }

    /// Waits until a rule satisfies `condition` and returns its counters.
    ///
    /// # Errors
    /// When it does not in time; the message has its last state.
    pub fn wait_for(
        &self,
        name: &str,
        what: &str,
        mut condition: impl FnMut(&RuleStats) -> bool,
    ) -> Result<RuleStats> {
        wait::seen_within(wait::PATIENCE, what, || match self.rule(name) {
            Ok(rule) if condition(&rule) => Ok(rule),
            otherwise => Err(Box::new(otherwise)),
        })
    }

    fn command(&self) -> Result<Command> {
        self.command_under(&[])
    }

    fn command_under(&self, under: &[String]) -> Result<Command> {
        let wrapper = under.iter().map(AsRef::as_ref);
        let mut words = wrapper.chain([binary::mcr()?.as_os_str()]);
        let program = words.next().context("no program")?;
        let mut command = self.namespace.command_on(&self.options.cores, program);
        command.args(words);
        command.arg("--socket").arg(self.socket());
        command.args(["--instance", &self.instance]);
        Ok(command)
    }
}

impl Daemon {
    /// Leaves the daemon running, for inspection of the bed.
    fn leave_running(&mut self, process: Process) {
        eprintln!(
            "kept: daemon {} ({}), socket {}: nsenter --net=/run/netns/{} mcr --socket {} status",
            self.instance,
            process.id(),
            self.socket().display(),
            self.namespace.name(),
            self.socket().display()
        );
        self.directory.disable_cleanup(true);
        std::mem::forget(process);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if keep::is_failed_bed()
            && let Some(process) = self.process.take()
        {
            eprintln!("log of {}:\n{}", self.instance, process.stderr());
            return self.leave_running(process);
        }
        if let Some(process) = self.process.take() {
            let pid = process.id();
            match process.stop(Signal::SIGTERM) {
                Ok(finished) => self.logs.push(finished.stderr),
                Err(error) => self.logs.push(format!("process {pid}: {error:#}")),
            }
        }
        for namespace in self.former_namespaces.iter().chain([&self.namespace]) {
            orphans::end(namespace, &self.instance);
        }
        if thread::panicking() {
            eprintln!("log of {}:\n{}", self.instance, self.log());
        }
        let _ = fs::remove_dir_all(Path::new(PINS).join(&self.instance));
        let _ = fs::remove_dir_all(Path::new(STATE).join(&self.instance));
        let _ = fs::remove_file(Path::new(STATE).join(format!("{}.lock", self.instance)));
        let _ = fs::remove_dir_all(Path::new(CACHE).join(&self.instance));
        // Only succeeds if no other instance has files there.
        let _ = fs::remove_dir(CACHE);
    }
}
