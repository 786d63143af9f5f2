//! Several daemons on one host: ownership of pins and streams, and leftovers of daemons.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lab::bed::{Bed, INPUT, OUTPUT, RULE};
use lab::daemon::{Daemon, Options};
use lab::namespace::Namespace;
use lab::process;
use lab::wait;
use nix::sys::signal::Signal;

lab::on_both_paths!(
    a_stream_that_two_instances_take_is_told_by_both_names,
    what_a_daemon_left_is_found_named_and_ended,
    stop_ends_the_daemon_and_waits_until_it_is_gone,
    a_time_namespace_changes_nothing,
);

/// `mcr run` in a container: only the bpffs of the file system is shared.
pub(crate) fn in_a_container(namespace: &Namespace, instance: &str, socket: &Path) -> Command {
    let mut command = namespace.command("unshare");
    let script = "mkdir -p /run/mcr && mount -t tmpfs tmpfs /run/mcr && exec \"$@\"";
    command.args(["--mount", "sh", "-c", script, "sh"]);
    command.arg(lab::binary::mcr().unwrap());
    command
        .args(["--instance", instance, "--socket"])
        .arg(socket);
    command.arg("run");
    command
}

#[test]
fn a_second_daemon_of_the_name_is_refused_also_from_another_container() {
    let bed = Bed::new("kernel").unwrap();
    let elsewhere = Namespace::new("elsewhere").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("mcr.sock");
    let command = in_a_container(&elsewhere, bed.daemon.instance(), &socket);
    let refused = process::run(command, Duration::from_secs(20)).unwrap();
    assert_eq!(refused.status.code(), Some(69), "{}", refused.stderr);
    let owner = format!(
        "another daemon of that name: process {} on ",
        bed.daemon.id()
    );
    assert!(refused.stderr.contains(&owner), "{}", refused.stderr);
    bed.relay(50, 100).unwrap();
    bed.daemon.settled(RULE, 50).unwrap();
}

fn a_stream_that_two_instances_take_is_told_by_both_names(path: &str) {
    let bed = Bed::new(path).unwrap();
    let second = Daemon::start(&bed.chain.relay, Options::path(path)).unwrap();
    let twice = ["add", INPUT, OUTPUT, "--name", "twice"];
    let added = second.client(&twice).unwrap();
    assert!(added.status.success(), "{}", added.stderr);
    let overlap = format!(
        "rule \"twice\": group 239.1.1.1 port 5001 on veth1 is taken by instance {:?} as well as by {:?}",
        bed.daemon.instance(),
        second.instance()
    );
    assert!(added.stderr.contains(&overlap), "{}", added.stderr);
    let elsewhere = "239.10.1.7%veth2:6001";
    let other = second.client(&["add", "239.1.1.1%veth1:5002", elsewhere, "--name", "other"]);
    assert_eq!(other.unwrap().stderr, "", "another port is another stream");
    for (name, input, key) in [
        (
            "groups",
            "239.1.1.0/24%veth1:5001",
            "group 239.1.1.0/24 port 5001",
        ),
        (
            "ports",
            "239.1.1.1%veth1:5000-5001",
            "group 239.1.1.1 port 5000-5001",
        ),
        (
            "source",
            "10.0.0.1@239.1.1.1%veth1:5001",
            "group 239.1.1.1 port 5001 from 10.0.0.1",
        ),
    ] {
        let command = ["add", input, "10.0.1.2:7000", "--name", name];
        let added = second.client(&command).unwrap().stderr;
        let overlap = format!(
            "rule {name:?}: {key} on veth1 is taken by instance {:?} in part, as group 239.1.1.1 port \
             5001, as well",
            bed.daemon.instance()
        );
        assert!(added.contains(&overlap), "{added}");
        second.mcr(&["remove", name]).unwrap();
    }
    // And the other way round: the range was added first.
    let range = ["add", "239.1.2.0/24%veth1:5001", OUTPUT, "--name", "range"];
    second.mcr(&range).unwrap();
    let one = ["add", "239.1.2.7%veth1:5001", OUTPUT, "--name", "one"];
    let added = bed.daemon.client(&one).unwrap().stderr;
    let in_part = format!(
        "group 239.1.2.7 port 5001 on veth1 is taken by instance {:?} in part, as group 239.1.2.0/24 port \
         5001, as well",
        second.instance()
    );
    assert!(added.contains(&in_part), "{added}");
    let doctor = second.client(&["doctor"]).unwrap().stdout;
    let finding = "both take group 239.1.1.1 port 5001 here, and 1 more stream: one";
    assert!(doctor.contains(finding), "{doctor}");
    let mut second = second;
    second.kill().unwrap();
    second.start_again().unwrap();
    assert!(second.log().contains(&overlap), "{}", second.log());
}

