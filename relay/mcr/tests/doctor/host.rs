//! The host as a whole: nothing wrong with it, limits, sockets, privileges.

use std::fs;
use std::net::IpAddr;

use dataplane::features::Feature;
use lab::daemon::{Daemon, Options};
use lab::socket::{Receiver, Sender};
use serde_json::Value;

use super::bed::{RULE, bed, diagnose, nft};

#[test]
fn a_healthy_bed_has_nothing_that_stops_or_harms() {
    let Some(bed) = bed(RULE) else { return };
    nft(
        bed.relay(),
        "table inet filter {
            chain input {
                type filter hook input priority 0; policy drop;
                ct state established,related accept
                iifname \"lo\" accept
                meta l4proto { igmp, icmp, ipv6-icmp } accept
                tcp dport 22 accept
            }
            chain output { type filter hook output priority 0; policy accept; }
        }",
    );
    let diagnosis = bed.doctor(&[]);
    let bad: Vec<_> = diagnosis
        .findings
        .iter()
        .filter(|finding| finding["severity"] != "note")
        .collect();
    assert!(bad.is_empty(), "{bad:#?}");
    assert_eq!(diagnosis.status, 0);
}

#[test]
fn without_rules_it_still_examines_the_host() {
    let Some(bed) = bed("version = 1\n") else {
        return;
    };
    assert_eq!(bed.doctor(&[]).status, 0);
}

#[test]
fn notes_that_many_groups_need_no_setting() {
    let rules = RULE
        .replace("239.1.1.1%veth1:5001", "239.1.1.0/24%veth1:5001")
        .replace("239.10.1.1", "239.10.1.0/24");
    let Some(bed) = bed(&rules) else { return };
    bed.doctor(&[])
        .has("limit", "note", &["256 groups", "igmp_max_memberships"]);
}

/// A rule of fifty outputs that leave by a veth.
fn fifty_outputs() -> String {
    let quoted = (1..=50).map(|n| format!("\"239.10.1.{n}%veth2:6001\""));
    let outputs: Vec<String> = quoted.collect();
    RULE.replace("\"239.10.1.1%veth2:6001\"", &outputs.join(", "))
}

#[test]
fn finds_a_backlog_that_is_too_short_for_the_fan_out() {
    let Some(bed) = bed(&fifty_outputs()) else {
        return;
    };
    bed.doctor(&[]).has(
        "limit",
        "note",
        &["netdev_max_backlog=25600", "50 outputs", "on the host"],
    );
}

/// A test's own network namespace does not show the setting, and a test must not change the machine's: a
/// file stands in for it.
#[test]
fn raises_a_backlog_that_is_too_short_for_the_fan_out() {
    let Some(bed) = bed(&fifty_outputs()) else {
        return;
    };
    let settings = bed.directory.path().join("core");
    let setting = settings.join("netdev_max_backlog");
    fs::create_dir(&settings).unwrap();
    let mount = format!(
        "mount --bind {} /proc/sys/net/core && exec \"$@\"",
        settings.display()
    );
    let under = ["unshare", "--mount", "sh", "-c", &mount, "sh"];

    fs::write(&setting, "1000").unwrap();
    let examine = |arguments: &[&str]| {
        let mut command = bed.relay().command(under[0]);
        command.args(&under[1..]).arg(env!("CARGO_BIN_EXE_mcr"));
        bed.examine(command.args(["doctor", "--json"]).args(arguments))
    };
    examine(&[]).has("limit", "harms", &["= 1000", "50 outputs", "veth2"]);
    let mended = examine(&["--fix"]);
    assert_eq!(mended.has("limit", "harms", &["50 outputs"])["fixed"], true);
    assert_eq!(fs::read_to_string(&setting).unwrap(), "25600");
    examine(&[]).has_no("limit");

    for (choice, expected) in [("off", "1000"), ("auto", "25600")] {
        fs::write(&setting, "1000").unwrap();
        let options = Options {
            config: Some(RULE.to_owned()),
            arguments: vec!["--backlog".to_owned(), choice.to_owned()],
            under: under.map(str::to_owned).to_vec(),
            ..Options::default()
        };
        let daemon = Daemon::start(bed.relay(), options).unwrap();
        daemon.apply(&fifty_outputs()).unwrap();
        let is_logged = || {
            let log = daemon.log();
            log.contains("netdev_max_backlog raised from 1000 to 25600")
        };
        match choice {
            "auto" => lab::wait::until("the setting is raised", is_logged).unwrap(),
            // The daemon checks once a second.
            _ => {
                lab::wait::until("it would have been raised", || {
                    daemon.stats().unwrap().uptime_seconds > 2.5
                })
                .unwrap();
            }
        }
        assert_eq!(fs::read_to_string(&setting).unwrap(), expected);
        assert_eq!(is_logged(), choice == "auto", "{}", daemon.log());
    }
}

