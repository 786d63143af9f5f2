//! State that an upgrade from a former version preserves, under load and with the former version's own processes:
//! routes, memberships, counters, and the state that decides about packets. `make upgrade`.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use lab::bed::{Bed, GROUP};
use lab::capture::Capture;
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::load::Plan;
use lab::socket::Sender;
use lab::topology::Chain;
use nix::sys::signal::Signal;
use serde_json::Value;

/// The version that is upgraded from.
const FORMER: &str = "8e57580e5a3a167742b859abd419821c23fdb260";
/// IGMPv2 leave; IGMPv3 records that change to including nothing or block sources.
const LEAVES: &str = "igmp.type == 0x17 || igmp.record_type == 3 || igmp.record_type == 6";
/// Legs of the rules that have two.
const NEWS: [&str; 2] = ["239.3.0.1", "239.3.0.2"];
const TWIN: [&str; 2] = ["239.3.0.3", "239.3.0.4"];
/// Keys in `stats --json` of numbers that only grow.
const TOTALS: [&str; 13] = [
    "packets",
    "bytes",
    "dropped",
    "switches",
    "lost",
    "first",
    "duplicate",
    "repeated",
    "late",
    "stray",
    "rtp_packets",
    "streams",
    "samples",
];

macro_rules! upgrades {
    ($($name:ident: $path:literal, $signal:ident;)+) => {
        $(#[test] #[ignore = "builds the former version: make upgrade"] fn $name() {
            upgrade($path, Signal::$signal);
        })+
    };
}

upgrades! {
    kernel_path_handed_over: "kernel", SIGTERM;
    kernel_path_after_a_crash: "kernel", SIGKILL;
    userspace_path_handed_over: "userspace", SIGTERM;
    userspace_path_after_a_crash: "userspace", SIGKILL;
}

fn upgrade(path: &str, end: Signal) {
    let former = match FORMER_BINARY.as_ref() {
        Ok(former) => former,
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    let rate = if path == "kernel" { 20_000 } else { 4_000 };
    let plan = Plan::new(1, rate, 200);
    let bed = Bed::without_rule(Chain::snooping().unwrap(), options(path, former)).unwrap();
    let Bed {
        mut daemon, chain, ..
    } = bed;
    daemon.apply(&rules(plan)).unwrap();
    let switch = chain.switch.as_ref().unwrap();
    link::wait_for_member((switch, "br0"), GROUP).unwrap();
    let load = crate::faults::load(&chain, plan).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), "10.0.0.1".parse().unwrap()).unwrap();
    let legs = Legs(&sender);
    legs.send_all(0..40);
    let second = format!("{}%veth1:5001", NEWS[1]);
    daemon.mcr(&["switch", "news", &second]).unwrap();
    legs.send_all(40..80);
    daemon.settled("twin", 160).unwrap();
    daemon.settled("news", 160).unwrap();
    let before = totals(&daemon);

    let capture = Capture::start_beside_load((&chain.relay, "veth1"), "igmp").unwrap();
    daemon.stop(end).unwrap();
    daemon.start_again_under(&[]).unwrap();
    let after = totals(&daemon);
    for (name, count) in &before {
        let now = after.get(name);
        assert!(now >= Some(count), "{name}: {count}, then {now:?}");
    }
    for rule in ["news", "twin", "slow"] {
        let own = |totals: &BTreeMap<String, u64>| -> Vec<(String, u64)> {
            let own = totals.iter().filter(|(name, _)| name.contains(rule));
            own.map(|(name, count)| (name.clone(), *count)).collect()
        };
        assert_eq!(own(&after), own(&before), "nothing came meanwhile");
    }
    let news = daemon.rule("news").unwrap();
    assert_eq!(news.active.as_deref(), Some(&*second));
    if path == "kernel" {
        assert_eq!(daemon.taken_over("found").unwrap(), 6);
        assert_eq!(daemon.taken_over("removed").unwrap(), 0);
        assert_eq!(daemon.taken_over("added").unwrap(), 0);
    }

    // Both continue from their state, and a merge's numbers are of its former stream.
    legs.send_all(80..120);
    let twin = daemon.settled("twin", 240).unwrap();
    assert_eq!(twin.outputs[0].sent.packets, 120, "{twin:?}");
    let merge = twin.merge.unwrap();
    assert_eq!((merge.streams, merge.lost), (1, 0));
    let news = daemon.settled("news", 240).unwrap();
    assert_eq!(news.outputs[0].sent.packets, 120, "{news:?}");

    let account = load.finish().unwrap();
    let leaves = capture.finish().unwrap().count(LEAVES).unwrap();
    assert_eq!(leaves, 0, "leaves");
    assert_eq!(account.duplicated, 0, "{account:?}");
    if path == "kernel" {
        account.check_nothing_lost().unwrap();
        let steady = daemon.settled("steady1", account.sent).unwrap();
        assert_eq!(steady.outputs[0].sent.packets, account.sent);
    } else {
        assert!(account.unexplained() < u64::from(rate), "{account:?}");
        let sent = daemon.rule("steady1").unwrap().outputs[0].sent.packets;
        assert_eq!(sent, account.received, "the counters do not go on");
    }
    lab::accounting::check(&daemon.stats().unwrap()).unwrap();
}

