//! Outputs whose MTU is smaller than that of an input.

use super::finding::{Finding, Severity};
use super::snapshot::Snapshot;

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let inputs = snapshot.inputs();
    let findings = snapshot.outputs().into_iter().filter_map(|output| {
        if output.spec.fragment {
            return None;
        }
        let of_rule = inputs
            .iter()
            .filter(|(rule, ..)| rule.name == output.rule.name);
        let (_, endpoint, link) = of_rule.max_by_key(|(_, _, link)| link.mtu)?;
        if link.mtu <= output.link.mtu {
            return None;
        }
        let (wide, narrow) = (link.mtu, output.link.mtu);
        let evidence = format!(
            "input {endpoint} may bring packets of {wide} bytes (MTU of {}), output {} sends at \
             most {narrow} (MTU of {}): what is larger is dropped as too_big",
            link.name, output.spec.to, output.link.name
        );
        Some(Finding::of_rule(Severity::Harms, &output.rule.name, evidence).remedy(format!(
            "ip link set {} mtu {wide}, or smaller packets at the sender, or fragment=yes at the output",
            output.link.name
        )))
    });
    findings.collect()
}
