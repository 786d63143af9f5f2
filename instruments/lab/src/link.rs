//! Links between namespaces, made with `ip` and `bridge`: veth pairs, snooping bridges, macvlan,
//! tun, vxlan, and the switches of `ethtool`.

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::namespace::Namespace;
use crate::wait;

/// One end of a link: a namespace and an interface name in it.
pub type End<'a> = (&'a Namespace, &'a str);

/// Makes a veth pair with an end in each namespace, both up.
///
/// # Errors
/// When a name is taken or too long.
pub fn veth(one: End<'_>, other: End<'_>) -> Result<()> {
    make_veth(one, other, "")
}

/// Makes a veth pair whose first end has this interface index.
///
/// # Errors
/// When the name or the index is taken.
pub fn veth_with_index(one: End<'_>, other: End<'_>, index: u32) -> Result<()> {
    make_veth(one, other, &format!("index {index}"))
}

fn make_veth(one: End<'_>, other: End<'_>, index: &str) -> Result<()> {
    let ((here, name), (there, peer)) = (one, other);
    here.ip(&format!(
        "link add {name} {index} type veth peer name {peer} netns {}",
        there.name()
    ))?;
    up(one)?;
    up(other)
}

/// Sets a link up.
///
/// # Errors
/// When there is no such link.
pub fn up((namespace, name): End<'_>) -> Result<()> {
    namespace.ip(&format!("link set {name} up")).map(drop)
}

/// Sets a link down.
///
/// # Errors
/// When there is no such link.
#[cfg(feature = "test-support")]
pub fn down((namespace, name): End<'_>) -> Result<()> {
    namespace.ip(&format!("link set {name} down")).map(drop)
}

/// Removes a link.
///
/// # Errors
/// When there is no such link.
#[cfg(feature = "test-support")]
pub fn delete((namespace, name): End<'_>) -> Result<()> {
    namespace.ip(&format!("link del {name}")).map(drop)
}

/// Adds an address with its prefix length, such as `10.0.0.1/24`.
///
/// # Errors
/// When it exists already or the link does not.
pub fn address((namespace, name): End<'_>, address: &str) -> Result<()> {
    let arguments = format!("address add {address} dev {name}");
    namespace.ip(&arguments).map(drop)
}

/// Sends every multicast packet of the namespace out of this link by default.
///
/// # Errors
/// When there is such a route already.
pub fn multicast_route((namespace, name): End<'_>) -> Result<()> {
    namespace.ip(&format!("route add 224.0.0.0/4 dev {name}"))?;
    namespace
        .ip(&format!(
            "-6 route replace multicast ff00::/8 dev {name} table local"
        ))
        .map(drop)
}

/// Makes a bridge that snoops IGMP and MLD, queries for members itself and removes them at a leave.
/// It forwards a group only to ports that joined it, from the moment this function returns.
///
/// # Errors
/// When a step fails.
pub fn snooping_bridge((namespace, name): End<'_>) -> Result<()> {
    // Where a host filters what its bridges forward, every new namespace does; a switch does not.
    for family in ["ip", "ip6"] {
        let key = format!("net/bridge/bridge-nf-call-{family}tables");
        // The key exists only where br_netfilter is loaded.
        let _ = namespace.sysctl(&key, "0");
    }
    // The kernel floods for one query response interval (10 s by default) after the querier appears,
    // br_multicast_querier_exists(): the interval has to be short before that.
    namespace.ip(&format!(
        "link add {name} type bridge mcast_snooping 1 mcast_query_response_interval 10 \
         mcast_igmp_version 3 mcast_mld_version 2"
    ))?;
    namespace.ip(&format!(
        "link set {name} type bridge mcast_querier 1 mcast_last_member_interval 10"
    ))?;
    up((namespace, name))
}

/// Makes an interface a port of a bridge, one that leaves a group at once.
///
/// # Errors
/// When either does not exist.
pub fn bridge_port((namespace, port): End<'_>, bridge: &str) -> Result<()> {
    namespace.ip(&format!("link set {port} master {bridge}"))?;
    namespace.tool("bridge", &format!("link set dev {port} fastleave on"))?;
    Ok(())
}

/// Connects a new link of a namespace to a port of a bridge, as [`bridge_port`] makes it.
///
/// # Errors
/// When either exists already, or the bridge does not.
pub fn plug(end: End<'_>, port: End<'_>, bridge: &str) -> Result<()> {
    veth(end, port)?;
    bridge_port(port, bridge)
}

