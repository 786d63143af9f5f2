//! The alert rules in dist, tested by promtool with its own clock: synthetic samples, scraped every 15 s,
//! 30 s and minute.

use std::fmt::Write;
use std::fs;
use std::process::Command;
use std::time::Duration;

use lab::process;

use super::metrics::dist;

const MINUTE: u64 = 60;
/// Seconds between two scrapes.
const SCRAPES: [u64; 3] = [15, 30, 60];

/// A series: its metric and labels, and its value at each second.
type Series = (String, fn(u64) -> u64);

/// An alert, and the minutes at which it must and must not fire.
struct Expected {
    alert: &'static str,
    fires: &'static [u64],
    is_quiet: &'static [u64],
}

/// Runs the rules over two hours of `series` at each scrape interval.
fn holds(series: &[Series], expected: &[Expected]) {
    if Command::new("promtool").arg("--version").output().is_err() {
        eprintln!("skipped: promtool is not installed (dist/bootstrap test installs it)");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for scrape in SCRAPES {
        let file = directory.path().join(format!("every{scrape}.yml"));
        fs::write(&file, test(scrape, series, expected)).unwrap();
        let mut command = Command::new("promtool");
        command.args(["test", "rules"]).arg(&file);
        let finished = process::run(command, Duration::from_secs(60)).unwrap();
        let output = finished.success();
        output.unwrap_or_else(|error| panic!("scraped every {scrape} s: {error:#}"));
    }
}

fn test(scrape: u64, series: &[Series], expected: &[Expected]) -> String {
    let rules = dist().join("prometheus/mcr.rules.yml");
    let mut text = format!(
        "rule_files: [{}]\nevaluation_interval: 15s\ntests:\n  - interval: {scrape}s\n    \
         input_series:\n",
        rules.display()
    );
    for (name, value) in series {
        let samples = (0..=120 * MINUTE / scrape).map(|at| value(at * scrape).to_string());
        let values: Vec<String> = samples.collect();
        let _ = writeln!(
            text,
            "      - series: '{name}'\n        values: '{}'",
            values.join(" ")
        );
    }
    // Only the number of firing alerts is tested: their texts are in the rules.
    text += "    promql_expr_test:\n";
    for Expected {
        alert,
        fires,
        is_quiet,
    } in expected
    {
        let all = fires
            .iter()
            .map(|at| (at, 1))
            .chain(is_quiet.iter().map(|at| (at, 0)));
        for (minutes, count) in all {
            let _ = writeln!(
                text,
                "      - expr: count(ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}}) or \
                 vector(0)\n        eval_time: {minutes}m\n        exp_samples: [{{ value: {count} }}]"
            );
        }
    }
    text
}

fn last_packet(rule: &str, input: &str) -> String {
    format!(
        "mcr_input_last_packet_timestamp_seconds{{instance=\"r\",job=\"mcr\",rule=\"{rule}\",\
         input=\"{input}\"}}"
    )
}

#[test]
fn a_stopped_stream_raises_an_alert_until_it_goes_on() {
    let goes_on = |at| at;
    // Nothing arrives from minute 30 to minute 90.
    let stops = |at| match at {
        at if !(30 * MINUTE..90 * MINUTE).contains(&at) => at,
        _ => 30 * MINUTE,
    };
    let series: [Series; 4] = [
        (last_packet("stops", "a"), stops),
        (last_packet("goes_on", "a"), goes_on),
        (last_packet("one_of_two", "a"), stops),
        (last_packet("one_of_two", "b"), goes_on),
    ];
    let stopped = Expected {
        alert: "McrStreamStopped",
        fires: &[33, 36, 45, 60, 89],
        is_quiet: &[5, 20, 30, 95, 119],
    };
    holds(&series, &[stopped]);
}

#[test]
fn what_may_be_silent_rings_nothing_and_a_merged_rule_rings_once() {
    let of = |metric: &str, rule: &str, state: &str| {
        format!("{metric}{{instance=\"r\",job=\"mcr\",rule=\"{rule}\"{state}}}")
    };
    // Nothing arrives from minute 30 to minute 60.
    let stops = |at| match at {
        at if !(30 * MINUTE..60 * MINUTE).contains(&at) => at,
        _ => 30 * MINUTE,
    };
    let down = |at| u64::from((30 * MINUTE..60 * MINUTE).contains(&at));
    let line = |metric: &str, input: &str| of(metric, "merged", &format!(",input=\"{input}\""));
    let series: [Series; 13] = [
        (last_packet("reflects", "a"), stops),
        (of("mcr_rule_waiting_seconds", "reflects", ""), |at| at),
        (of("mcr_rule_may_be_silent", "reflects", ""), |_| 1),
        (last_packet("watched", "a"), stops),
        (of("mcr_stream_state", "watched", ",state=\"down\""), down),
        (last_packet("merged", "a"), stops),
        (last_packet("merged", "b"), |at| match at {
            at if !(30 * MINUTE..60 * MINUTE).contains(&at) => at,
            _ => 30 * MINUTE - 20,
        }),
        (of("mcr_rule_state", "merged", ",state=\"down\""), down),
        (line("mcr_merge_first_packets_total", "a"), stops),
        (line("mcr_merge_first_packets_total", "b"), |_| 0),
        (line("mcr_merge_missed_packets_total", "a"), |_| 0),
        (line("mcr_merge_missed_packets_total", "b"), |at| {
            at.clamp(30 * MINUTE - 20, 30 * MINUTE)
        }),
        (of("mcr_rule_waiting_seconds", "waits", ""), |at| at),
    ];
    let expected = |alert, fires, is_quiet| Expected {
        alert,
        fires,
        is_quiet,
    };
    holds(
        &series,
        &[
            expected("McrStreamStopped", &[], &[5, 29, 33, 36, 45, 59, 63, 119]),
            expected("McrStreamDown", &[33, 45, 59], &[5, 29, 65]),
            expected("McrRuleDown", &[33, 45, 59], &[5, 29, 65]),
            expected("McrLineLosing", &[], &[5, 29, 33, 36, 45, 59, 63, 119]),
            expected("McrLineDown", &[], &[5, 29, 33, 36, 45, 59, 63, 119]),
            expected("McrStreamNeverCame", &[7, 45, 119], &[3]),
        ],
    );
}

#[test]
fn loss_raises_an_alert_while_it_lasts() {
    let counter = |metric: &str| format!("{metric}{{instance=\"r\",job=\"mcr\",rule=\"cam1\"}}");
    // Once a second from minute 30 to minute 60.
    let lost = |at: u64| at.clamp(30 * MINUTE, 60 * MINUTE) - 30 * MINUTE;
    let series: [Series; 3] = [
        (counter("mcr_rtp_lost_packets_total"), lost),
        (counter("mcr_ts_continuity_errors_total"), lost),
        (counter("mcr_rule_dropped_packets_total"), lost),
    ];
    let expected = |alert, fires| Expected {
        alert,
        fires,
        is_quiet: &[5, 29, 70, 119],
    };
    holds(
        &series,
        &[
            expected("McrRtpLoss", &[34, 45, 59]),
            expected("McrTsContinuityErrors", &[34, 45, 59]),
            expected("McrRuleDrops", &[38, 45, 59]),
        ],
    );
}

#[test]
fn merged_legs_raise_alerts_and_their_duplicates_do_not() {
    let line = |metric: &str, rule: &str, input: &str| {
        format!("{metric}{{instance=\"r\",job=\"mcr\",rule=\"{rule}\",input=\"{input}\"}}")
    };
    let dropped = |rule: &str, reason: &str| {
        format!(
            "mcr_rule_dropped_packets_total{{instance=\"r\",job=\"mcr\",rule=\"{rule}\",\
             reason=\"{reason}\"}}"
        )
    };
    // From minute 30 to minute 60.
    let within = |at: u64| at.clamp(30 * MINUTE, 60 * MINUTE) - 30 * MINUTE;
    let first = "mcr_merge_first_packets_total";
    let missed = "mcr_merge_missed_packets_total";
    let (skew, lost) = ("mcr_merge_skew_seconds", "mcr_merge_lost_packets_total");
    let series: [Series; 14] = [
        (line(first, "cam1", "a"), |at| at * 1_000),
        (line(first, "cam1", "b"), |_| 0),
        (line(missed, "cam1", "a"), |at| at / 10),
        (line(missed, "cam1", "b"), within_ten),
        (line(first, "cam2", "a"), |at| at * 1_000),
        (line(missed, "cam2", "a"), |_| 0),
        (line(skew, "cam1", "a"), |_| 0),
        (line(skew, "cam1", "b"), |at| {
            u64::from((30..60).contains(&(at / MINUTE)))
        }),
        (dropped("cam1", "duplicate"), |at| at * 1_000),
        (dropped("cam3", "standby"), |at| at * 1_000),
        (
            format!("{lost}{{instance=\"r\",job=\"mcr\",rule=\"cam1\"}}"),
            within,
        ),
        (last_packet("cam1", "a"), |at| at),
        (last_packet("cam1", "b"), |at| match at {
            at if !(30 * MINUTE..60 * MINUTE).contains(&at) => at,
            _ => 30 * MINUTE,
        }),
        // An input that is not merged may pause.
        (last_packet("cam2", "b"), |_| 0),
    ];
    let expected = |alert, fires, is_quiet| Expected {
        alert,
        fires,
        is_quiet,
    };
    holds(
        &series,
        &[
            expected("McrLineLosing", &[45, 59], &[5, 29, 75, 119]),
            expected("McrLineSkew", &[33, 45, 59], &[5, 29, 62, 119]),
            expected("McrMergeLoss", &[34, 45, 59], &[5, 29, 70, 119]),
            expected("McrLineDown", &[33, 45, 59], &[5, 29, 62, 119]),
            expected("McrRuleDrops", &[], &[5, 45, 59, 119]),
        ],
    );
}

/// Ten a second from minute 30 to minute 60.
fn within_ten(at: u64) -> u64 {
    10 * (at.clamp(30 * MINUTE, 60 * MINUTE) - 30 * MINUTE)
}

#[test]
fn failing_remote_control_and_notifications_raise_alerts() {
    let of = |metric: &str| format!("{metric}{{instance=\"r\",job=\"mcr\"}}");
    let within = |at: u64| u64::from((30..60).contains(&(at / MINUTE)));
    let without = |at: u64| u64::from(!(30..60).contains(&(at / MINUTE)));
    let series: [Series; 3] = [
        (of("mcr_api_up"), without),
        (of("mcr_api_expiring"), within),
        (of("mcr_notify_up"), without),
    ];
    let alerts = ["McrApiDown", "McrApiExpires", "McrNotifyFails"].map(|alert| Expected {
        alert,
        fires: &[37, 45, 59],
        is_quiet: &[5, 29, 62, 119],
    });
    holds(&series, &alerts);
}

#[test]
fn a_fleet_is_told_of_by_what_its_relays_say() {
    let of = |metric: &str, relay: &str, share: &str| {
        let share = match share {
            "" => String::new(),
            share => format!(",share=\"{share}\""),
        };
        format!("mcr_fleet_{metric}{{instance=\"{relay}\",job=\"mcr\"{share}}}")
    };
    // Nobody forwards cam1 for half an hour, and two forward cam2; cam3 changes hands each 10 minutes.
    let series: [Series; 13] = [
        (of("share_open", "a", "cam1"), |at| {
            u64::from(!(30..60).contains(&(at / MINUTE)))
        }),
        (of("share_open", "b", "cam1"), |_| 0),
        (of("share_open", "a", "cam2"), |_| 1),
        (of("share_open", "b", "cam2"), |at| {
            u64::from((30..60).contains(&(at / MINUTE)))
        }),
        (of("share_open", "a", "cam3"), |at| at / MINUTE / 10 % 2),
        (of("share_open", "b", "cam3"), |at| 1 - at / MINUTE / 10 % 2),
        (of("etcd_reachable", "a", ""), |at| {
            u64::from(!(30..60).contains(&(at / MINUTE)))
        }),
        (of("etcd_reachable", "b", ""), |_| 1),
        // Slow for half an hour, in seconds.
        (of("beat_seconds", "a", ""), |at| {
            u64::from((30..60).contains(&(at / MINUTE)))
        }),
        (of("beat_seconds", "b", ""), |_| 0),
        // b lags behind for half an hour.
        (of("generation", "a", ""), |at| {
            1 + u64::from(at / MINUTE >= 30)
        }),
        (of("generation", "b", ""), |at| {
            1 + u64::from(at / MINUTE >= 60)
        }),
        (of("generation", "c", ""), |at| {
            1 + u64::from(at / MINUTE >= 30)
        }),
    ];
    let expected = |alert, fires| Expected {
        alert,
        fires,
        is_quiet: &[5, 21, 29, 75, 119],
    };
    holds(
        &series,
        &[
            expected("McrFleetShareNotForwarded", &[33, 45, 59]),
            expected("McrFleetShareTwice", &[35, 45, 59]),
            expected("McrFleetEtcdAway", &[33, 45, 59]),
            expected("McrFleetBeatSlow", &[45, 59]),
            expected("McrFleetRulesDiffer", &[35, 45, 59]),
        ],
    );
}
