//! A chain of namespaces with the dataplane in the middle and a bpffs of its own.

use std::net::IpAddr;
use std::path::PathBuf;

use compile::table::{
    Egress, LinkHeader, LocalDelivery, Output, OutputState, Path, Route, RouteKey, Table, Ttl,
};
use dataplane::features::Feature;
use dataplane::{Capacity, Dataplane, Options};
use lab::link;
use lab::socket::{Receiver, Sender};
use lab::topology::Chain;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rules::net::{Ifindex, Mac, Ports, Prefix};
use tempfile::TempDir;

/// Sender, relay, sink, and a bpffs.
pub(crate) struct Bed {
    pub(crate) chain: Chain,
    pub(crate) ingress: Ifindex,
    pub(crate) egress: Ifindex,
    pub(crate) egress_mac: Mac,
    /// Features that dataplanes do without.
    without: Vec<Feature>,
    bpffs: Bpffs,
}

impl Bed {
    /// A bed whose dataplanes attach as kernels before 6.6 make them.
    pub(crate) fn with_clsact() -> Self {
        Self {
            without: vec![Feature::Tcx],
            ..Self::new()
        }
    }

    pub(crate) fn new() -> Self {
        let chain = Chain::plain().unwrap();
        let mac = link::mac((&chain.relay, "veth2")).unwrap();
        let octets: Vec<u8> = mac
            .trim()
            .split(':')
            .map(|octet| u8::from_str_radix(octet, 16).unwrap())
            .collect();
        Self {
            ingress: Ifindex(link::index((&chain.relay, "veth1")).unwrap()),
            egress: Ifindex(link::index((&chain.relay, "veth2")).unwrap()),
            egress_mac: Mac(octets.try_into().unwrap()),
            without: vec![],
            bpffs: Bpffs::mount(),
            chain,
        }
    }

    /// Opens the dataplane in the relay's namespace.
    pub(crate) fn open(&self, capacity: Capacity) -> Dataplane {
        let options = Options {
            bpffs: self.bpffs.path(),
            capacity,
            without: self.without.clone(),
            ..Options::default()
        };
        self.inside(|| Dataplane::open(options).unwrap())
    }

    /// Runs `work` in the relay's namespace.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.chain.relay.run(|| Ok(work())).unwrap()
    }

    /// Makes the dataplane execute `table`.
    pub(crate) fn sync(&self, dataplane: &mut Dataplane, table: &Table) {
        self.inside(|| dataplane.sync(table).unwrap());
    }

    pub(crate) fn pins(&self) -> PathBuf {
        self.bpffs.path().join("mcr/default")
    }

    pub(crate) fn sender(&self) -> Sender {
        let address = "10.0.0.1".parse().unwrap();
        Sender::open((&self.chain.sender, "veth0"), address).unwrap()
    }

    pub(crate) fn sink(&self, group: impl Into<IpAddr>, port: u16) -> Receiver {
        Receiver::join((&self.chain.sink, "veth3"), group.into(), port).unwrap()
    }

    /// The key of group and port on the input side.
    pub(crate) fn key(&self, group: impl Into<IpAddr>, port: u16) -> RouteKey {
        RouteKey {
            ingress: self.ingress,
            groups: Prefix::host(group.into()),
            ports: Ports::single(port),
            source: None,
        }
    }

    /// An output to group and port on the other side, source address rewritten.
    pub(crate) fn output(&self, index: u32, group: impl Into<IpAddr>, port: u16) -> Output {
        let group = group.into();
        let source = if group.is_ipv4() {
            "10.0.1.1"
        } else {
            "fd00:1::1"
        };
        let egress = Egress {
            interface: self.egress,
            link: LinkHeader::Group {
                source: self.egress_mac,
            },
            mtu: 1500,
            destination: Prefix::host(group),
            ports: Ports::single(port),
            source: Some(source.parse().unwrap()),
            source_port: None,
            ttl: Ttl::Keep,
            dscp: None,
            fragment: false,
            framed: false,
            answers: false,
            answers_by_socket: false,
        };
        Output {
            index: index.into(),
            to: format!("{group}%veth2:{port}"),
            state: OutputState::Up(egress),
            limit: None,
        }
    }
}

/// A route with these outputs that consumes what it relays.
pub(crate) fn route(rule: &str, outputs: Vec<Output>) -> Route {
    Route {
        rule: rule.to_owned(),
        input: None,
        path: Path::Kernel,
        local: LocalDelivery::Auto,
        limit: None,
        failover: None,
        merge: None,
        share: None,
        inspect: None,
        outputs,
    }
}

/// A table of these routes.
pub(crate) fn table(routes: impl IntoIterator<Item = (RouteKey, Route)>) -> Table {
    Table {
        routes: routes.into_iter().collect(),
        own_addresses: [IpAddr::from([10, 0, 1, 1])].into_iter().collect(),
        budget: None,
    }
}

/// A bpffs of its own.
struct Bpffs(TempDir);

impl Bpffs {
    fn mount() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let none: Option<&str> = None;
        let path = directory.path();
        mount(Some("bpf"), path, Some("bpf"), MsFlags::empty(), none).unwrap();
        Self(directory)
    }

    fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }
}

impl Drop for Bpffs {
    fn drop(&mut self) {
        let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
    }
}
