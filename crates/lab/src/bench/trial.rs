//! One trial: a fresh bed, a fresh relay, an offered load, and everything counted on the way.

mod receiver;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::bed::{Bed, BedKind, GENERATOR_CORE};
use super::hops::Hops;
use super::plan::Plan;
use super::relay::{Relay, Running, Tools};
use super::results::{Cost, Drops, RelayCount, Trial};
use super::sink::{After, SinkCounters};
use super::usage;
use crate::binary;
use crate::link;
use crate::process::Process;
use crate::socket::{Receiver, Sender};
use crate::wait;

/// Arrivals have ended when none came for so long.
const QUIET: Duration = Duration::from_millis(200);
/// The first round goes out in bursts of so many streams, with a pause between: rings are short.
const BURST: u16 = 50;
const PAUSE: Duration = Duration::from_millis(1);
/// How long the relay gets to relay its first datagram of every stream.
const START: Duration = Duration::from_secs(60);

/// What is offered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Datagrams per second of each stream; `None` for as fast as the generator can.
    pub rate_pps: Option<f64>,
    /// Datagrams of each stream; without it the trial lasts `seconds`.
    pub count: Option<u64>,
    /// Seconds to send.
    pub seconds: f64,
    /// Bytes of UDP payload.
    pub size: usize,
    /// Streams that get it, the first ones; at most as many as the plan has.
    pub streams: u16,
}

/// What is looked at beside the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Nothing: datagrams are dropped as soon as they are counted.
    Count,
    /// Sequence numbers, latency and skew, by `mcr receive` at the first sink.
    Receive,
}

/// A trial to run.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    /// The relay.
    pub relay: &'a Relay,
    /// The bed.
    pub bed: BedKind,
    /// Streams and copies.
    pub plan: Plan,
    /// The offered load.
    pub load: Load,
    /// What is looked at.
    pub measure: Measure,
    /// What the relay needs.
    pub tools: &'a Tools,
}

/// A bed with a relay that relays; load can be offered to it any number of times.
pub struct Stage<'a> {
    setup: &'a Setup<'a>,
    // Fields drop in this order: the relay before the bed it stands on.
    running: Running,
    counters: SinkCounters,
    _members: Vec<Receiver>,
    bed: Bed,
    configure_seconds: f64,
}

/// Runs one trial.
///
/// # Errors
/// When bed, relay or generator fail.
pub fn run(setup: &Setup<'_>) -> Result<Trial> {
    Stage::prepare(setup)?.offer(setup.load)
}

impl<'a> Stage<'a> {
    /// Makes the bed, starts the relay and waits until every stream passes.
    ///
    /// # Errors
    /// When a step fails, or a stream does not pass in time.
    pub fn prepare(setup: &'a Setup<'a>) -> Result<Self> {
        let bed = Bed::new(setup.relay.bed_for(setup.bed, setup.plan))?;
        let after = match setup.measure {
            Measure::Count => After::Drop,
            Measure::Receive => After::Accept,
        };
        let counters = SinkCounters::install(&bed, setup.load.size, after)?;
        let members = join_at_sinks(&bed, setup)?;
        let start = Instant::now();
        let running = setup.relay.start(&bed, setup.plan, setup.tools)?;
        let mut stage = Self {
            setup,
            running,
            counters,
            _members: members,
            bed,
            configure_seconds: 0.0,
        };
        match stage.wait_until_every_stream_passes() {
            // There the question is whether a relay relays at all.
            Err(_) if setup.bed == BedKind::ForeignSource => {}
            passed => passed?,
        }
        stage.configure_seconds = start.elapsed().as_secs_f64();
        Ok(stage)
    }

    /// Sends one datagram of every stream, again and again, until all copies of one round arrive.
    fn wait_until_every_stream_passes(&self) -> Result<()> {
        let plan = self.setup.plan;
        let streams = self.setup.load.streams;
        let sender = Sender::open((&self.bed.sender, "veth0"), self.bed.source.into())?;
        let payload = vec![0; self.setup.load.size];
        let wanted = self.copies() * u64::from(streams);
        let what = format!("{} relays every stream", self.setup.relay);
        let patience = match self.setup.bed {
            BedKind::ForeignSource => Duration::from_secs(5),
            _ => START,
        };
        wait::some_within(patience, &what, || {
            let before = self.counters.arrived().ok()?;
            for stream in 1..=streams {
                let to = plan.input(stream);
                sender.send(to.group.into(), to.port, &payload).ok()?;
                if stream % BURST == 0 {
                    std::thread::sleep(PAUSE);
                }
            }
            let arrived = self.arrivals_end(before, wanted).ok()? - before;
            (arrived >= wanted).then_some(())
        })
    }

    /// Copies of one datagram that reach the sinks when nothing is lost.
    fn copies(&self) -> u64 {
        let each = match self.setup.bed {
            // Every sink joins every group.
            BedKind::DualBridge { .. } | BedKind::ForeignSource => self.bed.sinks.len() as u64,
            _ => 1,
        };
        u64::from(self.setup.plan.outputs) * each
    }

