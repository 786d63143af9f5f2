//! Drops are reported by an event and a log line when they begin and when they end, and by the state of an
//! output that drops everything. What devices drop behind MCR is reported as well.

use std::net::IpAddr;

use lab::frame::FrameSender;
use lab::process::Process;
use lab::socket::Sender;
use lab::wait;
use packet::craft::Craft;
use serde_json::Value;

use crate::bed::{Bed, INPUT, OUTPUT};

lab::on_both_paths!(
    what_is_too_big_is_told_with_both_mtus_and_degrades_the_output,
    what_the_queue_behind_drops_stands_beside_what_was_sent,
    earlier_drops_are_not_reported_after_a_restart,
    what_a_rule_drops_itself_is_told_too,
);

/// The events as they arrive.
pub(super) struct Followed(Process);

impl Followed {
    pub(super) fn start(bed: &Bed) -> Self {
        let mut command = bed.chain.relay.command(lab::binary::mcr().unwrap());
        command.arg("--socket").arg(bed.daemon.socket());
        command.args(["events", "--json", "--recent", "200"]);
        Self(Process::start(command).unwrap())
    }

    fn all(&self) -> Vec<Value> {
        let stdout = self.0.stdout();
        let lines = stdout.lines();
        lines
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// Waits for an event of that kind about that subject; returns its message.
    #[track_caller]
    pub(super) fn wait(&self, kind: &str, subject: &str) -> String {
        let mut message = String::new();
        let arrived = wait::until(&format!("{kind} of {subject}"), || {
            let of = |event: &&Value| event["kind"] == kind && event["subject"] == subject;
            let events = self.all();
            let event = events.iter().find(of);
            message = event.map_or_else(String::new, |event| event["message"].to_string());
            event.is_some()
        });
        arrived.unwrap_or_else(|error| panic!("{error:#}: {:#?}", self.all()));
        message
    }
}

fn sender(bed: &Bed) -> Sender {
    let source: IpAddr = "10.0.0.1".parse().unwrap();
    Sender::open((&bed.chain.sender, "veth0"), source).unwrap()
}

fn group() -> IpAddr {
    "239.1.1.1".parse().unwrap()
}

fn stats(bed: &Bed) -> Value {
    serde_json::from_str(&bed.daemon.mcr(&["stats", "--json"]).unwrap()).unwrap()
}

/// The value of a metric whose labels contain this text.
pub(super) fn metric(bed: &Bed, name: &str, label: &str) -> Option<String> {
    let mut command = bed.chain.relay.command("curl");
    command
        .args(["-sf", "--unix-socket"])
        .arg(bed.daemon.socket());
    command.arg("http://mcr/metrics");
    let finished = lab::process::run(command, wait::PATIENCE).unwrap();
    let text = finished.success().unwrap();
    let mut lines = text.lines();
    let line = lines.find(|line| line.starts_with(name) && line.contains(label))?;
    line.rsplit(' ').next().map(str::to_owned)
}

fn what_is_too_big_is_told_with_both_mtus_and_degrades_the_output(path: &str) {
    let Some(bed) = Bed::with_tools(&["curl"], &["--path", path]) else {
        return;
    };
    bed.chain.relay.ip("link set veth2 mtu 1400").unwrap();
    bed.daemon
        .add("cam1", INPUT, &[OUTPUT, "239.10.1.2%veth1:6002"])
        .unwrap();
    let events = Followed::start(&bed);
    let sender = sender(&bed);
    sender.send_numbered(group(), 5001, 20, 1430).unwrap();
    let began = events.wait("drops_began", "cam1");
    for part in [
        OUTPUT,
        "too_big",
        "veth2, which is 1400",
        "veth1 is 1500",
        "fragment=yes",
    ] {
        assert!(began.contains(part), "no {part} in {began}");
    }
    events.wait("output_degraded", "cam1");
    events.wait("rule_degraded", "cam1");
    let rule = &stats(&bed)["rules"][0];
    assert_eq!(rule["state"], "degraded", "{rule}");
    let of = |index: usize| &rule["outputs"][index];
    assert_eq!(of(0)["state"], "degraded", "{rule}");
    assert_eq!(of(0)["interface"], "veth2", "{rule}");
    assert!(of(0)["reason"].to_string().contains("1400"), "{rule}");
    assert_eq!(of(1)["state"], "up", "{rule}");
    for arguments in [
        &["show", "cam1"][..],
        &["stats"],
        &["list", "-o", "wide"],
        &["status"],
    ] {
        let text = bed.daemon.mcr(arguments).unwrap();
        // A rule whose stream has stopped meanwhile is also silent.
        let texts = ["degraded", "all packets are dropped as too_big"];
        let is_shown = texts.iter().any(|part| text.contains(part));
        assert!(is_shown, "{arguments:?}: {text}");
    }
    let label = format!("output=\"{OUTPUT}\"");
    assert_eq!(
        metric(&bed, "mcr_output_degraded", &label).as_deref(),
        Some("1")
    );
    let label = "rule=\"cam1\",state=\"degraded\"";
    assert_eq!(metric(&bed, "mcr_rule_state", label).as_deref(), Some("1"));

    // A packet that fits leaves, so the output works, but the drops as too big have not ended by that.
    sender.send_numbered(group(), 5001, 1, 100).unwrap();
    wait::until("the output works again, and that is told", || {
        let events = events.all();
        let mut messages = events.iter().map(|event| event["message"].to_string());
        stats(&bed)["rules"][0]["state"] == "up"
            && messages.any(|message| message.contains("no longer drops everything"))
    })
    .unwrap();
    let ended = events.wait("drops_ended", "cam1");
    assert!(ended.contains("too_big: 20 were"), "{ended}");
    let count = |kind| {
        events
            .all()
            .iter()
            .filter(|event| event["kind"] == kind)
            .count()
    };
    assert_eq!((count("drops_began"), count("drops_ended")), (1, 1));
    let log = bed.daemon.log();
    assert_eq!(log.matches("drops packets as too_big").count(), 1, "{log}");
    assert_eq!(
        log.matches("drops no more packets as too_big").count(),
        1,
        "{log}"
    );
}

fn what_the_queue_behind_drops_stands_beside_what_was_sent(path: &str) {
    let Some(bed) = Bed::with_tools(&["curl"], &["--path", path]) else {
        return;
    };
    let queue = "qdisc add dev veth2 root tbf rate 8kbit burst 2000 limit 3000";
    if let Err(error) = bed.chain.relay.tool("tc", queue) {
        eprintln!("skipped: no tbf here: {error:#}");
        return;
    }
    bed.add();
    let events = Followed::start(&bed);
    // The first reading: earlier drops are not reported.
    wait::until("the device is looked at", || {
        stats(&bed)["egress"][0]["interface"] == "veth2"
    })
    .unwrap();
    assert!(!bed.daemon.mcr(&["stats"]).unwrap().contains("behind MCR"));
    sender(&bed)
        .send_numbered(group(), 5001, 200, 1000)
        .unwrap();
    let began = events.wait("drops_began", "veth2");
    for part in [
        "its queue drops packets behind MCR",
        "tc -s qdisc show dev veth2",
    ] {
        assert!(began.contains(part), "no {part} in {began}");
    }
    let mut egress = Value::Null;
    wait::until("all that the queue dropped is counted", || {
        egress = stats(&bed)["egress"][0].clone();
        egress["queue_dropped"].as_u64() > Some(150)
    })
    .unwrap();
    let dropped = egress["queue_dropped"].as_u64().unwrap();
    let expected = format!("{dropped} dropped by its queue");
    for arguments in [&["show", "cam1"][..], &["stats"]] {
        let text = bed.daemon.mcr(arguments).unwrap();
        assert!(text.contains(&expected), "{arguments:?}: {text}");
    }
    let name = "mcr_egress_queue_dropped_packets_total";
    let counted = metric(&bed, name, "interface=\"veth2\"");
    assert_eq!(counted, Some(dropped.to_string()));
}

/// A packet from an address of the relay's own, which means a loop somewhere behind it.
fn what_a_rule_drops_itself_is_told_too(path: &str) {
    let Some(bed) = Bed::with_tools(&["curl"], &["--path", path]) else {
        return;
    };
    bed.add();
    let events = Followed::start(&bed);
    let wire = FrameSender::open((&bed.chain.sender, "veth0")).unwrap();
    let (source, to) = ("10.0.1.1:4000".parse(), "239.1.1.1:5001".parse());
    let frame = Craft::new(source.unwrap(), to.unwrap(), vec![0; 100]).frame();
    wire.send(&frame).unwrap();
    let began = events.wait("drops_began", "cam1");
    for part in ["drops packets as own_source, 1 so far", "break that loop"] {
        assert!(began.contains(part), "no {part} in {began}");
    }
    let label = "rule=\"cam1\",reason=\"own_source\"";
    let counted = metric(&bed, "mcr_rule_dropped_packets_total", label);
    assert_eq!(counted.as_deref(), Some("1"));
    // Nothing else arrives.
    let mut rule = Value::Null;
    wait::until("the rule is degraded", || {
        wire.send(&frame).unwrap();
        rule = stats(&bed)["rules"][0].clone();
        rule["state"] == "degraded"
    })
    .unwrap();
    let reason = rule["state_reason"].as_str().unwrap();
    for part in ["all packets are dropped as own_source", "break that loop"] {
        assert!(reason.contains(part), "no {part} in {reason}");
    }
    events.wait("rule_degraded", "cam1");
    let sender = sender(&bed);
    wait::until("the rule is up", || {
        sender.send_numbered(group(), 5001, 1, 100).unwrap();
        stats(&bed)["rules"][0]["state"] == "up"
    })
    .unwrap();
}

fn earlier_drops_are_not_reported_after_a_restart(path: &str) {
    let Some(mut bed) = Bed::with_tools(&["curl"], &["--path", path]) else {
        return;
    };
    bed.chain.relay.ip("link set veth2 mtu 1400").unwrap();
    bed.add();
    let first = Followed::start(&bed);
    let sender = sender(&bed);
    sender.send_numbered(group(), 5001, 1000, 1430).unwrap();
    first.wait("drops_began", "cam1");
    wait::until("all drops are counted", || {
        let output = &stats(&bed)["rules"][0]["outputs"][0];
        output["dropped"]["too_big"] == 1000
    })
    .unwrap();
    bed.daemon.kill().unwrap();
    bed.daemon.start_again().unwrap();
    let second = Followed::start(&bed);
    // New drops are reported, with their number.
    let mut sent = 0;
    wait::until("the daemon has taken its first sample", || {
        sender.send_numbered(group(), 5001, 1, 1430).unwrap();
        sent += 1;
        second
            .all()
            .iter()
            .any(|event| event["kind"] == "drops_began")
    })
    .unwrap();
    let began = second.wait("drops_began", "cam1");
    let (text, _) = began.split_once(" so far").unwrap();
    let reported: u32 = text.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(reported <= sent, "{sent} were sent, and {began}");
}
