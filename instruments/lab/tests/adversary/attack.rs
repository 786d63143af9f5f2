//! The attacks on the relay, one at a time, while clients make changes.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use lab::frame::FrameSender;
use lab::namespace::Namespace;
use lab::{link, process, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use packet::craft::Craft;

use super::{World, rest};
use crate::faults::Random;
use crate::instances::in_a_container;

/// Address of the interface that the clients' rules send by.
pub(super) const SPARE_ADDRESS: &str = "10.0.7.1/24";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attack {
    DaemonKilled,
    DaemonKilledWhileItStarts,
    DaemonFrozen,
    WorkerKilled,
    WorkerFrozen,
    KeeperKilled,
    AllKilled,
    OutputFlaps,
    OutputMadeAnew,
    AddressesInABurst,
    MtuChanged,
    Flood,
    HostileClients,
    ForeignProgram,
    PinRemoved,
    ConfigurationBroken,
    RunFull,
    PinsAltered,
    SecondDaemon,
}

impl Attack {
    pub(super) const ALL: [Self; 19] = [
        Self::DaemonKilled,
        Self::DaemonKilledWhileItStarts,
        Self::DaemonFrozen,
        Self::WorkerKilled,
        Self::WorkerFrozen,
        Self::KeeperKilled,
        Self::AllKilled,
        Self::OutputFlaps,
        Self::OutputMadeAnew,
        Self::AddressesInABurst,
        Self::MtuChanged,
        Self::Flood,
        Self::HostileClients,
        Self::ForeignProgram,
        Self::PinRemoved,
        Self::ConfigurationBroken,
        Self::RunFull,
        Self::PinsAltered,
        Self::SecondDaemon,
    ];

    /// Returns whether a stream loses nothing by it.
    pub(super) fn is_lossless(self, path: &str) -> bool {
        match self {
            // Without any process the memberships end, and the switch stops sending.
            Self::AllKilled | Self::PinRemoved | Self::PinsAltered => false,
            // What a worker had received and not sent is lost with it; between one daemon's workers
            // and the next daemon's nothing is received; and the rings of a stopped worker hold a
            // quarter of a second, not more.
            Self::DaemonKilled
            | Self::DaemonKilledWhileItStarts
            | Self::ConfigurationBroken
            | Self::RunFull
            | Self::WorkerKilled
            | Self::WorkerFrozen => path != "userspace",
            _ => true,
        }
    }

    /// Returns whether it is over within a second.
    pub(super) const fn is_quick(self) -> bool {
        !matches!(
            self,
            Self::DaemonKilledWhileItStarts | Self::KeeperKilled | Self::HostileClients
        )
    }

    pub(super) fn carry_out(self, world: &mut World, random: &mut Random) {
        let relay = world.chain.relay.clone();
        let spare = (&relay, "spare0");
        match self {
            Self::DaemonKilled => {
                world.daemon.kill().unwrap();
                rest(random, Duration::from_secs(1));
                world.daemon.start_again().unwrap();
            }
            Self::DaemonKilledWhileItStarts => {
                world.daemon.kill().unwrap();
                for _ in 0..=random.below(3) {
                    let alive = Duration::from_millis(random.below(300));
                    world.daemon.start_and_kill(alive).unwrap();
                }
                world.daemon.start_again().unwrap();
            }
            Self::DaemonFrozen => freeze(world.daemon.id(), random, Duration::from_secs(1)),
            Self::WorkerKilled => {
                if let Some(worker) = worker(world, random) {
                    world.daemon.kill_worker(worker.0).unwrap();
                }
            }
            Self::WorkerFrozen => {
                if let Some((_, pid)) = worker(world, random) {
                    freeze(pid, random, Duration::from_millis(250));
                }
            }
            Self::KeeperKilled => {
                for pid in relay.processes().into_iter().filter(|pid| is_keeper(*pid)) {
                    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
                }
            }
            Self::AllKilled => {
                let daemon = world.daemon.id();
                let mut others = relay.processes();
                others.retain(|pid| u32::try_from(*pid) != Ok(daemon));
                let after = random.below(others.len() as u64 + 1) as usize;
                let (first, last) = others.split_at(after);
                // It may have been ended by an earlier attack.
                let end = |pids: &[i32]| {
                    for pid in pids {
                        let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
                    }
                };
                end(first);
                world.daemon.kill().unwrap();
                end(last);
                world.daemon.start_again().unwrap();
            }
            Self::OutputFlaps => {
                for _ in 0..20 {
                    link::down(spare).unwrap();
                    link::up(spare).unwrap();
                }
            }
            Self::OutputMadeAnew => {
                link::delete(spare).unwrap();
                rest(random, Duration::from_millis(200));
                link::veth(spare, (&world.spare, "spare1")).unwrap();
                link::address(spare, SPARE_ADDRESS).unwrap();
            }
            Self::AddressesInABurst => {
                let mut commands = String::new();
                for net in 8..18 {
                    let before = net - 1;
                    commands += &format!("address add 10.0.{net}.1/24 dev spare0\n");
                    commands += &format!("address del 10.0.{before}.1/24 dev spare0\n");
                }
                commands += &format!("address add {SPARE_ADDRESS} dev spare0\n");
                commands += "address del 10.0.17.1/24 dev spare0\n";
                relay.ip_batch(&commands).unwrap();
            }
            Self::MtuChanged => {
                let mtu = 600 + random.below(900);
                relay.ip(&format!("link set spare0 mtu {mtu}")).unwrap();
            }
            Self::Flood => flood(world, random),
            Self::HostileClients => hostile_clients(&world.daemon.socket(), random),
            Self::ForeignProgram => {
                relay.tool("tc", "qdisc add dev veth1 clsact").unwrap();
                let mut filter = relay.command("tc");
                filter.args([
                    "filter", "add", "dev", "veth1", "ingress", "bpf", "bytecode",
                ]);
                // One instruction: none of its business.
                filter.arg("1,6 0 0 0,");
                process::run(filter, wait::PATIENCE)
                    .unwrap()
                    .success()
                    .unwrap();
                rest(random, Duration::from_millis(200));
                relay.tool("tc", "qdisc del dev veth1 clsact").unwrap();
            }
            Self::PinRemoved => {
                let entries = fs::read_dir(world.daemon.pins()).into_iter().flatten();
                let mut pins: Vec<_> = entries.flatten().map(|pin| pin.path()).collect();
                pins.sort();
                if !pins.is_empty() {
                    let one = &pins[random.below(pins.len() as u64) as usize];
                    println!("{}", one.display());
                    let _ = fs::remove_file(one).or_else(|_| fs::remove_dir_all(one));
                }
                world.daemon.kill().unwrap();
                world.daemon.start_again().unwrap();
            }
            Self::ConfigurationBroken => {
                let file = world.daemon.config_file();
                let contents = fs::read(&file).unwrap();
                fs::write(&file, "version = 1\n[[rule]]\nname = \"ha").unwrap();
                kill(Pid::from_raw(world.daemon.id() as i32), Signal::SIGHUP).unwrap();
                rest(random, Duration::from_millis(300));
                world.daemon.kill().unwrap();
                world.daemon.start_again().unwrap();
                fs::write(&file, contents).unwrap();
            }
            Self::RunFull => {
                world.run.fill();
                rest(random, Duration::from_secs(1));
                world.daemon.kill().unwrap();
                world.daemon.start_again().unwrap();
                rest(random, Duration::from_millis(500));
                world.run.make_room();
            }
            Self::PinsAltered => {
                world.daemon.kill().unwrap();
                alter_pins(&world.daemon.pins(), random);
                rest(random, Duration::from_millis(300));
                world.daemon.start_again().unwrap();
            }
            Self::SecondDaemon => {
                let namespace = random.choose(&[&relay, &world.spare]);
                second_daemon(namespace, world.daemon.instance());
            }
        }
    }
}

/// The id and pid of a worker that runs, if there is one.
fn worker(world: &World, random: &mut Random) -> Option<(u32, u32)> {
    let workers = world.daemon.stats().unwrap().workers;
    let alive = workers.iter().filter(|worker| worker.pid != 0);
    let running: Vec<_> = alive.map(|worker| (worker.id, worker.pid)).collect();
    let one = random.below(running.len() as u64) as usize;
    running.get(one).copied()
}

fn freeze(pid: u32, random: &mut Random, most: Duration) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap());
    kill(pid, Signal::SIGSTOP).unwrap();
    rest(random, most);
    kill(pid, Signal::SIGCONT).unwrap();
}

