//! Members of etcd as Debian installs it, with its default times: each a process of its own, with its
//! data in a directory that is removed with it.

#[cfg(feature = "test-support")]
mod in_tests;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::namespace::Namespace;
use crate::process::Process;
use crate::{mark, wait};

/// Where clients connect.
pub const CLIENT_PORT: u16 = 2379;
const MEMBER_PORT: u16 = 2380;
/// How long a member may take to answer.
const ANSWER: Duration = Duration::from_millis(500);
/// A cluster elects its first leader within seconds, on a busy disk within a minute.
const ELECTION: Duration = Duration::from_secs(60);

/// Lines of a member's log that show what went wrong.
const LAST_LINES: usize = 20;

/// Where a member runs, and its address there.
pub type Site = (Namespace, Ipv4Addr);

/// What is missing if etcd is not installed.
pub fn missing() -> Option<&'static str> {
    let output = Command::new("etcd").arg("--version").output();
    let is_installed = output.is_ok_and(|output| output.status.success());
    (!is_installed)
        .then_some("etcd is not installed: apt-get install etcd-server (dist/bootstrap fleet does)")
}

/// Where members keep their data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In the directory of temporary files. Each write waits for the disk.
    Disk,
    /// In memory: etcd's times are then independent of the disk.
    Memory,
}

/// A cluster. Dropping it ends its members and removes their data.
#[derive(Debug)]
pub struct Cluster {
    // Dropped before the directory that they write to.
    members: Vec<Member>,
    _directory: TempDir,
}

#[derive(Debug)]
struct Member {
    name: String,
    site: Site,
    data: PathBuf,
    cluster: String,
    process: Option<Process>,
    logs: Vec<String>,
}

impl Cluster {
    /// Starts a member at each site and waits until they have a leader.
    ///
    /// # Errors
    /// When etcd is not installed, does not start or elects no leader in time.
    pub fn start(sites: Vec<Site>, storage: Storage) -> Result<Self> {
        if let Some(missing) = missing() {
            anyhow::bail!(missing);
        }
        let directory = match storage {
            Storage::Disk => mark::directory()?,
            Storage::Memory => mark::directory_in_memory()?,
        };
        let cluster: Vec<String> = sites
            .iter()
            .enumerate()
            .map(|(index, (_, address))| format!("e{index}=http://{address}:{MEMBER_PORT}"))
            .collect();
        let members = sites.into_iter().enumerate().map(|(index, site)| Member {
            name: format!("e{index}"),
            site,
            data: directory.path().join(format!("e{index}")),
            cluster: cluster.join(","),
            process: None,
            logs: Vec::new(),
        });
        let mut cluster = Self {
            members: members.collect(),
            _directory: directory,
        };
        for member in 0..cluster.len() {
            cluster.start_member(member)?;
        }
        cluster.wait_for_leader()?;
        Ok(cluster)
    }

    /// The number of members, running or not.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// What clients connect to, as in `http://10.73.0.11:2379`.
    pub fn endpoints(&self) -> Vec<String> {
        let members = self.members.iter();
        members
            .map(|member| format!("http://{}:{CLIENT_PORT}", member.site.1))
            .collect()
    }

    /// The member that leads, if there is one and it answers.
    pub fn leader(&self) -> Option<usize> {
        self.members.iter().position(|member| {
            let leads = member.metric("etcd_server_is_leader");
            leads.is_ok_and(|value| value > 0.0)
        })
    }

    /// Waits until one of them leads, and returns its index.
    ///
    /// # Errors
    /// When none does in time; the message has what the members wrote.
    pub fn wait_for_leader(&self) -> Result<usize> {
        let leader = wait::some_within(ELECTION, "etcd has a leader", || self.leader());
        leader.with_context(|| self.log())
    }

    /// Reads a number that a member publishes, by its name in `/metrics`.
    ///
    /// # Errors
    /// When it does not answer, or has no such number.
    pub fn metric(&self, member: usize, name: &str) -> Result<f64> {
        self.member(member)?.metric(name)
    }

    /// The process ids of those that run.
    pub fn processes(&self) -> Vec<u32> {
        let running = self
            .members
            .iter()
            .filter_map(|member| member.process.as_ref());
        running.map(Process::id).collect()
    }

    /// Starts a member that does not run, with the data it had.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_member(&mut self, member: usize) -> Result<()> {
        let member = self
            .members
            .get_mut(member)
            .context("no such member of etcd")?;
        if member.process.is_none() {
            member.process = Some(Process::start(member.command())?);
        }
        Ok(())
    }

    /// The last lines of what each of them wrote.
    pub fn log(&self) -> String {
        let logs = self.members.iter().map(|member| {
            let now = member.process.as_ref().map(Process::stderr);
            let all: Vec<String> = member.logs.iter().cloned().chain(now).collect();
            let text = all.join("---\n");
            let lines: Vec<&str> = text.lines().collect();
            let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
            format!("etcd {}:\n{}\n", member.name, last.join("\n"))
        });
        logs.collect()
    }

    fn member(&self, member: usize) -> Result<&Member> {
        self.members.get(member).context("no such member of etcd")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // All at once: one by one each would wait for the others to take over.
        for member in &mut self.members {
            if let Some(process) = &mut member.process {
                let _ = process.signal(Signal::SIGKILL);
            }
        }
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

impl Member {
    fn command(&self) -> Command {
        let (namespace, address) = &self.site;
        let client = format!("http://{address}:{CLIENT_PORT}");
        let member = format!("http://{address}:{MEMBER_PORT}");
        let mut command = namespace.command("etcd");
        command
            .args(["--name", &self.name])
            .arg("--data-dir")
            .arg(&self.data);
        command.args([
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
        ]);
        command.args([
            "--listen-peer-urls",
            &member,
            "--initial-advertise-peer-urls",
            &member,
        ]);
        command.args(["--initial-cluster", &self.cluster]);
        command.args([
            "--auto-compaction-mode",
            "revision",
            "--auto-compaction-retention",
            "10000",
        ]);
        command.args(["--log-level", "warn", "--logger", "zap"]);
        command
    }

    fn metric(&self, name: &str) -> Result<f64> {
        ensure!(self.process.is_some(), "this member of etcd does not run");
        let (namespace, address) = &self.site;
        let text = namespace.run(|| get((*address, CLIENT_PORT).into(), "/metrics"))?;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
            .with_context(|| format!("etcd has no metric {name}"))?;
        Ok(value.trim().parse()?)
    }
}

/// Reads a server's response for a path, including headers.
fn get(at: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&at, ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nhost: {at}\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The release of etcd that is installed, as in `3.4.23`.
///
/// # Errors
/// When it cannot be started.
pub fn version() -> Result<String> {
    let output = Command::new("etcd")
        .arg("--version")
        .output()
        .context("etcd --version")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text
        .lines()
        .find_map(|line| line.strip_prefix("etcd Version: "));
    Ok(version.unwrap_or("unknown").to_owned())
}
