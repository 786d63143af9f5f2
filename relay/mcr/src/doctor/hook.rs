//! Other programs at the hooks where MCR takes packets, on either path: XDP before it, tcx beside it, clsact
//! after it.

use std::collections::BTreeMap;

use super::finding::{Finding, Severity};
use super::snapshot::{Link, Snapshot};

/// Attaching the first XDP program makes the host switch receive offloads off for everybody.
const VIRTIO: &str = "virtio_net";

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for link in snapshot.input_links() {
        findings.extend(xdp(link));
        findings.extend(tcx(link));
        findings.extend(clsact(link));
        findings.extend(offer(snapshot, link));
    }
    findings.extend(at_tc(snapshot));
    findings
}

/// Why packets are not taken at XDP although that is requested.
fn at_tc(snapshot: &Snapshot) -> Vec<Finding> {
    let mut rules_by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let rules = snapshot.rules.stats.iter().flat_map(|stats| &stats.rules);
    for (rule, input) in rules.flat_map(|rule| rule.inputs.iter().map(move |input| (rule, input))) {
        let reason = input.hook_reason.as_deref();
        if let Some(reason) = reason.filter(|_| input.xdp_asked == Some(true)) {
            rules_by_reason.entry(reason).or_default().push(&rule.name);
        }
    }
    let findings = rules_by_reason.into_iter().map(|(reason, rules)| {
        let others = match rules.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let evidence = format!("its packets are taken at tc, not at XDP: {reason}");
        let finding = Finding::new(
            Severity::Note,
            format!("rule {:?}{others}", rules[0]),
            evidence,
        );
        finding.remedy("xdp = \"off\" for its interface, if that is as it should be")
    });
    findings.collect()
}

/// Suggests XDP for a card whose driver runs it and that loses nothing by its first program.
fn offer(snapshot: &Snapshot, link: &Link) -> Option<Finding> {
    let name = &link.name;
    let rules = snapshot.rules.stats.iter().flat_map(|stats| &stats.rules);
    let inputs = rules.flat_map(|rule| &rule.inputs);
    let not_requested = inputs.filter(|input| input.xdp_asked == Some(false));
    let mut reasons = not_requested.filter_map(|input| input.hook_reason.as_deref());
    let device = sys::ethtool::device(name)
        .ok()
        .filter(|device| device.bus.is_some())?;
    let driver = device.driver.filter(|driver| driver != VIRTIO)?;
    let features = sys::netdev::xdp_features()
        .ok()?
        .get(&link.index)
        .copied()?;
    if features & sys::netdev::RUNS_PROGRAMS == 0 || !reasons.any(|reason| is_about(reason, name)) {
        return None;
    }
    let evidence = format!(
        "its driver, {driver}, runs XDP programs, which take packets before the kernel makes an skb of each; \
         MCR's was never tried on it"
    );
    Some(Finding::new(Severity::Note, name, evidence).remedy(format!(
        "to try it: xdp = \"on\" in [interface.{name}], and a stop and start of the daemon"
    )))
}

/// Whether an interface's name is a word of a reason: eth1 is none of what is said about eth10.
fn is_about(reason: &str, interface: &str) -> bool {
    let mut words = reason.split([' ', ',', ';', ':']);
    words.any(|word| word == interface)
}

fn xdp(link: &Link) -> Option<Finding> {
    let (id, name) = (link.xdp?, &link.name);
    let attached = bpf::attached::program(id).ok();
    if attached
        .as_ref()
        .is_some_and(bpf::attached::Attached::is_relay)
    {
        return None;
    }
    let program_name = attached.map(|program| program.name).unwrap_or_default();
    let program = match program_name.as_str() {
        "" => format!("XDP program {id}"),
        "xdp_dispatcher" => format!("libxdp's dispatcher ({id})"),
        "xsk_def_prog" => format!("AF_XDP's program ({id})"),
        name => format!("XDP program {name} ({id})"),
    };
    let evidence = format!(
        "{program} sees packets before MCR does; what it drops or redirects is never relayed"
    );
    let finding = Finding::new(Severity::Harms, name, evidence);
    Some(finding.remedy(format!(
        "bpftool prog show id {id} tells whose it is; ip link set {name} xdp off removes it"
    )))
}

fn tcx(link: &Link) -> Vec<Finding> {
    let attached = bpf::attached::tcx_ingress(&link.name).unwrap_or_default();
    let relay = attached.iter().position(bpf::attached::Attached::is_relay);
    let programs = attached.iter().enumerate();
    let others = programs.filter(|(_, program)| !program.is_relay());
    let findings = others.map(|(position, program)| {
        let (id, name) = (program.id, &program.name);
        let evidence = if relay.is_some_and(|relay| relay < position) {
            format!("tcx program {name} ({id}) comes after MCR's and does not see what is relayed")
        } else {
            format!(
                "tcx program {name} ({id}) sees packets before MCR does; what it takes is never relayed"
            )
        };
        Finding::new(Severity::Harms, &link.name, evidence)
            .remedy(format!("bpftool net show dev {}; bpftool prog show id {id}", link.name))
    });
    findings.collect()
}

fn clsact(link: &Link) -> Option<Finding> {
    if !link.clsact {
        return None;
    }
    let name = &link.name;
    let evidence = "a clsact or ingress qdisc is attached: its filters come after MCR's program, on \
                    either path, and do not see what is relayed";
    Some(Finding::new(Severity::Note, name, evidence).remedy(format!(
        "tc filter show dev {name} ingress lists them; a rule with local = \"yes\" passes its packets \
         on to them"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_known_by_its_whole_name() {
        let reason = "xdp = \"auto\" takes drivers that tests proved, and that of eth10 is none";
        assert!(is_about(reason, "eth10"));
        assert!(!is_about(reason, "eth1"));
    }
}
