//! Zones of real name servers that change under traffic, and the ways in which servers fail.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use api::reply::{OutputStats, State};
use lab::daemon::Daemon;
use lab::guard::Guard;
use lab::link;
use lab::socket::{Receiver, Sender, number, payload};
use lab::topology::Chain;
use lab::usage::processor_time;
use nix::sys::signal::Signal;
use tempfile::NamedTempFile;

use super::server::{Program, Server};
use super::{copies, group, host, resolving};

lab::on_both_paths!(
    a_zone_of_unbound_changes_and_its_server_fails,
    a_zone_of_dnsmasq_changes_and_its_server_fails,
    a_zone_of_knot_changes_and_its_server_fails,
);

const RECORDERS: &str = "recorders:7000,all,refresh=1s";
const GONE: [Ipv4Addr; 0] = [];

/// A chain whose sink has many addresses and a name server.
struct Bed {
    server: Server,
    daemon: Daemon,
    chain: Chain,
    _resolv: NamedTempFile,
}

/// Guests of the link: 512 in addition to those of the chain's network.
fn guest(number: u16) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 5, 0)) + u32::from(number))
}

impl Bed {
    fn start(path: &str, program: Program, zone: &[Ipv4Addr]) -> Option<Self> {
        let chain = Chain::plain().unwrap();
        for last in [10, 11] {
            let address = format!("address add {}/24 dev veth3", host(last));
            chain.sink.ip(&address).unwrap();
        }
        chain.relay.ip("address add 10.0.4.1/22 dev veth2").unwrap();
        chain.sink.ip("route add 10.0.4.1/32 dev veth3").unwrap();
        for network in ["10.0.5.0/24", "10.0.6.0/24"] {
            let route = format!("route add local {network} dev lo");
            chain.sink.ip(&route).unwrap();
        }
        let server = Server::start(&chain.sink, program, zone)?;
        let (daemon, resolv) = resolving(
            &chain,
            path,
            "search nowhere.pods.example pods.example example\nnameserver 10.0.1.2\n\
             options ndots:2 timeout:1 attempts:1\n",
        );
        let bed = Self {
            server,
            daemon,
            chain,
            _resolv: resolv,
        };
        bed.add("cam1", "239.1.1.1%veth1:5001", RECORDERS);
        bed.wait_for(zone);
        Some(bed)
    }

    fn add(&self, name: &str, input: &str, output: &str) {
        self.daemon.add(name, input, &[output]).unwrap();
    }

    fn wait(&self, what: &str, is_so: impl Fn(&OutputStats) -> bool) {
        let is_so = |rule: &api::reply::RuleStats| is_so(&rule.outputs[0]);
        self.daemon.wait_for("cam1", what, is_so).unwrap();
    }

    /// Waits until exactly these get copies.
    fn wait_for(&self, zone: &[Ipv4Addr]) {
        self.wait_of("cam1", &zone.iter().map(ToString::to_string).collect());
    }

    fn wait_of(&self, rule: &str, expected: &BTreeSet<String>) {
        let are_those = |rule: &api::reply::RuleStats| {
            let mut addresses = copies(&rule.outputs[0]).iter();
            let present = addresses.clone().map(|to| to.address.clone());
            present.collect::<BTreeSet<_>>() == *expected
                && addresses.all(|to| to.state == State::Up)
        };
        let what = format!("{expected:?} of {rule}");
        self.daemon.wait_for(rule, &what, are_those).unwrap();
    }

    /// Waits until everything sent has reached the relay, without loss before it, and is accounted for at the
    /// addresses that stay; returns the drops there.
    fn dropped(&self, sent: u64, stay: [Ipv4Addr; 2]) -> [usize; 2] {
        let accounted = |rule: &api::reply::RuleStats| {
            stay.map(|at| {
                let mut copies = copies(&rule.outputs[0]).iter();
                let copy = copies.find(|to| to.address == at.to_string());
                copy.map_or((0, 0), |copy| {
                    let dropped = copy.dropped.values().sum::<u64>();
                    (copy.sent.packets + dropped, dropped as usize)
                })
            })
        };
        let is_all = |rule: &api::reply::RuleStats| {
            rule.received.packets == sent && accounted(rule).iter().all(|(all, _)| *all == sent)
        };
        let what = format!("{sent} packets are accounted for");
        let rule = self.daemon.wait_for("cam1", &what, is_all).unwrap();
        println!("{:?} {:?}", rule.dropped, rule.outputs[0].dropped);
        accounted(&rule).map(|(_, dropped)| dropped)
    }

