//! Who may use the daemon's socket, and what its processes may do: as root, as an ordinary user with
//! file capabilities, and under an ambient set.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs::{self, Permissions};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lab::binary;
use lab::daemon::{Daemon, Options};
use lab::namespace::Namespace;
use lab::process::Process;
use lab::socket::{Receiver, Sender};
use lab::topology::Chain;
use lab::wait;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(5);
const INPUT: &str = "239.1.1.1%veth1:5001";
const OUTPUT: &str = "239.10.1.1%veth2:6001";

/// NET_ADMIN 12, NET_RAW 13, PERFMON 38, BPF 39.
const NEEDED: &str = "000000c000003000";
const NONE: &str = "0000000000000000";
const CAPABILITIES: &str = "cap_net_admin,cap_net_raw,cap_bpf,cap_perfmon";
/// `nobody`, who owns nothing.
const USER: u32 = 65_534;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A line of `/proc/PID/status`.
fn status(pid: u32, key: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let value = line.unwrap_or_default().trim_start_matches(':').trim();
    value.to_owned()
}

/// The session of a process (proc_pid_stat(5)).
fn session(pid: u32) -> u32 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, words) = text.rsplit_once(") ").unwrap();
    words.split(' ').nth(3).unwrap().parse().unwrap()
}

fn tasks(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let name = |task: fs::DirEntry| task.file_name().into_string().unwrap();
    tasks
        .map(|task| name(task.unwrap()).parse().unwrap())
        .collect()
}

fn children(pid: u32) -> Vec<u32> {
    let of_task = |task: &u32| fs::read_to_string(format!("/proc/{pid}/task/{task}/children"));
    let texts: Vec<String> = tasks(pid)
        .iter()
        .filter_map(|task| of_task(task).ok())
        .collect();
    let words = texts.iter().flat_map(|text| text.split_whitespace());
    words.map(|word| word.parse().unwrap()).collect()
}

/// Every set of every thread of the daemon, and of its keeper and workers. The bounding set can
/// be emptied by a daemon that begins with CAP_SETPCAP.
fn holds_only_what_it_needs(daemon: u32, needed: &str, bounding: &str) {
    for task in tasks(daemon) {
        for (set, value) in [
            ("CapPrm", needed),
            ("CapEff", needed),
            ("CapInh", NONE),
            ("CapAmb", NONE),
            ("CapBnd", bounding),
            ("NoNewPrivs", "1"),
        ] {
            assert_eq!(status(task, set), value, "{set} of thread {task}");
        }
    }
    let children = children(daemon);
    assert!(children.len() >= 2, "a keeper and workers: {children:?}");
    for child in children {
        for (set, value) in [
            ("CapPrm", NONE),
            ("CapEff", NONE),
            ("CapInh", NONE),
            ("CapAmb", NONE),
            ("CapBnd", bounding),
            ("NoNewPrivs", "1"),
            // 2 is SECCOMP_MODE_FILTER.
            ("Seccomp", "2"),
        ] {
            let what = format!("{set} of child {child} is {value}");
            wait::until(&what, || status(child, set) == value).unwrap();
        }
        let owner = fs::metadata(format!("/proc/{child}/mem")).unwrap().uid();
        assert_eq!(owner, 0, "nobody but root may trace child {child}");
    }
}

#[test]
fn every_process_holds_only_the_capabilities_it_needs() {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path("userspace")).unwrap();
    daemon.add("cam1", INPUT, &[OUTPUT]).unwrap();
    holds_only_what_it_needs(daemon.id(), NEEDED, NONE);
}

#[test]
fn every_worker_has_a_session_of_its_own() {
    let chain = Chain::plain().unwrap();
    let mut options = Options::path("userspace");
    options.arguments = vec!["--workers".into(), "2".into()];
    let daemon = Daemon::start(&chain.relay, options).unwrap();
    daemon.add("cam1", INPUT, &[OUTPUT]).unwrap();
    for worker in daemon.stats().unwrap().workers {
        assert_eq!(session(worker.pid), worker.pid, "worker {}", worker.id);
    }
}

/// A user that no host has, by number.
const WORKER: &str = "4000014";

