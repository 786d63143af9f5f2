//! `mcr doctor` in beds that are broken on purpose, each in one way, and in one that is not.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::net::IpAddr;

use lab::link;
use lab::namespace::Namespace;
use lab::socket::Receiver;
use lab::topology::Chain;
use serde_json::Value;
use tempfile::TempDir;

const RULE: &str = r#"version = 1
[[rule]]
name = "cam1"
input = "239.1.1.1%veth1:5001"
outputs = ["239.10.1.1%veth2:6001"]
"#;

/// A relay between two networks, and a file of rules.
struct Bed {
    chain: Chain,
    directory: TempDir,
}

/// What the doctor said.
struct Diagnosis {
    status: i32,
    findings: Vec<Value>,
}

/// Relay and rules, or nothing where the test may not make namespaces.
fn bed(rules: &str) -> Option<Bed> {
    if !lab::demo::may_run() {
        eprintln!("skipped: needs root");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("mcr.toml"), rules).unwrap();
    Some(Bed {
        chain: Chain::plain().unwrap(),
        directory,
    })
}

impl Bed {
    fn relay(&self) -> &Namespace {
        &self.chain.relay
    }

    fn doctor(&self, arguments: &[&str]) -> Diagnosis {
        let mut command = self.relay().command(env!("CARGO_BIN_EXE_mcr"));
        self.examine(command.args(["doctor", "--json"]).args(arguments))
    }

    fn examine(&self, command: &mut std::process::Command) -> Diagnosis {
        let file = self.directory.path().join("mcr.toml");
        let output = command.arg("--config").arg(file).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.stdout.is_empty(), "{error}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        Diagnosis {
            status: output.status.code().unwrap(),
            findings: report["findings"].as_array().unwrap().clone(),
        }
    }
}

impl Diagnosis {
    /// Expects one finding of this check with that severity, and these words in it.
    #[track_caller]
    fn has(&self, check: &str, severity: &str, words: &[&str]) -> &Value {
        let found = self.findings.iter().find(|finding| {
            let text = finding.to_string();
            finding["check"] == check
                && finding["severity"] == severity
                && words.iter().all(|word| text.contains(word))
        });
        found.unwrap_or_else(|| panic!("no {check} {severity} {words:?} in {:#?}", self.findings))
    }

    /// Expects nothing of this check.
    #[track_caller]
    fn has_no(&self, check: &str) {
        let found = self
            .findings
            .iter()
            .find(|finding| finding["check"] == check);
        assert_eq!(found, None);
    }
}

fn nft(namespace: &Namespace, rules: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), rules).unwrap();
    let path = file.path().to_str().unwrap();
    namespace.tool("nft", &format!("-f {path}")).unwrap();
}

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
    let bad: Vec<_> = { diagnosis.findings.iter() }
        .filter(|finding| finding["severity"] != "note")
        .collect();
    assert!(bad.is_empty(), "{bad:#?}");
    assert_eq!(diagnosis.status, 0);
}

#[test]
fn without_rules_it_still_looks_at_the_host() {
    let Some(bed) = bed("version = 1\n") else {
        return;
    };
    assert_eq!(bed.doctor(&[]).status, 0);
}

#[test]
fn finds_interfaces_that_are_missing_down_or_without_address() {
    let Some(bed) = bed(&RULE.replace("veth2", "veth9")) else {
        return;
    };
    bed.doctor(&[])
        .has("interface", "stops", &["cam1", "veth9", "veth1"]);
    link::down((bed.relay(), "veth1")).unwrap();
    let diagnosis = bed.doctor(&[]);
    diagnosis.has("interface", "stops", &["input", "veth1", "down"]);
    assert_eq!(diagnosis.status, 5);
}

#[test]
fn finds_an_egress_without_address_and_a_destination_without_route() {
    let rules = RULE.replace(
        "\"239.10.1.1%veth2:6001\"",
        "\"239.10.1.1%veth2:6001\", \"10.99.0.1:7000\"",
    );
    let Some(bed) = bed(&rules) else { return };
    bed.relay().ip("address flush dev veth2").unwrap();
    let diagnosis = bed.doctor(&[]);
    diagnosis.has("interface", "stops", &["veth2", "address"]);
    diagnosis.has("interface", "stops", &["10.99.0.1", "no route"]);
}

