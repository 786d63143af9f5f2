//! Every kind of event arrives with its cause, on the API's stream as `mcr events` shows it.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use lab::daemon::{Daemon, Options};
use lab::link;
use lab::namespace::Namespace;
use lab::process::Process;
use lab::topology::Chain;
use lab::wait;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const INPUT: &str = "239.1.1.1%veth1:5001";
const OUTPUT: &str = "239.10.1.1%veth2:6001";

struct Bed {
    events: Process,
    daemon: Daemon,
    chain: Chain,
}

/// A daemon whose events are followed.
fn bed(options: Options) -> Option<Bed> {
    if !lab::demo::may_run() {
        eprintln!("skipped: needs root");
        return None;
    }
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, options).unwrap();
    let mut follow = chain.relay.command(env!("CARGO_BIN_EXE_mcr"));
    follow.arg("--socket").arg(daemon.socket());
    follow.args(["events", "--json"]);
    let events = Process::start(follow).unwrap();
    let bed = Bed {
        events,
        daemon,
        chain,
    };
    // A follower gets only events from then on: something has to happen.
    let mut round = 0;
    wait::until("events are followed", || {
        round += 1;
        let name = format!("probe{round}");
        bed.daemon
            .add(
                &name,
                &format!("239.9.9.9%veth1:{}", 1000 + round),
                &[OUTPUT],
            )
            .unwrap();
        bed.daemon.mcr(&["remove", &name]).unwrap();
        !bed.events.stdout().is_empty()
    })
    .unwrap();
    Some(bed)
}

impl Bed {
    /// Waits for an event of this kind and subject with these words in its message.
    #[track_caller]
    fn expect(&self, kind: &str, subject: &str, words: &[&str]) {
        let has_arrived = || {
            let text = self.events.stdout();
            let mut lines = text
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok());
            lines.any(|event: Value| {
                let message = event["message"].as_str().unwrap_or_default();
                let has_words = words.iter().all(|word| message.contains(word));
                event["kind"] == kind && event["subject"] == subject && has_words
            })
        };
        let waited = wait::until(&format!("{kind} of {subject} comes"), has_arrived);
        waited.unwrap_or_else(|error| panic!("{error}: {}", self.events.stdout()));
    }

    fn relay(&self) -> &Namespace {
        &self.chain.relay
    }
}

#[test]
fn rules_come_change_fail_recover_and_go() {
    let Some(bed) = bed(Options::default()) else {
        return;
    };
    bed.daemon
        .add("cam1", INPUT, &[OUTPUT, "239.10.1.2%veth8:6001"])
        .unwrap();
    bed.expect("rule_added", "cam1", &["added"]);
    bed.expect("joined", "cam1", &[INPUT]);
    bed.expect("output_up", "cam1", &[OUTPUT]);
    bed.expect("output_down", "cam1", &["veth8", "no interface"]);
    bed.expect("rule_degraded", "cam1", &["degraded"]);
    let far = &bed.chain.sink;
    link::veth((bed.relay(), "veth8"), (far, "veth9")).unwrap();
    link::address((bed.relay(), "veth8"), "10.0.8.1/24").unwrap();
    bed.expect("link_changed", "veth8", &["is there"]);
    bed.expect("output_up", "cam1", &["veth8"]);
    bed.expect("rule_up", "cam1", &["up"]);
    link::down((bed.relay(), "veth1")).unwrap();
    bed.expect("link_changed", "veth1", &["is down"]);
    bed.expect("rule_down", "cam1", &["down"]);
    let file = tempfile::NamedTempFile::new().unwrap();
    let changed = format!(
        "version = 1\n[budget]\nunicast = \"1Gbit\"\n[[rule]]\nname = \"cam1\"\n\
         input = {INPUT:?}\noutputs = [\"{OUTPUT},ttl=9\"]\n"
    );
    fs::write(file.path(), changed).unwrap();
    bed.daemon
        .mcr(&["apply", file.path().to_str().unwrap()])
        .unwrap();
    bed.expect("rule_changed", "cam1", &["changed"]);
    bed.expect("settings_changed", "configuration", &["budget: 1Gbit"]);
    bed.daemon.mcr(&["remove", "cam1"]).unwrap();
    bed.expect("rule_removed", "cam1", &["removed"]);
}

#[test]
fn a_join_that_fails_says_so() {
    let Some(bed) = bed(Options::default()) else {
        return;
    };
    bed.daemon
        .add("later", "239.1.1.7%veth8:5001", &[OUTPUT])
        .unwrap();
    // Not one group may be joined, on any socket.
    bed.relay()
        .sysctl("net/ipv4/igmp_max_memberships", "0")
        .unwrap();
    link::veth((bed.relay(), "veth8"), (&bed.chain.sink, "veth9")).unwrap();
    link::address((bed.relay(), "veth8"), "10.0.8.1/24").unwrap();
    bed.expect("join_failed", "later", &["239.1.1.7%veth8:5001"]);
    bed.relay()
        .sysctl("net/ipv4/igmp_max_memberships", "20")
        .unwrap();
    bed.expect("joined", "later", &["239.1.1.7"]);
    bed.expect("rule_up", "later", &["up"]);
}