#[test]
fn workers_run_as_the_user_that_they_are_to_run_as() {
    let chain = Chain::plain().unwrap();
    let mut options = Options::path("userspace");
    options.config = Some(format!(
        "version = 1\n[daemon]\nworker_user = \"{WORKER}\"\n"
    ));
    options.arguments = vec!["--workers".into(), "2".into()];
    let mut daemon = Daemon::start(&chain.relay, options).unwrap();
    daemon.add("cam1", INPUT, &[OUTPUT]).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    let send = |count| sender.send_numbered(ip("239.1.1.1"), 5001, count, 100);
    let relays = |count| {
        let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
        send(count).unwrap();
        sink.expect(count, PATIENCE).unwrap();
    };
    relays(20);
    let workers = |daemon: &Daemon| -> Vec<u32> {
        let workers = daemon.stats().unwrap().workers;
        workers.into_iter().map(|worker| worker.pid).collect()
    };
    let first = workers(&daemon);
    for worker in &first {
        for set in ["Uid", "Gid"] {
            assert_eq!(status(*worker, set), [WORKER; 4].join("\t"), "{set}");
        }
        assert_eq!(status(*worker, "Groups"), "");
        assert_eq!(status(*worker, "CapPrm"), NONE);
    }
    // SETGID 6, SETUID 7 and KILL 5, in addition to what every daemon needs.
    assert_eq!(status(daemon.id(), "CapPrm"), "000000c0000030e0");

    // Without the fence too: no signal of that user reaches the daemon or another of root's.
    let mut signal = Command::new("setpriv");
    signal.args([&format!("--reuid={WORKER}"), "--clear-groups", "kill", "-0"]);
    let answer = signal.arg(daemon.id().to_string()).output().unwrap();
    assert!(!answer.status.success());
    let error = String::from_utf8_lossy(&answer.stderr).into_owned();
    assert!(error.contains("permitted"), "{error}");

    // The daemon can still end one that hangs while packets wait for it, and start another in its place.
    let stop = nix::sys::signal::Signal::SIGSTOP;
    let stats = daemon.stats().unwrap();
    let busy_worker = stats.workers.iter().find(|worker| worker.received > 0);
    let busy = busy_worker.unwrap().pid;
    let pid = nix::unistd::Pid::from_raw(i32::try_from(busy).unwrap());
    nix::sys::signal::kill(pid, stop).unwrap();
    send(1).unwrap();
    let is_new = || workers(&daemon).iter().all(|pid| *pid != 0 && *pid != busy);
    wait::until("the worker that stands still is replaced", is_new).unwrap();
    relays(20);

    // So can the next daemon, which takes over from those that run.
    let before = workers(&daemon);
    daemon.kill().unwrap();
    daemon.start_again().unwrap();
    let ended = || before.iter().all(|pid| status(*pid, "Uid").is_empty());
    wait::until("the workers of before have ended", ended).unwrap();
    relays(20);
    for worker in workers(&daemon) {
        assert_eq!(status(worker, "Uid"), [WORKER; 4].join("\t"));
    }
}

#[test]
fn the_user_of_workers_is_refused_before_the_first_rule() {
    let chain = Chain::plain().unwrap();
    let refused = |options: Options| {
        let error = Daemon::start(&chain.relay, options).unwrap_err();
        assert!(chain.relay.processes().is_empty(), "nothing is left");
        format!("{error:#}")
    };
    let given = |user: &str| Options {
        arguments: vec!["--worker-user".into(), user.into()],
        ..Options::path("userspace")
    };
    let error = refused(given("mcr-nobody-has-this-name"));
    assert!(
        error.contains("worker_user \"mcr-nobody-has-this-name\": no such user"),
        "{error}"
    );
    let mut unable = given(WORKER);
    let without = "--bounding-set=-all,+net_admin,+net_raw,+bpf,+perfmon";
    unable.under = vec!["setpriv".into(), without.into()];
    let error = refused(unable);
    let lacks =
        "this process lacks CAP_SETUID, CAP_SETGID, CAP_KILL to run workers as another user";
    assert!(error.contains(lacks), "{error}");
    // The daemon's own user may run its workers.
    let mut own = given("root");
    own.under = vec!["setpriv".into(), without.into()];
    Daemon::start(&chain.relay, own).unwrap();
}

#[test]
fn the_socket_answers_root_and_the_group_alone() {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::default()).unwrap();
    let path = daemon.socket();
    let socket = fs::metadata(&path).unwrap();
    assert_eq!(socket.uid(), 0);
    assert_eq!(socket.permissions().mode() & 0o777, 0o660);
    // It is the socket that keeps others out, not its directory.
    fs::set_permissions(path.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    let answers = |groups: &str| {
        let mut command = Command::new("setpriv");
        command.args([
            &format!("--reuid={USER}"),
            &format!("--regid={USER}"),
            groups,
        ]);
        command
            .args(["curl", "--silent", "--unix-socket"])
            .arg(&path);
        let output = command.arg("http://mcr/healthz").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(answers("--clear-groups"), "", "anybody");
    assert_eq!(
        answers(&format!("--groups={}", socket.gid())),
        "ok\n",
        "its group"
    );
}

#[test]
fn nothing_listens_on_the_network_by_default() {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::default()).unwrap();
    daemon.add("cam1", INPUT, &[OUTPUT]).unwrap();
    assert_eq!(chain.relay.tool("ss", "-Htln").unwrap(), "");
}

