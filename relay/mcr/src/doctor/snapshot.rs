//! Everything that the checks judge, read once: links, rules, sockets, settings, programs. Reading changes
//! nothing.

mod link;
mod network;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::net::IpAddr;
use std::path::{self, PathBuf};
use std::time::Duration;

use api::reply::{FleetStatus, PathStatus, RuleStats, Stats, Status, TunnelStatus};
use bpf::orphans;
use bpf::other_instances::{Neighbour, neighbours};
use compile::host::{Host, HostTunnel, NextHop, NextHopQuery};
use compile::placement::{PathChoices, Support};
use compile::table::Path;
use compile::{Compiled, RuleView, compile, next_hop_queries, next_hop_query, tunnel_query};
use config::Settings;
use dataplane::features::{Feature, Features};
use host::duplicates::{Duplicate, Duplicates};
use host::{LateCapture, late_captures, udp_sockets};
use rules::endpoint::Endpoint;
use rules::net::{Ifindex, Mac};
use rules::rule::{OutputSpec, Rule};
use rules::ruleset::RuleSet;
use rules::wildcard;
use tokio::runtime::Builder;

use super::Arrivals;
pub(crate) use host::UdpSocket;
pub(crate) use link::Link;

use crate::discover::Joined;
use crate::failure::Status::Unavailable;
use crate::failure::{Failure, OrFail};

/// The rules to check, and where they were read from.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    pub(crate) set: RuleSet,
    pub(crate) choices: PathChoices,
    /// A file, a daemon's socket, or why there are no rules.
    pub(crate) origin: String,
    /// The daemon's status with its tunnels and its host, if one answers.
    pub(crate) status: Option<Status>,
    /// The daemon's settings.
    pub(crate) settings: Settings,
    /// The daemon's statistics, if one answers.
    pub(crate) stats: Option<Stats>,
    /// The status of its fleet, if it is in one.
    pub(crate) fleet: Option<FleetStatus>,
    /// What arrived, if the doctor listened because rules receive nothing.
    pub(crate) heard: Option<Arrivals>,
    /// Why it did not listen although there may be a reason to.
    pub(crate) unheard: Option<String>,
    /// Why no daemon was queried, if none was.
    pub(crate) unasked: Option<String>,
    /// Whether the reason is a missing privilege.
    pub(crate) may_not_ask: bool,
}

impl Rules {
    /// The daemon's tunnels with their state.
    pub(crate) fn tunnels(&self) -> &[TunnelStatus] {
        self.status.as_ref().map_or(&[], |status| &status.tunnels)
    }

    /// The daemon's statistics of a rule.
    pub(crate) fn stats_of(&self, rule: &str) -> Option<&RuleStats> {
        let stats = self.stats.as_ref()?;
        stats.rules.iter().find(|stats| stats.name == rule)
    }

    /// The paths that the daemon can run, which may need privileges that this process lacks.
    fn support(&self) -> Option<Support> {
        let status = self.status.as_ref()?;
        let availability = |path: &PathStatus| {
            if path.available {
                Ok(())
            } else {
                Err(path.reason.clone().unwrap_or_default())
            }
        };
        Some(Support {
            kernel: availability(&status.kernel),
            userspace: availability(&status.userspace),
        })
    }
}

/// Names the kernel's current clock source.
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// The state of the host when it was read.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) rules: Rules,
    pub(crate) links: Vec<Link>,
    pub(crate) compiled: Compiled,
    pub(crate) support: Support,
    pub(crate) features: Features,
    pub(crate) sockets: Vec<UdpSocket>,
    /// Packet sockets that receive after MCR's hook.
    pub(crate) captures: Vec<LateCapture>,
    /// The joined groups, each with its interface.
    pub(crate) joined: Vec<(u32, IpAddr)>,
    /// How many users each group's address has on an interface.
    pub(crate) group_users: BTreeMap<(u32, Mac), u64>,
    /// The instances that have programs here.
    pub(crate) instances: Vec<Neighbour>,
    /// Programs of the kernel path that have neither a daemon nor pins, each with its interface.
    pub(crate) orphans: Vec<(u32, u32)>,
    /// The clock source of the kernel; empty if unknown.
    pub(crate) clock_source: String,
    pub(crate) host: Host,
    /// The IGMP version in use on each interface: `V1`, `V2`, `V3`.
    pub(crate) igmp_versions: Vec<(String, String)>,
    /// Own addresses, on links of rules, that other hosts have too.
    pub(crate) duplicates: Vec<Duplicate>,
}