    /// Offers a load and counts what becomes of it.
    ///
    /// # Errors
    /// When the generator or a counter fails.
    pub fn offer(&self, load: Load) -> Result<Trial> {
        let load_average = usage::load_average();
        let receiver = receiver::start(&self.bed, self.setup)?;
        let before = self.snapshot()?;
        let report = self.send(load)?;
        let expected = report.sent.packets * self.copies();
        let loaded = self.running.processes();
        let delivered = self.arrivals_end(before.arrived, expected)? - before.arrived;
        let after = self.snapshot()?;
        let mut trial = Trial {
            sent: report.sent.packets,
            seconds: report.seconds,
            expected,
            delivered,
            drops: after.hops.drops_since(&before.hops, self.copies()),
            cost: Cost {
                configure_seconds: self.configure_seconds,
                apply_seconds: self.running.apply().map(|time| time.as_secs_f64()),
                busy_seconds: difference(&after.busy, &before.busy),
                process_seconds: after.process_seconds - before.process_seconds,
                memory_kib: usage::memory_kib(&loaded),
                processes: loaded.len() as u32,
            },
            load_average,
            ..Trial::default()
        };
        self.reconcile(&mut trial, before.relay, after.relay);
        if let Some(receiver) = receiver {
            receiver::finish(receiver, &mut trial)?;
        }
        Ok(trial)
    }

    fn send(&self, load: Load) -> Result<SendReport> {
        let plan = self.setup.plan;
        let input = plan.input(1);
        let mut command = self
            .bed
            .sender
            .command_on(Some(GENERATOR_CORE), binary::mcr()?);
        command.arg("send");
        command.arg(format!("{}%veth0:{}", input.group, input.port));
        command.args(["--json", "--source", &self.bed.source.to_string()]);
        command.args(["--streams", &load.streams.to_string()]);
        command.args(["--size", &load.size.to_string()]);
        match load.rate_pps {
            Some(rate) => command.args(["--rate", &format!("{rate:.3}")]),
            None => command.args(["--rate", "max", "--method", "gso"]),
        };
        match load.count {
            Some(count) => command.args(["--count", &count.to_string()]),
            None => command.args(["--duration", &load.seconds.to_string()]),
        };
        let longest = match (load.count, load.rate_pps) {
            (Some(count), Some(rate)) => count as f64 / rate,
            _ => load.seconds,
        };
        let patience = Duration::from_secs_f64(longest * 2.0 + 30.0);
        let finished = Process::start(command)?.wait(patience)?;
        // Status 5 says that the kernel refused packets; the report has how many.
        ensure!(
            matches!(finished.status.code(), Some(0 | 5)),
            "mcr send: {}",
            finished.stderr
        );
        serde_json::from_str(&finished.stdout)
            .with_context(|| format!("mcr send --json: {}", finished.stdout))
    }

    /// Waits until all is there or arrivals have ended, and hands back the sinks' count.
    fn arrivals_end(&self, before: u64, wanted: u64) -> Result<u64> {
        let mut last = self.counters.arrived()?;
        let mut since = Instant::now();
        while last - before < wanted && since.elapsed() < QUIET {
            std::thread::sleep(Duration::from_millis(5));
            let now = self.counters.arrived()?;
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(last)
    }

    fn snapshot(&self) -> Result<Snapshot> {
        Ok(Snapshot {
            arrived: self.counters.arrived()?,
            hops: Hops::read(&self.bed)?,
            relay: self.running.count()?,
            process_seconds: usage::process_seconds(&self.running.processes()),
            busy: usage::busy_seconds(),
        })
    }

    /// Adds the relay's own drops, and for a relay that does not count what went in and not out.
    fn reconcile(&self, trial: &mut Trial, before: Option<RelayCount>, after: Option<RelayCount>) {
        if let (Some(before), Some(after)) = (before, after) {
            let count = RelayCount {
                received: after.received - before.received,
                sent: after.sent - before.sent,
                dropped: after.dropped - before.dropped,
                ring_full: after.ring_full - before.ring_full,
            };
            trial.relay = Some(count);
            let places = [
                ("relay, counted by its rules", count.dropped),
                ("relay, receive rings full", count.ring_full * self.copies()),
            ];
            let places = places.into_iter().filter(|(_, copies)| *copies > 0);
            trial.drops.extend(places.map(|(at, copies)| Drops {
                at: at.to_owned(),
                copies,
            }));
            return;
        }
        let unexplained = u64::try_from(trial.unexplained()).unwrap_or(0);
        if unexplained > 0 {
            trial.drops.push(Drops {
                at: "relay, not counted by it".into(),
                copies: unexplained,
            });
        }
    }
}

/// Where a bridge snoops, sinks have to join to get anything.
fn join_at_sinks(bed: &Bed, setup: &Setup<'_>) -> Result<Vec<Receiver>> {
    let mut members = Vec::new();
    if !matches!(
        bed.kind,
        BedKind::DualBridge { .. } | BedKind::ForeignSource
    ) {
        return Ok(members);
    }
    for (namespace, link) in &bed.sinks {
        for stream in setup.plan.numbers() {
            for to in setup.plan.outputs(stream) {
                let end: link::End<'_> = (namespace, link);
                members.push(Receiver::join(end, to.group.into(), to.port)?);
            }
            if setup.relay.keeps_groups() {
                let to = setup.plan.input(stream);
                members.push(Receiver::join((namespace, link), to.group.into(), to.port)?);
            }
        }
    }
    Ok(members)
}

fn difference(after: &[f64], before: &[f64]) -> Vec<f64> {
    let pairs = after.iter().zip(before);
    pairs.map(|(after, before)| after - before).collect()
}

struct Snapshot {
    arrived: u64,
    hops: Hops,
    relay: Option<RelayCount>,
    process_seconds: f64,
    busy: Vec<f64>,
}

#[derive(Deserialize)]
struct SendReport {
    sent: Volume,
    seconds: f64,
}

#[derive(Deserialize)]
struct Volume {
    packets: u64,
}
