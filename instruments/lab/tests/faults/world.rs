//! A relay whose surroundings can be changed: one rule that is affected, with a multicast and a
//! unicast output, and one rule on separate links.

use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::reply::{RuleStats, State};
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::load::{Load, Plan};
use lab::namespace::Namespace;
use lab::process::Process;
use lab::socket::{Receiver, Sender};
use lab::topology::Chain;
use lab::wait;

/// How long a rule may take to reach the expected state.
const PATIENCE: Duration = Duration::from_secs(30);
const CONFIG: &str = r#"
version = 1
[[rule]]
name = "victim"
input = "239.1.1.1%veth1:5001"
outputs = ["239.10.1.1%veth2:6001", "10.9.9.9:7000"]
[[rule]]
name = "calm"
input = "239.3.1.1%calm1:5001"
outputs = ["239.30.1.1%calm2:6001"]
"#;
/// How the unicast destination is reached, until that changes.
const ROUTE: &str = "route replace 10.9.9.9/32 via 10.0.1.2 dev veth2";

/// What happens around the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    InputDown,
    InputRecreated,
    InputRenamed,
    OutputDown,
    OutputRecreated,
    OutputRenamed,
    OutputMoved,
    AddressReplaced,
    MtuChanged,
    NeighbourChanged,
    QuerierGone,
    RouteChanged,
}

impl Fault {
    pub(crate) const ALL: [Self; 12] = [
        Self::InputDown,
        Self::InputRecreated,
        Self::InputRenamed,
        Self::OutputDown,
        Self::OutputRecreated,
        Self::OutputRenamed,
        Self::OutputMoved,
        Self::AddressReplaced,
        Self::MtuChanged,
        Self::NeighbourChanged,
        Self::QuerierGone,
        Self::RouteChanged,
    ];
}

/// The world.
pub(crate) struct World {
    // Dropped first: they stop in the chain's namespaces.
    events: Process,
    load: Load,
    daemon: Daemon,
    elsewhere: Namespace,
    chain: Chain,
}

impl World {
    pub(crate) fn new(path: &str) -> Result<Self> {
        let chain = Chain::snooping()?;
        let (sender, relay, sink) = (&chain.sender, &chain.relay, &chain.sink);
        link::veth((sender, "calm0"), (relay, "calm1"))?;
        link::veth((relay, "calm2"), (sink, "calm3"))?;
        link::veth((relay, "alt2"), (sink, "alt3"))?;
        for (end, address) in [
            ((sender, "calm0"), "10.0.3.1/24"),
            ((relay, "calm1"), "10.0.3.2/24"),
            ((relay, "calm2"), "10.0.4.1/24"),
            ((sink, "calm3"), "10.0.4.2/24"),
            ((relay, "alt2"), "10.0.2.1/24"),
            ((sink, "alt3"), "10.0.2.2/24"),
            ((sink, "lo"), "10.9.9.9/32"),
        ] {
            link::address(end, address)?;
        }
        relay.ip(ROUTE)?;
        // As hosts do that take over an address: they announce it to their neighbours.
        sink.sysctl("net/ipv4/conf/all/arp_notify", "1")?;
        let daemon = Daemon::start(relay, Options::path(path))?;
        daemon.apply(CONFIG)?;
        let mut events = Command::new(lab::binary::mcr()?);
        events.arg("--socket").arg(daemon.socket()).arg("events");
        let plan = Plan {
            input: ("239.3.1.1".parse()?, 5001),
            output: ("239.30.1.1".parse()?, 6001),
            ..Plan::new(1, 500, 200)
        };
        let links = [(sender, "calm0"), (relay, "calm2")];
        let load = Load::start(plan, (sender, "calm0"), (sink, "calm3"), &links)?;
        let world = Self {
            events: Process::start(events)?,
            load,
            daemon,
            elsewhere: Namespace::new("elsewhere")?,
            chain,
        };
        world.gets_through("at first")?;
        Ok(world)
    }

    /// Applies the fault, checks the rule's state and counters, reverts the fault, and waits until
    /// both outputs get packets again.
    pub(crate) fn suffer(&self, fault: Fault) -> Result<()> {
        println!("{fault:?}");
        let before = self.events.stdout().len();
        self.change(fault).with_context(|| format!("{fault:?}"))?;
        self.gets_through(&format!("after {fault:?}"))?;
        if fault != Fault::QuerierGone {
            wait::until(&format!("an event tells of {fault:?}"), || {
                self.events.stdout().len() > before
            })?;
        }
        let stats = self.daemon.stats()?;
        let calm = stats.rules.iter().find(|rule| rule.name == "calm");
        ensure!(
            calm.is_some_and(|rule| rule.state == State::Up
                && rule.outputs[0].dropped.values().sum::<u64>() == 0),
            "after {fault:?} the other rule is {calm:?}"
        );
        Ok(())
    }

