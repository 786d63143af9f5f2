//! Readers of the listener on TCP that ask for what is long and do not read it.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lab::daemon::{Daemon, Options};
use lab::link;
use lab::namespace::Namespace;
use lab::topology::Chain;
use lab::wait;

use super::{Over, RULE, exchange, request, size, status_line};

/// Metrics of 2 MB: buffered whole for each reader they would be sixteen times [`GROWTH_MB`]; and few
/// enough that a debug build, whose listener has low priority, sends them within a request's 30 s on a
/// busy machine.
const RULES: u16 = 1_600;
/// As many as the listener serves at a time.
const READERS: usize = 512;
/// Megabytes that they may make the daemon take.
const GROWTH_MB: u64 = 64;
const LISTENER: &str = "127.0.0.1:9469";

fn config() -> String {
    let rule = |number: u16| {
        let [high, low] = number.to_be_bytes();
        format!(
            "[[rule]]\nname = \"rule{number}\"\ninput = \"239.1.{high}.{low}%veth1:5001\"\n\
             outputs = [\"239.10.{high}.{low}%veth2:6001\"]\n"
        )
    };
    let rules = (0..RULES).map(rule);
    std::iter::once("version = 1\n".to_owned())
        .chain(rules)
        .collect()
}

/// Connects and requests the metrics; the answer's head shows that it is on its way.
fn ask(namespace: &Namespace, path: &str) -> TcpStream {
    let stream = namespace.run(|| Ok(TcpStream::connect(LISTENER)?)).unwrap();
    let ask = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    (&stream).write_all(ask.as_bytes()).unwrap();
    stream
}

/// Waits until an answer has begun, or its connection was closed to make room.
fn is_answered(stream: &TcpStream) {
    let patience = Some(Duration::from_secs(120));
    stream.set_read_timeout(patience).unwrap();
    let kind = stream.peek(&mut [0; 1]).err().map(|error| error.kind());
    assert!(
        matches!(kind, None | Some(ErrorKind::ConnectionReset)),
        "{kind:?}"
    );
}

#[test]
fn readers_of_long_answers_take_little_memory_and_delay_no_change() {
    let chain = Chain::plain().unwrap();
    link::up((&chain.relay, "lo")).unwrap();
    let options = Options {
        arguments: vec!["--listen".to_owned(), LISTENER.to_owned()],
        config: Some(config()),
        ..Options::default()
    };
    let daemon = Daemon::start(&chain.relay, options).unwrap();
    let (pid, socket) = (daemon.id(), daemon.socket());
    let before = size(pid).0;
    let over = AtomicBool::new(false);
    let (most, changes) = thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = before;
            while !over.load(Ordering::Relaxed) {
                most = most.max(size(pid).0);
                thread::sleep(Duration::from_millis(5));
            }
            most
        });
        let changes = scope.spawn(|| {
            let mut took = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let add = request("POST /v1/rules", &format!(r#"{{"rules":[{RULE}]}}"#));
                for change in [add, request("DELETE /v1/rules/x", "")] {
                    let start = Instant::now();
                    let answer = exchange(&socket, &change);
                    assert_eq!(status_line(&answer), "HTTP/1.1 200 OK", "a change");
                    took.push(start.elapsed());
                }
                thread::sleep(Duration::from_millis(50));
            }
            took
        });
        let end = Over(&over);
        // Some of them for what no other reader requests.
        let path = |reader: usize| match reader % 4 {
            0 => "/metrics".to_owned(),
            1 => "/v1/stats".to_owned(),
            2 => "/v1/rules".to_owned(),
            _ => format!("/v1/stats?offset={reader}"),
        };
        let requests = (0..READERS).map(|reader| ask(&chain.relay, &path(reader)));
        let open: Vec<TcpStream> = requests.collect();
        open.iter().for_each(is_answered);
        drop(end);
        (watch.join().unwrap(), changes.join().unwrap())
    });
    let standing_back = listeners(pid);
    assert!(
        !standing_back.is_empty() && standing_back.iter().all(|nice| *nice == 5),
        "who answers them comes after changes: {standing_back:?}"
    );
    let longest = changes.iter().max().unwrap();
    println!(
        "{READERS} readers: {before} MB before, {most} MB at most; {} changes, the longest {} ms",
        changes.len(),
        longest.as_millis()
    );
    assert!(
        most <= before + GROWTH_MB,
        "memory grew from {before} to {most} MB"
    );
    // Once the daemon has noticed that the others have disconnected.
    wait::seen_within(wait::PATIENCE, "the next one gets all of it", || {
        let page = read_all(ask(&chain.relay, "/metrics"));
        let samples = page.matches("\nmcr_rule_up{").count();
        let all = samples == usize::from(RULES);
        all.then_some(())
            .ok_or_else(|| (status_line(&page).to_owned(), samples))
    })
    .unwrap();
}

/// The nice values of the threads that serve the listener (proc_pid_stat(5)).
fn listeners(pid: u32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let stats = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok());
    let listeners = stats.filter(|stat| stat.contains("(listener)"));
    let nice = |stat: String| stat.rsplit_once(") ")?.1.split(' ').nth(16)?.parse().ok();
    listeners.filter_map(nice).collect()
}

/// Reads an answer to the end that its head announces.
fn read_all(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let mut piece = [0; 65_536];
    let patience = Some(Duration::from_secs(60));
    stream.set_read_timeout(patience).unwrap();
    loop {
        let read = stream.read(&mut piece).unwrap();
        answer.extend_from_slice(&piece[..read]);
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        let Some(end) = end else { continue };
        let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
        let mut lengths = head
            .lines()
            .filter_map(|line| line.strip_prefix("content-length: "));
        let length: usize = lengths.next().unwrap().parse().unwrap();
        if read == 0 || answer.len() >= end + 4 + length {
            return String::from_utf8(answer.split_off(end + 4)).unwrap();
        }
    }
}
