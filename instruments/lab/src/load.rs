//! A steady load beside faults: `mcr send`, paced packet by packet, and at the sink a BPF program
//! that checks sequence numbers and has no buffer to overflow. The counters of every link on the path
//! are read before and after, so that the bed's losses are not blamed on the relay.

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use traffic::report::{ReceiveReport, SendReport};

use crate::link::{self, End};
use crate::namespace::Namespace;
use crate::process::{Process, start_receiver};
use crate::{binary, wait};

/// How long a step may take where others keep the machine busy.
const PATIENCE: Duration = Duration::from_secs(30);
/// Silence after which arrivals count as complete: once as much arrived as was sent, and where less did,
/// because a relay may wait for a processor that long.
const QUIET: Duration = Duration::from_millis(200);
const LOST: Duration = Duration::from_secs(2);

/// What is sent. Stream N (from 0) goes from group and port `input` + N to `output` + N.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Streams.
    pub streams: u8,
    /// Packets a second of each.
    pub rate: u32,
    /// Bytes of UDP payload.
    pub size: u16,
    /// First group and port that is sent to.
    pub input: (Ipv4Addr, u16),
    /// First group and port that arrives at the sink.
    pub output: (Ipv4Addr, u16),
    /// Packets of a stream that leave together: with one by one the sender spins on its core.
    pub burst: u8,
    /// Processes that send, each its share of the streams; one sends from one core.
    pub generators: u8,
}

/// A running load.
#[derive(Debug)]
pub struct Load {
    plan: Plan,
    generators: Vec<Process>,
    counter: Process,
    links: Vec<(Namespace, String)>,
    dropped: u64,
    /// Packets that the sink's link had received before.
    arrived: u64,
    sink: (Namespace, String),
}

/// The outcome of a load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Packets sent.
    pub sent: u64,
    /// Packets that arrived, duplicates left out.
    pub received: u64,
    /// Packets that arrived twice.
    pub duplicated: u64,
    /// Packets that arrived after their successor.
    pub reordered: u64,
    /// Packets that links of the bed or the kernel's queues dropped and counted.
    pub bed_dropped: u64,
    /// For each stream, the packets that arrived.
    pub streams: Vec<u64>,
}

impl Plan {
    /// Streams from 239.1.1.1 port 5001 on, relayed to 239.10.1.1 port 6001 on.
    pub const fn new(streams: u8, rate: u32, size: u16) -> Self {
        Self {
            streams,
            rate,
            size,
            input: (Ipv4Addr::new(239, 1, 1, 1), 5001),
            output: (Ipv4Addr::new(239, 10, 1, 1), 6001),
            burst: 1,
            generators: 1,
        }
    }

    /// A configuration with one rule per stream, `steady1` and so on, from veth1 to veth2.
    pub fn config(&self) -> String {
        let mut text = "version = 1\n".to_owned();
        for number in 0..self.streams {
            let [input, output] = [self.input, self.output].map(|first| nth(first, number));
            text += &format!(
                "[[rule]]\nname = \"steady{}\"\ninput = \"{}%veth1:{}\"\n\
                 outputs = [\"{}%veth2:{}\"]\n",
                number + 1,
                input.0,
                input.1,
                output.0,
                output.1,
            );
        }
        text
    }
}

