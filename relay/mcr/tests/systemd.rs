//! The unit under a real systemd, which is booted for the test: what `systemctl` does to packets and
//! memberships, seen through a bridge that prunes a port at the first leave.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::env;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lab::capture::Capture;
use lab::link;
use lab::load::{Load, Plan};
use lab::socket::{Receiver, Sender, payload};
use lab::systemd::{self, Systemd};
use lab::topology::Chain;
use lab::wait;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(10);
const UNIT: &str = "mcr.service";
const PINS: &str = "/sys/fs/bpf/mcr/default";
/// IGMPv2 leave; IGMPv3 records that change to including nothing or block sources.
const LEAVES: &str = "igmp.type == 0x17 || igmp.record_type == 3 || igmp.record_type == 6";

/// A rule per name; the first relays 239.1.1.0.
fn config(names: &[&str]) -> String {
    let rules = names.iter().enumerate().map(|(number, name)| {
        format!(
            "[[rule]]\nname = {name:?}\ninput = \"239.1.1.{number}%veth1:5001\"\n\
             outputs = [\"239.10.1.{number}%veth2:6001\"]\n"
        )
    });
    format!("version = 1\n{}", rules.collect::<String>())
}

/// A host that runs the service, in a network where its leaves are seen.
struct Host {
    systemd: Systemd,
    chain: Chain,
}

impl Host {
    /// Installs the unit as the package does; `None` where nothing can be booted.
    fn boot(drop_in: &str) -> Option<Self> {
        if !lab::demo::may_run() {
            eprintln!("skipped: needs root");
            return None;
        }
        if let Some(missing) = systemd::missing() {
            eprintln!("skipped: {missing}");
            return None;
        }
        let chain = Chain::snooping().unwrap();
        let switch = chain.switch.as_ref().unwrap();
        switch
            .tool("bridge", "link set dev port1 fastleave on")
            .unwrap();
        let systemd = Systemd::boot(&chain.relay).unwrap();
        let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/systemd");
        let put = |from: &Path, to: &str, mode| systemd.install(from, to, mode).unwrap();
        put(lab::binary::mcr().unwrap(), "/usr/bin/mcr", 0o755);
        let units = "/usr/lib/systemd/system";
        put(&dist.join(UNIT), &format!("{units}/{UNIT}"), 0o644);
        let sysusers = "/usr/lib/sysusers.d/mcr.conf";
        put(&dist.join("mcr.sysusers"), sysusers, 0o644);
        let tmpfiles = "/usr/lib/tmpfiles.d/mcr.conf";
        put(&dist.join("mcr.tmpfiles"), tmpfiles, 0o644);
        let host = Self { systemd, chain };
        host.write("/etc/mcr/mcr.toml", &config(&["cam1"]));
        host.write(&format!("{units}/{UNIT}.d/test.conf"), drop_in);
        host.runs("systemd-sysusers", &[sysusers]);
        host.runs("systemd-tmpfiles", &["--create", tmpfiles]);
        host.systemctl("daemon-reload");
        Some(host)
    }

