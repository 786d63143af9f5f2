//! The chain of the lab with a userspace path in its middle, driven as the daemon drives it.

use std::ffi::OsString;
use std::fs::File;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Wake;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use compile::diff::TableDiff;
use compile::table::{
    Egress, LinkHeader, LocalDelivery, Output, OutputState, Path, Route, RouteKey, Table, Ttl,
};
use dataplane::counters::{Counters, RuleCounters};
use dataplane::{Close, Dataplane, Options};
use lab::link;
use lab::topology::Chain;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rules::net::{Ifindex, Mac, Ports, Prefix};
use tempfile::TempDir;

/// Name of the ignored test that is no test but a worker.
pub(crate) const WORKER: &str = "worker_process";

/// How often the dataplane requested attention.
#[derive(Debug, Default)]
struct Attention(AtomicU64);

impl Wake for Attention {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A chain whose relay runs the userspace path.
pub(crate) struct Bed {
    pub(crate) chain: Chain,
    pub(crate) ingress: Ifindex,
    pub(crate) egress: Ifindex,
    mac: Mac,
    dataplane: Option<Dataplane>,
    table: Table,
    options: Options,
    attention: Arc<Attention>,
    _bpffs: Option<Bpffs>,
}

impl Bed {
    pub(crate) fn new(workers: usize) -> Result<Self> {
        Self::on(Chain::plain()?, workers)
    }

    pub(crate) fn on(chain: Chain, workers: usize) -> Result<Self> {
        Self::beside(chain, workers, None)
    }

    /// A bed whose kernel path works too.
    pub(crate) fn with_kernel_path(workers: usize) -> Result<Self> {
        Self::beside(Chain::plain()?, workers, Some(Bpffs::mount()?))
    }

    fn beside(chain: Chain, workers: usize, bpffs: Option<Bpffs>) -> Result<Self> {
        let attention = Arc::<Attention>::default();
        let options = Options {
            workers,
            attention: Arc::clone(&attention).into(),
            worker_command: worker_command()?,
            kernel: bpffs.is_some(),
            bpffs: bpffs.as_ref().map_or_else(PathBuf::new, Bpffs::path),
            ..Options::default()
        };
        let egress = (&chain.relay, "veth2");
        let reopen = options.clone();
        let mac = parse_mac(&link::mac(egress)?)?;
        let (ingress, egress) = (link::index((&chain.relay, "veth1"))?, link::index(egress)?);
        let dataplane = chain.relay.run(|| {
            let mut dataplane = Dataplane::open(options)?;
            // Nothing yet; but counters are recorded for the next one.
            dataplane.inherit(Vec::new())?;
            Ok(dataplane)
        })?;
        Ok(Self {
            chain,
            ingress: Ifindex(ingress),
            egress: Ifindex(egress),
            mac,
            dataplane: Some(dataplane),
            table: Table::default(),
            options: reopen,
            attention,
            _bpffs: bpffs,
        })
    }

    /// How often the dataplane requested attention.
    pub(crate) fn attention(&self) -> u64 {
        self.attention.0.load(Ordering::Relaxed)
    }

    /// Hands over to another supervisor, which makes the path execute the same.
    pub(crate) fn succeed(&mut self) -> Result<()> {
        self.succeed_with(self.table.clone())
    }

    /// Hands over to another supervisor, which makes the path execute this table.
    pub(crate) fn succeed_with(&mut self, table: Table) -> Result<()> {
        let former = self.dataplane.take().context("closed")?;
        let options = self.options.clone();
        let next = self.chain.relay.run(|| {
            let held = former.descriptors()?;
            former.close(Close::HandOver)?;
            let mut next = Dataplane::open(options)?;
            next.inherit(held)?;
            next.sync(&table)?;
            Ok(next)
        })?;
        self.dataplane = Some(next);
        self.table = table;
        Ok(())
    }