#[test]
fn a_reload_says_what_became_of_it() {
    let config = format!(
        "version = 1\n[[rule]]\nname = \"cam1\"\ninput = {INPUT:?}\noutputs = [{OUTPUT:?}]\n"
    );
    let options = Options {
        config: Some(config),
        ..Options::default()
    };
    let Some(bed) = bed(options) else { return };
    let hangup = || kill(Pid::from_raw(bed.daemon.id() as i32), Signal::SIGHUP).unwrap();
    hangup();
    bed.expect("reloaded", "configuration", &["1 unchanged"]);
    fs::write(bed.daemon.config_file(), "version = 9\n").unwrap();
    hangup();
    bed.expect("reload_failed", "configuration", &["version"]);
}

#[test]
fn a_worker_that_dies_is_told_of() {
    let options = Options {
        arguments: vec!["--workers".to_owned(), "1".to_owned()],
        ..Options::path("userspace")
    };
    let Some(bed) = bed(options) else { return };
    bed.daemon.add("cam1", INPUT, &[OUTPUT]).unwrap();
    let worker = || {
        let workers = bed.daemon.stats().unwrap().workers;
        workers
            .first()
            .map(|worker| worker.pid)
            .filter(|pid| *pid > 0)
    };
    let pid = wait::some_within(wait::PATIENCE, "a worker runs", worker).unwrap();
    kill(Pid::from_raw(pid as i32), Signal::SIGKILL).unwrap();
    bed.expect("worker_restarted", "0", &["started again"]);
}

/// Passes connections on to `to`; each is noted, and waits for the lock before anything is passed on.
fn pass_on(listener: UnixListener, to: &Path) -> Arc<Mutex<Vec<UnixStream>>> {
    let accepted: Arc<Mutex<Vec<UnixStream>>> = Arc::default();
    let (to, noted) = (to.to_owned(), Arc::clone(&accepted));
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, daemon) = (client.unwrap(), UnixStream::connect(&to).unwrap());
            noted.lock().unwrap().push(client.try_clone().unwrap());
            for (mut from, mut into) in [
                (client.try_clone().unwrap(), daemon.try_clone().unwrap()),
                (daemon, client),
            ] {
                thread::spawn(move || {
                    let _ = io::copy(&mut from, &mut into);
                    let _ = into.shutdown(Shutdown::Both);
                });
            }
        }
    });
    accepted
}

/// As happens to a reader that pauses for longer than the daemon waits for it.
#[test]
fn events_that_break_off_go_on_behind_the_last_one() {
    let Some(bed) = bed(Options::default()) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let accepted = pass_on(
        UnixListener::bind(&socket).unwrap(),
        bed.daemon.socket().as_ref(),
    );
    let mut follow = bed.relay().command(env!("CARGO_BIN_EXE_mcr"));
    follow.arg("--socket").arg(&socket);
    follow.args(["events", "--json", "--recent", "1"]);
    let events = Process::start(follow).unwrap();
    wait::until("the first event comes", || !events.stdout().is_empty()).unwrap();
    bed.daemon.add("cam1", INPUT, &[OUTPUT]).unwrap();
    let names = |events: &Process| -> Vec<String> {
        let text = events.stdout();
        let values = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        values
            .filter(|event: &Value| event["kind"] == "rule_added")
            .map(|event| event["subject"].as_str().unwrap().to_owned())
            .collect()
    };
    let has = |name: &str, events: &Process| names(events).iter().any(|one| one == name);
    wait::until("cam1 comes", || has("cam1", &events)).unwrap();
    {
        // Nobody gets through before something else has happened.
        let accepted = accepted.lock().unwrap();
        accepted[0].shutdown(Shutdown::Both).unwrap();
        bed.daemon
            .add("cam2", "239.1.1.2%veth1:5002", &[OUTPUT])
            .unwrap();
    }
    wait::until("cam2 comes", || has("cam2", &events)).unwrap();
    bed.daemon
        .add("cam3", "239.1.1.3%veth1:5003", &[OUTPUT])
        .unwrap();
    wait::until("cam3 comes", || has("cam3", &events)).unwrap();
    assert_eq!(names(&events), ["cam1", "cam2", "cam3"], "each once");
    assert_eq!(accepted.lock().unwrap().len(), 2);
    // Where there is no daemon any more, it ends.
    fs::remove_file(&socket).unwrap();
    accepted.lock().unwrap()[1]
        .shutdown(Shutdown::Both)
        .unwrap();
    let ended = events.wait(wait::PATIENCE).unwrap();
    assert_eq!(ended.status.code(), Some(4), "{}", ended.stderr);
    assert!(ended.stderr.contains("broke off"), "{}", ended.stderr);
}