/// The daemon is the former version, its clients are the present one.
fn options(path: &str, former: &Path) -> Options {
    let run = format!("shift; exec {} \"$@\"", former.display());
    Options {
        under: ["sh", "-ec", &run, "sh"].map(str::to_owned).to_vec(),
        arguments: vec!["--keep-forwarding".to_owned()],
        ..Options::path(path)
    }
}

/// The load's own rule, one with standby inputs, one that merges its inputs, and a limit.
fn rules(plan: Plan) -> String {
    let two = |[one, other]: [&str; 2]| format!("[\"{one}%veth1:5001\", \"{other}%veth1:5001\"]");
    format!(
        "{}[[rule]]\nname = \"news\"\ninputs = {}\noutputs = [\"239.10.3.1%veth2:6001\"]\n\
         failover = \"60s\"\n\
         [[rule]]\nname = \"twin\"\ninputs = {}\noutputs = [\"239.10.3.3%veth2:6001\"]\n\
         merge = {{ by = \"rtp\", window = \"500ms\" }}\n\
         [[rule]]\nname = \"slow\"\ninput = \"239.3.0.5%veth1:5001\"\n\
         outputs = [{{ to = \"239.10.3.5%veth2:6001\", limit = \"1pps\" }}]\n",
        plan.config(),
        two(NEWS),
        two(TWIN),
    )
}

/// Sends on all legs of the rules that have two.
struct Legs<'a>(&'a Sender);

impl Legs<'_> {
    fn send_all(&self, numbers: std::ops::Range<u64>) {
        for group in NEWS.into_iter().chain(TWIN).chain(["239.3.0.5"]) {
            self.send(group, numbers.clone());
        }
    }

    fn send(&self, group: &str, numbers: std::ops::Range<u64>) {
        for number in numbers {
            self.0
                .send(group.parse().unwrap(), 5001, &rtp(number))
                .unwrap();
            // A flood would measure the capacity of the bed's own queues.
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// A packet of one stream.
fn rtp(number: u64) -> Vec<u8> {
    let mut packet = vec![0; 100];
    packet[..2].copy_from_slice(&[0x80, 33]);
    packet[2..4].copy_from_slice(&(number as u16).to_be_bytes());
    packet[8..12].copy_from_slice(&[7; 4]);
    packet
}

/// All counts of a daemon that only grow, by their path in the JSON.
fn totals(daemon: &Daemon) -> BTreeMap<String, u64> {
    let text = daemon.mcr(&["stats", "--json"]).unwrap();
    let mut totals = BTreeMap::new();
    let stats: Value = serde_json::from_str(&text).unwrap();
    for rule in stats["rules"].as_array().unwrap() {
        collect(rule, rule["name"].as_str().unwrap(), &mut totals);
    }
    assert!(totals.len() > 20, "{totals:?}");
    totals
}

fn collect(value: &Value, at: &str, totals: &mut BTreeMap<String, u64>) {
    match value {
        Value::Object(fields) => {
            // A histogram omits its empty buckets, so indices in it shift.
            for (name, value) in fields.iter().filter(|(name, _)| *name != "buckets") {
                collect(value, &format!("{at} {name}"), totals);
            }
        }
        Value::Array(entries) => {
            for (index, value) in entries.iter().enumerate() {
                collect(value, &format!("{at} {index}"), totals);
            }
        }
        _ if at.split(' ').any(|word| TOTALS.contains(&word)) => {
            totals.extend(value.as_u64().map(|count| (at.to_owned(), count)));
        }
        _ => {}
    }
}

/// The former version's program, built once for all tests; or why there is none: its sources are missing.
static FORMER_BINARY: LazyLock<Result<PathBuf>> = LazyLock::new(|| {
    if let Some(given) = env::var_os("MCR_TEST_FORMER") {
        return Ok(PathBuf::from(given).canonicalize()?);
    }
    build()
});

/// Builds it from the repository's history.
fn build() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()?;
    let directory = root.join("target/former").join(FORMER);
    fs::create_dir_all(&directory)?;
    let sources = directory.join("sources.tar");
    let archive = Command::new("git")
        .current_dir(&root)
        .args(["archive", "--format=tar", "--output"])
        .arg(&sources)
        .arg(FORMER)
        .output()
        .context("git")?;
    let error = String::from_utf8_lossy(&archive.stderr).trim().to_owned();
    ensure!(archive.status.success(), "no sources of {FORMER}: {error}");
    let unpacked = Command::new("tar")
        .current_dir(&directory)
        .args(["-xf", "sources.tar"])
        .status()?;
    ensure!(unpacked.success(), "tar: {unpacked}");
    let built = Command::new(option_env!("CARGO").unwrap_or("cargo"))
        .current_dir(&directory)
        .env_remove("CARGO_TARGET_DIR")
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        .args(["build", "--quiet", "--locked", "--package", "mcr"])
        .status()
        .context("cargo")?;
    assert!(built.success(), "cargo build of {FORMER}: {built}");
    Ok(directory.join("target/debug/mcr"))
}
