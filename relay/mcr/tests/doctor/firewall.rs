//! Filters of the host that drop packets the relay depends on.

use super::bed::{RULE, bed, nft};

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
fn finds_a_filter_at_the_egress_and_notes_that_the_forward_hook_does_not_matter() {
    let userspace = format!("{RULE}path = \"userspace\"\n");
    let Some(bed) = bed(&userspace) else { return };
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
    // Copies of the kernel path bypass it.
    if bpf::probe::probe().is_ok() {
        let path = bed.directory.path().join("mcr.toml");
        std::fs::write(path, userspace.replace("userspace", "kernel")).unwrap();
        let diagnosis = bed.doctor(&[]);
        let words = ["veth2", "netdev guard out", "do not pass it"];
        diagnosis.has("firewall", "note", &words);
        assert_eq!(diagnosis.status, 0);
    }
    nft(bed.relay(), "delete table netdev guard");
    assert_eq!(bed.doctor(&[]).status, 0);
}

#[test]
fn finds_filters_that_keep_copies_from_sockets_of_the_host() {
    let local = RULE.replace("239.10.1.1%veth2:6001", "127.0.0.1:7001");
    let Some(bed) = bed(&local) else { return };
    bed.doctor(&[]).has_no("firewall");
    for (hook, consequence) in [("output", "egress_error"), ("input", "counts as sent")] {
        let chain = format!("chain it {{ type filter hook {hook} priority 0; policy accept;");
        let table = format!("table inet guard {{ {chain}\n udp dport 7001 drop\n }}\n }}");
        nft(bed.relay(), &table);
        let words = [
            "lo",
            "copies to sockets of this host",
            "inet guard it",
            consequence,
        ];
        bed.doctor(&[]).has("firewall", "stops", &words);
        nft(bed.relay(), "delete table inet guard");
    }
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
fn chains_of_other_devices_concern_nobody() {
    let Some(bed) = bed(RULE) else { return };
    bed.relay()
        .ip("link add other0 type veth peer name other1")
        .unwrap();
    let table = |devices: &str| {
        let chain = |hook| {
            format!("chain {hook} {{ type filter hook {hook} {devices} priority 0; policy drop; }}")
        };
        format!(
            "table netdev guard {{\n{}\n{}\n}}",
            chain("ingress"),
            chain("egress")
        )
    };
    for devices in ["device other0", "devices = { other0, other1 }"] {
        nft(bed.relay(), &table(devices));
        bed.doctor(&[]).has_no("firewall");
        nft(bed.relay(), "delete table netdev guard");
    }
    nft(bed.relay(), &table("devices = { other0, veth1 }"));
    let diagnosis = bed.doctor(&[]);
    diagnosis.has("firewall", "stops", &["IGMP queries", "guard ingress"]);
    diagnosis.has("firewall", "stops", &["IGMP reports", "guard egress"]);
}

/// Copies that a socket sends pass the host's stack, and may reach the device encrypted.
#[test]
fn finds_filters_that_drop_what_a_socket_sends() {
    let Some(bed) = bed(RULE) else { return };
    let policy = "dst 239.10.0.0/16 tmpl proto esp mode transport level use";
    bed.relay()
        .ip(&format!("xfrm policy add dir out {policy}"))
        .unwrap();
    bed.doctor(&[]).has_no("firewall");
    for (hook, severity) in [
        ("output", "stops"),
        ("postrouting", "stops"),
        ("egress device veth2", "harms"),
    ] {
        let family = if severity == "harms" {
            "netdev"
        } else {
            "inet"
        };
        let chain = format!("chain it {{ type filter hook {hook} priority 0; policy accept;");
        let table = format!("table {family} guard {{ {chain}\n udp dport 6001 drop\n }}\n }}");
        nft(bed.relay(), &table);
        let words = ["veth2", "relayed copies", "guard it", "egress_error"];
        bed.doctor(&[]).has("firewall", severity, &words);
        nft(bed.relay(), &format!("delete table {family} guard"));
    }
}
