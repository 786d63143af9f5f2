//! Inputs that are addresses of this host: they need no join, so anybody who can reach the host can send to
//! them.

use super::finding::{Finding, Severity};
use super::snapshot::Snapshot;

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for rule in snapshot.rules.set.iter().filter(|rule| rule.enabled) {
        let addresses = rule.inputs.iter().filter(|input| !input.is_multicast());
        for input in addresses.clone().filter(|input| input.sources.is_empty()) {
            let evidence = format!(
                "input {input} takes packets of anybody who reaches this host: no packet filter of it \
                 and no reverse-path filter is asked before"
            );
            findings.push(Finding::of_rule(Severity::Note, &rule.name, evidence).remedy(format!(
                "name who may send, as in 10.9.9.0/24@{input}, and have the network drop forged senders"
            )));
        }
        findings.extend(addresses.filter_map(|input| {
            let port = snapshot.ephemeral_ports()?.find(|port| input.ports.contains(*port))?;
            let evidence = format!(
                "input {input}: programs that ask for any port may be given {port}, whose answers would \
                 be relayed"
            );
            Some(Finding::of_rule(Severity::Note, &rule.name, evidence).remedy(format!(
                "choose ports outside of net.ipv4.ip_local_port_range, or sysctl -w \
                 net.ipv4.ip_local_reserved_ports={}",
                input.ports
            )))
        }));
    }
    findings
}
