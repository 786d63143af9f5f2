//! Players that zap: the membership traffic upstream of the relay, with and without `linger`, and their
//! limits.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use igmp::codec::{Message, Record, RecordKind, Report, Version, craft, read};
use lab::daemon::{Daemon, Options};
use lab::frame::FrameReceiver;
use lab::usage::processor_time;
use lab::{link, wait};
use packet::craft::group_mac;
use socket2::{Domain, Protocol, Socket, Type};
use sys::group_socket::GroupSocket;

use super::{Bed, standing, wants};

/// Channels of the long run: as of a headend, so that few are watched by two.
const CHANNELS: u32 = 500;

/// Players behind one port, each at one channel.
struct Players {
    socket: GroupSocket,
    channels: u32,
    at: Vec<Option<u32>>,
    chance: u32,
}

fn channel(network: u32, number: u32) -> IpAddr {
    Ipv4Addr::from(network + number).into()
}

impl Players {
    fn new(bed: &Bed, count: usize, channels: u32) -> Self {
        let host = &bed.receivers[0];
        let index = link::index((host, "eth0")).unwrap();
        Self {
            socket: host.run(|| Ok(GroupSocket::open(index, true)?)).unwrap(),
            channels,
            at: vec![None; count],
            chance: 1,
        }
    }

    /// The next player in turn leaves its channel and joins another, in one report, as a host's kernel does.
    fn zap(&mut self, turn: u32) {
        // Numerical Recipes' generator: the same for every run.
        self.chance = self
            .chance
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        let next = (self.chance >> 16) % self.channels;
        self.switch(turn as usize % self.at.len(), Some(next));
    }

    /// A player leaves its channel and joins another.
    fn switch(&mut self, player: usize, next: Option<u32>) {
        let before = std::mem::replace(&mut self.at[player], next);
        if before == next {
            return;
        }
        let record = |kind, number| Record {
            kind,
            group: channel(0xef09_0800, number),
            sources: Vec::new(),
        };
        let leave = before.map(|number| record(RecordKind::ToInclude, number));
        let join = next.map(|number| record(RecordKind::ToExclude, number));
        self.report(player, leave.into_iter().chain(join).collect());
    }

    fn report(&self, player: usize, records: Vec<Record>) {
        let version = Version::V3;
        let from = channel(0x0a00_0100, 20 + player as u32);
        let (to, packet) = craft::report(from, &Report { version, records }).unwrap();
        self.socket.send(group_mac(to), &packet).unwrap();
    }

    /// Sends their reports to a query.
    fn answer(&self) {
        for (player, number) in self.at.iter().enumerate() {
            let record = |number| Record {
                kind: RecordKind::IsExclude,
                group: channel(0xef09_0800, number),
                sources: Vec::new(),
            };
            self.report(player, number.iter().copied().map(record).collect());
        }
    }

    fn watched(&self) -> usize {
        let watched: BTreeSet<&u32> = self.at.iter().flatten().collect();
        watched.len()
    }
}

/// Membership traffic upstream of the relay: reports, and their records of joins and leaves.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    reports: u64,
    joins: u64,
    leaves: u64,
}

/// Counts on the sender's side.
struct Upstream {
    stop: Arc<AtomicBool>,
    work: JoinHandle<Traffic>,
}

impl Upstream {
    fn listen(bed: &Bed) -> Self {
        let wire = FrameReceiver::open((&bed.sender, "eth0")).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let work = thread::spawn(move || {
            let mut traffic = Traffic::default();
            let mut count = |frame: &[u8]| {
                let Ok(packet) = read(frame.get(14..).unwrap_or_default()) else {
                    return false;
                };
                if let Message::Report(report) = packet.message {
                    traffic.reports += 1;
                    for record in report.records {
                        match record.kind {
                            RecordKind::ToExclude | RecordKind::Allow => traffic.joins += 1,
                            RecordKind::ToInclude | RecordKind::Block => traffic.leaves += 1,
                            RecordKind::IsInclude | RecordKind::IsExclude => {}
                        }
                    }
                }
                false
            };
            while !stopped.load(Ordering::Relaxed) {
                wire.receive(Duration::from_millis(50), &mut count).unwrap();
            }
            traffic
        });
        Self { stop, work }
    }

    fn end(self) -> Traffic {
        self.stop.store(true, Ordering::Relaxed);
        self.work.join().unwrap()
    }
}

fn start(bed: &Bed, options: &str) -> Daemon {
    start_on("kernel", bed, options)
}