    /// Bytes of memory of a region that is held under a label of that kind.
    pub(crate) fn held_bytes(&mut self, kind: &str) -> Result<u64> {
        let held = self.with(|dataplane| Ok(dataplane.descriptors()?))?;
        let named = |(label, _): &(String, _)| label.split('-').next() == Some(kind);
        let (_, fd) = held.into_iter().find(named).context("no such region")?;
        Ok(File::from(fd).metadata()?.blocks() * 512)
    }

    /// An output to a group on the egress, source rewritten to the egress address.
    pub(crate) fn output(&self, index: u32, group: &str, port: u16) -> Output {
        Output {
            index: index.into(),
            to: format!("{group}%veth2:{port}"),
            state: OutputState::Up(Egress {
                interface: self.egress,
                link: LinkHeader::Group { source: self.mac },
                mtu: 1500,
                destination: Prefix::host(group.parse().unwrap()),
                ports: Ports::single(port),
                source: Some("10.0.1.1".parse().unwrap()),
                source_port: None,
                ttl: Ttl::Keep,
                dscp: None,
                fragment: false,
                framed: false,
                answers: false,
                answers_by_socket: false,
            }),
            limit: None,
        }
    }

    /// A rule from any source of a group on the ingress.
    pub(crate) fn rule(&self, name: &str, group: &str, port: u16, outputs: Vec<Output>) -> Rule {
        let key = RouteKey {
            ingress: self.ingress,
            groups: Prefix::host(group.parse().unwrap()),
            ports: Ports::single(port),
            source: None,
        };
        let route = Route {
            rule: name.to_owned(),
            input: None,
            path: Path::Userspace,
            local: LocalDelivery::Auto,
            limit: None,
            failover: None,
            merge: None,
            share: None,
            inspect: None,
            outputs,
        };
        (key, route)
    }

    /// Makes the path execute exactly these rules.
    pub(crate) fn apply(&mut self, rules: impl IntoIterator<Item = Rule>) -> Result<()> {
        let table = Table {
            routes: rules.into_iter().collect(),
            own_addresses: self.table.own_addresses.clone(),
            budget: None,
        };
        self.apply_table(table)
    }

    /// Makes the path execute exactly this table.
    pub(crate) fn apply_table(&mut self, table: Table) -> Result<()> {
        let diff = TableDiff::between(&self.table, &table);
        self.with(|dataplane| Ok(dataplane.apply(&diff)?))?;
        self.table = table;
        Ok(())
    }

    /// The rules in force.
    pub(crate) fn rules(&self) -> impl Iterator<Item = Rule> {
        self.table.routes.clone().into_iter()
    }

    /// Stops the workers, lets `act` send, and resumes them: what it sent waits together.
    pub(crate) fn while_workers_sleep(&mut self, act: impl FnOnce() -> Result<()>) -> Result<()> {
        self.while_asleep(|_| true, |_| act())
    }

    /// The same for some of them, by number.
    pub(crate) fn while_asleep(
        &mut self,
        sleeps: impl Fn(usize) -> bool,
        act: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        self.wait_for("all workers run", |counters| {
            counters.workers.iter().all(|worker| worker.pid > 0)
        })?;
        let mut number = 0..;
        let mut workers = self.counters()?.workers;
        workers.retain(|_| number.next().is_some_and(&sleeps));
        // To signal process 0 is to signal oneself.
        anyhow::ensure!(workers.iter().all(|worker| worker.pid > 0), "a worker died");
        let signal = |signal| {
            let all = workers.iter();
            all.clone()
                .try_for_each(|worker| kill(Pid::from_raw(worker.pid as i32), signal))
        };
        signal(Signal::SIGSTOP)?;
        let is_stopped = |pid: u32| {
            std::fs::read_to_string(format!("/proc/{pid}/stat"))
                .is_ok_and(|stat| stat.contains(") T "))
        };
        lab::wait::until("the workers have stopped", || {
            workers.iter().all(|worker| is_stopped(worker.pid))
        })?;
        let acted = act(self);
        signal(Signal::SIGCONT)?;
        let received = |counters: &Counters| -> u64 {
            let all = (0..).zip(&counters.workers);
            let slept = all.filter(|(number, _)| sleeps(*number));
            slept.map(|(_, worker)| worker.received).sum()
        };
        let before: u64 = workers.iter().map(|worker| worker.received).sum();
        // A tick now might consider them hanging.
        lab::wait::until("the workers go on", || {
            let counters = self.with(|dataplane| Ok(dataplane.counters()?));
            counters.is_ok_and(|counters| received(&counters) > before)
        })?;
        acted
    }

