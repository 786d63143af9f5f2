//! Many changes, many kills, and a full disk.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use lab::wait;
use nix::mount::{MsFlags, mount, umount};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::CHANGED;
use crate::bed::Bed;
use crate::changes::{CAM2, bed};

const CLIENTS: usize = 8;
const CHANGES: usize = 20_000;

/// Posts to the control socket; returns the status line.
fn post(stream: &mut BufReader<UnixStream>, path: &str, body: &str) -> String {
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nHost: mcr\r\nContent-Length: {length}\r\n\r\n");
    stream
        .get_mut()
        .write_all((head + body).as_bytes())
        .unwrap();
    let (mut status, mut length) = (String::new(), 0);
    stream.read_line(&mut status).unwrap();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    stream.read_exact(&mut vec![0; length]).unwrap();
    status
}

/// Adds and removes a client's own rule; returns how long each change took.
fn change(socket: &Path, client: usize) -> Vec<Duration> {
    let mut stream = BufReader::new(UnixStream::connect(socket).unwrap());
    let port = 7000 + client;
    let add = format!(
        "{{\"add\":[{{\"name\":\"c{client}\",\"inputs\":[\"239.2.2.{client}%veth1:{port}\"],\
         \"outputs\":[\"239.10.2.{client}%veth2:{port}\"]}}]}}"
    );
    let remove = format!("{{\"remove\":[\"c{client}\"]}}");
    let took = (0..CHANGES / CLIENTS).map(|number| {
        let begun = Instant::now();
        let body = if number % 2 == 0 { &add } else { &remove };
        let status = post(&mut stream, "/v1/transaction", body);
        assert!(status.contains("200"), "{status}");
        begun.elapsed()
    });
    took.collect()
}

#[test]
#[ignore = "takes minutes"]
fn twenty_thousand_changes_by_eight_clients_are_all_logged_in_order() {
    let Some(bed) = bed() else { return };
    let (socket, begun) = (bed.daemon.socket(), Instant::now());
    let before = bed.status()["generation"].as_u64().unwrap();
    let mut took: Vec<Duration> = thread::scope(|scope| {
        let spawned = (0..CLIENTS).map(|client| {
            scope.spawn({
                let socket = &socket;
                move || change(socket, client)
            })
        });
        let clients: Vec<_> = spawned.collect();
        clients
            .into_iter()
            .flat_map(|client| client.join().unwrap())
            .collect()
    });
    took.sort();
    let at = |part: usize| took[took.len() * part / 1000];
    let all = begun.elapsed();
    println!(
        "{CHANGES} changes in {all:?}, each p50 {:?} p99 {:?}",
        at(500),
        at(990)
    );
    let log = bed.state().join("changes.log");
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.len() <= 32 << 20 && text.lines().count() <= 10_000);
    let changes = bed.changes();
    assert!(changes.len() >= 9_000, "{}", changes.len());
    let number = |change: &Value, key: &str| change[key].as_u64().unwrap();
    for pair in changes.windows(2) {
        assert_eq!(number(&pair[1], "before"), number(&pair[0], "generation"));
        assert_eq!(
            number(&pair[1], "generation"),
            number(&pair[0], "generation") + 1
        );
        assert_eq!(pair[1]["by"]["via"], "client");
    }
    let last = number(changes.last().unwrap(), "generation");
    assert_eq!(last, before + CHANGES as u64);
    wait::until("the last 50 are kept", || {
        let json = bed.json(&["generations", "--json"]);
        let stored = json.as_array().unwrap();
        stored.len() == 50 && number(stored.last().unwrap(), "generation") == last
    })
    .unwrap();
}

