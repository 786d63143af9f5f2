//! Hostile clients: a good client is answered throughout, streams lose nothing, memory and descriptors
//! stay bounded and are released.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod bodies;
mod readers;

use std::fs;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lab::daemon::{Daemon, Options};
use lab::process;
use lab::socket::{Receiver, Sender, payload};
use lab::topology::Chain;
use lab::wait;

/// What a good client is promised is a second. Where others compile meanwhile it gets as long as
/// silent clients are waited for: longer, and these have held it up.
const ANSWER: Duration = Duration::from_secs(10);
/// Megabytes that hostile clients may cost the daemon: one body of the largest size, its parsed form,
/// and the answers of hundreds of connections.
const GROWTH_MB: u64 = 512;
const RULE: &str =
    r#"{"name":"x","input":"239.1.9.9%veth1:5009","outputs":["239.10.9.9%veth2:6009"]}"#;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn request(line: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
    format!("{head}Content-Length: {length}\r\n\r\n{body}").into_bytes()
}

fn connect(socket: &Path) -> UnixStream {
    // The backlog may be full for a moment: that is what some of these clients are about.
    let connected = wait::some_within(wait::PATIENCE, "the socket takes a connection", || {
        UnixStream::connect(socket).ok()
    });
    let stream = connected.unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    stream
        .set_write_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    stream
}

/// Sends bytes and reads the answer to its end, whatever becomes of either.
fn exchange(socket: &Path, bytes: &[u8]) -> String {
    let mut stream = connect(socket);
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn status_line(answer: &str) -> &str {
    answer.lines().next().unwrap_or_default()
}

/// Megabytes of memory and number of descriptors of a process.
fn size(pid: u32) -> (u64, usize) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.unwrap().split_whitespace().next().unwrap();
    let megabytes = kilobytes.parse::<u64>().unwrap() >> 10;
    (
        megabytes,
        fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(),
    )
}

/// Ends what runs during an attack, also if the attack fails its test.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends requests from a separate process for as long as `attack` runs; returns the longest wait for an
/// answer.
fn answered_during(socket: &Path, attack: impl FnOnce()) -> Duration {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let good = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !over.load(Ordering::Relaxed) {
                let start = Instant::now();
                let mut status = Command::new(lab::binary::mcr().unwrap());
                status
                    .arg("--socket")
                    .arg(socket)
                    .args(["status", "--json"]);
                let answer = process::run(status, ANSWER).unwrap();
                answer.success().expect("the good client");
                longest = longest.max(start.elapsed());
                thread::sleep(Duration::from_millis(20));
            }
            longest
        });
        let end = Over(&over);
        attack();
        drop(end);
        good.join().unwrap()
    })
}

struct Bed {
    chain: Chain,
    daemon: Daemon,
    socket: PathBuf,
}

fn bed() -> Bed {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::default()).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["239.10.1.1%veth2:6001"])
        .unwrap();
    let socket = daemon.socket();
    Bed {
        chain,
        daemon,
        socket,
    }
}

