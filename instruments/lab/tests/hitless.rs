//! Packets, counters and memberships while processes of MCR die: behind a snooping bridge that prunes
//! a port at the first leave, the kernel path loses nothing.
//!
//! Each test has a short form and, for `make hitless`, a full one: 20 rounds at 300,000 packets a
//! second, whose results are recorded in the reliability table.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod moved;
mod workers;

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use lab::bed::{Bed, GROUP};
use lab::bench::run::relay::Relay;
use lab::capture::Capture;
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::load::{Account, Load, Plan};
use lab::process::Process;
use lab::reliability::{Row, record};
use lab::topology::Chain;
use lab::wait;
use nix::sys::signal::Signal;

use crate::faults::Random;
use moved::{moved_by_changes, moved_by_changes_at_xdp, moved_by_restarts};
use workers::{
    a_worker_killed, workers_handed_over, workers_handed_over_that_hardly_run,
    workers_without_supervisor,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// IGMPv2 leave; IGMPv3 records that change to including nothing or block sources.
const LEAVES: &str = "igmp.type == 0x17 || igmp.record_type == 3 || igmp.record_type == 6";

/// How hard a test tries.
#[derive(Clone, Copy, Debug)]
struct Form {
    rounds: u32,
    rate: u32,
    is_recorded: bool,
}

const SHORT: Form = Form {
    rounds: 2,
    rate: 20_000,
    is_recorded: false,
};
const FULL: Form = Form {
    rounds: 20,
    rate: 300_000,
    is_recorded: true,
};

macro_rules! in_both_forms {
    ($($name:ident),+ $(,)?) => {
        mod short {
            $(#[test] fn $name() { super::$name(super::SHORT); })+
        }
        mod full {
            $(#[test] #[ignore = "long: make hitless"] fn $name() { super::$name(super::FULL); })+
        }
    };
}

in_both_forms!(
    killed,
    killed_at_xdp,
    handed_over,
    handed_over_at_xdp,
    moved_by_changes,
    moved_by_changes_at_xdp,
    moved_by_restarts,
    killed_amid_transactions,
    crashed_in_a_loop,
    replaced_by_a_version_with_another_layout,
    found_half_written_maps,
    workers_without_supervisor,
    workers_handed_over,
    workers_handed_over_that_hardly_run,
    a_worker_killed,
);

#[test]
#[ignore = "long: make hitless"]
fn full_peers() {
    for relay in [Relay::Socat, Relay::KernelRouting] {
        crate::faults::peers::killed(&relay, FULL.rounds).unwrap();
    }
}

fn killed(form: Form) {
    killed_on("kernel", form);
}

fn killed_at_xdp(form: Form) {
    killed_on("xdp", form);
}

fn killed_on(path: &'static str, form: Form) {
    let stage = Stage::new(path, &[], form);
    stage.loses_nothing("daemon killed", |daemon| {
        for _ in 0..form.rounds {
            daemon.kill().unwrap();
            daemon.start_again().unwrap();
        }
    });
}

fn handed_over(form: Form) {
    handed_over_on("kernel", form);
}

fn handed_over_at_xdp(form: Form) {
    handed_over_on("xdp", form);
}

fn handed_over_on(path: &'static str, form: Form) {
    let stage = Stage::new(path, &["--keep-forwarding"], form);
    stage.loses_nothing(
        "daemon stopped with --keep-forwarding and started",
        |daemon| {
            for _ in 0..form.rounds {
                daemon.stop(Signal::SIGTERM).unwrap();
                daemon.start_again().unwrap();
            }
        },
    );
}

fn crashed_in_a_loop(form: Form) {
    let stage = Stage::new("kernel", &[], form);
    let mut random = Random::new();
    stage.loses_nothing("daemon killed while it starts, again and again", |daemon| {
        for _ in 0..form.rounds {
            daemon.kill().unwrap();
            for _ in 0..3 {
                // Another moment of the start each time, on purpose.
                let alive = Duration::from_millis(random.below(150));
                daemon.start_and_kill(alive).unwrap();
            }
            daemon.start_again().unwrap();
        }
    });
}

fn killed_amid_transactions(form: Form) {
    let more = if form.is_recorded { 5000 } else { 200 };
    let stage = Stage::new("kernel", &[], form);
    let directory = tempfile::tempdir().unwrap();
    let files = [0, more].map(|more| {
        let file = directory.path().join(format!("{more}.toml"));
        fs::write(&file, rules(stage.load.plan(), more)).unwrap();
        file
    });
    let mut random = Random::new();
    let mut half = 0;
    let fault = &format!("daemon killed while it applies {more} rules");
    stage.loses_nothing(fault, |daemon| {
        // Closes in on the moment at which the maps are written, for each direction: they are when
        // an earlier kill leaves nothing of the change and a later one all of it.
        let mut windows = [(0.0, 1.0); 2];
        let mut longest = [Duration::ZERO; 2];
        for round in 0..form.rounds {
            let then = (round % 2) as usize;
            let now = 1 - then;
            let start = Instant::now();
            daemon
                .mcr(&["apply", files[now].to_str().unwrap()])
                .unwrap();
            longest[now] = start.elapsed().max(longest[now]);
            if longest[then].is_zero() {
                longest[then] = longest[now];
            }
            let (early, late) = windows[then];
            let share = early + (late - early) * random.below(1000) as f64 / 1000.0;
            let apply = apply(daemon, &files[then]);
            thread::sleep(longest[then].mul_f64(share));
            daemon.kill().unwrap();
            apply.wait(PATIENCE).unwrap();
            daemon.start_again().unwrap();
            let count = daemon.stats().unwrap().rules.len();
            assert!(
                count == 1 || count == 1 + more,
                "round {round}: {count} rules, half a transaction"
            );
            let found = daemon.taken_over("found").unwrap();
            let loose = daemon.taken_over("loose_counters").unwrap();
            let (before, after) = if then == 0 {
                (1 + more, 1)
            } else {
                (1, 1 + more)
            };
            // Counters are allocated before routes are inserted, and freed after routes are removed.
            if loose > 0 {
                half += 1;
            } else if found == before {
                windows[then] = (share.min(late - 0.02), late);
            } else {
                assert_eq!(found, after);
                windows[then] = (early, share.max(early + 0.02));
            }
        }
        println!(
            "{half} of {} kills left the pinned state half way",
            form.rounds
        );
    });
    assert!(
        !form.is_recorded || half > 0,
        "no kill of {} came amid the writing of the maps",
        form.rounds
    );
}

fn replaced_by_a_version_with_another_layout(form: Form) {
    let stage = Stage::new("kernel", &[], form);
    stage.loses_nothing_but_counters("daemon killed, started with another layout", |daemon| {
        for _ in 0..form.rounds {
            daemon.kill().unwrap();
            let maps = maps(&daemon.pins());
            fs::rename(&maps, daemon.pins().join("maps-0123456789abcdef")).unwrap();
            daemon.start_again().unwrap();
            assert!(
                daemon.log().contains("maps-0123456789abcdef"),
                "the foreign maps are not named: {}",
                daemon.log()
            );
        }
    });
}

fn found_half_written_maps(form: Form) {
    let stage = Stage::new("kernel", &[], form);
    stage.loses_nothing_but_counters("daemon killed, pinned maps missing", |daemon| {
        for _ in 0..form.rounds {
            daemon.kill().unwrap();
            fs::remove_file(maps(&daemon.pins()).join("routes")).unwrap();
            daemon.start_again().unwrap();
            assert!(
                daemon.log().contains("are set aside: some are missing"),
                "the maps are not named: {}",
                daemon.log()
            );
        }
    });
}

impl Form {
    /// What one core forwards in user space with room to spare.
    fn for_userspace(self) -> Self {
        Self {
            rate: if self.is_recorded { 100_000 } else { 4_000 },
            ..self
        }
    }
}

/// A relay behind a snooping bridge with immediate leave, a daemon, and a load.
struct Stage {
    bed: Bed,
    load: Load,
    form: Form,
    path: &'static str,
}

impl Stage {
    fn new(path: &'static str, arguments: &[&str], form: Form) -> Self {
        let options = Options {
            arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
            ..Options::path(path)
        };
        let chain = Chain::snooping().unwrap().prepared_for(path).unwrap();
        let bed = Bed::without_rule(chain, options).unwrap();
        let plan = Plan::new(1, form.rate, 200);
        bed.daemon.apply(&plan.config()).unwrap();
        let switch = bed.chain.switch.as_ref().unwrap();
        link::wait_for_member((switch, "br0"), GROUP).unwrap();
        let load = crate::faults::load(&bed.chain, plan).unwrap();
        Self {
            bed,
            load,
            form,
            path,
        }
    }

    /// Each packet arrives, and is counted.
    fn loses_nothing(self, fault: &str, faults: impl FnOnce(&mut Daemon)) {
        let path = self.path;
        let (ended, account) = self.hold_against(fault, faults);
        account.check_nothing_lost().unwrap();
        if account.bed_dropped == 0 {
            let rule = ended.daemon.settled("steady1", account.sent).unwrap();
            assert_eq!(rule.outputs[0].sent.packets, account.sent);
        }
        assert!(crate::xdp::is_as_wanted(&ended.daemon, path));
    }

    /// Each packet arrives; counters start at zero.
    fn loses_nothing_but_counters(self, fault: &str, faults: impl FnOnce(&mut Daemon)) {
        let (_ended, account) = self.hold_against(fault, faults);
        account.check_nothing_lost().unwrap();
    }

    /// No packet arrives twice, few do not arrive, and what arrived is counted.
    fn costs_less_than_300_ms(self, fault: &str, faults: impl FnOnce(&mut Daemon)) {
        let form = self.form;
        let (ended, account) = self.hold_against(fault, faults);
        // The short form runs on a busy machine: it finds only what never recovers.
        let tenths = if form.is_recorded { 3 } else { 50 };
        let allowed = u64::from(form.rate) * tenths / 10 * u64::from(form.rounds);
        assert!(account.unexplained() < allowed, "{account:?}");
        assert_eq!(account.duplicated, 0, "{account:?}");
        let rule = ended.daemon.rule("steady1").unwrap();
        if account.bed_dropped == 0 && !fault.starts_with("worker") {
            let sent = rule.outputs[0].sent.packets;
            assert_eq!(sent, account.received, "the counters do not go on");
        }
        lab::accounting::check(&ended.daemon.stats().unwrap()).unwrap();
    }

    /// Holds the load against `faults`; no leave is on the wire. That a leave would have been seen
    /// is shown by another rule's at the end.
    fn hold_against(self, fault: &str, faults: impl FnOnce(&mut Daemon)) -> (Ended, Account) {
        let Self {
            bed,
            load,
            form,
            path,
        } = self;
        let Bed {
            mut daemon, chain, ..
        } = bed;
        let capture = Capture::start_beside_load((&chain.relay, "veth1"), "igmp").unwrap();
        faults(&mut daemon);
        let account = load.finish().unwrap();
        println!("{fault}: {account:?}");
        let captured = capture.finish().unwrap();
        let steady = format!("({LEAVES}) && igmp.maddr == {GROUP}");
        let leaves = captured.count(&steady).unwrap();
        assert_eq!(leaves, 0, "leaves in {} packets", account.sent);
        if form.is_recorded {
            record(Row {
                fault: fault.to_owned(),
                relay: format!("mcr-{path}"),
                rounds: form.rounds.into(),
                offered: account.sent,
                lost: account.unexplained(),
                note: format!(
                    "{} pps of 200 bytes, snooping bridge, immediate leave; 0 leaves seen; \
                     {} duplicated, {} dropped by the bed's own links",
                    form.rate, account.duplicated, account.bed_dropped
                ),
                ..Row::default()
            })
            .unwrap();
        }
        let control = Capture::start((&chain.relay, "veth1"), "igmp").unwrap();
        daemon
            .add("probe", "239.9.9.9%veth1:9", &["239.10.9.9%veth2:9"])
            .unwrap();
        daemon.mcr(&["remove", "probe"]).unwrap();
        wait::until("the bridge has forgotten the probe", || {
            let switch = chain.switch.as_ref().unwrap();
            let shown = switch.tool("bridge", "mdb show dev br0").unwrap();
            !shown.contains("grp 239.9.9.9 ")
        })
        .unwrap();
        let probe = format!("({LEAVES}) && igmp.maddr == 239.9.9.9");
        let leaves = control.finish().unwrap().count(&probe).unwrap();
        assert!(leaves > 0, "the capture is blind to leaves");
        let ended = Ended {
            daemon,
            _chain: chain,
        };
        (ended, account)
    }
}

/// The daemon once the load has ended.
struct Ended {
    // Dropped first: it stops in the chain's namespaces.
    daemon: Daemon,
    _chain: Chain,
}

/// The steady rule and `more` others.
fn rules(plan: Plan, more: usize) -> String {
    let mut text = plan.config();
    // One group more: what its membership takes is not what is looked at.
    for port in (10_000..).take(more) {
        writeln!(
            text,
            "[[rule]]\nname = \"more{port}\"\ninput = \"239.2.0.1%veth1:{port}\"\n\
             outputs = [\"239.20.0.1%veth2:{port}\"]"
        )
        .unwrap();
    }
    text
}

fn apply(daemon: &Daemon, file: &Path) -> Process {
    let mut apply = std::process::Command::new(lab::binary::mcr().unwrap());
    apply.arg("--socket").arg(daemon.socket());
    apply.arg("apply").arg(file);
    Process::start(apply).unwrap()
}

/// The directory of the pinned maps.
fn maps(pins: &Path) -> std::path::PathBuf {
    let entries = fs::read_dir(pins).unwrap();
    let mut paths = entries.map(|entry| entry.unwrap().path());
    let is_maps = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("maps-")
    };
    paths.find(is_maps).unwrap()
}
