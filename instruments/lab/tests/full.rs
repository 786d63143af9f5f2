//! A full `/run`: no change is lost silently.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use lab::daemon::{Daemon, Options};
use lab::topology::Chain;
use lab::wait;
use serde_json::Value;

const INITIAL: u16 = 100;

/// A daemon whose `/run/mcr` is a separate small file system.
struct Bed {
    daemon: Daemon,
    _chain: Chain,
}

impl Bed {
    fn new(arguments: &[&str]) -> Self {
        Self::start("true", arguments)
    }

    /// Runs a command first.
    fn start(first: &str, arguments: &[&str]) -> Self {
        let chain = Chain::plain().unwrap();
        let mount = "mount -t tmpfs -o size=256k,mode=755 tmpfs /run/mcr";
        let script = format!("{mount} && {first} && exec \"$@\"");
        let under = ["unshare", "--mount", "sh", "-c", &script, "sh"];
        let daemon = Daemon::start(
            &chain.relay,
            Options {
                under: under.map(str::to_owned).to_vec(),
                arguments: arguments.iter().map(ToString::to_string).collect(),
                ..Options::default()
            },
        );
        Self {
            daemon: daemon.unwrap(),
            _chain: chain,
        }
    }

    fn add(&self, number: u16) -> lab::process::Finished {
        let [high, low] = number.to_be_bytes();
        let input = format!("239.1.{high}.{low}%veth1:5001");
        let output = format!("239.10.{high}.{low}%veth2:6001");
        let name = format!("cam{number}");
        let add = ["add", &input, &output, "--name", &name, "--json"];
        self.daemon.client(&add).unwrap()
    }

    /// The file system as the daemon sees it.
    fn run(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root/run/mcr", self.daemon.id()))
    }

    fn fill(&self) {
        let mut file = File::create(self.run().join("filler")).unwrap();
        while file.write_all(&[0; 512]).is_ok() {}
        // To the last page: existing files cannot grow either.
        let directory = self.run().join(self.daemon.instance());
        assert!(directory.join("running.json").exists());
    }

    /// The rules that the next daemon would start with after a crash.
    fn written(&self) -> Vec<String> {
        let directory = self.run().join(self.daemon.instance());
        let bytes = fs::read(directory.join("running.json")).unwrap();
        let snapshot: Value = serde_json::from_slice(&bytes).unwrap();
        let mut names: Vec<String> = snapshot["rules"]
            .as_array()
            .unwrap()
            .iter()
            .map(|rule| rule["name"].as_str().unwrap().to_owned())
            .collect();
        let journal = fs::read_to_string(directory.join("running.log")).unwrap();
        let lines = journal.split_inclusive('\n').skip(1);
        for line in lines.filter(|line| line.ends_with('\n')) {
            let edit: Value = serde_json::from_str(line).unwrap();
            let number = |key: &str| edit[key].as_u64().unwrap() as usize;
            let rules = edit["rules"].as_array().unwrap().iter();
            let added = rules.map(|rule| rule["name"].as_str().unwrap().to_owned());
            let replaced = number("at")..number("at") + number("gone");
            names.splice(replaced, added);
        }
        names
    }

    fn running(&self) -> Vec<String> {
        let rules = self.daemon.stats().unwrap().rules;
        rules.into_iter().map(|rule| rule.name).collect()
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.daemon.mcr(&["status", "--json"]).unwrap()).unwrap()
    }
}

#[test]
fn a_change_that_cannot_be_written_down_is_refused() {
    let bed = Bed::new(&[]);
    for number in 0..INITIAL {
        assert!(bed.add(number).status.success());
    }
    bed.fill();
    let mut refused = 0;
    for number in INITIAL..2 * INITIAL {
        let finished = bed.add(number);
        let error = &finished.stderr;
        refused += u16::from(!finished.status.success());
        assert!(
            finished.status.success() || error.contains("nothing was changed"),
            "{error}"
        );
        assert_eq!(bed.written(), bed.running(), "what was answered is kept");
    }
    assert!(refused > 0, "there was room for all");
    assert_eq!(bed.status()["state"], "up");
    fs::remove_file(bed.run().join("filler")).unwrap();
    assert!(bed.add(2 * INITIAL).status.success(), "there is room again");
    assert_eq!(bed.written(), bed.running());
}

#[test]
fn a_change_that_cannot_be_written_down_warns_where_that_is_wanted() {
    let bed = Bed::new(&["--on-full", "warn"]);
    for number in 0..INITIAL {
        assert!(bed.add(number).status.success());
    }
    bed.fill();
    let mut warned = None;
    for number in INITIAL..2 * INITIAL {
        let finished = bed.add(number);
        let change: Value = serde_json::from_str(&finished.stdout).unwrap();
        let warnings = change["warnings"].to_string();
        if warnings.contains("are not written") {
            assert!(warnings.contains("a crash would bring back"), "{warnings}");
            warned = Some(number);
            break;
        }
        assert_eq!(bed.written(), bed.running());
    }
    assert!(warned.is_some(), "there was room for all");
    assert_ne!(bed.written(), bed.running());
    let status = bed.status();
    assert_eq!(status["state"], "degraded");
    let reason = status["state_reason"].as_str().unwrap();
    assert!(reason.contains("No space left on device"), "{reason}");
    assert!(bed.daemon.log().contains("are not written"));
    fs::remove_file(bed.run().join("filler")).unwrap();
    wait::until("it is written down", || bed.status()["state"] == "up").unwrap();
    assert_eq!(bed.written(), bed.running());
    let events = bed.daemon.log();
    assert!(events.contains("are written down again"), "{events}");
}

#[test]
fn a_daemon_starts_while_there_is_no_room() {
    let bed = Bed::start("! cat /dev/zero >/run/mcr/filler", &[]);
    let lock = bed.run().join(format!("{}.lock", bed.daemon.instance()));
    assert_eq!(fs::read_to_string(&lock).unwrap(), "");
    wait::until("it is told", || bed.status()["state"] == "degraded").unwrap();
    assert!(!bed.add(1).status.success(), "refused");
    fs::remove_file(bed.run().join("filler")).unwrap();
    wait::until("it is written down", || bed.status()["state"] == "up").unwrap();
    assert!(bed.add(1).status.success());
    assert_eq!(bed.written(), bed.running());
}