fn is_keeper(pid: i32) -> bool {
    let command_line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = command_line.split(|byte| *byte == 0);
    words.any(|word| word == b"keeper")
}

/// Maps that direct packets: an error there loses packets until the next daemon. Maps that direct
/// counting are left out, because wrong counts would stay wrong.
const LEADING: [&str; 8] = [
    "routes",
    "routes6",
    "limits",
    "settings",
    "ranges",
    "candidates",
    "own_sources",
    "group_routes",
];

fn alter_pins(pins: &Path, random: &mut Random) {
    let maps = fs::read_dir(pins).into_iter().flatten().flatten();
    for maps in maps.filter(|entry| entry.path().is_dir()) {
        for map in LEADING {
            let pin = maps.path().join(map);
            let word = || random.below(1 << 32) as u32;
            if pin.exists() {
                bpf::corrupt::scribble(&pin, word).unwrap();
            }
        }
    }
}

/// A daemon of the same name, of the same bpffs and of nothing else that is the first one's.
fn second_daemon(namespace: &Namespace, instance: &str) {
    let directory = tempfile::tempdir().unwrap();
    let command = in_a_container(namespace, instance, &directory.path().join("mcr.sock"));
    let refused = process::run(command, wait::PATIENCE).unwrap();
    assert_eq!(refused.status.code(), Some(69), "{}", refused.stderr);
}