    /// Ends the load on the other rule: it lost nothing, and no event was about it.
    pub(crate) fn finish(self) -> Result<()> {
        // Before its stream ends, which is an event.
        let events = self.events.stdout();
        let account = self.load.finish()?;
        println!("the rule beside: {account:?}");
        let lost = account.check_nothing_lost();
        lost.with_context(|| format!("{:?}", self.daemon.stats()))?;
        let about_it = events.lines().find(|line| line.contains("rule \"calm\""));
        ensure!(
            about_it.is_none(),
            "an event about the rule beside: {about_it:?}"
        );
        lab::accounting::check(&self.daemon.stats()?)
    }

    fn change(&self, fault: Fault) -> Result<()> {
        let Chain {
            relay,
            sink,
            switch,
            ..
        } = &self.chain;
        let switch = switch.as_ref().context("no switch")?;
        match fault {
            Fault::InputDown => {
                link::down((relay, "veth1"))?;
                self.wait_for_input(false)?;
                link::up((relay, "veth1"))
            }
            Fault::InputRecreated => {
                link::delete((relay, "veth1"))?;
                self.wait_for_input(false)?;
                link::veth((switch, "port1"), (relay, "veth1"))?;
                link::bridge_port((switch, "port1"), "br0")?;
                link::address((relay, "veth1"), "10.0.0.2/24")
            }
            Fault::InputRenamed => {
                rename(relay, "veth1", "gone1")?;
                self.wait_for_input(false)?;
                rename(relay, "gone1", "veth1")
            }
            Fault::OutputDown => {
                link::down((relay, "veth2"))?;
                self.drops("interface_down", 100)?;
                link::up((relay, "veth2"))?;
                relay.ip(ROUTE).map(drop)
            }
            Fault::OutputRecreated => {
                link::delete((relay, "veth2"))?;
                self.drops("interface_missing", 100)?;
                link::veth((relay, "veth2"), (sink, "veth3"))?;
                link::address((sink, "veth3"), "10.0.1.2/24")?;
                self.address_and_route("10.0.1.1/24")
            }
            Fault::OutputRenamed => {
                rename(relay, "veth2", "gone2")?;
                self.drops("interface_missing", 100)?;
                rename(relay, "gone2", "veth2")?;
                relay.ip(ROUTE).map(drop)
            }
            Fault::OutputMoved => {
                let (there, here) = (self.elsewhere.name(), relay.name());
                relay.ip(&format!("link set veth2 netns {there}"))?;
                self.drops("interface_missing", 100)?;
                self.elsewhere.ip(&format!("link set veth2 netns {here}"))?;
                link::up((relay, "veth2"))?;
                self.address_and_route("10.0.1.1/24")
            }
            Fault::AddressReplaced => {
                relay.ip("address flush dev veth2 scope global")?;
                // As a socket's packet it gets another interface's address, which the kernel chooses.
                let output = relay.ip("-json route get 239.10.1.1 oif veth2")?;
                let route: serde_json::Value = serde_json::from_str(&output)?;
                let borrowed = route[0]["prefsrc"].as_str().context("no prefsrc")?;
                ensure!(borrowed != "10.0.1.1", "{route}");
                self.wait_for_source(borrowed.parse()?)?;
                self.address_and_route("10.0.1.77/24")?;
                self.wait_for_source("10.0.1.77".parse()?)?;
                relay.ip("address flush dev veth2 scope global")?;
                self.address_and_route("10.0.1.1/24")?;
                self.wait_for_source("10.0.1.1".parse()?)
            }
            Fault::MtuChanged => {
                relay.ip("link set veth2 mtu 600")?;
                self.drops("too_big", 1000)?;
                relay.ip("link set veth2 mtu 1500").map(drop)
            }
            Fault::NeighbourChanged => {
                let old = link::mac((sink, "veth3"))?;
                let last = u8::from_str_radix(&old[15..], 16)?;
                link::down((sink, "veth3"))?;
                sink.ip(&format!(
                    "link set veth3 address {}{:02x}",
                    &old[..15],
                    last ^ 0x55
                ))?;
                link::up((sink, "veth3"))?;
                // A veth is down when its peer is.
                relay.ip(ROUTE).map(drop)
            }
            Fault::QuerierGone => {
                let set = |on| format!("link set br0 type bridge mcast_querier {on}");
                switch.ip(&set(0))?;
                self.gets_through("without a querier")?;
                switch.ip(&set(1))?;
                link::wait_for_member((switch, "br0"), "239.1.1.1")
            }
            Fault::RouteChanged => {
                relay.ip("route replace 10.9.9.9/32 via 10.0.2.2 dev alt2")?;
                let before = link::statistics((sink, "alt3"))?.received;
                let sender = self.sender()?;
                wait::until_within(PATIENCE, "the other way is taken", || {
                    let sent = (0..20).all(|_| sender.send(group(), 5001, b"probe").is_ok());
                    let now = link::statistics((sink, "alt3"));
                    sent && now.is_ok_and(|now| now.received >= before + 50)
                })?;
                relay.ip(ROUTE).map(drop)
            }
        }
    }

