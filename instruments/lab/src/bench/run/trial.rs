//! One trial: a bed with a relay, an offered load, and all counters on the path.

mod receiver;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use traffic::driver::Sink;
use traffic::report::SendReport;
use traffic::trial::{Volume, arrivals};

use super::bed::{Bed, BedKind, GENERATOR_CORE};
use super::driver;
use super::hops::{Hops, Relayed};
use super::plan::Plan;
use super::relay::{Relay, Running, Tools};
use super::sink::{After, Arrived, SinkCounters};
use super::usage;
use crate::bench::results::{Cost, Drops, RelayCount, Trial};

pub use super::shape::{Load, Measure, Shape};

use crate::binary;
use crate::link;
use crate::process::Process;
use crate::socket::{Receiver, Sender};
use crate::wait;

/// Longest wait for arrivals.
const ARRIVALS: Duration = Duration::from_secs(60);
/// The first round is sent in bursts of this many streams, with a pause between: rings are short.
const BURST: u16 = 50;
const PAUSE: Duration = Duration::from_millis(1);
/// Time limit for the first datagram of every stream to be relayed.
const START: Duration = Duration::from_secs(60);
/// Time limit with a foreign source, where a relay may not relay at all.
const START_FOREIGN: Duration = Duration::from_secs(3);
/// Payload bytes of the datagrams that test whether a stream passes.
const PROBE_SIZE: usize = 64;

/// A bed with a working relay; load can be offered to it any number of times.
#[derive(Debug)]
pub struct Stage {
    relay: Relay,
    shape: Shape,
    // Fields drop in this order: the relay before its bed.
    running: Running,
    counters: SinkCounters,
    _members: Vec<Receiver>,
    bed: Bed,
    processes: usize,
    configured: Option<Duration>,
}

impl Stage {
    /// Makes the bed, starts the relay and waits until every stream passes.
    ///
    /// # Errors
    /// When a step fails, or a stream does not pass in time.
    pub fn prepare(relay: &Relay, shape: Shape, tools: &Tools) -> Result<Self> {
        let bed = Bed::new(relay.bed_for(shape.bed, shape.plan))?;
        let after = match shape.measure {
            Measure::Count => After::Drop,
            Measure::Receive => After::Accept,
        };
        let counters = SinkCounters::install(&bed, relay, after)?;
        let members = join_at_sinks(&bed, relay, shape.plan)?;
        let start = Instant::now();
        let running = relay.start(&bed, shape.plan, tools)?;
        let mut stage = Self {
            relay: relay.clone(),
            shape,
            running,
            counters,
            _members: members,
            bed,
            processes: 0,
            configured: None,
        };
        match stage.wait_until_every_stream_passes() {
            Err(_) if shape.bed == BedKind::ForeignSource => {}
            passed => passed?,
        }
        stage.configured = Some(start.elapsed());
        stage.processes = stage.running.processes().len();
        Ok(stage)
    }

    /// The relay.
    pub const fn relay(&self) -> &Relay {
        &self.relay
    }

    /// Returns whether no load was counted here yet.
    pub const fn is_cold(&self) -> bool {
        self.configured.is_some()
    }

    /// Returns whether all processes of the relay still run.
    pub fn is_whole(&self) -> bool {
        self.running.processes().len() >= self.processes
    }

    /// Sends one datagram of every stream repeatedly, until all copies of one round arrive.
    fn wait_until_every_stream_passes(&self) -> Result<()> {
        let (plan, streams) = (self.shape.plan, self.shape.streams);
        let source = self.bed.source(plan.family);
        let sender = Sender::open((&self.bed.sender, "veth0"), source)?;
        let payload = [0; PROBE_SIZE];
        let expected = self.copies() * u64::from(streams);
        let what = format!("{} relays every stream", self.relay);
        let patience = match self.shape.bed {
            BedKind::ForeignSource => START_FOREIGN,
            _ => START,
        };
        wait::some_within(patience, &what, || {
            let before = self.counters.arrived().ok()?;
            for stream in 1..=streams {
                let to = plan.input(stream);
                sender.send(to.group, to.port, &payload).ok()?;
                if stream % BURST == 0 {
                    std::thread::sleep(PAUSE);
                }
            }
            let arrived = self.wait_for_arrivals(before, expected, PROBE_SIZE).ok()?;
            (arrived >= expected).then_some(())
        })
    }

    /// Copies of one datagram that reach the sinks when nothing is lost.
    fn copies(&self) -> u64 {
        let each = match self.shape.bed {
            // Every sink joins every group.
            BedKind::DualBridge { .. } | BedKind::ForeignSource => self.bed.sinks.len() as u64,
            _ => 1,
        };
        u64::from(self.shape.plan.outputs) * each
    }

