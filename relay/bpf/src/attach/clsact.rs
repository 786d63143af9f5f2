//! The program as a filter of the clsact queueing discipline, for kernels without tcx links (before
//! Linux 6.6).
//!
//! A filter belongs to the interface, not to a process, so it persists by itself. It is recognised by its
//! priority, a handle made from the instance's name, and that name; it is replaced in place, so that every
//! packet sees one of the two programs.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use sys::netlink::{Attribute, DUMP, Protocol, Request, attribute, find, nested};

const CREATE: u16 = libc::NLM_F_CREATE as u16;
const EXCLUSIVE: u16 = libc::NLM_F_EXCL as u16;
const REPLACE: u16 = libc::NLM_F_REPLACE as u16;

const NEW_QDISC: u16 = 36;
const DELETE_QDISC: u16 = 37;
const NEW_FILTER: u16 = 44;
const DELETE_FILTER: u16 = 45;
const GET_FILTER: u16 = 46;

/// Parents (linux/pkt_sched.h): the discipline itself, its two hooks.
const CLSACT: u32 = 0xffff_fff1;
const INGRESS: u32 = 0xffff_fff2;
const EGRESS: u32 = 0xffff_fff3;
const QDISC_HANDLE: u32 = 0xffff_0000;

const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_ID: u16 = 11;
const DIRECT_ACTION: u32 = 1;

/// Priority of MCR's filters among others: lower numbers go first.
const PRIORITY: u32 = 50;
/// Prefix of their names.
const NAME_PREFIX: &str = "mcr/";
/// ETH_P_ALL, in network order.
const ANY_PROTOCOL: u16 = 3u16.to_be();

/// An instance's filters: one per interface, of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filter {
    name: String,
}

impl Filter {
    /// The filters of an instance.
    pub(crate) fn of(instance: &str) -> Self {
        Self {
            name: format!("{NAME_PREFIX}{instance}"),
        }
    }

