//! The host's interfaces as rules name them.

use std::collections::{BTreeMap, BTreeSet};

use rules::endpoint::is_wildcard;
use rules::near;
use rules::rule::Rule;
use rules::ruleset::listed;
use rules::wildcard;

use crate::host::{Host, Interface, LOOPBACK};
use crate::placement::Ends;
use crate::tunnel;

/// The host's interfaces by name.
pub(crate) struct Links<'a> {
    pub(crate) by_name: BTreeMap<&'a str, &'a Interface>,
    /// Why tunnels do not exist, by name.
    refused: BTreeMap<&'a str, &'a str>,
}

impl<'a> Links<'a> {
    pub(crate) fn new(host: &'a Host) -> Self {
        let refused = tunnel::refused(host);
        let interfaces = host.interfaces.values();
        let by_name = interfaces
            .map(|link| (link.name.as_str(), link))
            .filter(|(name, _)| !refused.contains_key(name))
            .collect();
        Self { by_name, refused }
    }

    pub(crate) fn named(&self, name: &str) -> Option<&'a Interface> {
        let mut links = self.by_name.values().copied();
        let exact = self.by_name.get(name).copied();
        exact.or_else(|| links.find(|link| link.is_named(name)))
    }

    /// The interfaces that a wildcard matches: each packet arrives by one of them.
    pub(crate) fn matching(&self, pattern: &str) -> Vec<&'a Interface> {
        let links = self.by_name.values().copied();
        let receives = |link: &&Interface| link.name != LOOPBACK && !link.is_vrf();
        let matches = |link: &&Interface| receives(link) && wildcard::matches(pattern, &link.name);
        let mut all: Vec<_> = links.filter(matches).collect();
        let indices: BTreeSet<_> = all.iter().map(|link| Some(link.index)).collect();
        all.retain(|link| {
            !link.bonded && (link.doubled_by.is_none() || !indices.contains(&link.doubled_by))
        });
        all
    }

    /// Where the rule listens, including missing interfaces by name.
    pub(crate) fn listening<'b>(&self, rule: &'b Rule) -> Ends<'b>
    where
        'a: 'b,
    {
        let mut listening = Ends::default();
        for name in rule.inputs.iter().filter_map(|i| i.interface.as_deref()) {
            let links = self.of_input(name);
            for link in &links {
                let own = link.name.as_str();
                listening.chaining = listening.chaining.or(link.gro_list.then_some(own));
                listening.veiled = listening.veiled.or(link.veiled.then_some(own));
            }
            listening.interfaces.push(name);
            if is_wildcard(name) {
                let names = links.iter().map(|link| link.name.as_str());
                listening.interfaces.extend(names);
            }
        }
        listening
    }

    /// The message that nothing arrives by a VRF, and by which interfaces it does.
    pub(crate) fn receives_nothing(&self, vrf: &Interface) -> String {
        let (name, ports) = (&vrf.name, self.ports(vrf));
        format!(
            "{name} is a VRF: nothing comes in by it but by its interfaces; write one of them{ports}"
        )
    }

    /// The interfaces of a VRF, as text.
    pub(crate) fn ports(&self, vrf: &Interface) -> String {
        let links = self.by_name.values();
        let ports = links.filter(|link| link.vrf == vrf.vrf && !link.is_vrf());
        let names: Vec<String> = ports.map(|link| link.name.clone()).collect();
        match names.as_slice() {
            [] => String::new(),
            names => format!(" ({})", listed(names)),
        }
    }

    /// The interfaces that an input's interface name matches.
    pub(crate) fn of_input(&self, name: &str) -> Vec<&'a Interface> {
        if is_wildcard(name) {
            self.matching(name)
        } else {
            self.named(name).into_iter().collect()
        }
    }

    /// The message that an interface does not exist and which ones do, or why a tunnel does not exist.
    pub(crate) fn missing(&self, name: &str) -> String {
        if let Some(refused) = self.refused.get(name) {
            return (*refused).to_owned();
        }
        let matching = if is_wildcard(name) { "matches " } else { "" };
        let what = format!("{matching}{name}");
        let others = self.by_name.keys().filter(|name| **name != LOOPBACK);
        let names: Vec<String> = others.map(ToString::to_string).collect();
        let mut links = self.by_name.values();
        if let Some(link) = links.find(|link| link.bonded && wildcard::matches(name, &link.name)) {
            return format!(
                "no interface {what} but links of a bond, such as {}, of which several may bring a packet; name \
                 the bond (have: {})",
                link.name,
                listed(&names)
            );
        }
        match names.as_slice() {
            [] => format!("no interface {what} (there is none but {LOOPBACK})"),
            names => {
                let hint = near::hint(name, names.iter().map(String::as_str));
                format!("no interface {what} (have: {}{hint})", listed(names))
            }
        }
    }
}

/// The message that IPv6 is turned off on an interface.
pub(crate) fn ipv6_is_off(link: &Interface) -> String {
    let name = &link.name;
    format!(
        "IPv6 is turned off on interface {name}, so nothing can be joined or received there; \
         `sysctl net.ipv6.conf.{name}.disable_ipv6=0`"
    )
}

/// The message that an interface is down.
pub(crate) fn link_down(link: &Interface) -> String {
    let name = &link.name;
    if link.no_carrier {
        format!("interface {name} has no carrier; check its cable or peer")
    } else {
        format!("interface {name} is administratively down; `ip link set {name} up`")
    }
}
