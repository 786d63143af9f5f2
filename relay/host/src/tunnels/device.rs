//! A tunnel in the kernel: a VXLAN interface (RFC 7348) with one remote, marked as MCR's by its alias. An
//! interface without that mark is never touched.

use std::net::IpAddr;

use config::Tunnel;
use futures::TryStreamExt;
use nix::errno::Errno;
use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVxlan, LinkAttribute,
    LinkInfo, LinkMessage,
};
use rtnetlink::{Error, Handle, LinkUnspec, LinkVxlan};

use crate::sockets::udp_sockets;

/// The beginning of the alias; the instance follows.
const MARK: &str = "mcr tunnel of instance ";

/// The link group of an interface that is being made. The kernel takes no alias with a new link
/// (`rtnl_create_link`), so a process that dies in between leaves this mark.
const UNFINISHED: u32 = u32::from_be_bytes(*b"MCR\0");

/// `IFLA_VXLAN_TOS`: the outer header has the inner one's DSCP (`vxlan_xmit_one`).
const TOS_OF_PACKET: u8 = 1;

/// A requested tunnel.
pub(super) struct TunnelSpec<'a> {
    pub(super) name: &'a str,
    pub(super) tunnel: &'a Tunnel,
    /// Its MTU, if that is known yet.
    pub(super) mtu: Option<u32>,
    pub(super) instance: &'a str,
}

/// Why a tunnel cannot be made.
pub(super) struct Refusal {
    /// The reason and the remedy.
    pub(super) text: String,
    /// Whether another VXLAN interface conflicts with it.
    pub(super) is_taken: bool,
}

impl From<String> for Refusal {
    fn from(text: String) -> Self {
        Self {
            text,
            is_taken: false,
        }
    }
}

/// The owner of an interface.
enum Owner<'a> {
    Instance(&'a str),
    /// A process that died while it made the interface.
    Nobody,
    Somebody,
}

