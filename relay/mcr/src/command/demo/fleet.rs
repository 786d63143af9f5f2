//! `mcr demo --fleet`: a relay's host dies, and another relay takes over.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lab::fleet::demo::{self, Options, Report};

use super::{Args, failure};
use crate::failure::{Failure, verdict};
use crate::render;

pub(super) fn run(args: &Args, json: bool, stop: &AtomicBool) -> Result<ExitCode, Failure> {
    let options = Options {
        path: args.path.to_string(),
        rate_pps: args.rate,
        part: Duration::from_secs(args.duration.into()) / 2,
    };
    let outcome = demo::run(&options, stop, |step| {
        if json {
            Ok(())
        } else {
            Ok(render::text(step)?)
        }
    });
    let report = outcome.map_err(|error| failure(&error, stop))?;
    render::reply(json, &report, || summary(&report))?;
    Ok(verdict(report.is_success()))
}

fn summary(report: &Report) -> String {
    let verdict = if report.is_success() {
        "one relay at a time forwarded, and nothing came twice"
    } else {
        "FAILED: one relay at a time does not explain what came"
    };
    format!(
        "\nsent {}, received {}, lost {}, twice {}\n\
         relay {} took over {:.0} ms after the death of relay {}; the longest silence was {:.0} ms\n\
         {verdict}\n",
        render::count(report.sent),
        render::count(report.received),
        render::count(report.lost),
        render::count(report.twice),
        report.successor,
        report.takeover_ms,
        report.died,
        report.gap_ms,
    )
}
