//! A comparison with igmpproxy, in turn on the same bed: from a join to the first packet, from a leave
//! to the last, and the processor time while 50 hosts join and leave 1,000 groups. It only measures,
//! and asserts none of it.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use igmp::codec::{Record, RecordKind, Report, Version, craft};
use lab::daemon::{Daemon, Options};
use lab::process::Process;
use lab::usage::processor_time;
use lab::{link, wait};
use packet::craft::group_mac;
use sys::group_socket::GroupSocket;

use super::{Bed, PATIENCE, ip, wants};

/// Joins and leaves of each relay.
const ROUNDS: usize = 5;
const GROUP: &str = "239.9.9.1";
const GROUPS: u32 = 1000;
const HOSTS: u32 = 50;
/// How long hosts join and leave, and how often.
const CHURN: Duration = Duration::from_secs(20);
const CHANGES_PER_SECOND: u32 = 100;
/// No leave takes longer than that.
const LEAVES: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
enum Relay {
    Mcr(&'static str),
    Igmpproxy,
}

/// What runs.
enum Running {
    Mcr(Box<Daemon>),
    Igmpproxy(
        Process,
        #[expect(dead_code, reason = "its file is read")] tempfile::TempDir,
    ),
}

impl Running {
    fn start(relay: Relay, bed: &Bed) -> Self {
        match relay {
            Relay::Mcr(path) => {
                let daemon = Daemon::start(&bed.relay, Options::path(path)).unwrap();
                let output = "239.9.8.0/22%eth1:5000,ttl=dec,demand=igmp,querier=yes";
                daemon
                    .add("tv", "239.9.8.0/22%eth0:5000", &[output])
                    .unwrap();
                daemon.wait_for("tv", "it is idle", wants(0)).unwrap();
                Self::Mcr(Box::new(daemon))
            }
            Relay::Igmpproxy => {
                bed.relay.sysctl("net/ipv4/ip_forward", "1").unwrap();
                let directory = tempfile::tempdir().unwrap();
                let file = directory.path().join("igmpproxy.conf");
                let text = "quickleave\nphyint eth0 upstream ratelimit 0 threshold 1\n\
                    altnet 10.0.0.0/24\nphyint eth1 downstream ratelimit 0 threshold 1\n\
                    phyint lo disabled\n";
                std::fs::write(&file, text).unwrap();
                let mut command = bed.relay.command("igmpproxy");
                command.arg("-n").arg(&file);
                Self::Igmpproxy(Process::start(command).unwrap(), directory)
            }
        }
    }

    fn id(&self) -> u32 {
        match self {
            Self::Mcr(daemon) => daemon.id(),
            Self::Igmpproxy(process, _) => process.id(),
        }
    }
}

#[test]
#[ignore = "long: make demand"]
fn beside_igmpproxy() {
    let relays = [
        Relay::Mcr("kernel"),
        Relay::Mcr("userspace"),
        Relay::Igmpproxy,
    ];
    println!(
        "| relay | join to first packet, ms | leave to last packet, s | processor, % of one |"
    );
    println!("|---|---|---|---|");
    for relay in relays {
        let bed = Bed::new();
        if matches!(relay, Relay::Igmpproxy)
            && bed.relay.command("igmpproxy").arg("-h").output().is_err()
        {
            eprintln!("skipped: no igmpproxy; dist/bootstrap bench");
            continue;
        }
        let running = Running::start(relay, &bed);
        let (joins, leaves) = joins_and_leaves(&bed);
        let load = churn(&bed, running.id());
        println!("| {relay:?} | {joins} | {leaves} | {:.1} |", load * 100.0);
    }
}

/// Least, median and most of each.
fn joins_and_leaves(bed: &Bed) -> (String, String) {
    let stream = bed.stream("10.0.0.2", &[GROUP]);
    let (mut joins, mut leaves) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let sink = bed.join(0, GROUP);
        sink.receive(PATIENCE)
            .unwrap()
            .expect("what is listened to comes");
        joins.push(begun.elapsed().as_secs_f64() * 1e3);
        let left_at = Instant::now();
        drop(sink);
        leaves.push((last_sent(bed) - left_at).as_secs_f64());
    }
    stream.end();
    (spread(joins), spread(leaves))
}

fn spread(mut figures: Vec<f64>) -> String {
    figures.sort_by(f64::total_cmp);
    let (first, middle, last) = (0, figures.len() / 2, figures.len() - 1);
    format!(
        "{:.1} {:.1} {:.1}",
        figures[first], figures[middle], figures[last]
    )
}

/// Waits until the relay stops sending the stream; returns when it sent last, to a tenth of a second.
fn last_sent(bed: &Bed) -> Instant {
    const WINDOW: Duration = Duration::from_millis(100);
    // Of 50 that the stream has in a window; a querier's own messages are fewer.
    const STREAM: u64 = 10;
    let sent = || link::statistics((&bed.relay, "eth1")).unwrap().sent;
    let (mut before, mut last, mut quiet) = (sent(), Instant::now(), 0);
    wait::until_within(LEAVES, "the stream ends", || {
        std::thread::sleep(WINDOW);
        let now = sent();
        if now - before >= STREAM {
            (last, quiet) = (Instant::now(), 0);
        } else {
            quiet += 1;
        }
        before = now;
        quiet == 10
    })
    .unwrap();
    last
}

/// The processor time that the relay takes while hosts join and leave, for each second.
fn churn(bed: &Bed, process: u32) -> f64 {
    let host = &bed.receivers[0];
    let index = link::index((host, "eth0")).unwrap();
    let socket = host.run(|| Ok(GroupSocket::open(index, true)?)).unwrap();
    let say = |host: u32, kind, groups: &[u32]| {
        let record = |group: &u32| Record {
            kind,
            group: Ipv4Addr::from(0xef09_0800 + group).into(),
            sources: Vec::new(),
        };
        let report = Report {
            version: Version::V3,
            records: groups.iter().map(record).collect(),
        };
        let from = ip(&format!("10.0.1.{}", 110 + host));
        let (to, packet) = craft::report(from, &report).unwrap();
        socket.send(group_mac(to), &packet).unwrap();
    };
    let all: Vec<u32> = (0..GROUPS).collect();
    for (host, groups) in (0..).zip(all.chunks((GROUPS / HOSTS) as usize)) {
        say(host, RecordKind::ToExclude, groups);
    }
    let (begun, before) = (Instant::now(), processor_time(process).unwrap());
    let mut chance: u32 = 1;
    let mut next = begun;
    while begun.elapsed() < CHURN {
        // Numerical Recipes' generator: the same for every relay.
        chance = chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let kind = match chance >> 31 {
            0 => RecordKind::ToExclude,
            _ => RecordKind::ToInclude,
        };
        say((chance >> 8) % HOSTS, kind, &[(chance >> 16) % GROUPS]);
        next += Duration::from_secs(1) / CHANGES_PER_SECOND;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let took = processor_time(process).unwrap() - before;
    took.as_secs_f64() / begun.elapsed().as_secs_f64()
}
