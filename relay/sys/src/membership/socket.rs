//! One socket's memberships (RFC 3678 section 5.1).

#![expect(unsafe_code, reason = "setsockopt and getsockopt take raw memory")]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::size_of;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use socket2::{Domain, SockAddr, Type};

use super::{ALL, Membership};
use crate::packet_socket::reception;
use crate::udp::option::{self, storage};

/// Whether a socket had room for one more membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Available,
    None,
}

#[derive(Debug)]
enum Filter {
    Any,
    Sources { list: BTreeSet<IpAddr>, full: bool },
}

#[derive(Debug)]
pub(super) struct Socket {
    socket: socket2::Socket,
    ipv4: bool,
    /// A packet socket, for [`ALL`].
    all: bool,
    groups: BTreeMap<(u32, IpAddr), Filter>,
    full: bool,
}

impl Socket {
    pub(super) fn open(family: IpAddr) -> io::Result<Self> {
        if family == ALL {
            // Of no protocol: nothing arrives.
            let socket = socket2::Socket::new(Domain::PACKET, Type::DGRAM, None)?;
            return Ok(Self::new(socket, Domain::PACKET));
        }
        let domain = if family.is_ipv4() {
            Domain::IPV4
        } else {
            Domain::IPV6
        };
        let socket = socket2::Socket::new(domain, Type::DGRAM, None)?;
        // Unbound, so nothing arrives; if another process binds it, it gets only what it joined.
        if family.is_ipv4() {
            socket.set_multicast_all_v4(false)?;
        } else {
            socket.set_multicast_all_v6(false)?;
        }
        Ok(Self::new(socket, domain))
    }