#[test]
fn what_was_left_is_taken_away_by_a_daemon_without_bpf() {
    let mut bed = Bed::new("auto").unwrap();
    bed.relay(50, 100).unwrap();
    bed.daemon.kill().unwrap();
    bed.relay(50, 100).unwrap();
    let without = "--bounding-set=-all,+net_admin,+net_raw";
    bed.daemon.start_again_under(&["setpriv", without]).unwrap();
    assert_eq!(bed.daemon.rule(RULE).unwrap().path, "userspace");
    let log = bed.daemon.log();
    assert!(
        log.contains("that an earlier run left there are taken away"),
        "{log}"
    );
    // Each of them once.
    bed.relay(50, 100).unwrap();
    bed.sink.expect_nothing(Duration::from_millis(200)).unwrap();
}

fn what_a_daemon_left_is_found_named_and_ended(path: &str) {
    let mut bed = Bed::new(path).unwrap();
    bed.relay(50, 100).unwrap();
    let (relay, instance) = (&bed.chain.relay, bed.daemon.instance().to_owned());
    let refused = bed.daemon.client(&["stop", "--leftovers"]).unwrap();
    assert_eq!(refused.status.code(), Some(69), "{}", refused.stderr);
    bed.relay(50, 100).unwrap();
    let state = Path::new("/run/mcr").join(&instance);
    wait::until("all that a daemon writes down is there", || {
        state.join("listening.json").exists()
    })
    .unwrap();
    bed.daemon.kill().unwrap();
    bed.relay(50, 100).unwrap();

    let doctor = bed.daemon.client(&["doctor"]).unwrap().stdout;
    let finding = "an earlier daemon's programs forward at veth1, and no daemon runs";
    assert!(
        doctor.contains(finding) && doctor.contains(&instance),
        "{doctor}"
    );
    let ended = bed.daemon.mcr(&["stop", "--leftovers"]).unwrap();
    for message in [
        "the program at veth1 is detached",
        "keeper",
        "1 running rules",
    ] {
        assert!(ended.contains(message), "{message}: {ended}");
    }
    let nothing = || {
        let joined = relay.ip("maddress show dev veth1").unwrap();
        !joined.contains("239.1.1.1") && relay.processes().is_empty()
    };
    wait::until("nothing is joined and no process is left", nothing).unwrap();
    bed.sender
        .send_numbered(bed.group(), 5001, 20, 100)
        .unwrap();
    bed.sink.expect_nothing(Duration::from_millis(200)).unwrap();
    for directory in [bed.daemon.pins(), state] {
        let entries = std::fs::read_dir(&directory)
            .into_iter()
            .flatten()
            .flatten();
        let files: Vec<_> = entries.map(|entry| entry.file_name()).collect();
        assert!(!directory.exists(), "{}: {files:?}", directory.display());
    }
    let again = bed.daemon.mcr(&["stop", "--leftovers"]).unwrap();
    assert_eq!(again, "nothing is left of an earlier daemon\n");
}

fn stop_ends_the_daemon_and_waits_until_it_is_gone(path: &str) {
    let bed = Bed::new(path).unwrap();
    bed.daemon.mcr(&["stop"]).unwrap();
    assert!(!bed.daemon.pins().exists(), "it is gone by now");
    let state = Path::new("/run/mcr").join(bed.daemon.instance());
    assert!(!state.exists());
    let again = bed.daemon.client(&["stop"]).unwrap();
    assert_eq!(again.status.code(), Some(4), "{}", again.stderr);
}