impl TunnelSpec<'_> {
    /// Makes or corrects the interface; returns whether anything had to be done.
    ///
    /// # Errors
    /// Why that is impossible, and the remedy.
    pub(super) async fn ensure(&self, handle: &Handle) -> Result<bool, Refusal> {
        let name = self.name;
        let link = find(handle, name)
            .await
            .map_err(|error| self.refusal(&error))?;
        let Some(existing) = link else {
            return self.make(handle).await.map(|()| true);
        };
        match owner(&existing) {
            Owner::Instance(instance) if instance == self.instance => {}
            Owner::Nobody => return self.make_anew(handle, existing.header.index).await,
            Owner::Instance(instance) => {
                return Err(format!(
                    "interface {name} is a tunnel of instance {instance:?}; give this one another name, or \
                     take it out of {instance:?}"
                ).into());
            }
            Owner::Somebody => {
                return Err(format!(
                    "interface {name} is there and not MCR's, so it is not made a tunnel; give the tunnel \
                     another name, or remove the interface: ip link delete {name}"
                ).into());
            }
        }
        let index = existing.header.index;
        if !self.is_same(&existing) {
            return self.make_anew(handle, index).await;
        }
        let has_mtu = |mtu: &u32| existing.attributes.contains(&LinkAttribute::Mtu(*mtu));
        let Some(mtu) = self.mtu.filter(|mtu| !has_mtu(mtu)) else {
            return Ok(false);
        };
        let message = LinkUnspec::new_with_index(index).mtu(mtu).build();
        let set = handle.link().set(message).execute().await;
        set.map(|()| true).map_err(|error| self.refusal(&error))
    }

    async fn make_anew(&self, handle: &Handle, index: u32) -> Result<bool, Refusal> {
        let removed = handle.link().del(index).execute().await;
        removed.map_err(|error| self.refusal(&error))?;
        self.make(handle).await.map(|()| true)
    }

    /// Makes the interface and brings it up; one that cannot be brought up is removed.
    async fn make(&self, handle: &Handle) -> Result<(), Refusal> {
        let added = handle.link().add(self.message()).execute().await;
        added.map_err(|error| self.refusal(&error))?;
        let Ok(Some(made)) = find(handle, self.name).await else {
            return Err(format!("tunnel {} was taken away as it was made", self.name).into());
        };
        let index = made.header.index;
        let started = self.start(handle, index).await;
        if started.is_err() {
            let _ = handle.link().del(index).execute().await;
        }
        started.map_err(|error| self.refusal(&error))
    }

    async fn start(&self, handle: &Handle, index: u32) -> Result<(), Error> {
        // Without an address only packets of rules pass through it; joins need none. It would get one
        // when it comes up, and a host without IPv6 has no such setting.
        let families = vec![AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(
            In6AddrGenMode::None,
        )])];
        let quiet = LinkUnspec::new_with_index(index)
            .append_extra_attribute(LinkAttribute::AfSpecUnspec(families));
        let _ = handle.link().set(quiet.build()).execute().await;
        let finished = LinkUnspec::new_with_index(index)
            .alias(format!("{MARK}{}", self.instance))
            .link_group(0)
            .up();
        handle.link().set(finished.build()).execute().await
    }

    fn message(&self) -> LinkMessage {
        let mut builder = LinkVxlan::new(self.name, self.tunnel.id).link_group(UNFINISHED);
        for attribute in self.attributes() {
            builder = builder.append_info_data(attribute);
        }
        match self.mtu {
            Some(mtu) => builder.mtu(mtu),
            None => builder,
        }
        .build()
    }

    /// The attributes that are requested, and that the kernel lists. The UDP checksum is on in both
    /// families: it covers the identifier and the inner headers, and IPv6 requires it (RFC 6936).
    fn attributes(&self) -> Vec<InfoVxlan> {
        let mut attributes = vec![
            match self.tunnel.remote {
                IpAddr::V4(remote) => InfoVxlan::Group(remote),
                IpAddr::V6(remote) => InfoVxlan::Group6(remote),
            },
            InfoVxlan::Port(self.tunnel.port),
            InfoVxlan::Tos(TOS_OF_PACKET),
            // There is one remote, whatever sources it sends from.
            InfoVxlan::Learning(false),
            InfoVxlan::UDPCsum(true),
        ];
        attributes.extend(self.tunnel.local.map(|local| match local {
            IpAddr::V4(local) => InfoVxlan::Local(local),
            IpAddr::V6(local) => InfoVxlan::Local6(local),
        }));
        attributes
    }

    fn is_same(&self, existing: &LinkMessage) -> bool {
        let Some(has) = vxlan(existing) else {
            return false;
        };
        let wanted = self.attributes();
        let has_other_local = |has: &InfoVxlan| {
            let is_local = matches!(has, InfoVxlan::Local(_) | InfoVxlan::Local6(_));
            is_local && !wanted.contains(has)
        };
        wanted.iter().all(|attribute| has.contains(attribute))
            && has.contains(&InfoVxlan::Id(self.tunnel.id))
            && !has.iter().any(has_other_local)
    }

    /// The meaning of an error of the kernel.
    fn refusal(&self, error: &Error) -> Refusal {
        let Self { name, tunnel, .. } = self;
        let Tunnel { port, id, .. } = tunnel;
        let text = match errno(error) {
            Some(Errno::EPERM | Errno::EACCES) => {
                format!("cannot make tunnel {name}: this process lacks CAP_NET_ADMIN")
            }
            Some(Errno::EOPNOTSUPP) => format!(
                "cannot make tunnel {name}: this kernel has no VXLAN (CONFIG_VXLAN; modprobe vxlan)"
            ),
            Some(Errno::EEXIST) => format!(
                "cannot make tunnel {name}: another VXLAN interface of this host has port {port} and id \
                 {id}, `ip -d link show type vxlan`; give the tunnel another id, at both ends"
            ),
            Some(Errno::EADDRINUSE) => {
                let sockets = udp_sockets();
                let taker = sockets.iter().find(|socket| socket.port == *port);
                let taker =
                    taker.map_or_else(|| "another socket".to_owned(), |socket| socket.describe());
                format!(
                    "cannot make tunnel {name}: UDP port {port} is taken by {taker}; stop that program or \
                     give the tunnel another port, at both ends"
                )
            }
            Some(errno) => format!("cannot make tunnel {name}: {}", errno.desc()),
            None => format!("cannot make tunnel {name}: {error}"),
        };
        Refusal {
            text,
            is_taken: errno(error) == Some(Errno::EEXIST),
        }
    }
}