    pub(super) fn adopt(fd: OwnedFd) -> io::Result<Self> {
        let socket = socket2::Socket::from(fd);
        if socket.r#type()? != Type::DGRAM {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let domain = socket.domain()?;
        if ![Domain::IPV4, Domain::IPV6, Domain::PACKET].contains(&domain) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let here = socket2::Socket::new(domain, Type::DGRAM, None)?;
        if option::namespace(socket.as_fd()) != option::namespace(here.as_fd()) {
            let problem = "it is of another network namespace";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        Ok(Self::new(socket, domain))
    }

    fn new(socket: socket2::Socket, domain: Domain) -> Self {
        Self {
            socket,
            ipv4: domain != Domain::IPV6,
            all: domain == Domain::PACKET,
            groups: BTreeMap::new(),
            full: false,
        }
    }

    /// Returns whether a join may succeed: right family, not known to be full, and no other mode of the same
    /// group, which the kernel would switch.
    pub(super) fn may_take(&self, membership: &Membership) -> bool {
        if membership.group.is_ipv4() != self.ipv4
            || (membership.group == ALL) != self.all
            || (self.full && membership.source.is_none())
        {
            return false;
        }
        match self.groups.get(&(membership.interface, membership.group)) {
            None => !self.full,
            Some(Filter::Any) => false,
            Some(Filter::Sources { full, .. }) => membership.source.is_some() && !full,
        }
    }

    /// Returns whether it is known to take no other group.
    pub(super) const fn is_full(&self) -> bool {
        self.full
    }

    pub(super) fn join(&mut self, membership: Membership) -> io::Result<Room> {
        let Membership {
            interface,
            group,
            source,
        } = membership;
        let joined = if self.all {
            self.set_all(interface, libc::PACKET_ADD_MEMBERSHIP)
        } else {
            option::join(self.socket.as_fd(), interface, group, source)
        };
        match joined {
            Ok(()) => {}
            // Joined through this socket before this process had it.
            Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {}
            Err(error) if is_full(&error) => {
                match self.groups.get_mut(&(interface, group)) {
                    Some(Filter::Sources { full, .. }) => *full = true,
                    _ => self.full = true,
                }
                return Ok(Room::None);
            }
            Err(error) => return Err(error),
        }
        self.record(membership);
        Ok(Room::Available)
    }

    /// Records a membership if the kernel confirms it.
    pub(super) fn confirm(&mut self, membership: Membership) -> bool {
        let joined = self.in_kernel(membership.interface, membership.group);
        // The kernel does not list a packet socket's memberships.
        let is_joined = joined.contains(&membership) || self.all && membership.group == ALL;
        if is_joined {
            self.record(membership);
        }
        is_joined
    }

    /// Records the kernel's memberships of a group on an interface, and returns them.
    pub(super) fn claim(&mut self, interface: u32, group: IpAddr) -> Vec<Membership> {
        let joined = self.in_kernel(interface, group);
        for membership in &joined {
            self.record(*membership);
        }
        joined
    }

    pub(super) fn leave(&mut self, membership: Membership) {
        let Membership {
            interface,
            group,
            source,
        } = membership;
        let key = (interface, group);
        let Some(filter) = self.groups.get_mut(&key) else {
            return;
        };
        let last = match (filter, source) {
            (Filter::Sources { list, full }, Some(source)) => {
                list.remove(&source);
                *full = false;
                list.is_empty()
            }
            _ => true,
        };
        if let Some(source) = source.filter(|_| !last) {
            // Fails only where the interface no longer exists, and then the group is left below.
            let request = source_request(interface, group, source);
            let _ = self.set(libc::MCAST_LEAVE_SOURCE_GROUP, &request);
        }
        if self.all {
            // Fails only where the interface no longer exists, and the membership with it.
            let _ = self.set_all(interface, libc::PACKET_DROP_MEMBERSHIP);
            self.groups.remove(&key);
        } else if last {
            // Unlike a source, a group can be left although the interface no longer exists.
            let request = group_request(interface, group);
            let _ = self.set(libc::MCAST_LEAVE_GROUP, &request);
            self.groups.remove(&key);
            self.full = false;
        }
    }

    pub(super) const fn is_ipv4(&self) -> bool {
        self.ipv4
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn memberships(&self) -> Vec<Membership> {
        let all = self
            .groups
            .iter()
            .flat_map(|(&(interface, group), filter)| {
                let sources: Vec<Option<IpAddr>> = match filter {
                    Filter::Any => vec![None],
                    Filter::Sources { list, .. } => list.iter().copied().map(Some).collect(),
                };
                sources.into_iter().map(move |source| Membership {
                    interface,
                    group,
                    source,
                })
            });
        all.collect()
    }

    fn record(&mut self, membership: Membership) {
        let key = (membership.interface, membership.group);
        let Some(source) = membership.source else {
            self.groups.insert(key, Filter::Any);
            return;
        };
        let filter = self.groups.entry(key).or_insert_with(|| Filter::Sources {
            list: BTreeSet::new(),
            full: false,
        });
        if let Filter::Sources { list, .. } = filter {
            list.insert(source);
        }
    }

    const fn level(&self) -> libc::c_int {
        if self.ipv4 {
            libc::IPPROTO_IP
        } else {
            libc::IPPROTO_IPV6
        }
    }

    fn set_all(&self, interface: u32, name: libc::c_int) -> io::Result<()> {
        let request = reception(interface, libc::PACKET_MR_ALLMULTI);
        option::set(self.socket.as_fd(), libc::SOL_PACKET, name, &request)
    }

    fn set<T>(&self, name: libc::c_int, value: &T) -> io::Result<()> {
        option::set(self.socket.as_fd(), self.level(), name, value)
    }

    /// Queries the kernel for the socket's memberships of a group on an interface; none where it refuses, as for a
    /// group that the socket has not joined.
    fn in_kernel(&self, interface: u32, group: IpAddr) -> Vec<Membership> {
        let mut filter = GroupFilter {
            interface,
            group: storage(group),
            mode: 0,
            count: SOURCES_MAX as u32,
            sources: [storage(group); SOURCES_MAX],
        };
        let mut length = size_of::<GroupFilter>() as libc::socklen_t;
        // SAFETY: pointer and length describe `filter`; the kernel writes at most `length` bytes,
        // and any bytes are a valid `GroupFilter`.
        let status = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                self.level(),
                libc::MCAST_MSFILTER,
                std::ptr::from_mut(&mut filter).cast(),
                &mut length,
            )
        };
        if status != 0 {
            return Vec::new();
        }
        let of = |source| Membership {
            interface,
            group,
            source,
        };
        if filter.mode == libc::MCAST_EXCLUDE as u32 {
            return if filter.count == 0 {
                vec![of(None)]
            } else {
                Vec::new()
            };
        }
        let listed = filter.sources.iter().take(filter.count as usize);
        listed
            .filter_map(|source| Some(of(Some(address(source)?))))
            .collect()
    }
}

/// More sources than a socket has of one group by default (`igmp_max_msf` 10, `mld_max_msf` 64).
const SOURCES_MAX: usize = 256;

/// `struct group_filter` of linux/in.h with room for its sources.
#[repr(C)]
struct GroupFilter {
    interface: u32,
    group: libc::sockaddr_storage,
    mode: u32,
    count: u32,
    sources: [libc::sockaddr_storage; SOURCES_MAX],
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}

pub(super) fn group_request(interface: u32, group: IpAddr) -> libc::group_req {
    libc::group_req {
        gr_interface: interface,
        gr_group: storage(group),
    }
}

fn source_request(interface: u32, group: IpAddr, source: IpAddr) -> libc::group_source_req {
    libc::group_source_req {
        gsr_interface: interface,
        gsr_group: storage(group),
        gsr_source: storage(source),
    }
}

fn address(storage: &libc::sockaddr_storage) -> Option<IpAddr> {
    let mut result = socket2::SockAddrStorage::zeroed();
    // SAFETY: both are the C `sockaddr_storage`: same size, and any bytes are valid.
    let view: &mut libc::sockaddr_storage = unsafe { result.view_as() };
    *view = *storage;
    // SAFETY: the storage is initialised and the length is its whole size.
    let address = unsafe {
        SockAddr::new(
            result,
            size_of::<libc::sockaddr_storage>() as libc::socklen_t,
        )
    };
    address.as_socket().map(|address| address.ip())
}