/// Frames to groups that no rule takes, pieces of datagrams that never get whole, and noise.
fn flood(world: &World, random: &mut Random) {
    let wire = FrameSender::open((&world.chain.sender, "veth0")).unwrap();
    let from: SocketAddr = "10.0.0.1:4000".parse().unwrap();
    for number in 0..2000 {
        let group = Ipv4Addr::from_bits(0xef80_0000 | random.below(1 << 23) as u32);
        let mut craft = Craft::new(from, SocketAddr::new(group.into(), 5001), vec![0; 100]);
        if number % 3 == 0 {
            craft.id = random.below(1 << 16) as u16;
            craft.fragment = 0x2000 | random.below(100) as u16;
        }
        let mut frame = craft.frame();
        if number % 3 == 1 {
            for _ in 0..4 {
                // Behind the addresses, that nothing of it looks like a stream's packet.
                let at = 34 + random.below(frame.len() as u64 - 34) as usize;
                frame[at] = random.below(256) as u8;
            }
        }
        wire.send(&frame).unwrap();
        if number % 100 == 99 {
            // As many as the kernel's backlog holds in addition to the streams.
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Connections that begin a request, send nonsense, or do not read the answer.
fn hostile_clients(socket: &Path, random: &mut Random) {
    let words: [&[u8]; 5] = [
        b"POST /v1/rules HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n{\"rules\":[",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /v1/st",
    ];
    let mut open = Vec::new();
    for _ in 0..100 {
        let Ok(mut stream) = UnixStream::connect(socket) else {
            continue;
        };
        stream
            .set_write_timeout(Some(Duration::from_secs(1)))
            .unwrap();
        stream
            .set_read_timeout(Some(Duration::from_millis(1)))
            .unwrap();
        let _ = stream.write_all(random.choose(&words));
        if random.below(2) == 0 {
            let _ = stream.read(&mut [0; 16]);
        }
        open.push(stream);
    }
    rest(random, Duration::from_secs(2));
}
