//! What endangers a relay of a fleet: an etcd that does not answer or is slow, and a clock that stops
//! with the virtual machine.

use api::reply::FleetStatus;

use super::finding::{Finding, Severity};
use super::snapshot::Snapshot;

/// Beats per hold. A beat that takes longer than the time between two delays the next one.
const BEATS: f64 = 6.0;

/// Half of etcd's default quota, from which on it refuses to write, in bytes.
const DATABASE_LARGE: u64 = 1 << 30;

/// A clock source that stops while the virtual machine is stopped.
const STANDS_STILL: &str = "kvm-clock";

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let Some(fleet) = &snapshot.rules.fleet else {
        return Vec::new();
    };
    let mut findings: Vec<Finding> = of_etcd(fleet).into_iter().collect();
    findings.extend(of_problems(fleet));
    findings.extend(of_database(fleet));
    findings.extend(of_clock(&snapshot.clock_source));
    findings
}

fn finding(fleet: &FleetStatus, evidence: impl Into<String>) -> Finding {
    Finding::new(
        Severity::Harms,
        format!("fleet {:?}", fleet.fleet),
        evidence,
    )
}

fn of_etcd(fleet: &FleetStatus) -> Option<Finding> {
    if !fleet.etcd.reachable {
        let reason = fleet.etcd.reason.as_deref().unwrap_or("no reason given");
        let evidence = format!("etcd cannot be used: {reason}");
        let remedy = "look at etcd's hosts, the network to them, and endpoints, tls, user and \
                      password_file in [fleet]";
        return Some(finding(fleet, evidence).remedy(remedy));
    }
    let between_ms = fleet.hold_ms as f64 / BEATS;
    let took = fleet.etcd.beat_ms.filter(|took| *took > between_ms)?;
    let evidence = format!(
        "the last beat took {took:.0} ms, and one is due every {between_ms:.0} ms: a relay whose \
         beats are late is fenced"
    );
    let remedy = "look at the disks of etcd's hosts, or give a longer hold in [fleet]";
    Some(finding(fleet, evidence).remedy(remedy))
}

/// Problems that the relay itself reports, except those of etcd.
fn of_problems(fleet: &FleetStatus) -> impl Iterator<Item = Finding> + '_ {
    let own = |problem: &&String| !problem.starts_with("etcd: ");
    let problems = fleet.problems.iter().filter(own);
    problems.map(|problem| finding(fleet, problem))
}

fn of_database(fleet: &FleetStatus) -> Option<Finding> {
    let etcd = &fleet.etcd;
    let bytes = etcd.db_bytes.filter(|bytes| *bytes >= DATABASE_LARGE)?;
    let version = etcd.version.as_deref().unwrap_or("of unknown version");
    let evidence = format!(
        "the database of etcd {version} has {}: it refuses to write from its quota on, 2 GiB where \
         none is set, and then no relay beats",
        crate::render::bytes(bytes)
    );
    let remedy = "start etcd with --auto-compaction-mode periodic --auto-compaction-retention 10m, \
                  and run etcdctl defrag on each of its members, one after another";
    Some(finding(fleet, evidence).remedy(remedy))
}

fn of_clock(source: &str) -> Option<Finding> {
    let evidence = format!(
        "the clock source is {source}: it stands still while this virtual machine is stopped, and \
         gates stay open as long"
    );
    (source == STANDS_STILL).then(|| {
        Finding::new(Severity::Note, "host", evidence).remedy(
            "mcr fleet drain this relay before the machine is paused, copied or moved; or boot with \
             clocksource=tsc where its processor allows that",
        )
    })
}

#[cfg(test)]
mod tests {
    use api::reply::FleetEtcd;

    use super::*;

    fn fleet(reachable: bool, beat_ms: f64) -> FleetStatus {
        FleetStatus {
            fleet: "plant".to_owned(),
            hold_ms: 1200,
            etcd: FleetEtcd {
                reachable,
                beat_ms: Some(beat_ms),
                ..FleetEtcd::default()
            },
            ..FleetStatus::default()
        }
    }

    #[test]
    fn an_etcd_that_is_away_or_slow_is_reported_and_a_good_one_is_not() {
        let text = |fleet| of_etcd(&fleet).map(|finding| finding.evidence);
        assert_eq!(text(fleet(true, 150.0)), None);
        assert!(text(fleet(true, 250.0)).unwrap().contains("took 250 ms"));
        assert!(text(fleet(false, 1.0)).unwrap().contains("cannot be used"));
    }

    #[test]
    fn a_database_is_told_of_before_etcd_refuses_to_write() {
        let of = |bytes| {
            let mut fleet = fleet(true, 1.0);
            fleet.etcd.db_bytes = Some(bytes);
            of_database(&fleet).map(|finding| finding.evidence)
        };
        assert_eq!(of(900_000_000), None);
        assert!(of(1_500_000_000).unwrap().contains("1.5 GB"));
    }

    #[test]
    fn a_clock_that_stands_still_is_reported() {
        assert!(of_clock("kvm-clock").is_some());
        assert!(of_clock("tsc").is_none());
    }
}
