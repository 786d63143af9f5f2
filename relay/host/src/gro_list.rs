//! Which interfaces chain received datagrams (`rx-gro-list`). Netlink does not show it, and not every way
//! to switch it sends a notification, so it is read again with the host, and each second.

use std::collections::BTreeSet;

use compile::host::{Host, Interface};
use rules::net::Ifindex;
use sys::ethtool::Switch;

const GRO_LIST: &str = "rx-gro-list";

/// Reads which of `interfaces` chain datagrams.
pub(super) fn read_among<'a>(interfaces: impl Iterator<Item = &'a Interface>) -> BTreeSet<Ifindex> {
    // A kernel without the feature chains nothing.
    let Ok(Some(feature)) = Switch::named(GRO_LIST) else {
        return BTreeSet::new();
    };
    let chains = |link: &&Interface| feature.is_on(&link.name).unwrap_or(false);
    interfaces.filter(chains).map(|link| link.index).collect()
}

/// Whether the feature has changed on any interface since `host` was read.
pub(super) fn differs(host: &Host) -> bool {
    let now = read_among(host.interfaces.values());
    let mut links = host.interfaces.values();
    links.any(|link| link.gro_list != now.contains(&link.index))
}