#[test]
fn finds_local_sockets_that_will_hear_nothing() {
    let rules = RULE.replace("[[rule]]", "[[rule]]\nlocal = \"no\"");
    let Some(bed) = bed(&rules) else { return };
    let input: IpAddr = "239.1.1.1".parse().unwrap();
    let output: IpAddr = "239.10.1.1".parse().unwrap();
    let _one = Receiver::join((bed.relay(), "veth1"), input, 5001).unwrap();
    let _other = Receiver::join((bed.relay(), "veth2"), output, 6001).unwrap();
    let diagnosis = bed.doctor(&[]);
    let own = std::process::id().to_string();
    diagnosis.has("listener", "harms", &["239.1.1.1", "local=no", &own]);
    diagnosis.has(
        "listener",
        "harms",
        &["239.10.1.1", "not looped back", &own],
    );
}

#[test]
fn names_the_path_that_is_left_without_privileges() {
    let Some(bed) = bed(RULE) else { return };
    let without = |capabilities: &str| {
        let mut command = bed.relay().command("setpriv");
        command.args([
            &format!("--bounding-set={capabilities}"),
            "--reuid=65534",
            "--clear-groups",
            "--ambient-caps=-all",
            env!("CARGO_BIN_EXE_mcr"),
        ]);
        command.args(["doctor", "--json"]);
        command
    };
    let readable = |path: &std::path::Path| {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    readable(bed.directory.path());
    let diagnosis = bed.examine(&mut without("-all"));
    diagnosis.has("capability", "stops", &["no path is left"]);
    assert_eq!(diagnosis.status, 5);
}

/// The substitutes themselves pass the packet cases; here each lack is reported, and both paths relay.
#[test]
fn reports_what_the_lack_of_each_feature_means_and_the_daemon_does_without() {
    let rules = format!(
        "{RULE}[[rule]]\nname = \"cam2\"\ninput = \"239.1.1.2%veth1:5001\"\n\
         outputs = [\"239.10.1.2%veth2:6001\"]\npath = \"userspace\"\n"
    );
    let Some(bed) = bed(&rules) else { return };
    let sender = Sender::open((&bed.chain.sender, "veth0"), IpAddr::from([10, 0, 0, 1])).unwrap();
    for feature in Feature::ALL {
        let without = ["--without", feature.as_str()];
        let severity = match feature {
            Feature::BpfLoop => "harms",
            _ => "note",
        };
        bed.doctor(&without)
            .has("capability", severity, &[feature.lack()]);

        let options = Options {
            config: Some(rules.clone()),
            arguments: without.map(Into::into).to_vec(),
            ..Options::default()
        };
        let daemon = Daemon::start(bed.relay(), options).unwrap();
        let status: Value = serde_json::from_str(&daemon.mcr(&["status", "--json"]).unwrap())
            .expect("status prints JSON");
        let features = status["features"].as_array().unwrap();
        assert_eq!(features.len(), Feature::ALL.len());
        let reported = features
            .iter()
            .find(|reported| reported["name"] == feature.as_str())
            .unwrap_or_else(|| panic!("no {} in {status}", feature.as_str()));
        assert_eq!(reported["present"], false);
        assert_eq!(reported["meaning"], feature.lack());
        let screen = daemon.mcr(&["status"]).unwrap();
        let line = format!("{:<16} {}\n", feature.as_str(), feature.lack());
        assert!(format!("{screen}\n").contains(&line), "{screen}");
        for (rule, group) in [("cam1", [239, 1, 1, 1]), ("cam2", [239, 1, 1, 2])] {
            let group = IpAddr::from(group);
            sender.send_numbered(group, 5001, 20, 200).unwrap();
            let counted = daemon.settled(rule, 20).unwrap();
            assert_eq!(counted.outputs[0].sent.packets, 20, "{feature:?} {rule}");
        }
    }
}

#[test]
fn names_why_no_path_takes_a_rule() {
    let Some(bed) = bed(RULE) else { return };
    let rules = RULE.replace(":6001\"", ":6001,fragment=yes\"");
    let options = Options {
        config: Some(rules),
        ..Options::path("kernel")
    };
    let daemon = Daemon::start(bed.relay(), options).unwrap();
    let diagnosis = diagnose(&daemon);
    let words = ["cam1", "no path takes it", "fragment=yes"];
    diagnosis.has("daemon", "stops", &words);
    let all = format!("{:?}", diagnosis.findings);
    assert!(!all.contains("no reason given"), "{all}");
}