    /// Offers a load and counts the result.
    ///
    /// # Errors
    /// When the generator or a counter fails.
    pub fn offer(&mut self, load: Load) -> Result<Trial> {
        let load_average = usage::load_average();
        let receiver = receiver::start(&self.bed, &self.relay, self.shape)?;
        self.counters.driver().inspect(|sink| sink.forget());
        let before = self.snapshot()?;
        let report = self.send(load)?;
        let expected = report.sent.packets * self.copies();
        let processes = self.running.processes();
        let delivered = self.wait_for_arrivals(before.arrived, expected, load.size)?;
        let after = self.snapshot()?;
        let configured = self.configured.take();
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        let mut trial = Trial {
            volume: Volume {
                sent: report.sent.packets,
                seconds: report.seconds,
                expected,
                delivered,
            },
            cost: Cost {
                configure_seconds: seconds(configured),
                start_seconds: seconds(configured.and(self.running.start())),
                apply_seconds: seconds(configured.and(self.running.apply())),
                busy_seconds: difference(&after.cores.busy, &before.cores.busy),
                stolen_seconds: difference(&after.cores.stolen, &before.cores.stolen),
                process_seconds: after.process_seconds - before.process_seconds,
                memory_kib: usage::memory_kib(&processes),
                processes: processes.len() as u32,
            },
            load_average,
            ..Trial::default()
        };
        let paced = self.counters.driver().filter(|_| load.rate_pps.is_some());
        trial.latency_us = paced.map(Sink::latency);
        self.reconcile(&mut trial, &before, &after);
        if let Some(receiver) = receiver {
            receiver::finish(receiver, &mut trial)?;
        }
        Ok(trial)
    }

    /// Offers a load without measuring it, so that the next one has warm caches and clocks.
    ///
    /// # Errors
    /// When the generator or a counter fails.
    pub fn warm_up(&self, load: Load) -> Result<()> {
        let before = self.counters.arrived()?;
        let report = self.send(load)?;
        let expected = report.sent.packets * self.copies();
        self.wait_for_arrivals(before, expected, load.size)
            .map(drop)
    }

    fn send(&self, load: Load) -> Result<SendReport> {
        if self.counters.driver().is_some() {
            return driver::send(&self.bed, self.shape, load);
        }
        let plan = self.shape.plan;
        let mut command = self
            .bed
            .sender
            .command_on(&[GENERATOR_CORE], binary::mcr()?);
        command.arg("send");
        command.arg(plan.input(1).on("veth0"));
        command.args(["--json", "--source"]);
        command.arg(self.bed.source(plan.family).to_string());
        command.args(["--streams", &self.shape.streams.to_string()]);
        command.args(["--size", &load.size.to_string()]);
        match load.rate_pps {
            Some(rate) => command.args(["--rate", &format!("{rate:.3}")]),
            None => command.args(["--rate", "max", "--method", "gso"]),
        };
        match load.count {
            Some(count) => command.args(["--count", &count.to_string()]),
            None => command.args(["--duration", &load.seconds.to_string()]),
        };
        let patience = Duration::from_secs_f64(load.length() * 2.0 + 30.0);
        let finished = Process::start(command)?.wait(patience)?;
        // Status 5 means that the kernel refused packets; the report has their number.
        ensure!(
            matches!(finished.status.code(), Some(0 | 5)),
            "mcr send: {}",
            finished.stderr
        );
        serde_json::from_str(&finished.stdout)
            .with_context(|| format!("mcr send --json: {}", finished.stdout))
    }

    /// Waits until all have arrived or arrivals have ended, and returns how many datagrams of `size` bytes
    /// arrived since `before`.
    fn wait_for_arrivals(&self, before: Arrived, expected: u64, size: usize) -> Result<u64> {
        arrivals(expected, ARRIVALS, || {
            let now = self.counters.arrived()?;
            Ok(now.datagrams_since(before, size))
        })
    }

    fn snapshot(&self) -> Result<Snapshot> {
        Ok(Snapshot {
            arrived: self.counters.arrived()?,
            hops: Hops::read(&self.bed)?,
            relay: self.running.count()?,
            process_seconds: usage::process_seconds(&self.running.processes()),
            cores: usage::core_seconds(),
        })
    }

    /// Adds the drops of all hops, including the relay's own; those of a relay that does not count are the
    /// remaining missing copies.
    fn reconcile(&self, trial: &mut Trial, before: &Snapshot, after: &Snapshot) {
        let count = before
            .relay
            .zip(after.relay)
            .map(|(before, after)| RelayCount {
                received: after.received - before.received,
                sent: after.sent - before.sent,
                dropped: after.dropped - before.dropped,
                ring_full: after.ring_full - before.ring_full,
            });
        let relayed = Relayed {
            copies: self.copies(),
            refused: count.map_or(0, |count| count.dropped),
        };
        trial.drops = after.hops.drops_since(&before.hops, relayed);
        if let Some(count) = count {
            trial.relay = Some(count);
            let own_drops = [
                ("relay, counted by its rules", count.dropped),
                ("relay, receive rings full", count.ring_full * self.copies()),
            ];
            let counted = own_drops.into_iter().filter(|(_, copies)| *copies > 0);
            trial.drops.extend(counted.map(|(at, copies)| Drops {
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

/// Joins all groups at the sinks of beds with snooping bridges, where they receive nothing otherwise.
fn join_at_sinks(bed: &Bed, relay: &Relay, plan: Plan) -> Result<Vec<Receiver>> {
    let mut members = Vec::new();
    if !matches!(
        bed.kind,
        BedKind::DualBridge { .. } | BedKind::ForeignSource
    ) {
        return Ok(members);
    }
    for (namespace, link) in &bed.sinks {
        for stream in plan.numbers() {
            for to in plan.outputs(stream) {
                let end: link::End<'_> = (namespace, link);
                members.push(Receiver::join(end, to.group, to.port)?);
            }
            if relay.keeps_groups() {
                let to = plan.input(stream);
                members.push(Receiver::join((namespace, link), to.group, to.port)?);
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
    arrived: Arrived,
    hops: Hops,
    relay: Option<RelayCount>,
    process_seconds: f64,
    cores: usage::CoreSeconds,
}