/// A daemon that an ordinary user runs, with its own `/run/mcr` and bpffs.
struct Ordinary {
    daemon: Process,
    directory: TempDir,
    binary: PathBuf,
}

impl Ordinary {
    fn start(relay: &Namespace, path: &str, privileges: &[&str], file: Option<&str>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let binary = directory.path().join("mcr");
        binary::copy(binary::mcr().unwrap(), &binary).unwrap();
        if let Some(capabilities) = file {
            let mut setcap = Command::new("setcap");
            let set = setcap.arg(capabilities).arg(&binary).status().unwrap();
            assert!(set.success(), "setcap");
        }
        chown(directory.path(), Some(USER), Some(USER)).unwrap();
        let run = Path::new("/run/mcr");
        fs::create_dir_all(run).unwrap();
        // What an administrator prepares for that user: both directories.
        let prepared = format!(
            "mount -t tmpfs -o uid={USER},gid={USER},mode=0755 tmpfs /run/mcr
             mount -t bpf -o mode=0711 bpf /sys/fs/bpf
             mkdir /sys/fs/bpf/mcr && chown {USER}:{USER} /sys/fs/bpf/mcr
             exec setpriv --reuid={USER} --regid={USER} --clear-groups \"$@\""
        );
        let mut command = relay.command("unshare");
        command.args(["--mount", "sh", "-euc", &prepared, "sh"]);
        command.args(privileges).arg(&binary);
        command
            .arg("--socket")
            .arg(directory.path().join("mcr.sock"));
        command.args(["run", "--path", path]);
        let daemon = Process::start(command).unwrap();
        let ordinary = Self {
            daemon,
            directory,
            binary,
        };
        let answers = || ordinary.mcr(&["list"]).status.success();
        let answered = wait::until("the daemon answers", answers);
        answered.unwrap_or_else(|error| panic!("{error}: {}", ordinary.daemon.stderr()));
        ordinary
    }

    fn mcr(&self, arguments: &[&str]) -> std::process::Output {
        let mut command = Command::new(&self.binary);
        command
            .arg("--socket")
            .arg(self.directory.path().join("mcr.sock"));
        command.args(arguments).output().unwrap()
    }
}

fn relays(chain: &Chain, ordinary: &Ordinary, path: &str) {
    let added = ordinary.mcr(&["add", INPUT, OUTPUT, "--name", "cam1"]);
    assert!(
        added.status.success(),
        "{added:?}: {}",
        ordinary.daemon.stderr()
    );
    let output = ordinary.mcr(&["stats", "--json"]).stdout;
    let stats: api::reply::Stats = serde_json::from_slice(&output).unwrap();
    assert_eq!(stats.rules[0].path, path);
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 20, 100)
        .unwrap();
    sink.expect(20, PATIENCE).unwrap();
    assert_eq!(
        status(ordinary.daemon.id(), "Uid"),
        format!("{USER}\t{USER}\t{USER}\t{USER}")
    );
    let socket = fs::metadata(ordinary.directory.path().join("mcr.sock")).unwrap();
    assert_eq!(socket.permissions().mode() & 0o007, 0, "others stay out");
}

/// Where the daemon cannot empty it, the bounding set is what it was.
fn own_bounding_set() -> String {
    status(std::process::id(), "CapBnd")
}

lab::on_both_paths!(
    an_ordinary_user_relays_with_file_capabilities,
    an_ordinary_user_relays_under_an_ambient_set,
);

fn an_ordinary_user_relays_with_file_capabilities(path: &str) {
    let chain = Chain::plain().unwrap();
    let file = format!("{CAPABILITIES}+ep");
    let ordinary = Ordinary::start(&chain.relay, path, &[], Some(&file));
    relays(&chain, &ordinary, path);
    if path == "userspace" {
        holds_only_what_it_needs(ordinary.daemon.id(), NEEDED, &own_bounding_set());
    }
}

fn an_ordinary_user_relays_under_an_ambient_set(path: &str) {
    let chain = Chain::plain().unwrap();
    let names = CAPABILITIES.replace("cap_", "+");
    let (inheritable, ambient) = (
        format!("--inh-caps={names}"),
        format!("--ambient-caps={names}"),
    );
    let ordinary = Ordinary::start(&chain.relay, path, &[&inheritable, &ambient], None);
    relays(&chain, &ordinary, path);
    if path == "userspace" {
        holds_only_what_it_needs(ordinary.daemon.id(), NEEDED, &own_bounding_set());
    }
}
