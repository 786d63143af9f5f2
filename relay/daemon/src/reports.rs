//! Groups of inputs that are reported again and again, for networks whose querier never asks and whose
//! switches forget: what is joined now, in the version spoken there, and never a leave.

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
use crate::memberships::{Joined, of_join};

/// Bytes of records in one report: fits every link that IPv6 does (RFC 8200 section 5).
const ROOM: usize = 1_200;
/// Sources of a group in one record.
const SOURCES: usize = 64;

/// When which inputs are due.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// The rules that were last read.
    rules: Arc<RuleSet>,
    due: BTreeMap<NonZeroU16, Instant>,
}

impl Reports {
    /// Sends what is due; asked once a second.
    pub(crate) fn send_due(&mut self, core: &Core, joined: &Joined) {
        let now = Instant::now();
        let next = |after: NonZeroU16| now + Duration::from_secs(after.get().into());
        if !Arc::ptr_eq(&self.rules, core.rules()) {
            self.rules = Arc::clone(core.rules());
            let inputs = self.rules.iter().flat_map(|rule| &rule.inputs);
            let due = inputs.filter_map(|input| {
                let after = input.rejoin?;
                let before = self.due.get(&after).copied();
                Some((after, before.unwrap_or_else(|| next(after))))
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
            let spoken = versions.iter().find(|(name, _)| *name == link.name);
            let version = match (ipv4, spoken.map(|(_, version)| version.as_str())) {
                (true, Some("V1")) => Version::V1,
                (true, Some("V2")) => Version::V2,
                (false, _) if forces_the_old_mld(&link.name) => Version::V2,
                _ => Version::V3,
            };
            if let Err(error) = send((index, ipv4), link, version, records) {
                tracing::warn!(%error, interface = link.name, "cannot report groups again");
            }
        }
    }

    /// What is joined of the inputs that are due, by interface and family.
    fn present(
        &self,
        is_due: &BTreeSet<NonZeroU16>,
        core: &Core,
        joined: &Joined,
    ) -> BTreeMap<(Ifindex, bool), Vec<Record>> {
        let mut groups = BTreeSet::new();
        for rule in self.rules.iter() {
            let is_asked = rule.inputs.iter().any(|input| input.rejoin.is_some());
            let place = self.rules.place(&rule.name).filter(|_| is_asked);
            let Some(view) = place.and_then(|place| core.views().get(&place)) else {
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
            // All groups at once are no membership that anybody is told of.
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

/// Who sends reports on an interface: of IPv4 nobody where it has no address (RFC 3376 section 4.2.13).
fn own(link: &Interface, ipv4: bool) -> Option<IpAddr> {
    let mut addresses = link.addresses.iter().copied();
    let own = addresses.find(|address| match address {
        IpAddr::V4(_) => ipv4,
        IpAddr::V6(address) => !ipv4 && address.is_unicast_link_local(),
    });
    own.or(ipv4.then_some(Ipv4Addr::UNSPECIFIED.into()))
}

/// What a querier of MLDv1 makes the kernel speak is nowhere to be read; what it is told to is.
fn forces_the_old_mld(interface: &str) -> bool {
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

/// Packs records into reports; one of an old version is of one group.
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
    // Never a leave: what an old version cannot say of sources it says of the group.
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