#[test]
fn finds_a_link_that_carries_no_multicast() {
    let Some(bed) = bed(RULE) else { return };
    bed.relay().ip("link set veth1 multicast off").unwrap();
    bed.doctor(&[])
        .has("interface", "stops", &["veth1", "MULTICAST"]);
}

#[test]
fn finds_an_input_that_is_a_port_of_a_bridge() {
    let Some(bed) = bed(RULE) else { return };
    link::snooping_bridge((bed.relay(), "br0")).unwrap();
    link::bridge_port((bed.relay(), "veth1"), "br0").unwrap();
    bed.doctor(&[]).has("interface", "harms", &["veth1", "br0"]);
}

#[test]
fn finds_and_mends_a_snooping_bridge_without_querier() {
    let Some(bed) = bed(RULE) else { return };
    link::snooping_bridge((bed.relay(), "br0")).unwrap();
    bed.doctor(&[]).has_no("querier");
    bed.relay()
        .ip("link set br0 type bridge mcast_querier 0")
        .unwrap();
    bed.doctor(&[]).has("querier", "harms", &["br0"]);
    let mended = bed.doctor(&["--fix"]);
    assert_eq!(mended.has("querier", "harms", &["br0"])["fixed"], true);
    bed.doctor(&[]).has_no("querier");
    let shown = bed.relay().ip("-d -j link show br0").unwrap();
    assert!(shown.contains("\"mcast_querier\":1"), "{shown}");
}

#[test]
fn finds_and_mends_a_forced_igmp_version() {
    let rules = RULE.replace("239.1.1.1%", "10.0.0.1@232.1.1.1%");
    let Some(bed) = bed(&rules) else { return };
    bed.relay()
        .sysctl("net/ipv4/conf/veth1/force_igmp_version", "2")
        .unwrap();
    let diagnosis = bed.doctor(&[]);
    diagnosis.has("igmp-version", "stops", &["cam1", "force_igmp_version"]);
    assert_eq!(diagnosis.status, 5);
    let mended = bed.doctor(&["--fix"]);
    assert_eq!(mended.has("igmp-version", "stops", &[])["fixed"], true);
    assert_eq!(mended.status, 0);
    bed.doctor(&[]).has_no("igmp-version");
}

#[test]
fn a_forced_igmp_version_only_gets_a_note_where_no_source_is_asked_for() {
    let Some(bed) = bed(RULE) else { return };
    bed.relay()
        .sysctl("net/ipv4/conf/all/force_igmp_version", "2")
        .unwrap();
    bed.doctor(&[]).has("igmp-version", "note", &["veth1"]);
}

#[test]
fn says_that_a_reverse_path_filter_does_not_matter() {
    let Some(bed) = bed(RULE) else { return };
    bed.relay()
        .sysctl("net/ipv4/conf/veth1/rp_filter", "1")
        .unwrap();
    let diagnosis = bed.doctor(&[]);
    diagnosis.has("rpf", "note", &["does not matter", "strict"]);
    assert_eq!(diagnosis.status, 0);
}

#[test]
fn finds_filters_that_drop_queries_or_reports() {
    let Some(bed) = bed(RULE) else { return };
    nft(
        bed.relay(),
        "table inet filter {
            chain input { type filter hook input priority 0; policy drop;
                ct state established,related accept
                tcp dport 22 accept
            }
            chain services { ip protocol igmp counter drop; }
            chain output { type filter hook output priority 0; policy accept;
                oifname \"veth2\" accept
                ip daddr 224.0.0.0/4 jump services
            }
        }",
    );
    let diagnosis = bed.doctor(&[]);
    diagnosis.has(
        "firewall",
        "stops",
        &["IGMP queries", "policy", "inet filter input"],
    );
    diagnosis.has(
        "firewall",
        "stops",
        &["IGMP reports", "handle", "inet filter output"],
    );
    assert_eq!(diagnosis.status, 5);
}

