//! A step of the host's clock is reported and has no other effect. Only the daemon's libc gets
//! another time, so that no other program of the host notices.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

use api::reply::{Event, History};
use lab::daemon::{Daemon, Options};
use lab::process::{self, Process};
use lab::topology::Chain;
use lab::wait;

use crate::bed::Bed;

const HOUR_S: i64 = 3600;

lab::on_both_paths!(a_step_of_the_clock_is_told_and_alarms_nobody);

fn a_step_of_the_clock_is_told_and_alarms_nobody(path: &str) {
    if !lab::demo::may_run() {
        eprintln!("skipped: needs root");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (step, library) = ["step", "clock.so"]
        .map(|name| directory.path().join(name))
        .into();
    fs::write(&step, 0_i64.to_ne_bytes()).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library);
    compiler.arg(format!("-DSTEP=\"{}\"", step.display()));
    compiler.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clock_step.c"));
    let compiled = process::run(compiler, Duration::from_secs(60)).unwrap();
    compiled.success().unwrap();
    let chain = Chain::plain().unwrap();
    let options = Options {
        arguments: vec!["--silence".to_owned(), "20s".to_owned()],
        under: [
            "env".to_owned(),
            format!("LD_PRELOAD={}", library.display()),
        ]
        .into(),
        ..Options::path(path)
    };
    let daemon = Daemon::start(&chain.relay, options).unwrap();
    let bed = Bed { daemon, chain };
    bed.add_watched("silence=20s");
    let _stream = bed.stream(500);
    let counted = || bed.daemon.rule("cam1").unwrap().received.packets;
    wait::until("the stream comes", || counted() > 100).unwrap();
    let mut follow = bed.chain.relay.command(env!("CARGO_BIN_EXE_mcr"));
    follow.arg("--socket").arg(bed.daemon.socket());
    follow.args(["events", "--json", "--recent", "200"]);
    let following = Process::start(follow).unwrap();
    let events = || -> Vec<Event> {
        let output = following.stdout();
        let events = output.lines().map(serde_json::from_str);
        events.filter_map(Result::ok).collect()
    };
    wait::until("events are followed", || !events().is_empty()).unwrap();
    let clock = fs::OpenOptions::new().write(true).open(&step).unwrap();
    for (seconds, way, far) in [
        (HOUR_S, "forward by ", 3600.0),
        (-HOUR_S, "back by ", 7200.0),
    ] {
        clock.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
        let stepped = |event: &Event| -> Option<f64> {
            let (_, by) = event.message.split_once(way)?;
            by.split(' ').next()?.parse().ok()
        };
        wait::until(way, || {
            // As precisely as two clocks can be read at once.
            let is_expected = |event| stepped(&event).is_some_and(|by| (by - far).abs() < 0.5);
            events().into_iter().any(is_expected)
        })
        .unwrap();
        let then = counted();
        wait::until("the stream goes on", || counted() > then + 1000).unwrap();
        let now_s = sys::clock::realtime_ms().cast_signed() / 1000 + seconds;
        let history: History = serde_json::from_value(bed.json(&["history", "--json"])).unwrap();
        let behind_s = now_s - history.until_ms.cast_signed() / 1000;
        assert!((0..60).contains(&behind_s), "{behind_s}");
        let rates = bed.daemon.rule("cam1").unwrap().rates;
        assert!(rates.packets_1s > 1.0, "{rates:?}");
    }
    let all = events();
    let all_kinds = all.iter().map(|event| event.kind.as_str());
    let kinds: Vec<&str> = all_kinds
        .skip_while(|kind| *kind != "clock_stepped")
        .collect();
    assert_eq!(kinds, ["clock_stepped"; 2], "{all:?}");
}
