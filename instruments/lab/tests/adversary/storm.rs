//! Clients that change rules all the time, each with a model of its replies: an acknowledged change is in
//! effect, a refused one is not, and an unanswered one is either.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use api::reply::Stats;
use api::request::Transaction;
use lab::{control, wait};

use crate::faults::Random;

const CLIENTS: u64 = 3;
/// The most rules of a client.
const SLOTS: u64 = 12;
const PACE: Duration = Duration::from_millis(20);

/// The clients.
pub(super) struct Storm {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<Client>>,
    socket: PathBuf,
}

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    /// Held for writing while no client may change anything.
    gate: RwLock<()>,
    changes: AtomicU64,
}

/// The number of a rule's output; `None` where there is no rule.
type RuleState = Option<u64>;

struct Client {
    number: u64,
    socket: PathBuf,
    random: Random,
    /// The possible states of each of its rules: one, except after a change that was not answered.
    model: BTreeMap<u64, Vec<RuleState>>,
}

impl Storm {
    pub(super) fn start(socket: &Path, random: &mut Random) -> Self {
        let shared = Arc::<Shared>::default();
        let clients = (1..=CLIENTS).map(|number| {
            let client = Client {
                number,
                socket: socket.to_owned(),
                random: random.fork(),
                model: (0..SLOTS).map(|slot| (slot, vec![None])).collect(),
            };
            let shared = Arc::clone(&shared);
            thread::spawn(move || client.run(&shared))
        });
        Self {
            clients: clients.collect(),
            shared,
            socket: socket.to_owned(),
        }
    }

    /// Runs `work` while no client changes anything.
    pub(super) fn pause(&self, work: impl FnOnce()) {
        let _gate = self.shared.gate.write().unwrap();
        work();
    }

    /// Ends the clients, compares their models with the running rules, and returns how many changes were
    /// acknowledged.
    pub(super) fn finish(&mut self) -> u64 {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let clients: Vec<Client> = self
            .clients
            .drain(..)
            .map(|client| client.join().unwrap())
            .collect();
        let mut running = wait::some_within(wait::PATIENCE, "the rules are told", || {
            rules(&self.socket).ok()
        })
        .unwrap();
        for client in &clients {
            for (slot, possible) in &client.model {
                let actual = running.remove(&client.name(*slot));
                assert!(
                    possible.contains(&actual),
                    "rule {} is {actual:?}, and was told to be {possible:?}",
                    client.name(*slot)
                );
            }
        }
        assert!(running.is_empty(), "nobody added {running:?}");
        self.shared.changes.load(Ordering::Relaxed)
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
    }
}

impl Client {
    fn run(mut self, shared: &Shared) -> Self {
        while !shared.is_over.load(Ordering::Relaxed) {
            {
                let _gate = shared.gate.read().unwrap();
                if self.change() {
                    shared.changes.fetch_add(1, Ordering::Relaxed);
                }
            }
            thread::sleep(PACE);
        }
        self
    }

    /// Changes one rule, and returns whether that was acknowledged.
    fn change(&mut self) -> bool {
        let slot = self.random.below(SLOTS);
        let Some(old) = self.state(slot) else {
            return false;
        };
        // A third is removed, the others are added or replaced.
        let new = (old.is_none() || self.random.below(3) > 0).then(|| self.random.below(200));
        let change = Transaction {
            remove: old.map(|_| self.name(slot)).into_iter().collect(),
            add: new
                .map(|output| self.rule(slot, output))
                .into_iter()
                .collect(),
            ..Transaction::default()
        };
        let answer = control::transaction(&self.socket, &change);
        let possible = match &answer {
            Ok(()) => vec![new],
            Err(error) if is_refusal(&error.to_string()) => vec![old],
            // No answer, or not a complete one: it may be in effect.
            Err(_) => vec![old, new],
        };
        self.model.insert(slot, possible);
        answer.is_ok()
    }

    /// A rule's state, requested from the daemon if ambiguous; `None` while the daemon does not answer.
    fn state(&mut self, slot: u64) -> Option<RuleState> {
        let possible = &self.model[&slot];
        if let [only] = possible[..] {
            return Some(only);
        }
        let actual = rules(&self.socket).ok()?.remove(&self.name(slot));
        assert!(
            possible.contains(&actual),
            "rule {} is {actual:?}, and was told to be one of {possible:?}",
            self.name(slot)
        );
        self.model.insert(slot, vec![actual]);
        Some(actual)
    }

    fn name(&self, slot: u64) -> String {
        format!("client{}-{slot}", self.number)
    }

    fn rule(&self, slot: u64, output: u64) -> rules::document::RuleDocument {
        let text = format!(
            r#"{{"name":"{}","input":"239.100.{}.{slot}%veth1:5001",
                "outputs":["239.200.{}.{output}%spare0:6001"]}}"#,
            self.name(slot),
            self.number,
            self.number,
        );
        serde_json::from_str(&text).unwrap()
    }
}

/// Returns whether the answer means that nothing was changed; the daemon's own timeout (408) does not.
fn is_refusal(answer: &str) -> bool {
    answer.contains("HTTP/1.0 ") && !answer.contains("HTTP/1.0 408")
}

/// The clients' running rules, each with the last octet of its output.
fn rules(socket: &Path) -> Result<BTreeMap<String, u64>> {
    let stats: Stats = serde_json::from_str(&control::read(socket, "/v1/stats")?)?;
    let rules = stats.rules.into_iter();
    rules
        .filter(|rule| rule.name.starts_with("client"))
        .map(|rule| {
            let to = &rule.outputs[0].to;
            let octet = to.split(['.', '%']).nth(3);
            let number = octet.and_then(|octet| octet.parse().ok());
            Ok((rule.name, number.with_context(|| to.clone())?))
        })
        .collect()
}