/// Probes twice, as one probe may be lost, and waits for answers, which come from the same link.
fn duplicates(host: &Host, links: &BTreeSet<Ifindex>) -> Vec<Duplicate> {
    let Some(duplicates) = Duplicates::open() else {
        return Vec::new();
    };
    for _ in 0..2 {
        duplicates.ask(host, links);
        std::thread::sleep(Duration::from_millis(250));
    }
    duplicates.known(host, links)
}

/// The contents of a kernel file; empty if it cannot be read.
fn text(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

/// Parses `/proc/net/dev_mcast`.
fn group_users(text: &str) -> BTreeMap<(u32, Mac), u64> {
    let user = |line: &str| {
        let [index, _, users, _, address] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            return None;
        };
        let bits = u64::from_str_radix(address, 16).ok()?;
        let [_, _, address @ ..] = bits.to_be_bytes();
        Some(((index.parse().ok()?, Mac(address)), users.parse().ok()?))
    };
    text.lines().filter_map(user).collect()
}

impl Snapshot {
    /// Reads the network namespace of the calling thread. The features `without` count as missing in the
    /// kernel.
    pub(crate) fn read(rules: Rules, without: &[Feature]) -> Result<Self, Failure> {
        let built = Builder::new_current_thread().enable_all().build();
        let runtime = built.or_fail("cannot read the network", Unavailable)?;
        let mut queries: Vec<NextHopQuery> = next_hop_queries(&rules.set).into_iter().collect();
        queries.extend(
            rules
                .settings
                .tunnels()
                .map(|(_, tunnel)| tunnel_query(tunnel)),
        );
        let read = runtime.block_on(network::read(queries)).map_err(|error| {
            let cause = error.source().map(ToString::to_string);
            cause.unwrap_or_default()
        });
        let (links, mut host) = read.or_fail("cannot read links through netlink", Unavailable)?;
        let tunnels = rules.settings.tunnels().map(|(name, tunnel)| {
            let (tunnel, refused) = (*tunnel, None);
            (name.clone(), HostTunnel { tunnel, refused })
        });
        host.tunnels = tunnels.collect();
        let features = Features::probe().without(without);
        let support = rules.support().unwrap_or_else(|| Support {
            kernel: dataplane::kernel_support(&features),
            userspace: dataplane::userspace::support().map_err(|error| error.to_string()),
        });
        let compiled = compile(&rules.set, &host, &support, &rules.choices);
        let bpffs = path::Path::new(bpf::pin::BPFFS);
        let indexes: Vec<u32> = links.iter().map(|link| link.index).collect();
        let (abandoned, _) = orphans::abandoned(orphans::strays(bpffs, &indexes));
        let orphans = abandoned.iter().map(|one| (one.program, one.ifindex));
        let mut snapshot = Self {
            instances: neighbours(bpffs, ""),
            orphans: orphans.collect(),
            rules,
            links,
            compiled,
            support,
            features,
            sockets: udp_sockets(),
            captures: late_captures(),
            joined: Joined::read().groups().collect(),
            group_users: group_users(&text("/proc/thread-self/net/dev_mcast")),
            clock_source: text(CLOCK_SOURCE).trim().to_owned(),
            host,
            igmp_versions: sys::membership::igmp_versions(),
            duplicates: Vec::new(),
        };
        let input_links = snapshot.inputs().into_iter().map(|(_, _, link)| link);
        let output_links = snapshot.outputs().into_iter().map(|output| output.link);
        let used_links = input_links.chain(output_links);
        let indexes = used_links.map(|link| Ifindex(link.index)).collect();
        snapshot.duplicates = duplicates(&snapshot.host, &indexes);
        Ok(snapshot)
    }