    fn address_and_route(&self, address: &str) -> Result<()> {
        link::address((&self.chain.relay, "veth2"), address)?;
        self.chain.relay.ip(ROUTE).map(drop)
    }

    fn sender(&self) -> Result<Sender> {
        Sender::open((&self.chain.sender, "veth0"), "10.0.0.1".parse()?)
    }

    /// Sends until the multicast output counts drops for this reason.
    fn drops(&self, reason: &str, size: usize) -> Result<()> {
        let count = || {
            let rule = self.daemon.rule("victim")?;
            anyhow::Ok(rule.outputs[0].dropped.get(reason).copied().unwrap_or(0))
        };
        let before = count()?;
        let sender = self.sender()?;
        let what = format!("{reason} is counted");
        let counted = wait::until_within(PATIENCE, &what, || {
            let sent = sender.send_numbered(group(), 5001, 5, size);
            sent.is_ok() && count().is_ok_and(|now| now > before)
        });
        counted.with_context(|| format!("{:?}", self.daemon.rule("victim")))?;
        if reason != "too_big" {
            // The dataplane follows first, or finds the interface down itself.
            let is_down = |rule: &RuleStats| {
                let output = &rule.outputs[0];
                output.state == State::Down && output.reason.is_some()
            };
            self.daemon
                .wait_for("victim", "the output is down and says why", is_down)?;
        }
        Ok(())
    }

    fn wait_for_input(&self, joined: bool) -> Result<()> {
        let matches =
            |rule: &RuleStats| (rule.inputs[0].joined && rule.state == State::Up) == joined;
        let what = format!("the input is joined and up: {joined}");
        self.daemon.wait_for("victim", &what, matches).map(drop)
    }

    fn wait_for_source(&self, source: IpAddr) -> Result<()> {
        let sender = self.sender()?;
        let sink = Receiver::join((&self.chain.sink, "veth3"), "239.10.1.1".parse()?, 6001)?;
        wait::until_within(PATIENCE, &format!("packets come from {source}"), || {
            let sent = sender.send(group(), 5001, b"probe");
            let received = sink.receive(Duration::from_millis(20)).ok().flatten();
            sent.is_ok() && received.is_some_and(|datagram| datagram.from.ip() == source)
        })
    }

    /// Sends until both outputs of the rule deliver and it is up.
    fn gets_through(&self, when: &str) -> Result<()> {
        let sender = self.sender()?;
        let sink = &self.chain.sink;
        let many = Receiver::join((sink, "veth3"), "239.10.1.1".parse()?, 6001)?;
        let one = Receiver::bind(sink, "10.9.9.9:7000".parse()?)?;
        let (mut many_got, mut one_got) = (false, false);
        let receives = |receiver: &Receiver| {
            let received = receiver.receive(Duration::from_millis(20));
            received.is_ok_and(|datagram| datagram.is_some())
        };
        let through = wait::until_within(PATIENCE, &format!("packets get through {when}"), || {
            let _ = sender.send(group(), 5001, b"probe");
            many_got |= receives(&many);
            one_got |= receives(&one);
            many_got && one_got
        });
        through.with_context(|| {
            let rule = self.daemon.rule("victim");
            let neighbours = self.chain.relay.ip("neighbour");
            let there = link::mac((sink, "veth3"));
            format!("multicast {many_got}, unicast {one_got}, {rule:?}, {neighbours:?}, {there:?}")
        })?;
        let what = format!("the rule is up {when}");
        let up = |rule: &RuleStats| rule.state == State::Up;
        self.daemon.wait_for("victim", &what, up).map(drop)
    }
}

fn group() -> IpAddr {
    IpAddr::from([239, 1, 1, 1])
}

/// A link that is up keeps its name on older kernels.
fn rename(namespace: &Namespace, from: &str, to: &str) -> Result<()> {
    link::down((namespace, from))?;
    namespace.ip(&format!("link set {from} name {to}"))?;
    link::up((namespace, to))
}