/// Waits until the bridge has a member of `group` on some port.
///
/// # Errors
/// When none joins in time.
pub fn wait_for_member((namespace, bridge): End<'_>, group: &str) -> Result<()> {
    wait::until(&format!("{bridge} has a member of {group}"), || {
        let shown = namespace.tool("bridge", &format!("mdb show dev {bridge}"));
        shown.is_ok_and(|text| text.contains(&format!("grp {group} ")))
    })
}

/// Makes a macvlan in bridge mode above a link, up.
///
/// # Errors
/// When a step fails.
#[cfg(feature = "test-support")]
pub fn macvlan((namespace, name): End<'_>, parent: &str) -> Result<()> {
    namespace.ip(&format!(
        "link add {name} link {parent} type macvlan mode bridge"
    ))?;
    up((namespace, name))
}

/// Makes a tun device, a link without a MAC header, up.
///
/// # Errors
/// When a step fails.
#[cfg(feature = "test-support")]
pub fn tun((namespace, name): End<'_>) -> Result<()> {
    namespace.ip(&format!("tuntap add {name} mode tun"))?;
    up((namespace, name))
}

/// Makes a VXLAN to one remote address, up.
///
/// # Errors
/// When a step fails.
#[cfg(feature = "test-support")]
pub fn vxlan((namespace, name): End<'_>, id: u32, local: &str, remote: &str) -> Result<()> {
    namespace.ip(&format!(
        "link add {name} type vxlan id {id} local {local} remote {remote} dstport 4789"
    ))?;
    up((namespace, name))
}

/// Switches features of a link, such as `tx off` or `gro on`.
///
/// # Errors
/// When `ethtool` refuses.
pub fn features((namespace, name): End<'_>, switches: &str) -> Result<()> {
    namespace
        .tool("ethtool", &format!("-K {name} {switches}"))
        .map(drop)
}

/// Counters and properties of a link, as the kernel reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Packets received; a super-packet counts once.
    pub received: u64,
    /// Packets sent; a super-packet counts once.
    pub sent: u64,
    /// Packets the receive side dropped.
    pub receive_dropped: u64,
    /// Packets the transmit side dropped.
    pub transmit_dropped: u64,
    /// Bytes received, Ethernet headers included; a super-packet's headers count once.
    pub received_bytes: u64,
    /// Bytes sent, Ethernet headers included; a super-packet's headers count once.
    pub sent_bytes: u64,
}

/// Reads a link's statistics.
///
/// # Errors
/// When there is no such link.
pub fn statistics(end: End<'_>) -> Result<Statistics> {
    let shown = show(end)?;
    let stats = shown.stats64;
    Ok(Statistics {
        received: stats.rx.packets,
        sent: stats.tx.packets,
        receive_dropped: stats.rx.dropped + stats.rx.over_errors,
        transmit_dropped: stats.tx.dropped,
        received_bytes: stats.rx.bytes,
        sent_bytes: stats.tx.bytes,
    })
}

/// Reads a link's Ethernet address, `aa:bb:cc:dd:ee:ff`.
///
/// # Errors
/// When there is no such link.
#[cfg(feature = "test-support")]
pub fn mac(end: End<'_>) -> Result<String> {
    Ok(show(end)?.address)
}

/// Reads a link's index.
///
/// # Errors
/// When there is no such link.
pub fn index(end: End<'_>) -> Result<u32> {
    Ok(show(end)?.ifindex)
}

fn show((namespace, name): End<'_>) -> Result<Shown> {
    let text = namespace.ip(&format!("-s -j link show dev {name}"))?;
    let mut links: Vec<Shown> = serde_json::from_str(&text).context("ip -j link show")?;
    links.pop().context("ip -j link show: no link")
}

#[derive(Deserialize)]
struct Shown {
    ifindex: u32,
    #[cfg(feature = "test-support")]
    #[serde(default)]
    address: String,
    stats64: Stats64,
}

#[derive(Deserialize)]
struct Stats64 {
    rx: Direction,
    tx: Direction,
}

#[derive(Deserialize)]
struct Direction {
    packets: u64,
    bytes: u64,
    dropped: u64,
    #[serde(default)]
    over_errors: u64,
}
