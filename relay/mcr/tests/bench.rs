//! `mcr bench`: whatever ends it, it leaves nothing behind, and what belongs to others stays.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};

use lab::namespace::Namespace;
use lab::wait;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::leftovers;

const BACKLOG: &str = "/proc/sys/net/core/netdev_max_backlog";
/// Its value during a bench.
const LONG: u64 = 30_000;

/// A child that is killed on drop.
struct Killed(Child);

impl Killed {
    fn start(arguments: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mcr"));
        command.args(arguments.split(' ')).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_bench_leaves_nothing_behind() {
    leaves_nothing_behind(drop);
}

#[test]
fn a_bench_that_is_interrupted_twice_ends_at_once() {
    leaves_nothing_behind(|mut bench| {
        let stderr = BufReader::new(bench.0.stderr.take().unwrap());
        let mut lines = stderr.lines();
        let pid = Pid::from_raw(bench.0.id() as i32);
        kill(pid, Signal::SIGINT).unwrap();
        assert!(lines.any(|line| line.unwrap().starts_with("interrupted")));
        kill(pid, Signal::SIGINT).unwrap();
        let ended = wait::some_within(wait::PATIENCE, "the bench ends", || {
            bench.0.try_wait().unwrap()
        });
        assert_eq!(ended.unwrap().code(), Some(130));
    });
}

/// Ends a bench in the middle of its first trial.
fn leaves_nothing_behind(end: impl FnOnce(Killed)) {
    if !lab::demo::may_run() {
        eprintln!("skipped: needs root");
        return;
    }
    let neighbour = Namespace::new("neighbour").unwrap();
    let mut beside = neighbour.command("sleep").arg("600").spawn().unwrap();
    let is_alone = !a_bench_runs();
    let backlog = backlog();
    let was_alone = is_alone && !a_bench_runs();
    let (relays, mut programs) = relays();
    let directory = tempfile::tempdir().unwrap();
    let results = directory.path().join("results.json");
    // Ten minutes of sending, in the middle of which it ends.
    let arguments = format!(
        "bench run streams --only {relays} --trials 1 --streams 2 --rate 100 --packets 60000 \
         --output {}",
        results.display()
    );
    let bench = Killed::start(&arguments);
    let pid = bench.0.id();
    let mut processes = Vec::new();
    programs.extend(["run", "worker", "send", "guard"]);
    let runs = wait::until("everything runs", || {
        processes = leftovers::processes(pid);
        let is_there = |program: &&str| processes.iter().any(|process| process.has(program));
        programs.iter().all(is_there)
    });
    assert!(runs.is_ok(), "{programs:?} {processes:?}");
    assert!(!leftovers::of(pid).is_empty());
    if was_alone {
        assert!(self::backlog().is_none_or(|now| now >= LONG));
    }
    end(bench);
    leftovers::wait_until_gone(pid, &processes);
    if was_alone {
        let is_back = || self::backlog() == backlog || a_bench_runs();
        wait::until("the backlog is as it was", is_back).unwrap();
    }
    assert_eq!(neighbour.processes(), [beside.id() as i32]);
    beside.kill().unwrap();
    beside.wait().unwrap();
}

/// The relays to bench, of those that are installed, and the programs that they are.
fn relays() -> (String, Vec<&'static str>) {
    let (mut relays, mut programs) = (vec!["mcr-kernel", "mcr-userspace"], Vec::new());
    for (relay, program) in [("socat", "socat"), ("kernel-routing", "smcrouted")] {
        let path = std::env::var_os("PATH").unwrap_or_default();
        if std::env::split_paths(&path).any(|directory| directory.join(program).exists()) {
            relays.push(relay);
            programs.push(program);
        } else {
            eprintln!("skipped: {relay}: {program} is not installed");
        }
    }
    (relays.join(","), programs)
}

/// `None` where it may not be set, or is not there, as in the network namespace of a container.
fn backlog() -> Option<u64> {
    let mut text = String::new();
    let mut file = File::options().read(true).write(true).open(BACKLOG).ok()?;
    file.read_to_string(&mut text).unwrap();
    Some(text.trim().parse().unwrap())
}

/// Says whether any bench holds the backlog long. It must not try the lock: the bench that ends then
/// would take it for another bench.
fn a_bench_runs() -> bool {
    let Ok(lock) = fs::metadata("/run/mcr-bench.lock") else {
        return false;
    };
    let holders = fs::read_to_string("/proc/locks").unwrap();
    let inode = format!(":{} ", lock.ino());
    holders
        .lines()
        .any(|line| line.contains("FLOCK") && line.contains(&inode))
}