fn start_on(path: &str, bed: &Bed, options: &str) -> Daemon {
    let daemon = Daemon::start(&bed.relay, Options::path(path)).unwrap();
    let output = format!("239.9.8.0/22%eth1:5000,demand=igmp,querier=yes{options}");
    daemon
        .add("tv", "239.1.8.0/22%eth0:5000", &[&output])
        .unwrap();
    daemon.wait_for("tv", "it is idle", wants(0)).unwrap();
    daemon
}

#[test]
fn the_upstream_receives_no_leave_of_what_lingers() {
    let mut leaves = Vec::new();
    for options in [",linger=1h,groups_each=1", ""] {
        let bed = Bed::new();
        let daemon = start(&bed, options);
        let upstream = Upstream::listen(&bed);
        let mut players = Players::new(&bed, 20, 40);
        for turn in 0..200 {
            players.zap(turn);
            thread::sleep(Duration::from_millis(2));
        }
        let watched = players.watched() as u64;
        daemon
            .wait_for("tv", "what is watched is wanted", |rule| {
                players.answer();
                rule.outputs[0].wanted == Some(watched)
            })
            .unwrap();
        // One that leaves before it joins needs no additional room.
        assert_eq!(standing(&daemon, "igmp").barred, 0);
        for player in 0..20 {
            players.switch(player, None);
        }
        daemon.wait_for("tv", "nobody watches", wants(0)).unwrap();
        if options.is_empty() {
            wait::until("all is left", || bed.pulled().is_empty()).unwrap()
        } else {
            assert!(bed.pulled().len() as u64 >= watched);
            // A host beyond its limit is refused and counted.
            let record = |number| Record {
                kind: RecordKind::ToExclude,
                group: channel(0xef09_0800, number),
                sources: Vec::new(),
            };
            players.report(0, vec![record(1), record(2)]);
            wait::until("it is barred", || standing(&daemon, "igmp").barred == 1).unwrap();
            daemon.wait_for("tv", "one is wanted", wants(1)).unwrap();
            wait::until("it is told", || daemon.log().contains("listeners_refused")).unwrap();
        }
        leaves.push(upstream.end().leaves);
    }
    assert_eq!(leaves[0], 0);
    assert!(leaves[1] > 0);
}

#[test]
fn who_may_ask_and_for_how_much_is_as_the_output_says() {
    for path in ["kernel", "userspace"] {
        let bed = Bed::new();
        // Players are 10.0.1.20 and so on.
        let may = ",allow=10.0.1.20/30,deny=10.0.1.21,groups_all=2";
        let daemon = start_on(path, &bed, may);
        let mut players = Players::new(&bed, 5, 10);
        for (player, group, wanted, barred) in [
            (1, 1, 0, 1),
            (4, 1, 0, 2),
            (0, 1, 1, 2),
            (2, 2, 2, 2),
            (3, 3, 2, 3),
            // A group that others have does not count again.
            (3, 2, 2, 3),
        ] {
            players.switch(player, Some(group));
            let what = format!("{wanted} are wanted, {barred} barred");
            let is_so = || {
                let rule = daemon.rule("tv").unwrap();
                let now = standing(&daemon, "igmp").barred;
                rule.outputs[0].wanted == Some(wanted) && now == barred
            };
            wait::until(&what, is_so).unwrap();
        }
        wait::until("it is told", || daemon.log().contains("listeners_refused")).unwrap();
    }
}

#[test]
fn what_lingers_goes_with_its_rule() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed.relay, Options::path("userspace")).unwrap();
    let output = "239.9.9.0/29%eth1:5000,demand=igmp,querier=yes,linger=1h";
    daemon
        .add("tv", "239.1.1.0/29%eth0:5000", &[output])
        .unwrap();
    let listen_to = |groups: std::ops::Range<u8>| {
        let sinks: Vec<_> = groups
            .map(|last| bed.join(0, &format!("239.9.9.{last}")))
            .collect();
        let count = sinks.len() as u64;
        daemon
            .wait_for("tv", "all are wanted", wants(count))
            .unwrap();
        drop(sinks);
        daemon.wait_for("tv", "none is wanted", wants(0)).unwrap();
    };
    listen_to(0..6);
    assert_eq!(bed.pulled().len(), 6);
    // When the rule receives other groups these must not be joined again.
    let change = ["change", "tv", "--add-input", "239.1.2.0/29%eth0:5000"];
    let removed = ["--remove-input", "239.1.1.0/29%eth0:5000"];
    daemon.mcr(&[&change[..], &removed].concat()).unwrap();
    wait::until("those are left", || bed.pulled().is_empty()).unwrap();
    listen_to(2..6);
    assert_eq!(bed.pulled().len(), 4);
    daemon.mcr(&["disable", "tv"]).unwrap();
    wait::until("nothing lingers of a rule that is shut off", || {
        bed.pulled().is_empty()
    })
    .unwrap();
}

