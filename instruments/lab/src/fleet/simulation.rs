//! A hundred relays and their rules against a real etcd: the fleet's load on it, how soon new rules are
//! live, and how soon others take over. The relays run the daemon's own fleet code, each with its thread,
//! connections and socket; the daemon around it relays nothing.

mod host;
mod load;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::reply::FleetRelayState;
use config::{FleetSettings, Hold};
use fleet::relay::{Config, Relay};
use futures::executor::block_on;
use rules::document::RuleDocument;
use rules::ruleset::Policy;
use serde::Serialize;
use tempfile::TempDir;

use self::host::{Board, Host};
pub use self::load::Load;
use super::etcd::{Cluster, Storage};
use crate::guard::Guard;
use crate::namespace::Namespace;
use crate::{mark, wait};

/// How much is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Relays.
    pub relays: u16,
    /// Rules.
    pub rules: u32,
    /// Shares that the rules are grouped in.
    pub shares: u32,
    /// How long a beat counts.
    pub hold: Duration,
    /// How long the fleet at rest is measured.
    pub rest: Duration,
    /// Relays that are stopped at once.
    pub stopped: u16,
    /// Where etcd keeps its data.
    pub storage: Storage,
}

/// The results.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Release of etcd.
    pub etcd: String,
    /// Relays, rules and shares.
    pub relays: u16,
    /// Rules.
    pub rules: u32,
    /// Shares.
    pub shares: u32,
    /// Whether etcd's data was in memory.
    pub in_memory: bool,
    /// How long a beat counts, in milliseconds.
    pub hold_ms: u64,
    /// From the start of the first relay until it sees every one alive, in seconds.
    pub joined_s: f64,
    /// From `apply` until it was answered, in seconds.
    pub applied_s: f64,
    /// From `apply` until each share was open somewhere, in seconds.
    pub open_s: f64,
    /// From `apply` until every relay reported the new rules, in seconds.
    pub live_s: f64,
    /// The fleet at rest.
    pub rest: Load,
    /// Number of shares of the relay that holds the fewest, and of the one that holds the most.
    pub held: (usize, usize),
    /// Relays that were stopped.
    pub stopped: u16,
    /// Shares that they held.
    pub bereft: usize,
    /// From the stop of a share's relay until another opened it, in milliseconds: least, median, most.
    pub takeover_ms: Option<[f64; 3]>,
    /// Gates that opened while another relay's gate of the same share was open. None may.
    pub overlaps: u64,
    /// Changes of owner while nothing had happened.
    pub flaps: u64,
}

const PATIENCE: Duration = Duration::from_secs(180);
const FIRST_PORT: u16 = 20_000;
const ETCD: [Ipv4Addr; 3] = [
    Ipv4Addr::new(127, 0, 1, 1),
    Ipv4Addr::new(127, 0, 1, 2),
    Ipv4Addr::new(127, 0, 1, 3),
];

/// Runs the simulation; `progress` receives each step when it is done.
///
/// # Errors
/// When etcd is not installed, or the fleet does not reach an expected state in time.
pub fn run(options: &Options, progress: impl Fn(&str) + Send) -> Result<Report> {
    let _guard = Guard::start()?;
    let namespace = Namespace::new("fleet")?;
    let sites = ETCD.map(|address| (namespace.clone(), address));
    let etcd = Cluster::start(sites.to_vec(), options.storage)?;
    progress("three members of etcd run");
    // Threads that are started inside stay inside.
    namespace.run(|| {
        let fleet = Fleet::start(options, &etcd)?;
        fleet.measure(&etcd, progress).with_context(|| etcd.log())
    })
}

struct Fleet {
    options: Options,
    relays: Vec<Relay>,
    hosts: Vec<Arc<Host>>,
    board: Arc<Board>,
    started: Instant,
    _directory: TempDir,
}

impl Fleet {
    fn start(options: &Options, etcd: &Cluster) -> Result<Self> {
        let directory = mark::directory()?;
        let board = Arc::new(Board::default());
        let mut fleet = Self {
            options: *options,
            relays: Vec::new(),
            hosts: Vec::new(),
            board: Arc::clone(&board),
            started: Instant::now(),
            _directory: directory,
        };
        for number in 0..options.relays {
            let host = Arc::new(Host::new(number, Arc::clone(&board)));
            let directory = fleet._directory.path().join(name(number));
            let config = config(options, number, etcd, &directory)?;
            fleet
                .relays
                .push(Relay::start(config, Arc::clone(&host) as _)?);
            fleet.hosts.push(host);
        }
        Ok(fleet)
    }