    /// Adds the discipline, unless it exists; returns whether it was added.
    pub(crate) fn add_qdisc(ifindex: u32) -> io::Result<bool> {
        let mut request = request(
            NEW_QDISC,
            CREATE | EXCLUSIVE,
            [ifindex, QDISC_HANDLE, CLSACT, 0],
        );
        request.attribute(TCA_KIND, b"clsact\0");
        match request.exchange(Protocol::NetlinkRoute) {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes the discipline, unless there are filters in it.
    pub(crate) fn remove_empty_qdisc(ifindex: u32) -> io::Result<()> {
        for hook in [INGRESS, EGRESS] {
            let filters = request(GET_FILTER, DUMP, [ifindex, 0, hook, 0]);
            if !filters.exchange(Protocol::NetlinkRoute)?.is_empty() {
                return Ok(());
            }
        }
        let request = request(DELETE_QDISC, 0, [ifindex, QDISC_HANDLE, CLSACT, 0]);
        request.exchange(Protocol::NetlinkRoute).map(drop)
    }

    /// Returns whether all filters at an interface's ingress belong to instances, and there is at least one.
    pub(crate) fn are_instances_alone(ifindex: u32) -> io::Result<bool> {
        let dump = request(GET_FILTER, DUMP, [ifindex, 0, INGRESS, 0]);
        let entries = dump.exchange(Protocol::NetlinkRoute)?;
        // The filters of a priority are preceded by an entry without options.
        let mut filters = entries.iter().filter(|it| find(it, TCA_OPTIONS).is_some());
        let is_own = |filter: &Vec<Attribute>| Attached::of(filter).name.starts_with(NAME_PREFIX);
        Ok(filters.clone().count() > 0 && filters.all(is_own))
    }

    /// Attaches `program` to the interface's ingress, in place of an older one of this instance.
    pub(crate) fn attach(&self, program: BorrowedFd<'_>, ifindex: u32) -> io::Result<()> {
        let flags = CREATE | self.placement(ifindex)?;
        let mut request = self.request(NEW_FILTER, flags, ifindex);
        request.attribute(TCA_OPTIONS, &self.options(program));
        request.exchange(Protocol::NetlinkRoute).map(drop)
    }

    /// Returns whether this instance's filter is at the interface.
    pub(crate) fn is_attached(&self, ifindex: u32) -> io::Result<bool> {
        Ok(self.program(ifindex)?.is_some())
    }

    /// The kernel's number of the program in this instance's filter, if that is at the interface; 0 where the
    /// kernel does not report it.
    pub(crate) fn program(&self, ifindex: u32) -> io::Result<Option<u32>> {
        let attached = self.read(ifindex)?;
        let own = attached.filter(|attached| attached.name == self.name);
        Ok(own.map(|own| own.program))
    }

    /// Removes this instance's filter, if there is one.
    pub(crate) fn detach(&self, ifindex: u32) -> io::Result<()> {
        if !self.is_attached(ifindex)? {
            return Ok(());
        }
        let request = self.request(DELETE_FILTER, 0, ifindex);
        request.exchange(Protocol::NetlinkRoute).map(drop)
    }

    /// REPLACE where this instance has a filter, otherwise EXCLUSIVE: no other filter is replaced.
    fn placement(&self, ifindex: u32) -> io::Result<u16> {
        Ok(if self.is_attached(ifindex)? {
            REPLACE
        } else {
            EXCLUSIVE
        })
    }

    /// The filter at this instance's priority and handle.
    fn read(&self, ifindex: u32) -> io::Result<Option<Attached>> {
        let request = self.request(GET_FILTER, 0, ifindex);
        let reply = match request.exchange(Protocol::NetlinkRoute) {
            Ok(reply) => reply,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let filter = reply.first().map(|filter| Attached::of(filter));
        Ok(Some(filter.unwrap_or_default()))
    }

    /// A request about the filter at this instance's priority and handle.
    fn request(&self, kind: u16, flags: u16, ifindex: u32) -> Request {
        let info = PRIORITY << 16 | u32::from(ANY_PROTOCOL);
        let mut request = request(kind, flags, [ifindex, self.handle(), INGRESS, info]);
        request.attribute(TCA_KIND, b"bpf\0");
        request
    }

    fn options(&self, program: BorrowedFd<'_>) -> Vec<u8> {
        let mut options = Vec::new();
        let fd = program.as_raw_fd() as u32;
        attribute(&mut options, TCA_BPF_FD, &fd.to_ne_bytes());
        let mut name = self.name.clone().into_bytes();
        name.push(0);
        attribute(&mut options, TCA_BPF_NAME, &name);
        attribute(&mut options, TCA_BPF_FLAGS, &DIRECT_ACTION.to_ne_bytes());
        options
    }

    /// FNV-1a of the name, never 0: instances do not replace each other's filters.
    fn handle(&self) -> u32 {
        let hash = self.name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        hash | 1
    }
}

/// A request about a discipline or filters, with its `struct tcmsg`.
fn request(kind: u16, flags: u16, [ifindex, handle, parent, info]: [u32; 4]) -> Request {
    let words = [0, ifindex, handle, parent, info];
    Request::new(kind, flags, words.map(u32::to_ne_bytes).as_flattened())
}

/// No such filter, no discipline, or no interface.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::EINVAL | libc::ENODEV)
    )
}

/// A filter as the kernel reports it; what it does not report is empty or 0.
#[derive(Debug, Default)]
struct Attached {
    name: String,
    program: u32,
}

impl Attached {
    fn of(filter: &[Attribute]) -> Self {
        let options = nested(find(filter, TCA_OPTIONS).unwrap_or_default());
        let name = find(&options, TCA_BPF_NAME).unwrap_or_default();
        let text = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let program = find(&options, TCA_BPF_ID).and_then(|id| id.try_into().ok());
        Self {
            name: String::from_utf8(text.to_vec()).unwrap_or_default(),
            program: program.map_or(0, u32::from_ne_bytes),
        }
    }
}
