//! The daemon guard: `mcr run` in a namespace, with a socket, an instance and pins of its own.

mod orphans;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::reply::{RuleStats, Stats};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::guard::{PINS, STATE};
use crate::namespace::Namespace;
use crate::process::{self, Finished, Process};
use crate::{accounting, binary, control, keep, mark, wait};

/// Where daemons keep a fleet's rules and the log of changes.
const CACHE: &str = "/var/lib/mcr";

/// How a daemon is started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `--path`: `auto`, `kernel` or `userspace`; none given, none passed.
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
    #[must_use]
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
    left: Vec<Namespace>,
    // Logs of former runs, oldest first: kill and start again must not lose them.
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
            left: Vec::new(),
            logs: Vec::new(),
        };
        daemon.start_again()?;
        Ok(daemon)
    }

    /// Starts the daemon again after [`Daemon::kill`] or [`Daemon::stop`], as the same instance.
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

    /// Starts the daemon again as [`Daemon::start_again`] does, by another program and its arguments.
    ///
    /// # Errors
    /// When it ends or does not answer in time; the message has its log.
    pub fn start_again_under(&mut self, under: &[&str]) -> Result<()> {
        self.options.under = under.iter().map(ToString::to_string).collect();
        self.start_again()
    }

    /// Starts the daemon again after [`Daemon::kill`] in another namespace, as the same instance.
    ///
    /// # Errors
    /// When it ends or does not answer in time; the message has its log.
    pub fn start_again_in(&mut self, namespace: &Namespace) -> Result<()> {
        let before = std::mem::replace(&mut self.namespace, namespace.clone());
        self.left.push(before);
        self.start_again()
    }

    /// Starts the daemon again and kills it `alive` later, wherever its start has come to.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_and_kill(&mut self, alive: Duration) -> Result<()> {
        let process = self.launch()?;
        thread::sleep(alive);
        let finished = process.stop(Signal::SIGKILL)?;
        self.logs.push(finished.stderr);
        Ok(())
    }

    fn launch(&self) -> Result<Process> {
        let mut command = self.command_under(&self.options.under)?;
        command.arg("run");
        if let Some(path) = &self.options.path {
            command.args(["--path", path]);
        }
        if self.options.config.is_some() {
            command.arg("--config").arg(self.config_file());
        }
        command.args(&self.options.arguments);
        Process::start(command)
    }

    /// What this run says it found when it took over: a number by its name in the log, `found` for
    /// routes.
    ///
    /// # Errors
    /// When its log does not say.
    pub fn taken_over(&self, number: &str) -> Result<usize> {
        let log = self.process.as_ref().map(Process::stderr);
        let log = log.context("the daemon does not run")?;
        let mut lines = log.lines().filter(|line| line.contains("pinned routes"));
        let words = lines.next().unwrap_or_default().split_whitespace();
        let found = words
            .filter_map(|word| word.strip_prefix(number)?.strip_prefix('='))
            .next();
        found
            .and_then(|number| number.parse().ok())
            .with_context(|| format!("the log does not say what was found: {log}"))
    }

    /// The directory of its pins.
    #[must_use]
    pub fn pins(&self) -> PathBuf {
        Path::new(PINS).join(&self.instance)
    }

    /// The daemon's instance name.
    #[must_use]
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// The daemon's control socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("mcr.sock")
    }

    /// The daemon's configuration file; it exists if [`Options::config`] was given.
    #[must_use]
    pub fn config_file(&self) -> PathBuf {
        self.directory.path().join("mcr.toml")
    }

    /// The process id, 0 while it does not run.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.as_ref().map_or(0, Process::id)
    }

    /// What the daemon logged so far, former runs first.
    #[must_use]
    pub fn log(&self) -> String {
        let now = self.process.as_ref().map(Process::stderr);
        let all = self.logs.iter().cloned().chain(now);
        all.collect::<Vec<_>>().join("---\n")
    }

    /// Runs `mcr` with this daemon's socket and returns what became of it, whatever its status.
    ///
    /// # Errors
    /// When it cannot be started or does not end in time.
    pub fn client(&self, arguments: &[&str]) -> Result<Finished> {
        let mut command = self.command()?;
        command.args(arguments);
        process::run(command, Duration::from_secs(60))
    }

    /// Runs `mcr` like [`Daemon::client`] and insists on success.
    ///
    /// # Errors
    /// When it fails; the message has its words and its complaint.
    pub fn mcr(&self, arguments: &[&str]) -> Result<String> {
        let finished = self.client(arguments)?;
        finished
            .success()
            .with_context(|| format!("mcr {}", arguments.join(" ")))
    }

    /// Adds a rule: `mcr add INPUT OUTPUT… --name NAME`.
    ///
    /// # Errors
    /// When it is refused.
    pub fn add(&self, name: &str, input: &str, outputs: &[&str]) -> Result<()> {
        let mut arguments = vec!["add", input];
        arguments.extend(outputs);
        arguments.extend(["--name", name]);
        self.mcr(&arguments).map(drop)
    }

    /// Applies a configuration, TOML, as `mcr apply FILE` does.
    ///
    /// # Errors
    /// When it is refused.
    pub fn apply(&self, config: &str) -> Result<()> {
        let file = self.directory.path().join("apply.toml");
        fs::write(&file, config)?;
        let file = file.to_str().context("temporary directory")?;
        self.mcr(&["apply", file]).map(drop)
    }

    /// Reads all counters, as `mcr stats --json` shows them, by the API alone: who waits for something
    /// reads them often, and a program that starts each time would keep the machine busy.
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

    /// Waits until a rule is as `condition` wants it and returns its counters.
    ///
    /// # Errors
    /// When it is not so in time; the message has what it was last.
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

    /// Waits until a rule has received this many packets, then checks the accounting law of every
    /// rule and returns this one's counters.
    ///
    /// # Errors
    /// When the packets do not come, more come, or the law is broken.
    pub fn settled(&self, name: &str, packets: u64) -> Result<RuleStats> {
        let what = format!("rule {name} has received {packets} packets");
        self.wait_for(name, &what, |rule| rule.received.packets >= packets)?;
        wait::seen_within(wait::PATIENCE, "the accounting law holds", || {
            self.stats().and_then(|stats| accounting::check(&stats))
        })?;
        let rule = self.rule(name)?;
        ensure!(
            rule.received.packets == packets,
            "rule {name}: sent {packets}, received {}",
            rule.received.packets
        );
        Ok(rule)
    }

    /// Kills the daemon with SIGKILL; its pins stay.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill(&mut self) -> Result<()> {
        self.stop(Signal::SIGKILL).map(drop)
    }

    /// Kills a worker with SIGKILL, once it runs, and says which process that was: one that is between
    /// two starts has the process id 0, and to signal that is to signal one's own group.
    ///
    /// # Errors
    /// When it does not come to run in time.
    pub fn kill_worker(&self, id: u32) -> Result<u32> {
        let pid = wait::some_within(wait::PATIENCE, "the worker runs", || {
            let workers = self.stats().ok()?.workers;
            let pid = workers.iter().find(|worker| worker.id == id)?.pid;
            (pid > 0).then_some(pid)
        })?;
        kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL)?;
        Ok(pid)
    }

    /// Sends the daemon a signal that does not end it: SIGSTOP, SIGCONT, SIGHUP.
    ///
    /// # Errors
    /// When it does not run.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        let process = self.process.as_mut();
        process.context("the daemon does not run")?.signal(signal)
    }

    /// Sends a signal that ends the daemon and waits for the end.
    ///
    /// # Errors
    /// When it does not run or does not end in time.
    pub fn stop(&mut self, signal: Signal) -> Result<Finished> {
        let process = self.process.take().context("the daemon does not run")?;
        let finished = process.stop(signal)?;
        self.logs.push(finished.stderr.clone());
        Ok(finished)
    }

    fn command(&self) -> Result<Command> {
        self.command_under(&[])
    }

    fn command_under(&self, under: &[String]) -> Result<Command> {
        let words = under.iter().map(AsRef::as_ref);
        let mut words = words.chain([binary::mcr()?.as_os_str()]);
        let program = words.next().context("no program")?;
        let mut command = self.namespace.command_on(&self.options.cores, program);
        command.args(words);
        command.arg("--socket").arg(self.socket());
        command.args(["--instance", &self.instance]);
        Ok(command)
    }
}

impl Daemon {
    /// Leaves it to whoever looks into the bed.
    fn keep(&mut self, process: Process) {
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
            return self.keep(process);
        }
        if let Some(process) = self.process.take() {
            let pid = process.id();
            match process.stop(Signal::SIGTERM) {
                Ok(finished) => self.logs.push(finished.stderr),
                Err(error) => self.logs.push(format!("process {pid}: {error:#}")),
            }
        }
        for namespace in self.left.iter().chain([&self.namespace]) {
            orphans::end(namespace, &self.instance);
        }
        if thread::panicking() {
            eprintln!("log of {}:\n{}", self.instance, self.log());
        }
        let _ = fs::remove_dir_all(Path::new(PINS).join(&self.instance));
        let _ = fs::remove_dir_all(Path::new(STATE).join(&self.instance));
        let _ = fs::remove_file(Path::new(STATE).join(format!("{}.lock", self.instance)));
        let _ = fs::remove_dir_all(Path::new(CACHE).join(&self.instance));
        // If nobody else has anything there.
        let _ = fs::remove_dir(CACHE);
    }
}
