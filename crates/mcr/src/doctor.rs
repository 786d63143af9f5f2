//! What keeps multicast from flowing on this host: looks once, then each check judges what was seen.
//!
//! [`scene`] does all the looking, the checks are functions of it, one file each, and [`repair`]
//! does all the changing. A check that finds nothing says nothing.

mod capability;
mod daemon;
mod filter;
mod firewall;
mod gro;
mod hook;
mod igmp_version;
mod interface;
mod limit;
mod listener;
mod mtu;
mod querier;
pub(crate) mod repair;
mod rpf;
pub(crate) mod scene;
mod ttl;

use serde::Serialize;

use repair::Repair;
use scene::Scene;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// Traffic of a rule does not flow, or will stop.
    Stops,
    /// Some packets, or somebody else, will suffer.
    Harms,
    /// Often suspected, harmless to MCR; or merely good to know.
    Note,
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// The check that found it.
    pub(crate) check: &'static str,
    pub(crate) severity: Severity,
    /// What it is about: an interface, a rule, the host.
    pub(crate) subject: String,
    /// What was seen, and what follows from it.
    pub(crate) evidence: String,
    /// What to do.
    pub(crate) remedy: String,
    /// What `--fix` does about it, if that is safe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fix: Option<Repair>,
    /// What `--fix` came to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fixed: Option<bool>,
}

impl Finding {
    /// Whether traffic does not flow because of it, now that `--fix` had its turn.
    pub(crate) fn stops(&self) -> bool {
        self.severity == Severity::Stops && self.fixed != Some(true)
    }

    fn new(severity: Severity, subject: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self {
            check: "",
            severity,
            subject: subject.into(),
            evidence: evidence.into(),
            remedy: String::new(),
            fix: None,
            fixed: None,
        }
    }

    fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    fn repair(mut self, repair: Repair) -> Self {
        self.fix = Some(repair);
        self
    }
}

/// A check: its name, and what it looks at, for people.
struct Check {
    name: &'static str,
    looks_at: &'static str,
    run: fn(&Scene) -> Vec<Finding>,
}

const CHECKS: [Check; 13] = [
    Check {
        name: "capability",
        looks_at: "privileges, BPF, bpffs, AF_PACKET",
        run: capability::check,
    },
    Check {
        name: "daemon",
        looks_at: "rules and memberships as the daemon has them",
        run: daemon::check,
    },
    Check {
        name: "interface",
        looks_at: "interfaces and routes that rules need",
        run: interface::check,
    },
    Check {
        name: "querier",
        looks_at: "snooping bridges and their queriers",
        run: querier::check,
    },
    Check {
        name: "igmp-version",
        looks_at: "forced IGMP and MLD versions",
        run: igmp_version::check,
    },
    Check {
        name: "firewall",
        looks_at: "packet filters that drop IGMP or MLD",
        run: firewall::nftables,
    },
    Check {
        name: "mtu",
        looks_at: "MTU of outputs against that of inputs",
        run: mtu::check,
    },
    Check {
        name: "ttl",
        looks_at: "TTLs that end at the next router",
        run: ttl::check,
    },
    Check {
        name: "gro",
        looks_at: "receive offloads of inputs",
        run: gro::check,
    },
    Check {
        name: "hook",
        looks_at: "other programs at ingress: XDP, tcx, clsact",
        run: hook::check,
    },
    Check {
        name: "listener",
        looks_at: "local sockets that wait for relayed streams",
        run: listener::check,
    },
    Check {
        name: "limit",
        looks_at: "membership and buffer limits, backlog",
        run: limit::check,
    },
    Check {
        name: "rpf",
        looks_at: "reverse-path filters",
        run: rpf::check,
    },
];

/// What one check came to.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    /// Name of the check.
    pub(crate) check: &'static str,
    /// What it looks at.
    pub(crate) looks_at: &'static str,
    /// What it found, worst first.
    pub(crate) findings: Vec<Finding>,
}

/// Runs all checks, in their order.
pub(crate) fn examine(scene: &Scene) -> Vec<Outcome> {
    let outcomes = CHECKS.iter().map(|check| {
        let mut findings = (check.run)(scene);
        findings
            .iter_mut()
            .for_each(|finding| finding.check = check.name);
        findings.sort_by_key(|finding| finding.severity);
        Outcome {
            check: check.name,
            looks_at: check.looks_at,
            findings,
        }
    });
    outcomes.collect()
}