#[test]
fn what_is_pinned_in_another_bpffs_is_found_at_the_interface() {
    let mut bed = Bed::new("kernel").unwrap();
    bed.daemon.kill().unwrap();
    bed.daemon.mcr(&["stop", "--leftovers"]).unwrap();
    let script = "mount -t bpf bpf /sys/fs/bpf && exec \"$@\"";
    let elsewhere = ["unshare", "--mount", "sh", "-c", script, "sh"];
    bed.daemon.start_again_under(&elsewhere).unwrap();
    bed.daemon.add(RULE, INPUT, &[OUTPUT]).unwrap();
    bed.relay(50, 100).unwrap();
    // Otherwise the pins would end with the last process that sees them.
    let bpffs = format!("/proc/{}/root/sys/fs/bpf", bed.daemon.id());
    let _bpffs = File::open(bpffs).unwrap();
    bed.daemon.kill().unwrap();
    bed.relay(50, 100).unwrap();
    let doctor = bed.daemon.client(&["doctor"]).unwrap().stdout;
    let finding = "of an earlier daemon forwards here; its pins are gone or in another bpffs";
    assert!(doctor.contains(finding), "{doctor}");

    bed.daemon.start_again_under(&[]).unwrap();
    let message =
        "a program that an earlier daemon left at veth1, pinned nowhere here, is taken away";
    assert!(bed.daemon.log().contains(message), "{}", bed.daemon.log());
    bed.relay(50, 100).unwrap();
    bed.sink.expect_nothing(Duration::from_millis(100)).unwrap();
    bed.daemon.settled(RULE, 50).unwrap();
}

#[test]
fn a_daemon_that_runs_is_never_taken_for_one_that_has_left() {
    let mut bed = Bed::new("kernel").unwrap();
    // As an operator in another container: with the interfaces, and its own bpffs.
    let script = "mount -t bpf bpf /sys/fs/bpf && exec \"$@\"";
    let elsewhere = |arguments: &[&str]| {
        let mut command = bed.chain.relay.command("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]);
        command.arg(lab::binary::mcr().unwrap()).args(arguments);
        process::run(command, Duration::from_secs(60)).unwrap()
    };
    let check = |bed: &Bed| {
        let ended = elsewhere(&["--instance", "labelsewhere", "stop", "--leftovers"]);
        assert_eq!(ended.stdout, "nothing is left of an earlier daemon\n");
        let doctor = elsewhere(&["--instance", "labelsewhere", "doctor"]).stdout;
        assert!(
            doctor.contains("0 found that stop traffic, 0 that harm"),
            "{doctor}"
        );
        bed.relay(20, 100).unwrap();
    };
    // Idle, and then stopped altogether.
    check(&bed);
    bed.daemon.signal(Signal::SIGSTOP).unwrap();
    check(&bed);
    bed.daemon.signal(Signal::SIGCONT).unwrap();
    bed.daemon.settled(RULE, 40).unwrap();
}

fn a_time_namespace_changes_nothing(path: &str) {
    let mut bed = Bed::new(path).unwrap();
    bed.daemon.kill().unwrap();
    let shifted = ["unshare", "--time", "--monotonic", "1000000"];
    bed.daemon.start_again_under(&shifted).unwrap();
    bed.relay(50, 100).unwrap();
    let rule = bed.daemon.settled(RULE, 50).unwrap();
    let ago = rule.outputs[0].last_packet_seconds.unwrap();
    assert!(ago < 1000.0, "{ago} s ago");
    bed.sender
        .send_numbered(bed.group(), 5001, 10, 100)
        .unwrap();
    let up = |rule: &api::reply::RuleStats| rule.state == api::reply::State::Up;
    bed.daemon.wait_for(RULE, "it is up", up).unwrap();
}

#[test]
fn idle_clients_shut_nobody_out_where_descriptors_are_few() {
    let mut bed = Bed::new("kernel").unwrap();
    bed.daemon.kill().unwrap();
    bed.daemon
        .start_again_under(&["prlimit", "--nofile=100"])
        .unwrap();
    let socket = bed.daemon.socket();
    let idle: Vec<_> = (0..200).map(|_| UnixStream::connect(&socket)).collect();
    assert!(idle.iter().all(Result::is_ok));
    assert_eq!(bed.daemon.mcr(&["list", "-o", "name"]).unwrap(), "cam1\n");
}

#[test]
fn a_socket_or_lock_that_is_removed_is_noticed() {
    let bed = Bed::new("kernel").unwrap();
    let lock = format!("/run/mcr/{}.lock", bed.daemon.instance());
    for file in [Path::new(&lock), &bed.daemon.socket()] {
        fs::remove_file(file).unwrap();
        let message = format!("{} was removed or replaced: ", file.display());
        wait::until(&message, || bed.daemon.log().contains(&message)).unwrap();
    }
}
