//! The demonstration of a fleet: three members of etcd, two relays, a sender and a receiver, each in a
//! network namespace of its own. The host that forwards dies; the other takes over.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::bed::{Bed, INPUT, OUTPUT, rules};
use super::etcd;
use super::history;
use super::relay::Settings;
use super::traffic::{FRESH, Record, Traffic, now_ns};
use crate::guard::Guard;
use crate::wait;

/// Settings of the demonstration.
#[derive(Clone, Debug)]
pub struct Options {
    /// `auto`, `kernel` or `userspace`.
    pub path: String,
    /// Packets a second.
    pub rate_pps: u32,
    /// How long the stream runs before its relay dies, and after another has taken over.
    pub part: Duration,
}

/// What the receiver observed.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The relay that died.
    pub died: String,
    /// The relay that took over.
    pub successor: String,
    /// Packets sent.
    pub sent: u64,
    /// Packets that arrived, each counted once.
    pub received: u64,
    /// Packets that never arrived.
    pub lost: u64,
    /// Packets that arrived again.
    pub twice: u64,
    /// The longest silence, in milliseconds.
    pub gap_ms: f64,
    /// From the death to the first packet of the other relay, in milliseconds.
    pub takeover_ms: f64,
    /// The relays that forwarded, in order: one at a time explains every packet.
    pub forwarders: Vec<String>,
}

impl Report {
    /// Returns whether the other relay took over, once, and nothing arrived twice.
    pub fn is_success(&self) -> bool {
        self.twice == 0 && self.forwarders == [self.died.as_str(), self.successor.as_str()]
    }
}

/// How long a beat counts, as by default.
const HOLD: Duration = Duration::from_millis(1200);

/// Runs the demonstration and removes everything again. `show` receives each step; `stop` ends it early.
///
/// # Errors
/// When etcd is not installed, a step fails, no relay takes over, or `stop` was set.
pub fn run(
    options: &Options,
    stop: &AtomicBool,
    mut show: impl FnMut(&str) -> Result<()>,
) -> Result<Report> {
    if let Some(missing) = etcd::missing() {
        anyhow::bail!(missing);
    }
    let _guard = Guard::start()?;
    let mut step = |text: &str| {
        ensure!(!stop.load(Ordering::Relaxed), "interrupted");
        show(text)
    };
    let mut bed = set_up(options, &mut step)?;
    let traffic = bed.start_traffic(options.rate_pps)?;
    rest(options.part, stop)?;
    let holder = traffic
        .forwarder(Duration::from_secs(1))
        .context("nothing is relayed")?;
    let died = bed.relay_at(holder)?;
    step(&format!(
        "{} packets a second through relay {}; now its host dies",
        options.rate_pps,
        bed.relays[died].name()
    ))?;
    let at_ns = now_ns();
    bed.relays[died].die()?;
    let successor_output = successor(&traffic, holder).with_context(|| bed.log())?;
    let successor = bed.relay_at(successor_output)?;
    step(&format!(
        "relay {} has taken over",
        bed.relays[successor].name()
    ))?;
    rest(options.part, stop)?;
    let record = traffic.finish()?;
    report(&bed, &record, (died, successor), at_ns)
}

fn set_up(options: &Options, step: &mut impl FnMut(&str) -> Result<()>) -> Result<Bed> {
    let mut bed = Bed::without_relays()?;
    let leader = bed.etcd.wait_for_leader()?;
    step(&format!(
        "etcd {}: three members on a network of their own, member {leader} leads",
        etcd::version()?
    ))?;
    let settings = Settings {
        path: options.path.clone(),
        on_isolation: "peers".to_owned(),
        hold: HOLD,
    };
    for number in 1..=2 {
        bed.add_relay(number, &settings)?;
    }
    step(
        "relays a and b: the same network on either side, each with a daemon that knows the fleet",
    )?;
    bed.relays[0].apply(&rules())?;
    bed.wait_until_joined(2)?;
    step(&format!(
        "mcr fleet apply: {}%red:{} to {}%out:{}; both relays have joined, one forwards",
        INPUT.0, INPUT.1, OUTPUT.0, OUTPUT.1
    ))?;
    Ok(bed)
}

/// Waits until another relay forwards, and returns its address.
fn successor(traffic: &Traffic, holder: Ipv4Addr) -> Result<Ipv4Addr> {
    wait::some_within(wait::PATIENCE, "another relay forwards", || {
        traffic.forwarder(FRESH).filter(|relay| *relay != holder)
    })
}

fn rest(time: Duration, stop: &AtomicBool) -> Result<()> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        ensure!(!stop.load(Ordering::Relaxed), "interrupted");
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn report(
    bed: &Bed,
    record: &Record,
    (died, successor): (usize, usize),
    at_ns: u64,
) -> Result<Report> {
    let packets = &record.packets;
    let holder = bed.relays[died].output();
    let first = history::first_of_another(packets, holder, at_ns)
        .context("no packet of the other relay")?;
    let end_ns = packets.last().map_or(at_ns, |packet| packet.arrived_ns);
    let name = |relay: Ipv4Addr| Ok(bed.relays[bed.relay_at(relay)?].name().to_owned());
    let tenures = history::tenures(packets);
    let (lost, twice) = (history::lost(packets, record.sent), history::twice(packets));
    Ok(Report {
        died: bed.relays[died].name().to_owned(),
        successor: bed.relays[successor].name().to_owned(),
        sent: record.sent,
        received: packets.len() as u64 - twice,
        lost,
        twice,
        gap_ms: history::longest_silence_ns(packets, at_ns - 50_000_000, end_ns) as f64 / 1e6,
        takeover_ms: (first - at_ns) as f64 / 1e6,
        forwarders: tenures
            .iter()
            .map(|tenure| name(tenure.relay))
            .collect::<Result<_>>()?,
    })
}