    fn write(&self, inside: &str, text: &str) {
        let path = self.systemd.path(inside);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn runs(&self, program: &str, arguments: &[&str]) -> String {
        let finished = self.systemd.run(program, arguments).unwrap();
        finished.success().unwrap()
    }

    fn systemctl(&self, command: &str) -> String {
        let words: Vec<&str> = command.split(' ').collect();
        self.systemd.systemctl(&words).unwrap()
    }

    fn property(&self, name: &str) -> String {
        self.systemd.property(UNIT, name).unwrap()
    }

    fn rules(&self) -> Vec<String> {
        let stats: Value = serde_json::from_str(&self.runs("mcr", &["stats", "--json"])).unwrap();
        let rules = stats["rules"].as_array().unwrap().iter();
        let live =
            rules.filter(|rule| rule["state"] == "up" && rule["inputs"][0]["joined"] == true);
        live.map(|rule| rule["name"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Sends a stream during `faults`, and expects each packet to arrive and no leave on the wire.
    fn loses_nothing(&self, faults: impl FnOnce()) {
        let capture = Capture::start((&self.chain.relay, "veth1"), "igmp").unwrap();
        let group: IpAddr = "239.10.1.0".parse().unwrap();
        let sink = Receiver::join((&self.chain.sink, "veth3"), group, 6001).unwrap();
        let sent = self.stream_while(faults);
        sink.expect(sent, PATIENCE).unwrap();
        let of_group = format!("({LEAVES}) && igmp.maddr == 239.1.1.0");
        let seen = capture.finish().unwrap().count(&of_group).unwrap();
        assert_eq!(seen, 0, "leaves in {sent} packets");
    }

    /// Sends about 1,000 packets a second for as long as `work` takes, and returns how many.
    fn stream_while(&self, work: impl FnOnce()) -> u64 {
        let group: IpAddr = "239.1.1.0".parse().unwrap();
        let from = "10.0.0.1".parse().unwrap();
        let sender = Sender::open((&self.chain.sender, "veth0"), from).unwrap();
        let stop = AtomicBool::new(false);
        // Set when `work` panics too, or the scope would wait for the stream for ever.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        thread::scope(|scope| {
            let stream = scope.spawn(|| {
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    sender.send(group, 5001, &payload(number, 200)).unwrap();
                    number += 1;
                    thread::sleep(Duration::from_millis(1));
                }
                number
            });
            let guard = Stop(&stop);
            work();
            drop(guard);
            stream.join().unwrap()
        })
    }

    fn wait_until_forwarded(&self) {
        let switch = self.chain.switch.as_ref().unwrap();
        link::wait_for_member((switch, "br0"), "239.1.1.0").unwrap();
    }
}

#[test]
fn a_restart_loses_nothing_and_a_stop_stops() {
    let Some(host) = Host::boot("") else { return };
    host.systemctl("start mcr");
    // Ready means live and joined: nothing is waited for.
    assert_eq!(host.rules(), ["cam1"]);
    assert_eq!(host.property("StatusText"), "Relaying by 1 rule");
    host.wait_until_forwarded();
    let added = ["add", "239.1.1.9%veth1:5001", "239.10.1.9%veth2:6001"];
    host.runs("mcr", &[&added[..], &["--name", "added"]].concat());
    let first = host.property("MainPID");
    host.loses_nothing(|| {
        for _ in 0..3 {
            host.systemctl("restart mcr");
        }
    });
    assert_ne!(host.property("MainPID"), first);
    assert_eq!(host.rules(), ["cam1", "added"], "goes on as it was");
    assert_eq!(host.property("NRestarts"), "0");

    // A restart after an edit takes the edit.
    host.write("/etc/mcr/mcr.toml", &config(&["cam1", "edited"]));
    host.loses_nothing(|| drop(host.systemctl("restart mcr")));
    assert_eq!(host.rules(), ["cam1", "edited"]);

    let control = Capture::start((&host.chain.relay, "veth1"), "igmp").unwrap();
    host.systemctl("stop mcr");
    assert_eq!(host.property("Result"), "success");
    assert_eq!(host.property("NFileDescriptorStore"), "0");
    for path in [PINS, "/run/mcr/mcr.sock", "/run/mcr/default"] {
        assert!(!host.systemd.path(path).exists(), "{path}");
    }
    let seen = control.finish().unwrap().count(LEAVES).unwrap();
    assert!(seen > 0, "stopped, or the capture is blind to leaves");
}

/// How much is missing after each of 20 restarts amid 20,000 packets a second, as time at that rate.
/// Where `MCR_TEST_FORMER` names a former version's binary, each is an upgrade from it.
fn restart_under_load(path: &str) {
    let unlimited = "[Unit]\nStartLimitIntervalSec=0\n";
    let Some(host) = Host::boot(unlimited) else {
        return;
    };
    let plan = Plan::new(1, 20_000, 200);
    let rule = format!("[[rule]]\npath = {path:?}");
    let config = plan.config().replace("[[rule]]", &rule);
    host.write("/etc/mcr/mcr.toml", &config);
    host.systemctl("start mcr");
    let switch = host.chain.switch.as_ref().unwrap();
    link::wait_for_member((switch, "br0"), "239.1.1.1").unwrap();
    let [from, to] = [(&host.chain.sender, "veth0"), (&host.chain.sink, "veth3")];
    let links = [from, (switch, "port1"), (&host.chain.relay, "veth2")];
    let former = env::var_os("MCR_TEST_FORMER").map(PathBuf::from);
    let put = |binary: &Path| host.systemd.install(binary, "/usr/bin/mcr", 0o755);
    let restart = |_| {
        if let Some(former) = &former {
            put(former).unwrap();
            host.systemctl("restart mcr");
            put(lab::binary::mcr().unwrap()).unwrap();
        }
        let load = Load::start(plan, from, to, &links).unwrap();
        host.systemctl("restart mcr");
        let account = load.finish().unwrap();
        assert_eq!(account.duplicated, 0, "{account:?}");
        account.unexplained()
    };
    let mut missing: Vec<u64> = (0..20).map(restart).collect();
    missing.sort_unstable();
    let [least, median, most] = [0, 10, 19].map(|at| {
        let time = Duration::from_secs(missing[at]) / plan.rate;
        format!("{} packets, {time:?}", missing[at])
    });
    let what = former.map_or("restarts", |_| "upgrades");
    println!("{path}, {what}: missing at least {least}; median {median}; at most {most}");
    let tolerated = if path == "kernel" {
        0
    } else {
        u64::from(plan.rate)
    };
    assert!(missing[19] <= tolerated, "{missing:?}");
}

#[test]
#[ignore = "40 restarts amid a load: make long-upgrade"]
fn restarts_under_load_lose_nothing_on_the_kernel_path() {
    restart_under_load("kernel");
}

#[test]
#[ignore = "40 restarts amid a load: make long-upgrade"]
fn restarts_under_load_lose_little_on_the_userspace_path() {
    restart_under_load("userspace");
}

/// A restart neither confirms nor undoes what waits to be confirmed; time does, with or without a daemon.
#[test]
fn what_waits_to_be_confirmed_outlives_a_restart_and_is_undone() {
    let Some(host) = Host::boot("") else { return };
    host.systemctl("start mcr");
    host.wait_until_forwarded();
    let tried = |within| {
        let add = ["add", "239.1.1.9%veth1:5001", "239.10.1.9%veth2:6001"];
        let rest = ["--name", "tried", "--confirm", within];
        host.runs("mcr", &[&add[..], &rest].concat());
        assert_eq!(host.rules(), ["cam1", "tried"]);
    };
    tried("1h");
    host.loses_nothing(|| drop(host.systemctl("restart mcr")));
    assert_eq!(host.rules(), ["cam1", "tried"]);
    host.runs("mcr", &["rollback", "--last", "--yes"]);
    assert_eq!(host.rules(), ["cam1"]);
    // Whether or not the daemon runs when the time is over.
    host.loses_nothing(|| {
        tried("3s");
        host.systemctl("restart mcr");
        wait::until("it is undone", || host.rules() == ["cam1"]).unwrap();
    });
    tried("1s");
    host.systemctl("stop mcr");
    thread::sleep(Duration::from_millis(1100));
    host.systemctl("start mcr");
    assert_eq!(host.rules(), ["cam1"]);
    let status = host.runs("mcr", &["status"]);
    assert!(status.contains("nobody confirmed the change"), "{status}");
}

/// The scripts of the packages, run as dpkg and rpm run them.
#[test]
fn packages_restart_and_stop_every_instance() {
    let Some(host) = Host::boot("") else { return };
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist");
    let template = "mcr@.service";
    let there = format!("/usr/lib/systemd/system/{template}");
    let from = dist.join("systemd").join(template);
    host.systemd.install(&from, &there, 0o644).unwrap();
    let studio = "version = 1\n[[rule]]\nname = \"studio\"\ninput = \"239.1.2.1%veth1:5001\"\n\
                  outputs = [\"239.10.2.1%veth2:6001\"]\n";
    host.write("/etc/mcr/studio.toml", studio);
    host.systemctl("daemon-reload");
    let units = [UNIT, "mcr@studio.service"];
    let run = |script: &str, argument: &str| {
        let inside = "/tmp/script";
        host.systemd
            .install(&dist.join(script), inside, 0o755)
            .unwrap();
        host.runs(inside, &[argument]);
    };
    let each = |property: &str| units.map(|unit| host.systemd.property(unit, property).unwrap());
    for [configure, upgraded, remove, removed, cleanup] in [
        [
            "deb/postinst",
            "configure",
            "deb/prerm",
            "remove",
            "deb/postrm",
        ],
        ["rpm/post", "2", "rpm/preun", "0", "rpm/postun"],
    ] {
        for unit in units {
            host.systemctl(&format!("enable --now {unit}"));
        }
        host.wait_until_forwarded();
        let before = each("MainPID");
        host.loses_nothing(|| run(configure, upgraded));
        let after = each("MainPID");
        assert!(before[0] != after[0] && before[1] != after[1], "{after:?}");
        assert_eq!(each("ActiveState"), ["active", "active"]);
        run(remove, removed);
        run(cleanup, removed);
        assert_eq!(each("ActiveState"), ["inactive", "inactive"]);
        assert_eq!(each("UnitFileState"), ["disabled", "disabled"]);
    }
    // Where nothing runs, nothing is started.
    run("deb/postinst", "configure");
    run("rpm/post", "2");
    assert_eq!(each("ActiveState"), ["inactive", "inactive"]);
}

#[test]
fn a_reload_applies_a_good_file_and_refuses_a_bad_one() {
    let Some(host) = Host::boot("") else { return };
    host.systemctl("start mcr");
    host.wait_until_forwarded();
    let first = host.property("MainPID");
    host.loses_nothing(|| {
        host.write("/etc/mcr/mcr.toml", &config(&["cam1", "cam2"]));
        host.systemctl("reload mcr");
        wait::until("both rules run", || host.rules() == ["cam1", "cam2"]).unwrap();
        host.write("/etc/mcr/mcr.toml", "version = 1\nnonsense = 1\n");
        let refused = host.systemd.run("systemctl", &["reload", "mcr"]).unwrap();
        assert!(!refused.status.success());
    });
    let journal = host.runs("journalctl", &["--no-pager", "--unit=mcr"]);
    assert!(journal.contains("/etc/mcr/mcr.toml:2"), "{journal}");
    // Each field by itself.
    let entries = host.runs("journalctl", &["--output=json", "MCR_EVENT=reloaded"]);
    let entry: Value = serde_json::from_str(entries.lines().last().unwrap()).unwrap();
    for (field, value) in [
        ("MCR_SUBJECT", "configuration"),
        ("PRIORITY", "6"),
        ("SYSLOG_IDENTIFIER", "mcr"),
        ("_SYSTEMD_UNIT", UNIT),
    ] {
        assert_eq!(entry[field], value, "{field} of {entry}");
    }
    let of_rule = host.runs("journalctl", &["--output=cat", "MCR_SUBJECT=cam2"]);
    assert!(of_rule.contains("rule \"cam2\" is up"), "{of_rule}");
    assert!(
        of_rule.lines().all(|line| line.contains("cam2")),
        "{of_rule}"
    );
    assert_eq!(host.rules(), ["cam1", "cam2"]);
    assert_eq!(host.property("MainPID"), first);
}

#[test]
fn a_daemon_that_is_killed_or_hangs_is_started_again_and_nothing_is_lost() {
    let Some(host) = Host::boot("[Service]\nWatchdogSec=2s\n") else {
        return;
    };
    host.systemctl("start mcr");
    host.wait_until_forwarded();
    host.loses_nothing(|| {
        // A stopped process ends neither by itself nor by SIGTERM: the watchdog has to end it.
        for (signal, restarts) in [("KILL", "1"), ("STOP", "2")] {
            host.systemctl(&format!("kill --kill-whom=main --signal={signal} mcr"));
            let again = || {
                host.property("NRestarts") == restarts && host.property("ActiveState") == "active"
            };
            wait::until_within(PATIENCE * 2, "it is started again", again).unwrap();
        }
    });
    assert_eq!(host.rules(), ["cam1"]);
}

#[test]
fn workers_forward_while_no_daemon_runs_and_end_with_the_unit() {
    let drop_in = "[Service]\nRestartSec=15s\nTimeoutStopSec=1s\n";
    let Some(host) = Host::boot(drop_in) else {
        return;
    };
    let on_userspace_path = "[[rule]]\npath = \"userspace\"";
    let config = config(&["cam1"]).replace("[[rule]]", on_userspace_path);
    host.write("/etc/mcr/mcr.toml", &config);
    let workers = || -> Vec<String> {
        let listed = host.systemd.run("pgrep", &["-f", "mcr worker"]).unwrap();
        listed.stdout.lines().map(str::to_owned).collect()
    };
    host.systemctl("start mcr");
    host.wait_until_forwarded();
    let first = workers();
    assert!(!first.is_empty());

    let of_main = |signal| format!("kill --kill-whom=main --signal={signal} mcr");
    host.systemctl(&of_main("KILL"));
    let has_ended = || host.property("ActiveState") == "activating";
    wait::until("the daemon has ended", has_ended).unwrap();
    host.loses_nothing(|| thread::sleep(Duration::from_millis(200)));
    assert!(has_ended() && workers() == first, "{:?}", workers());

    wait::until_within(PATIENCE * 3, "it is started again", || {
        host.property("ActiveState") == "active"
    })
    .unwrap();
    wait::until("other workers", || {
        workers().iter().all(|pid| !first.contains(pid))
    })
    .unwrap();
    assert_eq!(host.rules(), ["cam1"]);
    assert!(!workers().is_empty());

    // A daemon that hangs ends none; the unit's end does.
    host.systemctl(&of_main("STOP"));
    host.systemctl("stop mcr");
    wait::until("no workers", || workers().is_empty()).unwrap();
}
