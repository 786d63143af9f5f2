//! The last hour: as JSON, as a table, and as the beginning of the page's and `mcr top`'s charts.

use std::time::Duration;

use api::reply::History;
use lab::process;
use lab::wait;

use super::browser::Browser;
use super::top::Screen;
use crate::bed::{Bed, INPUT};

const PACKETS: u64 = 3000;
/// Longer than two steps and the delay of a busy machine.
const STEPS_END: Duration = Duration::from_secs(60);

fn history(bed: &Bed, arguments: &[&str]) -> History {
    let json = bed
        .daemon
        .mcr(&[&["history", "--json"], arguments].concat());
    serde_json::from_str(&json.unwrap()).unwrap()
}

fn sum(steps: &[u64]) -> u64 {
    steps.iter().sum()
}

#[test]
fn the_past_adds_up_to_what_was_counted_and_ends_with_the_daemon() {
    let Some(mut bed) = Bed::with_tools(&[], &[]) else {
        return;
    };
    let output = "239.10.1.1%veth2:6001,limit=100pps";
    let rule = ["add", INPUT, output, "--name", "cam1"];
    bed.daemon.mcr(&rule).unwrap();
    bed.daemon
        .add("quiet", "239.1.1.9%veth1:5009", &["239.10.1.9%veth2:6009"])
        .unwrap();
    let mut command = bed.chain.sender.command(lab::binary::mcr().unwrap());
    command.args(["send", "239.1.1.1%veth0:5001", "--rate", "2000", "--count"]);
    command.arg(PACKETS.to_string());
    let sent = process::run(command, STEPS_END).unwrap();
    sent.success().unwrap();
    bed.daemon.settled("cam1", PACKETS).unwrap();
    let counted = bed.daemon.rule("cam1").unwrap();
    let dropped: u64 = counted.outputs[0].dropped.values().sum();
    assert!(dropped > 0, "{counted:?}");

    wait::until_within(STEPS_END, "the step has ended", || {
        sum(&history(&bed, &["cam1"]).all.packets) == PACKETS
    })
    .unwrap();
    let past = history(&bed, &["cam1"]);
    let cam1 = &past.rules[0];
    assert_eq!((cam1.name.as_str(), past.rules.len()), ("cam1", 1));
    assert_eq!(sum(&cam1.steps.packets), PACKETS);
    assert_eq!(sum(&cam1.steps.bytes), counted.received.bytes);
    assert_eq!(sum(&cam1.steps.dropped), dropped);
    assert_eq!(cam1.steps, past.all, "the other rule is quiet");
    assert_eq!(cam1.steps.bytes.len(), cam1.steps.dropped.len());
    assert_eq!(sum(&history(&bed, &["quiet"]).rules[0].steps.packets), 0);
    let table = bed
        .daemon
        .mcr(&["history", "cam1", "--step", "10s"])
        .unwrap();
    let lines = table.lines().count() - 1;
    assert!(lines >= past.all.packets.len(), "{table}");
    assert!(
        table.contains("PACKETS/S") && table.contains("bit/s"),
        "{table}"
    );
    let unknown = bed.daemon.client(&["history", "cam9"]).unwrap();
    assert_eq!(unknown.status.code(), Some(3), "{unknown:?}");
    assert!(unknown.stderr.contains("no rule \"cam9\""), "{unknown:?}");

    bed.daemon.kill().unwrap();
    bed.daemon.start_again().unwrap();
    wait::until_within(STEPS_END, "the next daemon's first step has ended", || {
        !history(&bed, &[]).all.packets.is_empty()
    })
    .unwrap();
    assert_eq!(bed.daemon.rule("cam1").unwrap().received.packets, PACKETS);
    assert_eq!(sum(&history(&bed, &["cam1"]).all.packets), 0);
}

#[test]
fn top_and_page_begin_with_the_past() {
    let tools = ["tmux", "chromium", "chromedriver"];
    let Some(bed) = Bed::with_tools(&tools, &["--listen", "127.0.0.1:9190"]) else {
        return;
    };
    bed.add();
    let _stream = bed.stream(1000);
    wait::until_within(STEPS_END, "two steps are full of packets", || {
        let full = |packets: &&u64| **packets > 5000;
        history(&bed, &[]).all.packets.iter().filter(full).count() >= 2
    })
    .unwrap();

    let mcr = lab::binary::mcr().unwrap().display().to_string();
    let socket = bed.daemon.socket().display().to_string();
    let top = [mcr.as_str(), "--socket", &socket, "top", "--interval", "40"];
    let screen = Screen::start(&top.map(str::to_owned));
    // The second sample, which otherwise makes the first bar, comes only after the wait has timed out.
    screen.until("the sparkline is there", |text| text.contains('█'));

    let browser = Browser::start(&bed.chain.relay);
    browser.open("http://127.0.0.1:9190/#rule=cam1");
    let seconds = "const { since } = document.getElementById('plots').dataset; \
                   return Number(since) === 0 ? 0 : performance.timeOrigin / 1000 - Number(since)";
    wait::until("the charts begin before the page did", || {
        browser
            .run(seconds)
            .as_f64()
            .is_some_and(|seconds| seconds > 10.0)
    })
    .unwrap();
    assert_eq!(browser.complaints(), Vec::<serde_json::Value>::new());
}
