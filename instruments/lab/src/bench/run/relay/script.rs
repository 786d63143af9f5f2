//! Any other relay, by a small program of the user.
//!
//! `PROGRAM start RULES` runs inside the relay's network namespace, starts the relay and returns
//! when it is ready; it prints the process ids of the relay, one per line. RULES is a file with one
//! line per stream: `GROUP%IFACE:PORT GROUP%IFACE:PORT…`, input first. `PROGRAM stop` ends it.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::running::Running;
use crate::bench::run::bed::Bed;
use crate::bench::run::plan::Plan;
use crate::{mark, process};

const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn start(bed: &Bed, plan: Plan, program: &Path) -> Result<Running> {
    ensure!(
        bed.relays.len() == 1,
        "a relay by script runs on beds with one relay only"
    );
    let relay = bed.relays[0].clone();
    let directory = mark::directory()?;
    let rules = directory.path().join("rules");
    fs::write(&rules, rules_text(bed, plan))?;
    let program = program
        .canonicalize()
        .with_context(|| program.display().to_string())?;
    let mut start = relay.command_on(&bed.relay_cores(), &program);
    start.arg("start").arg(&rules);
    let printed = process::run(start, PATIENCE)?.success()?;
    let roots = printed.lines().filter_map(|line| line.trim().parse().ok());
    Ok(Running::new(roots.collect(), move || {
        let mut stop = relay.command(&program);
        stop.arg("stop");
        let _ = process::run(stop, PATIENCE);
        drop(directory);
    }))
}

fn rules_text(bed: &Bed, plan: Plan) -> String {
    let mut text = String::new();
    for stream in plan.numbers() {
        text.push_str(&plan.input(stream).on("veth1"));
        let egresses = bed.egresses.iter().cycle();
        for (to, link) in plan.outputs(stream).zip(egresses) {
            let _ = write!(text, " {}", to.on(link));
        }
        text.push('\n');
    }
    text
}
