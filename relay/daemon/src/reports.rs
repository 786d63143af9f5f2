//! Repeated reports of the groups of inputs, for networks without queries and with forgetful switches: the
//! current memberships, in the version in use there, and never a leave.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

use compile::host::Interface;
use igmp::codec::craft;
use igmp::codec::{Record, RecordKind, Report, Version};
use packet::craft::group_mac;
use rules::net::Ifindex;
use rules::ruleset::RuleSet;
use sys::group_socket::GroupSocket;
use sys::membership::igmp_versions;

use crate::core::Core;
use crate::demand::own_address;
use crate::memberships::{Joined, of_join};

/// Bytes of records in one report: fits the minimum MTU of IPv6 (RFC 8200 section 5).
const ROOM: usize = 1_200;
/// Sources of a group in one record.
const SOURCES: usize = 64;

/// When the reports of each interval are due.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// The rules that were last read.
    rules: Arc<RuleSet>,
    due: BTreeMap<NonZeroU16, Instant>,
}

impl Reports {
    /// Sends the reports that are due; to be called once a second.
    pub(crate) fn send_due(&mut self, core: &Core, joined: &Joined) {
        let now = Instant::now();
        let next = |after: NonZeroU16| now + Duration::from_secs(after.get().into());
        if !Arc::ptr_eq(&self.rules, core.rules()) {
            self.rules = Arc::clone(core.rules());
            let inputs = self.rules.iter().flat_map(|rule| &rule.inputs);
            let due = inputs.filter_map(|input| {
                let after = input.rejoin?;
                let scheduled = self.due.get(&after).copied();
                Some((after, scheduled.unwrap_or_else(|| next(after))))
            });
            self.due = due.collect();
        }
        let mut is_due = BTreeSet::new();
        for (after, at) in self.due.iter_mut().filter(|(_, at)| **at <= now) {
            *at = next(*after);
            is_due.insert(*after);
        }
        if is_due.is_empty() {
            return;
        }
        let versions = igmp_versions();
        for ((index, ipv4), records) in self.present(&is_due, core, joined) {
            let Some(link) = core.host().interfaces.get(&index).filter(|link| link.up) else {
                continue;
            };
            let in_use = versions.iter().find(|(name, _)| *name == link.name);
            let version = match (ipv4, in_use.map(|(_, version)| version.as_str())) {
                (true, Some("V1")) => Version::V1,
                (true, Some("V2")) => Version::V2,
                (false, _) if forces_mldv1(&link.name) => Version::V2,
                _ => Version::V3,
            };
            if let Err(error) = send((index, ipv4), link, version, records) {
                tracing::warn!(%error, interface = link.name, "cannot report groups again");
            }
        }
    }

    /// The memberships of the inputs that are due, by interface and family.
    fn present(
        &self,
        is_due: &BTreeSet<NonZeroU16>,
        core: &Core,
        joined: &Joined,
    ) -> BTreeMap<(Ifindex, bool), Vec<Record>> {
        let mut groups = BTreeSet::new();
        for rule in self.rules.iter() {
            let has_rejoin = rule.inputs.iter().any(|input| input.rejoin.is_some());
            let position = self.rules.slot(&rule.name).filter(|_| has_rejoin);
            let Some(view) = position.and_then(|position| core.views().get(&position)) else {
                continue;
            };
            let inputs = rule.inputs.iter().zip(&view.inputs);
            let due =
                inputs.filter(|(input, _)| input.rejoin.is_some_and(|at| is_due.contains(&at)));
            let joins = due.flat_map(|(_, view)| &view.joins).flat_map(of_join);
            groups.extend(joins.map(|wanted| (wanted.interface, wanted.group)));
        }
        let mut present: BTreeMap<_, Vec<Record>> = BTreeMap::new();
        for (interface, group) in groups {
            // The range of all groups is not a membership that is reported.
            let Some(sources) = joined
                .set()
                .sources(interface, group)
                .filter(|_| group.is_multicast())
            else {
                continue;
            };
            let records = present
                .entry((Ifindex(interface), group.is_ipv4()))
                .or_default();
            let record = |kind, sources: &[IpAddr]| Record {
                kind,
                group,
                sources: sources.to_vec(),
            };
            if sources.is_empty() {
                records.push(record(RecordKind::IsExclude, &[]))
            } else {
                records.extend(
                    sources
                        .chunks(SOURCES)
                        .map(|some| record(RecordKind::IsInclude, some)),
                )
            }
        }
        present
    }
}

/// The source address of reports on an interface; unspecified if it has no IPv4 address (RFC 3376
/// section 4.2.13).
fn own(link: &Interface, ipv4: bool) -> Option<IpAddr> {
    let own = own_address(&link.addresses, ipv4);
    own.or(ipv4.then_some(Ipv4Addr::UNSPECIFIED.into()))
}

/// Returns whether the kernel is configured for MLDv1. It does not expose that a querier made it use MLDv1.
fn forces_mldv1(interface: &str) -> bool {
    ["all", interface].iter().any(|name| {
        let path = format!("/proc/sys/net/ipv6/conf/{name}/force_mld_version");
        fs::read_to_string(path).is_ok_and(|forced| forced.trim() == "1")
    })
}

fn send(
    (index, ipv4): (Ifindex, bool),
    link: &Interface,
    version: Version,
    records: Vec<Record>,
) -> std::io::Result<()> {
    let Some(own) = own(link, ipv4) else {
        return Ok(());
    };
    let socket = GroupSocket::to_send(index.0, ipv4)?;
    for report in reports(version, records) {
        if let Some((to, packet)) = craft::report(own, &report) {
            socket.send(group_mac(to), &packet)?;
        }
    }
    Ok(())
}

/// Packs records into reports; a report of an old version has one group.
fn reports(version: Version, records: Vec<Record>) -> Vec<Report> {
    let mut reports: Vec<Report> = Vec::new();
    let (mut room, mut last) = (0, None);
    for record in records {
        if version != Version::V3 && last == Some(record.group) {
            continue;
        }
        last = Some(record.group);
        let size = 4 + (1 + record.sources.len()) * if record.group.is_ipv4() { 4 } else { 16 };
        match reports
            .last_mut()
            .filter(|_| version == Version::V3 && size <= room)
        {
            Some(report) => report.records.push(record),
            None => {
                room = ROOM;
                reports.push(Report {
                    version,
                    records: vec![record],
                });
            }
        }
        room = room.saturating_sub(size);
    }
    // Never a leave: an old version reports the group instead of its sources.
    if version != Version::V3 {
        for record in reports.iter_mut().flat_map(|report| &mut report.records) {
            record.kind = RecordKind::IsExclude;
        }
    }
    reports
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(count: u8) -> Vec<Record> {
        let record = |last| Record {
            kind: RecordKind::IsInclude,
            group: [232, 1, 1, last].into(),
            sources: vec![[10, 0, 0, 1].into(); 20],
        };
        (0..count).map(record).collect()
    }

    #[test]
    fn reports_hold_many_groups_or_one_and_none_is_a_leave() {
        let new = reports(Version::V3, records(40));
        assert_eq!(
            new.iter().map(|report| report.records.len()).sum::<usize>(),
            40
        );
        assert_eq!(new.len(), 4, "13 records of 88 bytes in each");
        for version in [Version::V1, Version::V2] {
            let old = reports(version, [records(3), records(3)[2..].to_vec()].concat());
            assert_eq!(old.len(), 3);
            let is_plain = |report: &Report| report.records[0].kind == RecordKind::IsExclude;
            assert!(old.iter().all(is_plain));
        }
    }
}
