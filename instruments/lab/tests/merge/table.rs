//! The table of what a merge must handle, case by case, on both paths.

use super::runs::{Bed, rule};

/// A case: name, lines, framing, merge, faults of each line, more options of the sender.
type Case = (
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

const RTP: &str = r#"{ by = "rtp", window = "100ms", packets = 8192 }"#;
const MOLD: &str = r#"{ by = "moldudp64", window = "100ms", packets = 8192 }"#;
const LITTLE: &str = r#"{ by = "sequence", offset = 0, bytes = 4, order = "little", window = "100ms", packets = 8192 }"#;
const PAYLOAD: &str = r#"{ by = "payload", window = "100ms", packets = 8192 }"#;

const CASES: [Case; 25] = [
    ("no loss", "rtp", RTP, &["", ""], &[]),
    ("1 % on each", "rtp", RTP, &["lose=1%", "lose=1%"], &[]),
    ("5 % on each", "rtp", RTP, &["lose=5%", "lose=5%"], &[]),
    ("30 % on each", "rtp", RTP, &["lose=30%", "lose=30%"], &[]),
    (
        "5 % in bursts of 20",
        "rtp",
        RTP,
        &["lose=5%,burst=20", "lose=5%,burst=20"],
        &[],
    ),
    (
        "30 % in bursts of 40",
        "rtp",
        RTP,
        &["lose=30%,burst=40", "lose=30%,burst=40"],
        &[],
    ),
    (
        "5 %, 5 ms apart",
        "rtp",
        RTP,
        &["lose=5%", "lose=5%,delay=5ms"],
        &[],
    ),
    (
        "5 %, 40 ms apart",
        "rtp",
        RTP,
        &["lose=5%", "lose=5%,delay=40ms"],
        &[],
    ),
    (
        "5 %, 60 ms apart",
        "rtp",
        RTP,
        &["lose=5%", "lose=5%,delay=60ms"],
        &[],
    ),
    (
        "5 %, jitter of 5 ms",
        "rtp",
        RTP,
        &["lose=5%,jitter=5ms", "lose=5%,jitter=5ms,delay=5ms"],
        &[],
    ),
    (
        "repeats of 2 %",
        "rtp",
        RTP,
        &["lose=5%,duplicate=2%", "lose=5%,duplicate=2%"],
        &[],
    ),
    (
        "disorder of 2 %",
        "rtp",
        RTP,
        &["lose=5%,reorder=2%", "lose=5%,reorder=2%"],
        &[],
    ),
    (
        "A cut, then B",
        "rtp",
        RTP,
        &["cut=500ms-1s", "cut=1500ms-2s"],
        &[],
    ),
    (
        "both cut for 50 ms",
        "rtp",
        RTP,
        &["cut=1s-1050ms", "cut=1s-1050ms"],
        &[],
    ),
    (
        "three lines, 30 %",
        "rtp",
        RTP,
        &["lose=30%", "lose=30%,delay=5ms", "lose=30%"],
        &[],
    ),
    (
        "four lines, 30 %",
        "rtp",
        RTP,
        &[
            "lose=30%",
            "lose=30%,delay=5ms",
            "lose=30%",
            "lose=30%,delay=20ms",
        ],
        &[],
    ),
    (
        "wrap of numbers",
        "rtp",
        RTP,
        &["lose=5%", "lose=5%,delay=5ms"],
        &["--start", "60000"],
    ),
    (
        "restart, another SSRC",
        "rtp",
        RTP,
        &["", "delay=20ms"],
        &["--restart", "1s"],
    ),
    (
        "restart, a jump",
        "rtp",
        RTP,
        &["", "delay=20ms"],
        &["--restart", "at=1s,number=50000"],
    ),
    (
        "three SSRCs",
        "rtp",
        RTP,
        &["lose=5%", "lose=5%,delay=5ms"],
        &["--senders", "3"],
    ),
    (
        "GSO, bursts of 8, 5 %",
        "rtp",
        RTP,
        &["lose=5%", "lose=5%,delay=5ms"],
        &["--burst", "8", "--method", "gso"],
    ),
    (
        "MoldUDP64, 5 %",
        "moldudp64",
        MOLD,
        &["lose=5%", "lose=5%,delay=5ms"],
        &[],
    ),
    (
        "MoldUDP64, another session",
        "moldudp64",
        MOLD,
        &["", "delay=5ms"],
        &["--restart", "1s"],
    ),
    (
        "32 bits little-endian, 5 %",
        "mdp3",
        LITTLE,
        &["lose=5%", "lose=5%,delay=5ms"],
        &[],
    ),
    (
        "payload, 5 %",
        "own",
        PAYLOAD,
        &["lose=5%", "lose=5%,delay=5ms"],
        &[],
    ),
];

/// Packets a second, and seconds.
const RATE: u32 = 20_000;
const SECONDS: &str = "3";

#[test]
#[ignore = "long: make merge-table"]
fn table() {
    println!(
        "| path | case | sent | on any line | received | missing | twice | out of order | lost, relay | lost, sender |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let mut wrong = Vec::new();
    for path in ["kernel", "userspace"] {
        for (name, framing, merge, faults, more) in CASES {
            let bed = Bed::new(path, &rule(faults.len(), merge));
            let run = bed.run(framing, RATE, SECONDS, faults, more);
            let lost = &run.rule()["merge"]["lost"];
            println!(
                "| {path} | {name} | {} | {} | {} | {} | {} | {} | {lost} | {} |",
                run.sent("sent"),
                run.union("on_any"),
                run.union("received"),
                run.union("missing"),
                run.union("twice"),
                run.union("reordered"),
                run.sent["union"]["lost"],
            );
            if run.union("missing") + run.union("twice") > 0 {
                wrong.push((path, name));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
