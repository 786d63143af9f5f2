//! The same fault for the peers: their process is killed and started again at once.

use anyhow::Result;
use lab::bench::run::bed::{Bed, BedKind};
use lab::bench::run::plan;
use lab::bench::run::relay::{Relay, Tools};
use lab::load::{Load, Plan};
use lab::reliability::{Row, record};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// What socat carries with room to spare.
const RATE: u32 = 20_000;

/// Kills a relay `rounds` times and records what that costs.
pub(crate) fn killed(relay: &Relay, rounds: u32) -> Result<()> {
    let bed = Bed::new(BedKind::Chain)?;
    let (one, tools) = (
        plan::Plan {
            streams: 1,
            outputs: 1,
            family: plan::Family::V4,
        },
        Tools::default(),
    );
    let mut plan = Plan::new(1, RATE, 200);
    if relay.keeps_groups() {
        plan.output = plan.input;
    }
    let mut running = relay.start(&bed, one, &tools)?;
    let (sink, link) = &bed.sinks[0];
    let links = [(&bed.sender, "veth0"), (&bed.relays[0], "veth2")];
    let load = Load::start(plan, links[0], (sink, link), &links)?;
    for _ in 0..rounds {
        for process in running.processes() {
            let _ = kill(Pid::from_raw(i32::try_from(process)?), Signal::SIGKILL);
        }
        drop(running);
        running = relay.start(&bed, one, &tools)?;
    }
    let account = load.finish()?;
    record(Row {
        fault: "daemon killed".to_owned(),
        relay: relay.to_string(),
        rounds: rounds.into(),
        offered: account.sent,
        lost: account.unexplained(),
        note: format!("{RATE} pps of 200 bytes, plain chain, started again at once"),
        ..Row::default()
    })
}
