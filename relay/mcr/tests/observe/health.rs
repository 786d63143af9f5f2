use std::time::Duration;

use api::reply::{RuleStats, State};
use lab::{process, wait};

use crate::bed::Bed;

#[test]
fn what_is_wrong_with_a_stream_is_told_on_both_paths() {
    for path in ["kernel", "userspace"] {
        let Some(bed) = Bed::with_tools(&[], &["--path", path]) else {
            return;
        };
        // The losses must be read before silence hides them.
        bed.add_watched("silence=5s,content=rtp");
        let faults = [
            "--lose",
            "2",
            "--duplicate",
            "1",
            "--reorder",
            "1",
            "--seed",
            "7",
        ];
        send(&bed, "rtp", &faults);
        let has_losses = |rule: &RuleStats| {
            let health = rule.health.as_ref();
            health.is_some_and(|health| {
                health.state == State::Degraded
                    && health
                        .rtp
                        .is_some_and(|rtp| rtp.lost > 10 && rtp.duplicated > 5)
            })
        };
        let rule = bed
            .daemon
            .wait_for("cam1", "the losses show", has_losses)
            .unwrap();
        let health = rule.health.clone().unwrap();
        let rtp = health.rtp.unwrap();
        assert!(rtp.reordered > 0, "{rtp:?}");
        assert_eq!((rtp.restarts, rtp.ssrc_changes), (0, 0), "{rtp:?}");
        assert_eq!((health.unrecognised, health.ts), (0, None));
        let seen = rtp.packets + rtp.duplicated;
        assert_eq!(seen, rule.received.packets, "{path}: {rule:?}");
        let reason = health.reason.unwrap();
        assert!(reason.ends_with("RTP packets lost within 10 s"), "{reason}");
        assert!(rule.rates.packets_10s > 0.0, "{:?}", rule.rates);

        let down = |rule: &RuleStats| {
            let health = rule.health.as_ref();
            health.is_some_and(|health| health.state == State::Down)
        };
        let rule = bed.daemon.wait_for("cam1", "it is silent", down).unwrap();
        assert_eq!(rule.state, State::Up);
        let shown = bed.daemon.mcr(&["show", "cam1"]).unwrap();
        for part in [
            "stream    down: silent for",
            "  rtp     ",
            " lost, ",
            "jitter",
        ] {
            assert!(shown.contains(part), "no {part:?} in {shown}");
        }
        // Events follow with the next sample, at most half a second later.
        wait::until("it is logged", || {
            bed.daemon.log().contains("the stream is down: silent")
        })
        .unwrap();
    }
}

#[test]
fn continuity_errors_of_lost_packets_are_counted() {
    let Some(bed) = Bed::with_tools(&[], &[]) else {
        return;
    };
    bed.add_watched("content=ts");
    send(&bed, "ts", &[]);
    let all = |rule: &RuleStats| rule.received.packets == 2000;
    bed.daemon.wait_for("cam1", "all have come", all).unwrap();
    let ts = |rule: &RuleStats| rule.health.as_ref().and_then(|health| health.ts);
    let rule = bed.daemon.wait_for("cam1", "all are seen", |rule| {
        ts(rule).is_some_and(|ts| ts.packets >= 2000)
    });
    let whole = ts(&rule.unwrap()).unwrap();
    assert_eq!(
        (whole.continuity_errors, whole.sync_errors),
        (0, 0),
        "{whole:?}"
    );
    assert!(whole.pids >= 1);
    send(&bed, "ts", &["--lose", "5", "--seed", "7"]);
    let erring = |rule: &RuleStats| ts(rule).is_some_and(|ts| ts.continuity_errors > 10);
    bed.daemon
        .wait_for("cam1", "the errors show", erring)
        .unwrap();
}

/// Sends 2000 packets.
fn send(bed: &Bed, framing: &str, more: &[&str]) {
    let mut command = bed.chain.sender.command(lab::binary::mcr().unwrap());
    command.args(["send", "239.1.1.1%veth0:5001", "--count", "2000"]);
    command.args(["--rate", "2000", "--size", "1316", "--framing", framing]);
    command.args(more);
    let sent = process::run(command, Duration::from_secs(30)).unwrap();
    assert!(sent.status.success(), "{}", sent.stderr);
}
