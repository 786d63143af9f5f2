//! Forced IGMP and MLD versions that cannot join a source: IGMPv1, IGMPv2 and MLDv1 reports name none.

use super::finding::{Finding, Severity};
use super::repair::Repair;
use super::snapshot::{Link, Snapshot};

/// A protocol: its name, its setting, and the first version that supports sources.
const IGMP: (&str, &str, u64) = ("IGMP", "net/ipv4/conf/{}/force_igmp_version", 3);
const MLD: (&str, &str, u64) = ("MLD", "net/ipv6/conf/{}/force_mld_version", 2);

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let links = snapshot.input_links();
    let findings = links.iter().flat_map(|link| {
        let forced: Vec<Finding> = [(IGMP, true), (MLD, false)]
            .into_iter()
            .filter_map(|(protocol, is_ipv4)| forced(snapshot, link, protocol, is_ipv4))
            .collect();
        let in_use = in_use(snapshot, link).filter(|_| forced.is_empty());
        forced.into_iter().chain(in_use)
    });
    findings.collect()
}

/// A querier of IGMPv1 or v2 makes the kernel use its version (RFC 3376, 7.2.1): reports name no source.
fn in_use(snapshot: &Snapshot, link: &Link) -> Option<Finding> {
    let version = snapshot
        .igmp_versions
        .iter()
        .find(|(name, _)| *name == link.name);
    let (_, version) = version.filter(|(_, version)| matches!(version.as_str(), "V1" | "V2"))?;
    let inputs = snapshot.group_inputs();
    let with_sources = inputs.iter().find(|(_, endpoint, input)| {
        input.index == link.index && endpoint.is_ipv4() && !endpoint.sources.is_empty()
    });
    let (rule, endpoint, _) = with_sources?;
    let evidence = format!(
        "a querier there speaks IGMP{}, so this host does: the report for input {endpoint} of rule {:?} \
         cannot name its source, and routers ignore such reports for source-specific groups (RFC 4604)",
        version.to_lowercase(),
        rule.name
    );
    Some(Finding::new(Severity::Stops, &link.name, evidence).remedy(
        "have the querier (router or switch) ask with IGMPv3; cat /proc/net/igmp shows the version",
    ))
}

fn forced(
    snapshot: &Snapshot,
    link: &Link,
    (protocol, setting, source_version): (&str, &str, u64),
    is_ipv4: bool,
) -> Option<Finding> {
    let inputs = snapshot.group_inputs();
    let mut here = inputs
        .iter()
        .filter(|(_, endpoint, input)| input.index == link.index && endpoint.is_ipv4() == is_ipv4);
    here.clone().next()?;
    // The setting of "all" wins if it is set, IGMP_V2_SEEN in net/ipv4/igmp.c.
    let keys = ["all", &link.name].map(|name| setting.replace("{}", name));
    let key = keys.iter().find(|key| {
        let version = snapshot.number(key).unwrap_or(0);
        version != 0 && version < source_version
    })?;
    let version = snapshot.number(key)?;
    let name = key.replace('/', ".");
    let with_sources = here.find(|(_, endpoint, _)| !endpoint.sources.is_empty());
    let Some((rule, endpoint, _)) = with_sources else {
        let evidence = format!(
            "{name} = {version}: joins without a source work, (S,G) joins on this interface would not"
        );
        return Some(Finding::new(Severity::Note, &link.name, evidence));
    };
    let evidence = format!(
        "{name} = {version}: the report for input {endpoint} of rule {:?} cannot name its source, \
         and routers ignore {protocol}v{version} reports for source-specific groups (RFC 4604)",
        rule.name
    );
    let remedy = format!("sysctl -w {name}=0, and in /etc/sysctl.d");
    let finding = Finding::new(Severity::Stops, &link.name, evidence).remedy(remedy);
    Some(finding.repair(Repair::Setting {
        file: snapshot.setting_file(key),
        value: "0".to_owned(),
    }))
}