#[test]
fn the_oldest_that_lingers_goes_at_the_limit_of_memberships() {
    for path in ["kernel", "userspace"] {
        let bed = Bed::new();
        let mut options = Options::path(path);
        options.arguments = ["--max-memberships", "2"].map(str::to_owned).to_vec();
        let daemon = Daemon::start(&bed.relay, options).unwrap();
        let output = "232.9.9.1%eth1:5000,source=keep,demand=igmp,querier=yes,linger=1h";
        daemon.add("tv", "232.1.1.1%eth0:5000", &[output]).unwrap();
        let listen = |receiver: usize, source: u8| -> Socket {
            let socket = bed.receivers[receiver].run(|| {
                let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
                let interface = Ipv4Addr::new(10, 0, 1, 101 + receiver as u8);
                let source = Ipv4Addr::new(10, 0, 0, source);
                socket.join_ssm_v4(&source, &Ipv4Addr::new(232, 9, 9, 1), &interface)?;
                Ok(socket)
            });
            socket.unwrap()
        };
        // Each source of the group is a separate membership.
        let joined = |expected: &[u8]| {
            let what = format!("{expected:?} are joined");
            wait::until(&what, || {
                let text = bed.relay.read_proc_net("mcfilter").unwrap();
                let is_there = |source: &u8| text.contains(&format!("0x0a0000{source:02x}"));
                (0x11..=0x15).filter(is_there).eq(expected.iter().copied())
            })
            .unwrap();
        };
        for (source, expected) in [(0x11, &[0x11][..]), (0x12, &[0x11, 0x12])] {
            let player = listen(0, source);
            joined(expected);
            drop(player);
            daemon.wait_for("tv", "nobody watches", wants(0)).unwrap();
            joined(expected);
        }
        let third = listen(0, 0x13);
        joined(&[0x12, 0x13]);
        let fourth = listen(1, 0x14);
        joined(&[0x13, 0x14]);
        drop((third, fourth));
        daemon.wait_for("tv", "nobody watches", wants(0)).unwrap();
        joined(&[0x13, 0x14]);
    }
}

/// 200 players, each of whom zaps five times a second, for 20 seconds. It measures without asserting.
#[test]
#[ignore = "long: make long-zaps"]
fn a_thousand_zaps_a_second() {
    const SECONDS: u32 = 20;
    println!(
        "| linger | zaps | a second | reports upstream | joins | leaves | processor, % | settled after, s |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for linger in ["", ",linger=30s"] {
        let bed = Bed::new();
        let daemon = start(&bed, linger);
        let upstream = Upstream::listen(&bed);
        let mut players = Players::new(&bed, 200, CHANNELS);
        let (begun, before) = (Instant::now(), processor_time(daemon.id()).unwrap());
        for turn in 0..SECONDS * 1000 {
            players.zap(turn);
            let next = begun + Duration::from_millis(1) * (turn + 1);
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        let (took, ended) = (begun.elapsed(), Instant::now());
        let spent = processor_time(daemon.id()).unwrap() - before;
        // Queries stay unanswered once the players stop, so channels end soon afterwards.
        let watched = players.watched() as u64;
        let is_settled = |rule: &api::reply::RuleStats| rule.outputs[0].wanted <= Some(watched);
        daemon
            .wait_for("tv", "what was left is over", is_settled)
            .unwrap();
        let settled = ended.elapsed();
        let refused = standing(&daemon, "igmp").refused;
        let traffic = upstream.end();
        let linger = if linger.is_empty() { "none" } else { "30 s" };
        println!(
            "| {linger} | {} | {:.0} | {} | {} | {} | {:.1} | {:.1} |",
            SECONDS * 1000,
            f64::from(SECONDS * 1000) / took.as_secs_f64(),
            traffic.reports,
            traffic.joins,
            traffic.leaves,
            100.0 * spent.as_secs_f64() / took.as_secs_f64(),
            settled.as_secs_f64(),
        );
        assert_eq!(refused, 0, "there is room for all");
    }
}
