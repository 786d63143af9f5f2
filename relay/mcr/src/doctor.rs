//! Finds what keeps multicast from flowing on this host: its state is read once, then each check judges it.
//!
//! [`snapshot`] does all the reading. The checks are functions of it, one file each. [`repair`] does
//! all the changing. A check without findings reports nothing.

mod arrival;
mod capability;
mod cores;
mod daemon;
mod demand;
mod duplicate;
mod finding;
mod firewall;
mod fleet;
mod gro;
mod hook;
mod igmp_version;
mod interface;
mod leftover;
mod limit;
mod listener;
mod mtu;
mod querier;
mod reflect;
mod repair;
mod rpf;
mod sender;
pub(crate) mod snapshot;
mod taker;
mod ttl;
mod tunnel;

use serde::Serialize;

pub(crate) use arrival::{Arrivals, listen};
pub(crate) use finding::{Finding, Severity};

use snapshot::Snapshot;

/// A check: its name, and what it covers, for the user.
struct Check {
    name: &'static str,
    covers: &'static str,
    run: fn(&Snapshot) -> Vec<Finding>,
}

/// The rows of [`CHECKS`]: name, coverage, and the function that runs the check.
macro_rules! checks {
    ($($name:literal: $covers:literal => $run:path;)+) => {
        &[$(Check { name: $name, covers: $covers, run: $run }),+]
    };
}

const CHECKS: &[Check] = checks! {
    "capability": "privileges, BPF, bpffs, AF_PACKET" => capability::check;
    "daemon": "rules and memberships as the daemon has them" => daemon::check;
    "fleet": "etcd and the clock, of a relay of a fleet" => fleet::check;
    "leftover":
        "what earlier daemons left forwarding; streams that two instances take" => leftover::check;
    "interface": "interfaces and routes that rules need" => interface::check;
    "duplicate": "addresses of this host that another has too" => duplicate::check;
    "arrival": "rules that receive nothing, and what arrives instead" => arrival::check;
    "querier": "snooping bridges and their queriers" => querier::check;
    "demand": "whether it can be heard who listens to outputs on demand" => demand::check;
    "igmp-version": "forced IGMP and MLD versions" => igmp_version::check;
    "firewall": "packet filters that drop IGMP or MLD" => firewall::nftables;
    "mtu": "MTU of outputs against that of inputs" => mtu::check;
    "ttl": "TTLs that end at the next router" => ttl::check;
    "reflect": "answers to what rules reflect; others that reflect" => reflect::check;
    "gro": "receive offloads of inputs" => gro::check;
    "hook": "XDP, and other programs at ingress: XDP, tcx, clsact" => hook::check;
    "listener": "local sockets that wait for relayed streams" => listener::check;
    "taker": "captures, and devices in other namespaces, that miss relayed streams" => taker::check;
    "sender": "inputs at addresses of this host that anybody can send to" => sender::check;
    "tunnel": "tunnels to other relays, and who may send into them" => tunnel::check;
    "limit": "membership and buffer limits, backlog" => limit::check;
    "cores": "CPUs that receive what inputs bring" => cores::check;
    "rpf": "reverse-path filters" => rpf::check;
};

/// The findings of one check.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CheckResult {
    /// Name of the check.
    pub(crate) check: &'static str,
    /// What it covers, for the user.
    pub(crate) covers: &'static str,
    /// Why the check had nothing to examine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) skipped: Option<String>,
    /// Sorted, the worst first.
    pub(crate) findings: Vec<Finding>,
}

/// Runs all checks, in their order.
pub(crate) fn examine(snapshot: &Snapshot) -> Vec<CheckResult> {
    let outcomes = CHECKS.iter().map(|check| {
        let mut findings = (check.run)(snapshot);
        findings
            .iter_mut()
            .for_each(|finding| finding.check = check.name);
        findings.sort_by_key(|finding| finding.severity);
        CheckResult {
            check: check.name,
            covers: check.covers,
            skipped: match check.name {
                "daemon" => snapshot.rules.unasked.clone(),
                "arrival" => snapshot.rules.unheard.clone(),
                _ => None,
            },
            findings,
        }
    });
    outcomes.collect()
}
