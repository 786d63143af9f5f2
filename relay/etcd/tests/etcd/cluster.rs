//! Members of etcd with directories and ports of their own, ended when the test ends.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use etcd::{Client, Config, Endpoint, RangeOptions};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

/// Wide: the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
const START: Duration = Duration::from_secs(90);

/// Ports of this process' own loopback address, two for each member.
static PORT: AtomicU16 = AtomicU16::new(21_000);

/// Skips the test with a message if etcd is not installed.
macro_rules! needs_etcd {
    () => {
        if !$crate::cluster::is_installed() {
            eprintln!("skipped: no etcd in PATH (Debian: etcd-server etcd-client)");
            return;
        }
    };
}
pub(crate) use needs_etcd;

pub(crate) fn is_installed() -> bool {
    Command::new("etcd")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_ok()
}

/// An address that only this process uses.
pub(crate) fn address() -> String {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    format!("127.{}.{b}.{}", 64 + a, c.max(1))
}

pub(crate) struct Member {
    pub(crate) endpoint: String,
    arguments: Vec<String>,
    process: Option<Child>,
}

impl Member {
    pub(crate) fn start(&mut self) {
        let process = Command::new("etcd")
            .args(&self.arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.process = Some(process);
    }

    /// Deletes its data; it must have ended.
    pub(crate) fn wipe(&self) {
        let mut arguments = self.arguments.iter().skip_while(|it| *it != "--data-dir");
        std::fs::remove_dir_all(arguments.nth(1).unwrap()).unwrap();
    }

    /// Sends a signal; after SIGSTOP all its threads stand still, which `kill` alone does not wait for.
    pub(crate) fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().unwrap();
        let id = Pid::from_raw(process.id().cast_signed());
        kill(id, signal).unwrap();
        if signal == Signal::SIGSTOP {
            let seen = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
            waitid(Id::Pid(id), seen).unwrap();
        }
    }

    pub(crate) fn end(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.end();
    }
}

pub(crate) struct Cluster {
    pub(crate) members: Vec<Member>,
    _directory: TempDir,
}

impl Cluster {
    /// Starts `count` members, over plain HTTP, with a leader.
    pub(crate) async fn start(count: usize) -> Self {
        let mut cluster = Self::prepare(count, "http", &[]);
        cluster.run().await;
        cluster
    }

    /// Members that are not started yet; `more` are arguments for each.
    pub(crate) fn prepare(count: usize, scheme: &str, more: &[String]) -> Self {
        let directory = TempDir::new().unwrap();
        let first = PORT.fetch_add(2 * u16::try_from(count).unwrap(), Ordering::Relaxed);
        let address = address();
        let port = |number: usize| first + 2 * u16::try_from(number).unwrap();
        let peer = |number: usize| format!("http://{address}:{}", port(number) + 1);
        let all: Vec<String> = (0..count).map(|n| format!("m{n}={}", peer(n))).collect();
        let members = (0..count).map(|number| {
            let endpoint = format!("{scheme}://{address}:{}", port(number));
            let data = directory.path().join(number.to_string());
            let mut arguments: Vec<String> = [
                ("--name", format!("m{number}")),
                ("--data-dir", data.display().to_string()),
                ("--listen-client-urls", endpoint.clone()),
                ("--advertise-client-urls", endpoint.clone()),
                ("--listen-peer-urls", peer(number)),
                ("--initial-advertise-peer-urls", peer(number)),
                ("--initial-cluster", all.join(",")),
                ("--log-level", "error".to_owned()),
                // At the default cost a busy machine takes longer for one password than clients wait.
                ("--bcrypt-cost", "4".to_owned()),
            ]
            .into_iter()
            .flat_map(|(name, value)| [name.to_owned(), value])
            .collect();
            arguments.extend_from_slice(more);
            Member {
                endpoint,
                arguments,
                process: None,
            }
        });
        Self {
            members: members.collect(),
            _directory: directory,
        }
    }

    /// Starts the members and waits until they answer.
    pub(crate) async fn run(&mut self) {
        for member in &mut self.members {
            member.start();
        }
        if self.members[0].endpoint.starts_with("http:") {
            for member in &mut self.members {
                let client = Client::new(config([member.endpoint.as_str()])).unwrap();
                // On a busy machine a member may end at its start, or never find the others.
                while timeout(PATIENCE, answers(&client)).await.is_err() {
                    member.end();
                    member.start();
                }
            }
        }
    }

    pub(crate) fn config(&self) -> Config {
        config(self.members.iter().map(|member| member.endpoint.as_str()))
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.config()).unwrap()
    }

    /// The number of the leader.
    pub(crate) async fn leader(&self) -> usize {
        let client = self.client();
        let until = Instant::now() + START;
        loop {
            for (number, endpoint) in client.endpoints().iter().enumerate() {
                if let Ok(status) = client.status(endpoint, PATIENCE).await
                    && status.leader_id == status.member_id
                {
                    return number;
                }
            }
            assert!(Instant::now() < until, "no member leads");
            sleep(Duration::from_millis(50)).await;
        }
    }
}

pub(crate) fn config<'a>(endpoints: impl IntoIterator<Item = &'a str>) -> Config {
    let parse = |text: &str| text.parse::<Endpoint>().unwrap();
    Config::new(endpoints.into_iter().map(parse).collect())
}

/// Waits until reads are answered, or refused by etcd itself.
pub(crate) async fn answers(client: &Client) {
    let until = Instant::now() + START;
    loop {
        let key = etcd::KeyRange::key("any");
        match client.range(key, RangeOptions::default(), PATIENCE).await {
            Ok(_) | Err(etcd::Error::Refused { .. }) => return,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}