/// Runs the attack during a stream and a good client's requests, and checks what it leaves behind.
fn survives(name: &str, attack: impl FnOnce(&Bed)) {
    let bed = bed();
    let pid = bed.daemon.id();
    let sink = Receiver::join((&bed.chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let sender = Sender::open((&bed.chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    let before = size(pid);
    let (over, mut sent, mut most) = (AtomicBool::new(false), 0, before);
    let longest = thread::scope(|scope| {
        let stream = scope.spawn(|| {
            let mut number = 0;
            while !over.load(Ordering::Relaxed) {
                let bytes = payload(number, 200);
                sender.send(ip("239.1.1.1"), 5001, &bytes).unwrap();
                number += 1;
                thread::sleep(Duration::from_millis(4));
            }
            number
        });
        let watch = scope.spawn(|| {
            let mut most = before;
            while !over.load(Ordering::Relaxed) {
                let now = size(pid);
                most = (most.0.max(now.0), most.1.max(now.1));
                thread::sleep(Duration::from_millis(5));
            }
            most
        });
        let end = Over(&over);
        let longest = answered_during(&bed.socket, || attack(&bed));
        drop(end);
        (sent, most) = (stream.join().unwrap(), watch.join().unwrap());
        longest
    });
    sink.expect(sent, Duration::from_secs(10)).unwrap();
    bed.daemon.settled("cam1", sent).unwrap();
    println!(
        "{name}: longest answer {} ms; MB, descriptors: {before:?} before, {most:?} at most; \
         {sent} packets",
        longest.as_millis()
    );
    assert!(
        wait::is_within(longest, ANSWER),
        "{name}: an answer took {longest:?}"
    );
    assert!(
        most.0 < before.0 + GROWTH_MB,
        "{name}: memory grew from {before:?} to {most:?}"
    );
    assert!(most.1 < before.1 + 600, "{name}: {before:?} to {most:?}");
    wait::until_within(
        Duration::from_secs(40),
        "the connections are closed",
        || size(pid).1 <= before.1 + 4,
    )
    .unwrap();
}

#[test]
fn requests_cut_short_at_every_byte() {
    survives("cut short", |bed| {
        let body = format!(r#"{{"rules":[{RULE}]}}"#);
        let complete = request("POST /v1/rules", &body);
        for end in 0..complete.len() {
            let mut stream = connect(&bed.socket);
            stream.write_all(&complete[..end]).unwrap();
        }
        assert_eq!(
            bed.daemon.stats().unwrap().rules.len(),
            1,
            "none was carried out"
        );
    });
}

#[test]
fn requests_byte_by_byte_are_answered() {
    survives("byte by byte", |bed| {
        let body = format!(r#"{{"rules":[{RULE}]}}"#);
        let mut stream = connect(&bed.socket);
        for byte in request("POST /v1/rules", &body) {
            stream.write_all(&[byte]).unwrap();
            thread::sleep(Duration::from_millis(2));
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(status_line(&answer), "HTTP/1.1 200 OK");
    });
}

#[test]
fn thousands_of_connections_at_once() {
    survives("thousands", |bed| {
        thread::scope(|scope| {
            for part in 0..4 {
                scope.spawn(move || {
                    let mut open = Vec::new();
                    for number in 0..750 {
                        let mut stream = connect(&bed.socket);
                        // Some send nothing, some begin a request, some do not read the answer.
                        let words: &[u8] = match (number + part) % 3 {
                            0 => b"",
                            1 => b"GET /v1/st",
                            _ => b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n",
                        };
                        // The daemon may have closed it already to make room.
                        let _ = stream.write_all(words);
                        open.push(stream);
                    }
                });
            }
        });
    });
}

#[test]
fn huge_requests() {
    survives("huge", |bed| {
        let announced = b"POST /v1/rules HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999\r\n\r\n";
        assert_eq!(
            status_line(&exchange(&bed.socket, announced)),
            "HTTP/1.1 413 Payload Too Large"
        );
        let mut endless = b"GET /v1/status HTTP/1.1\r\nHost: ".to_vec();
        endless.resize(4 << 20, b'x');
        let answer = exchange(&bed.socket, &endless);
        assert!(!answer.contains(" 200 "), "{answer}");
        thread::scope(|scope| {
            for _ in 0..8 {
                // Of the largest size, with an unrealistic number of rules, all of them invalid.
                scope.spawn(|| {
                    let rules = r#"{"name":"","outputs":[]},"#.repeat(1_000_000);
                    let body = format!(r#"{{"rules":[{}]}}"#, rules.trim_end_matches(','));
                    let answer = exchange(&bed.socket, &request("POST /v1/rules", &body));
                    assert!(!answer.contains(" 200 ") && !answer.contains(" 500 "));
                });
            }
        });
        let mut chunked =
            b"PUT /v1/rules HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for _ in 0..40 {
            chunked.extend(b"100000\r\n");
            chunked.resize(chunked.len() + (1 << 20), b' ');
            chunked.extend(b"\r\n");
        }
        let answer = exchange(&bed.socket, &chunked);
        assert!(!answer.contains(" 200 "), "{}", status_line(&answer));
    });
}

#[test]
fn readers_that_do_not_read() {
    survives("no reading", |bed| {
        let mut open = Vec::new();
        for number in 0..300 {
            let mut stream = connect(&bed.socket);
            let ask: &[u8] = match number % 3 {
                0 => b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n",
                1 => b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n",
                _ => b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
            };
            // Pipelined: the daemon answers the next only when the last was taken.
            let _ = stream.write_all(&ask.repeat(100));
            open.push(stream);
        }
        for _ in 0..50 {
            let body = format!(r#"{{"rules":[{RULE}]}}"#);
            let added = exchange(&bed.socket, &request("POST /v1/rules", &body));
            assert_eq!(status_line(&added), "HTTP/1.1 200 OK");
            let removed = exchange(&bed.socket, &request("DELETE /v1/rules/x", ""));
            assert_eq!(status_line(&removed), "HTTP/1.1 200 OK");
        }
    });
}

#[test]
fn bad_requests_are_refused_by_name() {
    survives("bad requests", |bed| {
        let deep = "[".repeat(200_000);
        let nested = format!(r#"{{"rules":{deep}"#);
        for (bytes, status) in [
            (request("POST /v1/rules", &nested), "400"),
            (request("POST /v1/rules", "\u{0}\u{1}"), "400"),
            (request("POST /v1/rules", r#"{"rules":[],"rules":[]}"#), "400"),
            (request("POST /v1/transaction", r#"{"generation":-1}"#), "400"),
            (request("POST /v1/transaction", r#"{"generation":99999}"#), "409"),
            (request("DELETE /v1/rules/%ff%fe", ""), "400"),
            (request("DELETE /v1/rules/..%2f..%2fetc", ""), "404"),
            (request("BREW /v1/status", ""), "405"),
            (request("GET /v1/../../etc/passwd", ""), "404"),
            (b"GET /v1/status SPDY/3\r\n\r\n".to_vec(), "400"),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec(), "400"),
            (b"POST /v1/rules HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".to_vec(), "400"),
            (b"POST /v1/rules HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}".to_vec(), "400"),
        ] {
            let answer = exchange(&bed.socket, &bytes);
            let escaped = bytes.escape_ascii().to_string();
            let shown = &escaped[..escaped.len().min(100)];
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status}"))
                    || answer.starts_with(&format!("HTTP/1.0 {status}")),
                "{shown}: {}", status_line(&answer)
            );
        }
    });
}
