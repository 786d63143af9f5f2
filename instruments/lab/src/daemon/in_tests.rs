//! Operations on a daemon for tests only.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::reply::RuleStats;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Daemon;
use crate::guard::PINS;
use crate::namespace::Namespace;
use crate::process::{Finished, Process};
use crate::{accounting, wait};

impl Daemon {
    /// Starts the daemon again as [`Daemon::start_again`] does, under another program with its arguments.
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
        self.former_namespaces.push(before);
        self.start_again()
    }

    /// Starts the daemon again and kills it `alive` later, at whatever point of its start.
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

    /// What this run logged about its takeover: a number by its name in the log, `found` for routes.
    ///
    /// # Errors
    /// When its log does not have it.
    pub fn taken_over(&self, number: &str) -> Result<usize> {
        let process = self.process.as_ref();
        let log = process
            .map(Process::stderr)
            .context("the daemon does not run")?;
        let mut lines = log.lines().filter(|line| line.contains("pinned routes"));
        let words = lines.next().unwrap_or_default().split_whitespace();
        let value = words
            .filter_map(|word| word.strip_prefix(number)?.strip_prefix('='))
            .next();
        value
            .and_then(|number| number.parse().ok())
            .with_context(|| format!("the log does not say what was found: {log}"))
    }

    /// The directory of its pins.
    pub fn pins(&self) -> PathBuf {
        Path::new(PINS).join(&self.instance)
    }

    /// The daemon's instance name.
    pub fn instance(&self) -> &str {
        &self.instance
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

    /// Waits until a rule has received this many packets, then checks the accounting law of every
    /// rule and returns this one's counters.
    ///
    /// # Errors
    /// When the packets do not arrive, more arrive, or the law is broken.
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

    /// Kills a worker with SIGKILL, once it runs, and returns its process id: a worker between two starts
    /// has the process id 0, and a signal to that goes to one's own group.
    ///
    /// # Errors
    /// When it does not run in time.
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
}
