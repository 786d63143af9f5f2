//! Thousands of wrong tokens, each with a handshake of its own, while an operator continues to work.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use api::client::{Client, Host};
use lab::namespace::Namespace;
use lab::{process, wait};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Bed, PATIENCE};
use crate::bed::{INPUT, OUTPUT};

/// Wrong tokens that are presented at once.
const AT_ONCE: usize = 200;

/// A host's entry, and the command.
type OfOperator = (&'static str, &'static [&'static str]);

/// Commands of an operator with another address than the crowd's.
const FAR: [OfOperator; 4] = [
    ("operate", &["disable", "cam1"]),
    ("operate", &["enable", "cam1"]),
    ("view", &["stats", "cam1"]),
    ("ci", &["change", "cam1", "--set", "limit=5000pps"]),
];
/// A command from the crowd's own address, which waits long on a busy machine.
const NEAR: [OfOperator; 1] = [("beside", &["stats", "cam1"])];

#[test]
fn a_thousand_wrong_tokens_leave_the_operator_alone() {
    leave_the_operator_alone(1000, &FAR);
}

#[test]
#[ignore = "takes minutes: make long-crowd"]
fn ten_thousand_wrong_tokens_leave_the_operator_alone() {
    leave_the_operator_alone(10_000, &[&FAR[..], &NEAR].concat());
}

fn leave_the_operator_alone(wrong: u64, commands: &[OfOperator]) {
    let Some(bed) = Bed::new("") else { return };
    bed.mcr("change", &["add", INPUT, OUTPUT, "--name", "cam1"]);
    let refused = || bed.status()["api"]["refused"].as_u64().unwrap();
    let ca = bed.keys.path("servers.pem");
    let hosts = bed.keys.path("mcr/hosts.toml");
    let entries = fs::read_to_string(&hosts).unwrap();
    let beside = "[beside]\naddress = \"10.0.0.2\"\nserver_name = \"10.0.1.1\"\nca = \"../servers.pem\"\n\
                  token_file = \"../view.token\"\n";
    fs::write(&hosts, entries + beside).unwrap();
    let quiet = took(&bed, commands);
    let enough = AtomicBool::new(false);
    let began = Instant::now();
    let mut beside = thread::scope(|scope| {
        let crowd = scope.spawn(|| {
            bed.chain.sender.run(|| {
                let runtime = Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(show_wrong_tokens(&ca, &enough));
                Ok(())
            })
        });
        let end = End(&enough);
        let mut beside = Vec::new();
        while refused() < wrong && !crowd.is_finished() {
            beside.extend(took(&bed, commands));
        }
        drop(end);
        crowd.join().unwrap().unwrap();
        beside
    });
    assert!(refused() >= wrong, "{}", bed.status());
    beside.sort();
    println!(
        "{} wrong tokens in {:?}; of {} commands beside them the median took {:?}, the longest {:?}; alone {quiet:?}",
        refused(),
        began.elapsed(),
        beside.len(),
        beside[beside.len() / 2],
        beside[beside.len() - 1]
    );
    assert!(
        wait::is_within(beside[beside.len() / 2], Duration::from_secs(2)),
        "{beside:?}"
    );
    // By address: one that was refused so often waits longer than another that is refused for the first time.
    let crowds = ask(&bed, &bed.chain.sender, "10.0.0.2");
    assert!(crowds >= 3.0, "{crowds} s");
    let others = ask(&bed, &bed.chain.sink, "10.0.1.1");
    assert!(others < crowds, "{others} s, and {crowds} s");
    let events = bed.daemon.log();
    assert!(
        events.contains(&format!("10.0.0.1 was refused ({wrong} times of late)")),
        "{events}"
    );
}

/// How long an operator's commands take, each of which must succeed. From the crowd's address a command waits
/// for its turn among the handshakes of that address and may have to be repeated, but is not refused.
fn took(bed: &Bed, commands: &[OfOperator]) -> Vec<Duration> {
    let took = commands.iter().map(|(host, command)| {
        let from = match *host {
            "beside" => &bed.chain.sender,
            _ => &bed.chain.sink,
        };
        let began = Instant::now();
        wait::until_within(PATIENCE, host, || {
            let done = process::run(bed.command_in(from, host, command), PATIENCE).unwrap();
            let is_late = *host == "beside" && done.status.code() == Some(4);
            assert!(done.status.success() || is_late, "{host}: {}", done.stderr);
            done.status.success()
        })
        .unwrap();
        began.elapsed()
    });
    took.collect()
}

/// Ends the crowd when it is dropped, even if the operator fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Presents wrong tokens until `enough` is set.
async fn show_wrong_tokens(ca: &Path, enough: &AtomicBool) {
    let mut showing = JoinSet::new();
    let mut number = 0;
    while !enough.load(Ordering::Relaxed) {
        while showing.len() < AT_ONCE {
            number += 1;
            let who = ("relay", "10.0.0.2:9471", Some("10.0.1.1"));
            let host = Host::new(who, Some(ca), None, Some(format!("mcr_wrong{number}"))).unwrap();
            showing.spawn(async move {
                // Does not wait for the answer, which takes longer and longer.
                let answer = timeout(Duration::from_secs(1), Client::at(host).status()).await;
                assert!(!matches!(answer, Ok(Ok(_))), "it was let in");
            });
        }
        showing.join_next().await.unwrap().unwrap();
    }
}

/// Presents a wrong token; returns the seconds until the answer.
fn ask(bed: &Bed, namespace: &Namespace, address: &str) -> f64 {
    bed.secret("wrong.header", "Authorization: Bearer wrong\n");
    let mut command = namespace.command("curl");
    let arguments = "-sk -H @wrong.header -o /dev/null -w";
    command.args(arguments.split(' '));
    command.arg("%{http_code} %{time_starttransfer}");
    command.arg(format!("https://{address}:9471/v1/status"));
    command.current_dir(bed.keys.directory());
    let stdout = process::run(command, PATIENCE).unwrap().stdout;
    let (status, seconds) = stdout.split_once(' ').unwrap();
    assert_eq!(status, "401", "{stdout}");
    seconds.parse().unwrap()
}