#[test]
#[ignore = "takes minutes"]
fn kills_at_moments_of_chance_leave_what_was_before_or_what_was_confirmed() {
    let Some(mut bed) = bed() else { return };
    let stream = bed.stream(200);
    let mut late = Vec::new();
    // Pseudo-random with a fixed seed, so that a run can be repeated.
    let mut chance = 4711_u64;
    for round in 0..30 {
        chance = chance
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let moment = Duration::from_millis((chance >> 33) % 1_600);
        let confirms = round % 3 == 0 && moment < Duration::from_millis(700);
        bed.try_out(CHANGED, "1s");
        let made = Instant::now();
        if confirms {
            bed.daemon.mcr(&["confirm"]).unwrap();
        }
        thread::sleep(moment.saturating_sub(made.elapsed()));
        bed.daemon.kill().unwrap();
        bed.daemon.start_again().unwrap();
        let expected = if confirms { "cam1\ncam3\n" } else { "cam1\n" };
        bed.wait_for_list(expected);
        if !confirms {
            late.push(made.elapsed().saturating_sub(Duration::from_secs(1)));
        }
        assert!(bed.status()["pending"].is_null());
        if bed.status()["state"] == "degraded" {
            bed.daemon.mcr(&["confirm"]).unwrap();
        }
        if confirms {
            bed.daemon.mcr(&["remove", "cam3"]).unwrap();
        }
    }
    late.sort();
    println!(
        "undone late by p50 {:?}, at most {:?}",
        late[late.len() / 2],
        late.last()
    );
    drop(stream);
    let rule = bed.daemon.rule("cam1").unwrap();
    assert_eq!(
        rule.received.packets, rule.outputs[0].sent.packets,
        "0 lost"
    );
}

/// A file system with little room.
struct Small(PathBuf);

impl Small {
    fn mount(at: PathBuf) -> Self {
        let options = Some("size=256k");
        mount(Some("tmpfs"), &at, Some("tmpfs"), MsFlags::empty(), options).unwrap();
        Self(at)
    }

    /// Fills it up.
    fn fill(&self) {
        let mut file = fs::File::create(self.0.join("much")).unwrap();
        while file.write_all(&[7; 512]).is_ok() {}
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = umount(&self.0);
    }
}

#[test]
fn a_disk_that_is_full_refuses_what_it_cannot_write_down() {
    let Some(mut bed) = bed() else { return };
    bed.daemon.stop(Signal::SIGTERM).unwrap();
    let small = Small::mount(bed.state());
    bed.daemon.start_again().unwrap();
    wait::until("the start is kept", || {
        bed.state().join("generations").read_dir().unwrap().count() > 0
    })
    .unwrap();
    small.fill();
    bed.refuses(
        &[&CAM2[..], &["--confirm", "60s"]].concat(),
        69,
        &["make room there"],
    );
    let full = loop_until_refused(&bed);
    assert!(full.contains("changes.log: No space left"), "{full}");
    assert!(bed.status()["pending"].is_null());
    let doctor = bed.daemon.client(&["doctor"]).unwrap().stdout;
    let state = bed.state().display().to_string();
    assert!(
        doctor.contains(&format!("HARMS {state}: there is no room left")),
        "{doctor}"
    );
    fs::remove_file(small.0.join("much")).unwrap();
    // Its removal may have been refused as well.
    let _ = bed.daemon.client(&["remove", "cam2"]).unwrap();
    let before = bed.changes().len();
    bed.try_out(CHANGED, "1s");
    bed.wait_for_list("cam1\n");
    assert_eq!(bed.changes().len(), before + 2);
    bed.daemon.stop(Signal::SIGTERM).unwrap();
}

/// Changes rules until one is refused: the last page of the log may still have room.
fn loop_until_refused(bed: &Bed) -> String {
    for _ in 0..100 {
        for words in [&CAM2[..], &["remove", "cam2"]] {
            let done = bed.daemon.client(words).unwrap();
            if !done.status.success() {
                if bed.listed().contains("cam2") {
                    // Refused as well, or the page has room for it.
                    let _ = bed.daemon.client(&["remove", "cam2"]).unwrap();
                }
                return done.stderr;
            }
        }
    }
    panic!("never refused");
}