    fn stream(&self, rate: u64) -> Stream {
        let source = [10, 0, 0, 1].into();
        let sender = Sender::open((&self.chain.sender, "veth0"), source).unwrap();
        Stream::start(move |number| {
            sender.send(group(), 5001, &payload(number, 100)).unwrap();
            (number + 1) % (rate / 500).max(1) == 0
        })
    }
}

/// Numbered packets, two milliseconds between bursts, until it is ended.
struct Stream {
    stop: Arc<AtomicBool>,
    work: JoinHandle<(u64, Duration)>,
}

impl Stream {
    /// `send`: sends one; returns whether a burst is over.
    fn start(send: impl Fn(u64) -> bool + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let work = thread::spawn(move || {
            let (begun, mut next, mut sent) = (Instant::now(), Instant::now(), 0);
            while !stopped.load(Ordering::Relaxed) {
                sent += 1;
                if send(sent - 1) {
                    next += Duration::from_millis(2);
                    // Packets that a busy machine delayed are not sent at once: no queue has room for them.
                    next = next.max(Instant::now() - Duration::from_millis(20));
                    thread::sleep(next.saturating_duration_since(Instant::now()));
                }
            }
            (sent, begun.elapsed())
        });
        Self { stop, work }
    }

    /// Ends it; returns how many were sent, and how long that took.
    fn end(self) -> (u64, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        self.work.join().unwrap()
    }
}

fn a_zone_of_unbound_changes_and_its_server_fails(path: &str) {
    changes_and_fails(path, Program::Unbound);
}

fn a_zone_of_dnsmasq_changes_and_its_server_fails(path: &str) {
    changes_and_fails(path, Program::Dnsmasq);
}

fn a_zone_of_knot_changes_and_its_server_fails(path: &str) {
    changes_and_fails(path, Program::Knot);
}

fn changes_and_fails(path: &str, program: Program) {
    let stay = [host(10), host(11)];
    let Some(mut bed) = Bed::start(path, program, &stay) else {
        return;
    };
    let stayers = stay.map(|at| Stayer::start(&bed, at));
    let stream = bed.stream(500);
    // The second and third answer do not fit a datagram of 512 bytes.
    for guests in [0..3, 3..65, 40..102, 0..0] {
        let zone: Vec<_> = stay.into_iter().chain(guests.map(guest)).collect();
        bed.server.set(&zone);
        bed.wait_for(&zone);
    }
    let (sent, _) = stream.end();
    assert_eq!(bed.dropped(sent, stay), [0, 0]);
    // A busy machine delays packets, and their copies, 66 of each, overflow the queue behind the device.
    let behind = link::statistics((&bed.chain.relay, "veth2")).unwrap();
    for missing in stayers.map(|stayer| stayer.missing(sent)) {
        assert!(
            missing as u64 <= behind.transmit_dropped,
            "{missing}: {behind:?}"
        );
    }
    bed.server.signal(Signal::SIGSTOP);
    bed.wait("its silence is told", |output| {
        output
            .name_error
            .as_deref()
            .is_some_and(|why| why.contains("no name server"))
            && copies(output).len() == 2
    });
    bed.server.signal(Signal::SIGCONT);
    bed.wait("it is back", |output| output.name_error.is_none());
    bed.server.fail();
    bed.wait("its failure is told", |output| output.name_error.is_some());
    bed.wait_for(&stay);
    bed.server.recover(&stay[..1]);
    bed.wait_for(&stay[..1]);
    bed.server.set(&GONE);
    bed.wait("nobody is left", |output| {
        copies(output).is_empty() && output.is_idle()
    });
    bed.server.set(&stay);
    bed.wait_for(&stay);
    let both = stay.map(|at| at.to_string());
    for (number, output, expected) in [
        // A chain of other names, a dot at the end.
        (2, "alias.pods.example.:7000,all,refresh=1s", &both[..]),
        // One dot of two is searched for: in vain, in vain, and then below example.
        (3, "recorders.pods:7000,all,refresh=1s", &both[..]),
        (
            4,
            "_rtp._udp.service.pods.example,all,refresh=1s",
            &["10.0.1.10:7001".to_owned()],
        ),
        (6, "six:7000,all,refresh=1s", &["fd00:1::2".to_owned()]),
    ] {
        let name = format!("cam{number}");
        let input = match number {
            6 => "[ff1e::1:1%veth1]:5001".to_owned(),
            _ => format!("239.1.1.{number}%veth1:5001"),
        };
        bed.add(&name, &input, output);
        bed.wait_of(&name, &expected.iter().cloned().collect());
    }
}