impl Load {
    /// Starts the load and returns once it runs. `links` are those on the path whose drops are the
    /// bed's: they count what they drop when they send.
    ///
    /// # Errors
    /// When generator or counter do not start.
    pub fn start(plan: Plan, from: End<'_>, to: End<'_>, links: &[End<'_>]) -> Result<Self> {
        let streams = plan.streams.to_string();
        let mut command = to.0.command(binary::mcr()?);
        command.args(["receive", "--json", "--method", "bpf", "-n", &streams]);
        command.arg(endpoint(plan.output, to.1));
        let counter = start_receiver(command)?;
        let links: Vec<_> = links
            .iter()
            .map(|(namespace, name)| ((*namespace).clone(), (*name).to_owned()))
            .collect();
        let dropped = dropped(&links)?;
        let arrived = link::statistics(to)?.received;
        let first = link::statistics(from)?.sent;
        let mut generators = Vec::new();
        let share = plan.streams.div_ceil(plan.generators.max(1));
        for start in (0..plan.streams).step_by(usize::from(share.max(1))) {
            let streams = share.min(plan.streams - start);
            generators.push(Process::start(generator(&plan, from, start, streams)?)?);
        }
        wait::until_within(PATIENCE, "the load runs", || {
            link::statistics(from).is_ok_and(|now| now.sent > first + u64::from(plan.rate) / 100)
        })
        .with_context(|| generators.iter().map(Process::stderr).collect::<String>())?;
        Ok(Self {
            plan,
            generators,
            counter,
            links,
            dropped,
            arrived,
            sink: (to.0.clone(), to.1.to_owned()),
        })
    }

    /// The plan of this load.
    pub const fn plan(&self) -> Plan {
        self.plan
    }

    /// Ends the load and returns its account once everything in flight has arrived.
    ///
    /// # Errors
    /// When generator or counter failed.
    pub fn finish(self) -> Result<Account> {
        let mut packets = 0;
        for generator in self.generators {
            let sent: SendReport = report(generator)?;
            ensure!(sent.errors == 0, "{} packets were not sent", sent.errors);
            packets += sent.sent.packets;
        }
        wait_until_quiet((&self.sink.0, &self.sink.1), self.arrived + packets)?;
        let bed_dropped = dropped(&self.links)? - self.dropped;
        let received: ReceiveReport = report(self.counter)?;
        let all = received.endpoints.iter().map(|one| &one.tally);
        Ok(Account {
            sent: packets,
            received: all.clone().map(|one| one.packets - one.duplicated).sum(),
            duplicated: all.clone().map(|one| one.duplicated).sum(),
            reordered: all.clone().map(|one| one.reordered).sum(),
            bed_dropped,
            streams: all.map(|one| one.packets).collect(),
        })
    }
}

impl Account {
    /// Packets that were sent and did not arrive.
    pub const fn missing(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }

    /// Packets that are missing and that no link of the bed counts as dropped.
    pub const fn unexplained(&self) -> u64 {
        self.missing().saturating_sub(self.bed_dropped)
    }

    /// Checks that each packet arrived exactly once, but for those that the bed dropped.
    ///
    /// # Errors
    /// When not; the message is the account.
    pub fn check_nothing_lost(&self) -> Result<()> {
        let is_whole = self.sent > 0 && self.unexplained() == 0 && self.duplicated == 0;
        ensure!(is_whole, "packets were lost or doubled: {self:?}");
        Ok(())
    }
}

/// The command that sends `streams` streams, the first of which is number `start` (from 0).
fn generator(plan: &Plan, from: End<'_>, start: u8, streams: u8) -> Result<Command> {
    let mut command = from.0.command(binary::mcr()?);
    // No segmentation offload: a burst of 32 overflows a veth's ring.
    command.args(["send", "--json", "--method", "sockets"]);
    command.args(["--streams", &streams.to_string()]);
    command.args(["--rate", &plan.rate.to_string()]);
    command.args(["--size", &plan.size.to_string()]);
    command.args(["--burst", &plan.burst.to_string()]);
    command.arg(endpoint(nth(plan.input, start), from.1));
    Ok(command)
}

fn nth((group, port): (Ipv4Addr, u16), number: u8) -> (Ipv4Addr, u16) {
    let group = Ipv4Addr::from_bits(group.to_bits() + u32::from(number));
    (group, port + u16::from(number))
}

fn endpoint((group, port): (Ipv4Addr, u16), interface: &str) -> String {
    format!("{group}%{interface}:{port}")
}

/// Waits until nothing more arrives, if `expected` packets should.
fn wait_until_quiet(end: End<'_>, expected: u64) -> Result<()> {
    let mut last = link::statistics(end)?.received;
    let mut since = Instant::now();
    wait::until_within(PATIENCE, "arrivals have ended", || {
        // A few packets of neighbour discovery never end.
        let now = link::statistics(end).map_or(last, |now| now.received);
        if now > last + 10 {
            (last, since) = (now, Instant::now());
        }
        let quiet = if now >= expected { QUIET } else { LOST };
        since.elapsed() >= wait::scaled(quiet)
    })
}

fn dropped(links: &[(Namespace, String)]) -> Result<u64> {
    let links = links.iter();
    links
        .map(|(namespace, name)| {
            let now = link::statistics((namespace, name));
            now.map(|now| now.transmit_dropped)
        })
        .sum()
}

fn report<T: for<'a> Deserialize<'a>>(process: Process) -> Result<T> {
    let finished = process.stop(Signal::SIGINT)?;
    serde_json::from_str(&finished.stdout).with_context(|| {
        format!(
            "{}: {}{}",
            finished.status, finished.stdout, finished.stderr
        )
    })
}