#[test]
fn finds_a_filter_at_the_egress_and_says_that_the_forward_hook_does_not_matter() {
    let Some(bed) = bed(RULE) else { return };
    nft(
        bed.relay(),
        "table netdev guard {
            chain out { type filter hook egress device \"veth2\" priority 0; policy accept;
                ip daddr 239.10.0.0/16 udp dport 6000-6100 drop
            }
        }
        table inet filter {
            chain forward { type filter hook forward priority 0; policy drop; }
        }",
    );
    let diagnosis = bed.doctor(&[]);
    let words = ["veth2", "relayed copies", "netdev guard out", "egress"];
    diagnosis.has("firewall", "stops", &words);
    diagnosis.has("firewall", "note", &["forward", "does not matter"]);
    assert_eq!(diagnosis.status, 5);
    nft(bed.relay(), "delete table netdev guard");
    assert_eq!(bed.doctor(&[]).status, 0);
}

#[test]
fn finds_legacy_iptables_rules_that_drop_queries() {
    let Some(bed) = bed(RULE) else { return };
    for arguments in ["-P INPUT DROP", "-A INPUT -p tcp --dport 22 -j ACCEPT"] {
        let mut command = bed.relay().command("iptables-legacy");
        let done = command.args(arguments.split(' ')).output();
        if !done.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: needs iptables-legacy and a kernel that has it");
            return;
        }
    }
    let diagnosis = bed.doctor(&[]);
    let words = [
        "IGMP queries",
        "legacy",
        "policy",
        "iptables-legacy -I INPUT",
    ];
    diagnosis.has("firewall", "stops", &words);
    let mut accept = bed.relay().command("iptables-legacy");
    let accepted = accept
        .args(["-I", "INPUT", "-p", "igmp", "-j", "ACCEPT"])
        .output();
    assert!(accepted.unwrap().status.success());
    bed.doctor(&[]).has_no("firewall");
}

#[test]
fn finds_packets_that_arrived_with_a_ttl_too_short_to_go_on() {
    use lab::daemon::{Daemon, Options};
    use lab::socket::Sender;
    let Some(bed) = bed(RULE) else { return };
    let daemon = Daemon::start(bed.relay(), Options::default()).unwrap();
    let output = "239.10.1.1%veth2:6001,ttl=dec";
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &[output])
        .unwrap();
    let group: IpAddr = "239.1.1.1".parse().unwrap();
    let sender = Sender::open((&bed.chain.sender, "veth0"), "10.0.0.1".parse().unwrap()).unwrap();
    nft_ttl_one(&bed.chain.sender);
    sender.send_numbered(group, 5001, 10, 100).unwrap();
    let expired =
        |rule: &api::reply::RuleStats| rule.outputs[0].dropped.get("ttl_expired") == Some(&10);
    daemon.wait_for("cam1", "packets expired", expired).unwrap();
    let finished = daemon.client(&["doctor", "--json"]).unwrap();
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    let diagnosis = Diagnosis {
        status: finished.status.code().unwrap(),
        findings: report["findings"].as_array().unwrap().clone(),
    };
    diagnosis.has("ttl", "harms", &["cam1", "10 packets", "ttl_expired"]);
}

/// Has every packet leave with a TTL of 1, as a sender that was not told otherwise does it.
fn nft_ttl_one(namespace: &Namespace) {
    nft(
        namespace,
        "table ip mangle {
            chain output { type filter hook output priority 0; policy accept; ip ttl set 1; }
        }",
    );
}

#[test]
fn a_filter_that_cannot_be_judged_is_only_suspected() {
    let Some(bed) = bed(RULE) else { return };
    nft(
        bed.relay(),
        "table ip filter {
            chain input { type filter hook input priority 0; policy drop;
                ip saddr 10.0.0.0/8 accept
            }
        }",
    );
    let diagnosis = bed.doctor(&[]);
    diagnosis.has("firewall", "harms", &["may drop IGMP queries"]);
    assert_eq!(diagnosis.status, 0);
}

#[test]
fn finds_an_mtu_that_is_smaller_at_the_output() {
    let Some(bed) = bed(RULE) else { return };
    bed.relay().ip("link set veth2 mtu 1400").unwrap();
    bed.doctor(&[])
        .has("mtu", "harms", &["cam1", "1500", "1400"]);
}

#[test]
fn finds_a_ttl_that_ends_at_the_next_router() {
    let rules = RULE.replace("239.10.1.1%veth2:6001", "10.9.9.9:7000");
    let Some(bed) = bed(&rules) else { return };
    bed.relay()
        .ip("route add 10.9.9.0/24 via 10.0.1.2")
        .unwrap();
    bed.doctor(&[])
        .has("ttl", "harms", &["10.9.9.9", "10.0.1.2", "ttl=64"]);
}