    pub(crate) fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.is_named(name))
    }

    pub(crate) fn link_of(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|link| link.index == index)
    }

    /// Every input with each interface that it listens on.
    pub(crate) fn inputs(&self) -> Vec<(&Rule, &Endpoint, &Link)> {
        let mut inputs = Vec::new();
        for rule in &self.rules.set {
            for endpoint in &rule.inputs {
                let pattern = endpoint.interface.as_deref().unwrap_or_default();
                let is_named = |link: &&Link| {
                    let wild = endpoint.has_wildcard() && link.name != "lo";
                    link.is_named(pattern) || (wild && wildcard::matches(pattern, &link.name))
                };
                let links = self.links.iter().filter(is_named);
                inputs.extend(links.map(|link| (rule, endpoint, link)));
            }
        }
        inputs
    }

    /// Every output whose interface exists, with it and, for unicast, the next hop.
    pub(crate) fn outputs(&self) -> Vec<Egress<'_>> {
        let mut outputs = Vec::new();
        for rule in &self.rules.set {
            for spec in &rule.outputs {
                outputs.extend(self.egress(rule, spec));
            }
        }
        outputs
    }

    fn egress<'a>(&'a self, rule: &'a Rule, spec: &'a OutputSpec) -> Option<Egress<'a>> {
        let named = spec.to.interface.as_deref();
        if spec.to.is_multicast() {
            return Some(Egress {
                rule,
                spec,
                link: self.link(named?)?,
                via: None,
            });
        }
        let query = next_hop_query(spec);
        let address = self.host.address(&query.destination)?;
        let (Ifindex(index), via) = match self.host.next_hops.get(&query)? {
            NextHop::NoRoute(_) => return None,
            NextHop::Here { interface, .. } | NextHop::Routed { interface, .. } => {
                (*interface, address)
            }
            NextHop::Unresolved { interface, via, .. }
            | NextHop::Resolved { interface, via, .. } => (*interface, *via),
        };
        Some(Egress {
            rule,
            spec,
            link: self.link_of(index)?,
            via: Some(via).filter(|via| *via != address),
        })
    }

    /// The inputs that are groups, which have to be joined.
    pub(crate) fn group_inputs(&self) -> Vec<(&Rule, &Endpoint, &Link)> {
        let mut inputs = self.inputs();
        inputs.retain(|(_, endpoint, _)| endpoint.is_multicast());
        inputs
    }

    /// The links that inputs listen on, each once, by name.
    pub(crate) fn input_links(&self) -> Vec<&Link> {
        let inputs = self.inputs().into_iter();
        let named = inputs.map(|(_, _, link)| (link.name.as_str(), link));
        let by_name: BTreeMap<&str, &Link> = named.collect();
        by_name.into_values().collect()
    }

    /// A rule on the userspace path that listens on a link: as the daemon runs it, or else as it would
    /// place it.
    pub(crate) fn userspace_rule_on(&self, link: &Link) -> Option<&str> {
        let is_userspace =
            |rule: &RuleView| match (&self.rules.stats, self.rules.stats_of(&rule.name)) {
                (Some(_), running) => running.is_some_and(|running| running.path == "userspace"),
                (None, _) => rule.placement.serves && rule.placement.path == Path::Userspace,
            };
        let listens = |rule: &RuleView| {
            let mut inputs = rule.inputs.iter();
            inputs.any(|input| input.interfaces.contains(&Ifindex(link.index)))
        };
        let mut rules = self.compiled.rules.values();
        let rule = rules.find(|rule| listens(rule) && is_userspace(rule))?;
        Some(&rule.name)
    }

    /// Whether a rule runs on the kernel path: as the daemon runs it, or else as it would place it.
    pub(crate) fn is_on_kernel_path(&self, rule: &str) -> bool {
        if let Some(stats) = self.rules.stats_of(rule) {
            return stats.path == "kernel";
        }
        let mut views = self.compiled.rules.values();
        let view = views.find(|view| view.name == rule);
        view.is_some_and(|view| view.placement.path == Path::Kernel)
    }

    /// Whether this host's own stack sends an output's copies, by a socket.
    pub(crate) fn sends_by_socket(&self, rule: &str, to: &str) -> bool {
        let mut views = self.compiled.rules.values();
        let view = views.find(|view| view.name == rule);
        let mut outputs = view.iter().flat_map(|view| &view.outputs);
        let output = outputs.find(|output| output.to == to);
        let leaving = output.and_then(|output| output.leaving.as_ref());
        leaving.is_some_and(|leaving| leaving.by_socket)
    }

    /// A kernel setting, named by its path below `/proc/sys`.
    pub(crate) fn setting(&self, key: &str) -> Option<String> {
        let text = fs::read_to_string(self.setting_file(key)).ok()?;
        Some(text.trim().to_owned())
    }

    /// The ephemeral ports that the kernel gives to programs.
    pub(crate) fn ephemeral_ports(&self) -> Option<impl Iterator<Item = u16>> {
        let range = self.setting("net/ipv4/ip_local_port_range")?;
        let (first, last) = range.split_once(|c: char| c.is_whitespace())?;
        let ports = first.parse().ok()?..=last.trim().parse().ok()?;
        let setting = self.setting("net/ipv4/ip_local_reserved_ports");
        let ranges = setting.iter().flat_map(|list| list.split(','));
        let parsed = ranges.filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?)
        });
        let reserved: Vec<_> = parsed.collect();
        let is_free = move |port: &u16| !reserved.iter().any(|range| range.contains(port));
        Some(ports.filter(is_free))
    }

    /// A kernel setting that is a number.
    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.setting(key)?.parse().ok()
    }

    /// The file of a setting, for a repair.
    pub(crate) fn setting_file(&self, key: &str) -> PathBuf {
        path::Path::new("/proc/sys").join(key)
    }
}

