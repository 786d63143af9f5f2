//! Other programs where MCR takes its packets, on either path: XDP before it, tcx beside it, clsact
//! behind it.

use super::finding::{Finding, Severity};
use super::snapshot::{Link, Snapshot};

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for link in snapshot.input_links() {
        findings.extend(xdp(link));
        findings.extend(tcx(link));
        findings.extend(clsact(link));
    }
    findings
}

fn xdp(link: &Link) -> Option<Finding> {
    let (id, name) = (link.xdp?, &link.name);
    let program = bpf::attached::program(id).ok();
    if program
        .as_ref()
        .is_some_and(bpf::attached::Attached::is_relay)
    {
        return None;
    }
    let program = program.map(|program| program.name).unwrap_or_default();
    let program = match program.as_str() {
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
    let others = attached.iter().enumerate();
    let others = others.filter(|(_, program)| !program.is_relay());
    let findings = others.map(|(place, program)| {
        let (id, name) = (program.id, &program.name);
        let evidence = if relay.is_some_and(|relay| relay < place) {
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
    let finding = Finding::new(Severity::Note, name, evidence);
    Some(finding.remedy(format!(
        "tc filter show dev {name} ingress lists them; a rule with local = \"yes\" passes its packets \
         on to them"
    )))
}