#[test]
fn finds_and_mends_an_offload_that_corrupts_copies() {
    let forced = format!("{RULE}\npath = \"kernel\"\n");
    let Some(bed) = bed(&forced) else { return };
    link::features((bed.relay(), "veth1"), "rx-gro-list on").unwrap();
    let diagnosis = bed.doctor(&[]);
    diagnosis.has("gro", "stops", &["rx-gro-list", "veth1", "down"]);
    assert_eq!(diagnosis.status, 5);
    let mended = bed.doctor(&["--fix"]);
    assert_eq!(mended.has("gro", "stops", &[])["fixed"], true);
    // What it stopped is judged anew by the next one.
    let after = bed.doctor(&[]);
    after.has_no("gro");
    assert_eq!(after.status, 0);
}

#[test]
fn tells_what_an_offload_costs_rules_that_may_take_either_path() {
    let Some(bed) = bed(RULE) else { return };
    link::features((bed.relay(), "veth1"), "rx-gro-list on").unwrap();
    bed.doctor(&[])
        .has("gro", "harms", &["rx-gro-list", "userspace path"]);
}

#[test]
fn notes_merging_where_outputs_cannot_segment() {
    let Some(bed) = bed(RULE) else { return };
    link::features((bed.relay(), "veth1"), "rx-udp-gro-forwarding on").unwrap();
    link::features((bed.relay(), "veth2"), "tx-udp-segmentation off").unwrap();
    bed.doctor(&[])
        .has("gro", "note", &["rx-udp-gro-forwarding", "veth2"]);
}

#[test]
fn says_that_many_groups_need_no_setting() {
    let rules = RULE.replace("239.1.1.1%veth1:5001", "239.1.1.0/24%veth1:5001");
    let rules = rules.replace("239.10.1.1", "239.10.1.0/24");
    let Some(bed) = bed(&rules) else { return };
    bed.doctor(&[])
        .has("limit", "note", &["256 groups", "igmp_max_memberships"]);
}

#[test]
fn finds_a_backlog_that_is_too_short_for_the_fan_out() {
    let outputs: Vec<String> = { 1..=50 }
        .map(|n| format!("\"239.10.1.{n}%veth2:6001\""))
        .collect();
    let rules = RULE.replace("\"239.10.1.1%veth2:6001\"", &outputs.join(", "));
    let Some(bed) = bed(&rules) else { return };
    bed.doctor(&[])
        .has("limit", "note", &["netdev_max_backlog", "50 outputs"]);
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

#[test]
fn notes_filters_that_come_after_the_kernel_path() {
    let Some(bed) = bed(RULE) else { return };
    bed.relay()
        .tool("tc", "qdisc add dev veth1 clsact")
        .unwrap();
    bed.doctor(&[]).has("hook", "note", &["veth1", "clsact"]);
}

#[test]
fn asks_the_daemon_what_it_relays_and_knows_its_own_program() {
    use lab::daemon::{Daemon, Options};
    let Some(bed) = bed(RULE) else { return };
    let daemon = Daemon::start(bed.relay(), Options::path("kernel")).unwrap();
    let input = "239.1.1.1%veth1:5001";
    daemon
        .add("cam1", input, &["239.10.1.1%veth2:6001"])
        .unwrap();
    let diagnose = || {
        let finished = daemon.client(&["doctor", "--json"]).unwrap();
        let report: Value = serde_json::from_str(&finished.stdout).unwrap();
        assert!(report["rules_from"].as_str().unwrap().contains("daemon"));
        Diagnosis {
            status: finished.status.code().unwrap(),
            findings: report["findings"].as_array().unwrap().clone(),
        }
    };
    let healthy = diagnose();
    healthy.has_no("hook");
    healthy.has_no("daemon");
    assert_eq!(healthy.status, 0);
    // Nobody has that address.
    daemon
        .add("cam2", "239.1.1.2%veth1:5001", &["10.0.1.77:7000"])
        .unwrap();
    let broken = diagnose();
    broken.has("daemon", "stops", &["cam2", "10.0.1.77"]);
    assert_eq!(broken.status, 5);
}
