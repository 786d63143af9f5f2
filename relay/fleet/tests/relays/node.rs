//! Relays with directories of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use config::{FleetSettings, OnIsolation};
use fleet::relay::{Config, Relay};
use rules::document::RuleDocument;
use rules::ruleset::Policy;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::cluster::{Cluster, address};
use crate::recorder::Recorder;

/// Wide: the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

/// A relay and its host.
pub(crate) struct Node {
    pub(crate) host: Arc<Recorder>,
    relay: Option<Relay>,
    config: Config,
    _directory: TempDir,
}

impl Node {
    /// A relay that is not started yet.
    pub(crate) fn prepare(name: &str, endpoints: Vec<String>, policy: OnIsolation) -> Self {
        let directory = TempDir::new().unwrap();
        let interfaces = [("red", "eth0"), ("out", "eth1")]
            .map(|(role, name)| (role.to_owned(), name.to_owned()));
        let settings = FleetSettings {
            name: "plant".to_owned(),
            endpoints,
            relay: Some(name.to_owned()),
            interfaces: BTreeMap::from(interfaces),
            on_isolation: Some(policy),
            hold: None,
            input_silence: None,
            output_down: None,
            weight: None,
            peer: Some(free_port()),
            tls: None,
            user: None,
            password_file: None,
        };
        let config = Config {
            settings,
            relay: name.to_owned(),
            version: "1".to_owned(),
            permitted: Policy::default(),
            run: directory.path().join("run"),
            cache: directory.path().join("cache"),
            gates: BTreeMap::new(),
        };
        Self {
            host: Arc::default(),
            relay: None,
            config,
            _directory: directory,
        }
    }

    pub(crate) async fn start(name: &str, cluster: &Cluster) -> Self {
        Self::start_with(name, cluster, OnIsolation::Peers).await
    }

    pub(crate) async fn start_with(name: &str, cluster: &Cluster, policy: OnIsolation) -> Self {
        let endpoints = cluster.members.iter().map(|member| member.endpoint.clone());
        let mut node = Self::prepare(name, endpoints.collect(), policy);
        node.run().await;
        node
    }

    /// Starts it with the current gates of its host. The former process may still have the port.
    pub(crate) async fn run(&mut self) {
        self.config.gates = self.host.gates();
        let until = Instant::now() + PATIENCE;
        self.relay = loop {
            match Relay::start(self.config.clone(), self.host.clone()) {
                Ok(relay) => break Some(relay),
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            sleep(Duration::from_millis(10)).await;
        };
    }

    /// Tries to start it a second time.
    pub(crate) fn start_again(&self) -> Result<Relay, fleet::error::Error> {
        Relay::start(self.config.clone(), self.host.clone())
    }

    /// Ends it as a crash would: nothing is handed over, gates stay as they are.
    pub(crate) fn crash(&mut self) {
        self.relay = None;
    }

    /// Its configuration, which takes effect at its next start.
    pub(crate) fn settings(&mut self) -> &mut FleetSettings {
        &mut self.config.settings
    }

    /// Sets its policy from its next start on.
    pub(crate) fn set_policy(&mut self, policy: OnIsolation) {
        self.config.settings.on_isolation = Some(policy);
    }

    pub(crate) fn relay(&self) -> &Relay {
        self.relay.as_ref().unwrap()
    }

    pub(crate) fn session(&self) -> u64 {
        self.relay().status().member.session
    }

    /// Its directory of running state.
    pub(crate) fn directory(&self) -> &Path {
        &self.config.run
    }

    pub(crate) async fn joined(&self) {
        eventually("a session", || self.session() != 0).await;
    }
}

fn free_port() -> SocketAddr {
    let address: IpAddr = address().parse().unwrap();
    UdpSocket::bind((address, 0)).unwrap().local_addr().unwrap()
}

/// Waits until the condition holds.
pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "not in time: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Rules `r0` and so on, each a share of its own.
pub(crate) fn rules(count: usize) -> Vec<RuleDocument> {
    let rule = |number: usize| RuleDocument {
        name: format!("r{number}"),
        inputs: vec![format!(
            "239.1.{}.{}%red:5000",
            number / 250,
            number % 250 + 1
        )],
        outputs: vec![
            format!("239.2.{}.{}%out:6000", number / 250, number % 250 + 1)
                .as_str()
                .into(),
        ],
        ..RuleDocument::default()
    };
    (0..count).map(rule).collect()
}

/// The shares of those rules.
pub(crate) fn shares(count: usize) -> BTreeSet<String> {
    (0..count).map(|number| format!("r{number}")).collect()
}

/// Whether each of `count` shares is open at exactly one of these nodes.
pub(crate) fn each_at_one(nodes: &[&Node], count: usize) -> bool {
    let open: Vec<String> = nodes.iter().flat_map(|node| node.host.open()).collect();
    let all: BTreeSet<String> = open.iter().cloned().collect();
    open.len() == count && all == shares(count)
}

/// Two relays that share `count` rules, warm: each has installed all of them.
pub(crate) async fn pair(cluster: &Cluster, policy: OnIsolation, count: usize) -> (Node, Node) {
    let a = Node::start_with("relay-a", cluster, policy).await;
    let b = Node::start_with("relay-b", cluster, policy).await;
    a.joined().await;
    b.joined().await;
    let knows = |node: &Node| node.relay().status().member.relays.len() == 2;
    eventually("both know both", || knows(&a) && knows(&b)).await;
    a.relay().apply(rules(count), None, false).await.unwrap();
    eventually("each share is open at one", || {
        each_at_one(&[&a, &b], count)
    })
    .await;
    let warm = |node: &Node| node.host.installed() == shares(count);
    eventually("both are warm", || warm(&a) && warm(&b)).await;
    (a, b)
}
