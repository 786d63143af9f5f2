//! What keeps multicast from flowing on this host: it is read once, then each check judges it.
//!
//! [`snapshot`] does all the reading. The checks are functions of it, one file each. [`repair`] does
//! all the changing. A check that finds nothing says nothing.

mod arrival;
mod capability;
mod cores;
mod daemon;
mod demand;
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

pub(crate) use arrival::{Heard, listen};
pub(crate) use finding::{Finding, Severity};

use snapshot::Snapshot;

/// A check: its name, and what it covers, for people.
struct Check {
    name: &'static str,
    covers: &'static str,
    run: fn(&Snapshot) -> Vec<Finding>,
}

const CHECKS: [Check; 22] = [
    Check {
        name: "capability",
        covers: "privileges, BPF, bpffs, AF_PACKET",
        run: capability::check,
    },
    Check {
        name: "daemon",
        covers: "rules and memberships as the daemon has them",
        run: daemon::check,
    },
    Check {
        name: "fleet",
        covers: "etcd and the clock, of a relay of a fleet",
        run: fleet::check,
    },
    Check {
        name: "leftover",
        covers: "what earlier daemons left forwarding; streams that two instances take",
        run: leftover::check,
    },
    Check {
        name: "interface",
        covers: "interfaces and routes that rules need",
        run: interface::check,
    },
    Check {
        name: "arrival",
        covers: "rules that receive nothing, and what arrives instead",
        run: arrival::check,
    },
    Check {
        name: "querier",
        covers: "snooping bridges and their queriers",
        run: querier::check,
    },
    Check {
        name: "demand",
        covers: "whether it can be heard who listens to outputs on demand",
        run: demand::check,
    },
    Check {
        name: "igmp-version",
        covers: "forced IGMP and MLD versions",
        run: igmp_version::check,
    },
    Check {
        name: "firewall",
        covers: "packet filters that drop IGMP or MLD",
        run: firewall::nftables,
    },
    Check {
        name: "mtu",
        covers: "MTU of outputs against that of inputs",
        run: mtu::check,
    },
    Check {
        name: "ttl",
        covers: "TTLs that end at the next router",
        run: ttl::check,
    },
    Check {
        name: "reflect",
        covers: "answers to what rules reflect; others that reflect",
        run: reflect::check,
    },
    Check {
        name: "gro",
        covers: "receive offloads of inputs",
        run: gro::check,
    },
    Check {
        name: "hook",
        covers: "XDP, and other programs at ingress: XDP, tcx, clsact",
        run: hook::check,
    },
    Check {
        name: "listener",
        covers: "local sockets that wait for relayed streams",
        run: listener::check,
    },
    Check {
        name: "taker",
        covers: "captures, and devices in other namespaces, that miss relayed streams",
        run: taker::check,
    },
    Check {
        name: "sender",
        covers: "inputs at addresses of this host that anybody can send to",
        run: sender::check,
    },
    Check {
        name: "tunnel",
        covers: "tunnels to other relays, and who may send into them",
        run: tunnel::check,
    },
    Check {
        name: "limit",
        covers: "membership and buffer limits, backlog",
        run: limit::check,
    },
    Check {
        name: "cores",
        covers: "CPUs that receive what inputs bring",
        run: cores::check,
    },
    Check {
        name: "rpf",
        covers: "reverse-path filters",
        run: rpf::check,
    },
];

/// What one check has to say.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CheckResult {
    /// Name of the check.
    pub(crate) check: &'static str,
    /// What it covers, for people.
    pub(crate) covers: &'static str,
    /// Why there was nothing to look at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) skipped: Option<String>,
    /// The worst first.
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