/// A receiver at an address that stays.
struct Stayer {
    stop: Arc<AtomicBool>,
    work: JoinHandle<(u64, Vec<u64>)>,
}

impl Stayer {
    fn start(bed: &Bed, at: Ipv4Addr) -> Self {
        let receiver = Receiver::bind(&bed.chain.sink, (at, 7000).into()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let work = thread::spawn(move || {
            let (mut next, mut missing) = (0, Vec::new());
            loop {
                match receiver.receive(Duration::from_millis(200)).unwrap() {
                    Some(datagram) => {
                        let number = number(&datagram.payload).unwrap();
                        assert!(number >= next, "{number} came after {next}");
                        missing.extend(next..number);
                        next = number + 1;
                    }
                    None if stopped.load(Ordering::Relaxed) => return (next, missing),
                    None => {}
                }
            }
        });
        Self { stop, work }
    }

    /// The number of missing packets, when `sent` were sent.
    fn missing(self, sent: u64) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let (next, missing) = self.work.join().unwrap();
        missing.len() + (sent - next) as usize
    }
}

mod long {
    use super::*;

    mod kernel {
        #[test]
        #[ignore = "long: make long-names"]
        fn many_addresses_come_and_go() {
            super::many_addresses_come_and_go("kernel");
        }
    }

    mod userspace {
        #[test]
        #[ignore = "long: make long-names"]
        fn many_addresses_come_and_go() {
            super::many_addresses_come_and_go("userspace");
        }
    }

    fn many_addresses_come_and_go(path: &str) {
        // 220,000 copies a second overflow the queue between the cores in a millisecond of disturbance,
        // which the relay counts as `egress_full`: here it replaces a network card's ring.
        let _guard = Guard::start_with_backlog().unwrap();
        println!(
            "| path | zone | rate | sent | lost by two who stay | slowest, s | processor, % |"
        );
        println!("|---|---|---|---|---|---|---|");
        // All but two of 64 are others each second; 500 guests, nine of them at a time.
        come_and_go(path, "62 of 64 changed", (1_000, 60), |turn| {
            (0..62).map(|at| (turn * 62 + at) % 512).collect()
        });
        come_and_go(path, "500 guests", (20_000, 56), |turn| {
            (turn * 9..(turn * 9 + 9).min(500)).collect()
        });
    }

    fn come_and_go(
        path: &str,
        zone: &str,
        (rate, turns): (u64, u16),
        guests: impl Fn(u16) -> Vec<u16>,
    ) {
        let stay = [host(10), host(11)];
        let Some(mut bed) = Bed::start(path, Program::Knot, &stay) else {
            return;
        };
        // Receives the guests' packets, and answers none.
        let everybody = (Ipv4Addr::UNSPECIFIED, 7000);
        let _guests = Receiver::bind(&bed.chain.sink, everybody.into()).unwrap();
        let stayers = stay.map(|at| Stayer::start(&bed, at));
        let before = processor_time(bed.daemon.id()).unwrap();
        let (begun, stream) = (Instant::now(), bed.stream(rate));
        let mut slowest = Duration::ZERO;
        let mut visited = BTreeSet::new();
        for turn in 0..turns {
            let next = begun + Duration::from_secs(u64::from(turn) + 1);
            let guests = guests(turn);
            let zone: Vec<_> = stay
                .into_iter()
                .chain(guests.iter().copied().map(guest))
                .collect();
            let set = Instant::now();
            bed.server.set(&zone);
            bed.wait_for(&zone);
            visited.extend(guests);
            slowest = slowest.max(set.elapsed());
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        let (sent, took) = stream.end();
        let spent = processor_time(bed.daemon.id()).unwrap() - before;
        let dropped = bed.dropped(sent, stay);
        let missing = stayers.map(|stayer| stayer.missing(sent));
        println!(
            "| {path} | {zone}, {} in {:.0} s | {:.0} | {sent} | {missing:?} | {:.1} | {:.1} |",
            visited.len(),
            took.as_secs_f64(),
            sent as f64 / took.as_secs_f64(),
            slowest.as_secs_f64(),
            100.0 * spent.as_secs_f64() / took.as_secs_f64(),
        );
        assert_eq!(
            missing, dropped,
            "what is lost is counted where it was to go"
        );
        assert_eq!(missing, [0, 0]);
    }
}