    fn measure(&self, etcd: &Cluster, progress: impl Fn(&str)) -> Result<Report> {
        let all = usize::from(self.options.relays);
        let joined_s = self.until(self.started, "every relay is alive", |first| {
            let status = first.status();
            let relays = status.member.relays.values();
            let alive = relays.filter(|relay| relay.reported.state > FleetRelayState::Silent);
            alive.count() == all
        })?;
        progress(&format!("{all} relays are alive after {joined_s:.1} s"));
        let requested = Instant::now();
        let applied = block_on(self.relays[0].apply(self.rules(), None, false))?;
        let applied_s = requested.elapsed().as_secs_f64();
        let shares = self.options.shares as usize;
        let open_s = self.until(requested, "every share is open", |_| {
            self.board.open() == shares
        })?;
        let live_s = self.until(requested, "every relay has the rules", |first| {
            let status = first.status();
            let relays = &status.member.relays;
            let mut generations = relays.values().map(|relay| relay.reported.generation);
            relays.len() == all && generations.all(|has| has == applied.generation)
        })?;
        progress(&format!(
            "{} rules are live after {live_s:.1} s",
            self.options.rules
        ));
        let openings = self.board.openings();
        let rest = load::measure(etcd, self.options.rest)?;
        let flaps = self.board.openings() - openings;
        progress(&format!("at rest etcd uses {:.2} cores", rest.etcd_cores));
        let held = self.board.held(self.options.relays);
        let (bereft, takeover_ms) = self.stop_some()?;
        Ok(Report {
            etcd: super::etcd::version()?,
            relays: self.options.relays,
            rules: self.options.rules,
            shares: self.options.shares,
            in_memory: self.options.storage == Storage::Memory,
            hold_ms: self.options.hold.as_millis() as u64,
            joined_s,
            applied_s,
            open_s,
            live_s,
            rest,
            held,
            stopped: self.options.stopped,
            bereft,
            takeover_ms,
            overlaps: self.board.overlaps(),
            flaps,
        })
    }

    /// Waits until `holds` is true of the first relay; returns the seconds since `since`.
    fn until(
        &self,
        since: Instant,
        what: &str,
        mut holds: impl FnMut(&Relay) -> bool,
    ) -> Result<f64> {
        wait::until_within(PATIENCE, what, || holds(&self.relays[0]))?;
        Ok(since.elapsed().as_secs_f64())
    }

    fn rules(&self) -> Vec<RuleDocument> {
        (0..self.options.rules)
            .map(|number| self.rule(number))
            .collect()
    }

    fn rule(&self, number: u32) -> RuleDocument {
        let group = Ipv4Addr::from_bits(0xef01_0000 + number);
        let output = Ipv4Addr::from_bits(0xef81_0000 + number);
        RuleDocument {
            name: format!("stream-{number}"),
            inputs: vec![format!("{group}%red:5001")],
            outputs: vec![format!("{output}%out:6001").as_str().into()],
            share: Some(format!("group-{}", number % self.options.shares)),
            ..RuleDocument::default()
        }
    }

    /// Stops relays other than the first, and waits until others have their shares.
    fn stop_some(&self) -> Result<(usize, Option<[f64; 3]>)> {
        let stopped: Vec<u16> = (1..=self.options.stopped).collect();
        for number in &stopped {
            self.hosts[usize::from(*number)].stop();
        }
        let stopped_at = |number: &u16| self.hosts[usize::from(*number)].stopped_at();
        let all_stopped = || stopped.iter().all(|number| stopped_at(number).is_some());
        wait::until("the relays stand still", all_stopped)?;
        let orphaned = self.board.held_by(&stopped);
        let are_taken_over = || {
            orphaned
                .iter()
                .all(|(share, _)| self.board.holder(share, &stopped).is_some())
        };
        wait::until_within(PATIENCE, "others have their shares", are_taken_over)?;
        let mut times: Vec<f64> = Vec::new();
        for (share, holder) in &orphaned {
            let (_, at) = self.board.holder(share, &stopped).context("it was taken")?;
            let since = stopped_at(holder).context("it stands still")?;
            times.push(at.saturating_duration_since(since).as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        let spread = match times.as_slice() {
            [] => None,
            [least, ..] => Some([*least, times[times.len() / 2], times[times.len() - 1]]),
        };
        // Any error afterwards shows as an overlap.
        thread::sleep(self.options.hold * 2);
        Ok((orphaned.len(), spread))
    }
}

fn name(number: u16) -> String {
    format!("relay-{number}")
}

fn config(options: &Options, number: u16, etcd: &Cluster, directory: &Path) -> Result<Config> {
    ensure!(number < 1000, "the simulation has ports for 1000 relays");
    let interfaces =
        [("red", "eth0"), ("out", "eth1")].map(|(role, name)| (role.to_owned(), name.to_owned()));
    for part in ["run", "cache"] {
        std::fs::create_dir_all(directory.join(part))?;
    }
    Ok(Config {
        settings: FleetSettings {
            name: "simulation".to_owned(),
            endpoints: etcd.endpoints(),
            relay: Some(name(number)),
            interfaces: interfaces.into(),
            on_isolation: None,
            hold: Some(Hold(options.hold)),
            input_silence: None,
            output_down: None,
            weight: None,
            peer: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, FIRST_PORT + number))),
            tls: None,
            user: None,
            password_file: None,
        },
        relay: name(number),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        permitted: Policy::default(),
        run: directory.join("run"),
        cache: directory.join("cache"),
        gates: Default::default(),
    })
}
