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
        // The daemon knows what the route allows.
        let running = snapshot.rules.stats_of(&output.rule.name);
        let mut outputs = running.iter().flat_map(|rule| &rule.outputs);
        let target = output.spec.target();
        let of_route = outputs.find(|running| running.to == target);
        let of_link = output.link.mtu;
        let narrow = of_route.and_then(|running| running.mtu).unwrap_or(of_link);
        let wide = link.mtu;
        if wide <= narrow {
            return None;
        }
        let name = &output.link.name;
        let (of, raise) = if narrow < of_link {
            (
                format!("the route by {name}"),
                format!("a route with mtu {wide}"),
            )
        } else {
            (name.clone(), format!("ip link set {name} mtu {wide}"))
        };
        let evidence = format!(
            "input {endpoint} may bring packets of {wide} bytes (MTU of {}), output {} sends at \
             most {narrow} (MTU of {of}): what is larger is dropped as too_big",
            link.name, output.spec.to
        );
        Some(
            Finding::of_rule(Severity::Harms, &output.rule.name, evidence).remedy(format!(
                "{raise}, or smaller packets at the sender, or fragment=yes at the output"
            )),
        )
    });
    findings.collect()
}
