//! The namespace guard of the lab: made with loopback up and quick IPv6 addresses, removed on drop.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::{keep, mark};

/// A network namespace of a test. Clones share it; dropping the last removes it, unless a failed bed
/// is to be [kept](keep).
#[derive(Clone, Debug)]
pub struct Namespace(sys::netns::Namespace);

impl Drop for Namespace {
    fn drop(&mut self) {
        if keep::is_failed_bed() {
            std::mem::forget(self.0.clone());
        }
    }
}

impl Namespace {
    /// Creates a namespace with a unique name that ends in `label`, loopback up. The first one of a
    /// process also removes the leftovers of dead processes.
    ///
    /// # Errors
    /// When a step fails, mostly for want of privilege.
    pub fn new(label: &str) -> Result<Self> {
        keep::clean_up_once();
        let name = mark::namespace(label);
        let namespace = Self(sys::netns::Namespace::create_named(&name)?);
        // Duplicate address detection would delay IPv6 addresses for a second or two.
        namespace.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
        namespace.sysctl("net/ipv6/conf/all/accept_dad", "0")?;
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// The name, as `ip netns` shows it.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Runs `work` inside on a thread of its own; sockets opened there stay inside.
    ///
    /// # Errors
    /// When the namespace cannot be entered, or `work` fails.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.0.run(work)?
    }

    /// Prepares a command that runs inside.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.0.command(program)
    }

    /// Prepares a command that runs inside, bound to these cores; unbound if there are none.
    pub fn command_on(&self, cores: &[usize], program: impl AsRef<OsStr>) -> Command {
        if cores.is_empty() {
            return self.command(program);
        }
        let list: Vec<String> = cores.iter().map(usize::to_string).collect();
        let mut command = self.command("taskset");
        command.args(["--cpu-list", &list.join(",")]).arg(program);
        command
    }

    /// Runs `ip` inside with the words of `arguments` and returns its output.
    ///
    /// # Errors
    /// When it fails; the message has its arguments and its error.
    pub fn ip(&self, arguments: &str) -> Result<String> {
        self.tool("ip", arguments)
    }

    /// Executes these commands, one on each line, with a single `ip` process, as fast as possible.
    ///
    /// # Errors
    /// When one of them fails; those before it were carried out.
    pub fn ip_batch(&self, commands: &str) -> Result<()> {
        let mut command = self.command("ip");
        command.args(["-batch", "-"]).stdin(Stdio::piped());
        let started = command.spawn();
        let mut ip = started.context("cannot start ip (is it installed?)")?;
        let mut input = ip.stdin.take().context("ip reads its commands")?;
        input.write_all(commands.as_bytes())?;
        drop(input);
        let status = ip.wait()?;
        ensure!(status.success(), "ip -batch: {status}: {commands}");
        Ok(())
    }

    /// Runs a program inside with the words of `arguments` and returns its output.
    ///
    /// # Errors
    /// When it cannot be started or fails; the message has its arguments and its error.
    pub fn tool(&self, program: &str, arguments: &str) -> Result<String> {
        let mut command = self.command(program);
        command.args(arguments.split_whitespace());
        let output = command
            .output()
            .with_context(|| format!("cannot start {program} (is it installed?)"))?;
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            bail!("{program} {arguments} in {}: {}", self.name(), error.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Lists the processes inside.
    pub fn processes(&self) -> Vec<i32> {
        sys::netns::processes_in(&[self.name().to_owned()])
    }

    /// Sets a network sysctl of the namespace, named by its path below `/proc/sys`.
    ///
    /// # Errors
    /// When the kernel does not know it or refuses the value.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        self.run(|| {
            std::fs::write(Path::new("/proc/sys").join(key), value)
                .with_context(|| format!("sysctl {key} = {value}"))
        })
    }

    /// Writes a file of the namespace's own sysfs, named by its path below `/sys`.
    ///
    /// # Errors
    /// When the file does not exist or refuses the value.
    pub fn write_sysfs(&self, file: &str, value: &str) -> Result<()> {
        self.0
            .run_with_sysfs(|sysfs| std::fs::write(sysfs.join(file), value))?
            .with_context(|| format!("/sys/{file} = {value}"))
    }

    /// Reads a file of the network kind below `/proc/net`, as the namespace sees it.
    ///
    /// # Errors
    /// When it does not exist.
    pub fn read_proc_net(&self, file: &str) -> Result<String> {
        self.run(|| {
            let path = Path::new("/proc/thread-self/net").join(file);
            std::fs::read_to_string(&path).with_context(|| path.display().to_string())
        })
    }
}