/// An interface that an instance made.
pub(super) struct OwnLink {
    pub(super) name: String,
    index: u32,
    id: Option<u32>,
    port: Option<u16>,
}

impl OwnLink {
    /// Removes it.
    pub(super) async fn remove(&self, handle: &Handle) -> Result<(), Error> {
        handle.link().del(self.index).execute().await
    }

    /// Whether the kernel gives it the packets of a tunnel, so that they cannot coexist.
    pub(super) fn conflicts_with(&self, tunnel: &Tunnel) -> bool {
        (self.id, self.port) == (Some(tunnel.id), Some(tunnel.port))
    }
}

/// The interfaces that an instance made.
pub(super) async fn of_instance(handle: &Handle, instance: &str) -> Result<Vec<OwnLink>, Error> {
    let links: Vec<LinkMessage> = handle.link().get().execute().try_collect().await?;
    let is_own = |link: &&LinkMessage| matches!(owner(link), Owner::Instance(of) if of == instance);
    let own = links.iter().filter(is_own).filter_map(|link| {
        let mut own = OwnLink {
            name: first!(link.attributes, LinkAttribute::IfName(name) => name.clone())?,
            index: link.header.index,
            id: None,
            port: None,
        };
        for attribute in vxlan(link).unwrap_or_default() {
            match attribute {
                InfoVxlan::Id(id) => own.id = Some(*id),
                InfoVxlan::Port(port) => own.port = Some(*port),
                _ => {}
            }
        }
        Some(own)
    });
    Ok(own.collect())
}

async fn find(handle: &Handle, name: &str) -> Result<Option<LinkMessage>, Error> {
    let mut answer = Box::pin(handle.link().get().match_name(name.to_owned()).execute());
    match answer.try_next().await {
        Err(error) if errno(&error) == Some(Errno::ENODEV) => Ok(None),
        answer => answer,
    }
}

fn owner(link: &LinkMessage) -> Owner<'_> {
    let alias = first!(link.attributes, LinkAttribute::IfAlias(alias) => alias);
    let instance = alias.and_then(|alias| alias.strip_prefix(MARK));
    let is_unfinished = link.attributes.contains(&LinkAttribute::Group(UNFINISHED));
    match (instance, vxlan(link)) {
        (Some(instance), Some(_)) => Owner::Instance(instance),
        (None, Some(_)) if is_unfinished => Owner::Nobody,
        _ => Owner::Somebody,
    }
}

/// The attributes of a VXLAN interface; `None` for any other.
fn vxlan(link: &LinkMessage) -> Option<&[InfoVxlan]> {
    let infos = first!(link.attributes, LinkAttribute::LinkInfo(infos) => infos)?;
    if !infos.contains(&LinkInfo::Kind(InfoKind::Vxlan)) {
        return None;
    }
    first!(infos, LinkInfo::Data(InfoData::Vxlan(attributes)) => attributes.as_slice())
}

fn errno(error: &Error) -> Option<Errno> {
    match error {
        Error::NetlinkError(message) => Some(Errno::from_raw(-message.raw_code())),
        _ => None,
    }
}