/// An output that has an interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Egress<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) spec: &'a OutputSpec,
    pub(crate) link: &'a Link,
    /// The router that a unicast copy goes through, if any.
    pub(crate) via: Option<IpAddr>,
}

#[cfg(test)]
mod tests {
    use compile::table::OutputState;
    use config::{Config, ConfigFile};
    use lab::namespace::Namespace;
    use rules::ruleset::Policy;

    use super::*;

    const RULES: &str = r#"version = 1
[[rule]]
name = "cam1"
input = "[ff0e::1%one]:5001"
outputs = ["[ff0e::2%one]:6001"]
"#;

    /// The daemon ranks addresses as sockets do: of IPv6 a deprecated one comes behind all others.
    #[test]
    fn judges_by_the_source_address_that_the_daemon_uses() {
        if !lab::demo::may_run() {
            eprintln!("skipped: needs root");
            return;
        }
        let here = Namespace::new("addresses").unwrap();
        for step in [
            "link add one type veth peer name other",
            "link set other up",
            "link set one up",
            "address add fd00::1/64 dev one nodad preferred_lft 0",
            "address add fd00:1::1/64 dev one nodad",
        ] {
            here.ip(step).unwrap();
        }
        let file = ConfigFile {
            name: "rules".to_owned(),
            text: RULES.to_owned(),
        };
        let set = Config::load(&[file], Policy::default()).unwrap().rules;
        let rules = Rules {
            set,
            ..Rules::default()
        };
        let snapshot = here
            .run(|| Ok(Snapshot::read(rules, &[]).unwrap()))
            .unwrap();
        let mut routes = snapshot.compiled.table.routes.values();
        let output = &routes.next().unwrap().outputs[0];
        let OutputState::Up(egress) = &output.state else {
            panic!("{output:?}");
        };
        assert_eq!(egress.source, Some("fd00:1::1".parse().unwrap()));
    }
}
