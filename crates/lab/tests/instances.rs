//! Several daemons on one host: whose pins are whose, who takes which stream, what is left of whom.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lab::bed::{Bed, INPUT, OUTPUT, RULE};
use lab::daemon::{Daemon, Options};
use lab::namespace::Namespace;
use lab::process;

lab::on_both_paths!(a_stream_that_two_instances_take_is_told_by_both_names);

/// `mcr run` in a container: of the file system the bpffs alone is shared.
fn in_a_container(namespace: &Namespace, instance: &str, socket: &Path) -> Command {
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
    let added = ["add", INPUT, OUTPUT, "--name", "twice"];
    let added = second.client(&added).unwrap();
    assert!(added.status.success(), "{}", added.stderr);
    let told = format!(
        "rule \"twice\": group 239.1.1.1 port 5001 on veth1 is taken by instance {:?} as well as by {:?}",
        bed.daemon.instance(),
        second.instance()
    );
    assert!(added.stderr.contains(&told), "{}", added.stderr);
    let other = second.client(&["add", "239.1.1.1%veth1:5002", OUTPUT, "--name", "other"]);
    assert_eq!(other.unwrap().stderr, "", "another port is another stream");
    let mut second = second;
    second.kill().unwrap();
    second.start_again().unwrap();
    assert!(second.log().contains(&told), "{}", second.log());
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