    /// What a rule has counted.
    pub(crate) fn rule_counters(&mut self, rule: &str) -> Result<RuleCounters> {
        let counters = self.counters()?;
        counters.rules.get(rule).cloned().context("no such rule")
    }

    /// What a rule has counted once `received` packets took it and each of its outputs has judged
    /// them. A worker counts a batch after it has sent it, so a receiver may be ahead of the counters.
    pub(crate) fn settled(&mut self, rule: &str, received: u64) -> Result<RuleCounters> {
        let judged = |counters: &RuleCounters| {
            let taken = counters.received.packets;
            // A worker counts while it is read: drops may be ahead of what was received.
            let accepted = taken.checked_sub(counters.dropped.total());
            let mut outputs = counters.outputs.values();
            taken >= received
                && outputs.all(|o| Some(o.sent.packets + o.dropped.total()) == accepted)
        };
        self.wait_for("every packet is counted", |counters| {
            counters.rules.get(rule).is_some_and(judged)
        })?;
        self.rule_counters(rule)
    }

    /// Everything counted.
    pub(crate) fn counters(&mut self) -> Result<Counters> {
        self.with(|dataplane| {
            dataplane.tick()?;
            Ok(dataplane.counters()?)
        })
    }

    /// How long the daemon would wait before it ticks again.
    pub(crate) fn pause(&mut self) -> Result<Duration> {
        self.with(|dataplane| Ok(dataplane.pause()))
    }

    /// Waits until a condition on the counters holds, ticking as the daemon does.
    pub(crate) fn wait_for(
        &mut self,
        what: &str,
        mut holds: impl FnMut(&Counters) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let counters = self.counters()?;
            if holds(&counters) {
                return Ok(());
            }
            anyhow::ensure!(
                Instant::now() < deadline,
                "waited in vain until {what}: {counters:#?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn address(&self, octets: &str) -> IpAddr {
        octets.parse().unwrap()
    }

    pub(crate) fn with<T: Send>(
        &mut self,
        work: impl FnOnce(&mut Dataplane) -> Result<T> + Send,
    ) -> Result<T> {
        let dataplane = self.dataplane.as_mut().context("closed")?;
        self.chain.relay.run(|| work(dataplane))
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(dataplane) = self.dataplane.take() {
            let _ = self.chain.relay.run(|| Ok(dataplane.close(Close::Detach)?));
        }
    }
}

/// A bpffs of the bed's own, removed with all that is pinned in it.
struct Bpffs(TempDir);

impl Bpffs {
    fn mount() -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let (at, none) = (directory.path(), None::<&str>);
        mount(Some("bpf"), at, Some("bpf"), MsFlags::empty(), none)?;
        Ok(Self(directory))
    }

    fn path(&self) -> PathBuf {
        self.0.path().into()
    }
}

impl Drop for Bpffs {
    fn drop(&mut self) {
        let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
    }
}

/// A route and its key.
pub(crate) type Rule = (RouteKey, Route);

/// Runs this very test binary as a worker.
fn worker_command() -> Result<Vec<OsString>> {
    let arguments = [
        WORKER,
        "--exact",
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ];
    let mut command = vec![std::env::current_exe()?.into_os_string()];
    command.extend(arguments.map(OsString::from));
    Ok(command)
}

fn parse_mac(text: &str) -> Result<Mac> {
    let bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16));
    let bytes: Vec<u8> = bytes.collect::<Result<_, _>>()?;
    Ok(Mac(bytes.try_into().ok().context("not a MAC")?))
}
