//! Outputs to all addresses of a name: a DNS server whose zone changes while packets flow.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod server;
mod servers;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use api::reply::{AddressStats, OutputStats, RuleStats, State};
use lab::daemon::{Daemon, Options};
use lab::socket::{Receiver, Sender, payload};
use lab::topology::Chain;
use lab::wait;
use tempfile::NamedTempFile;

lab::on_both_paths!(
    who_stays_loses_nothing_while_others_come_and_go,
    failures_keep_what_was_and_nobody_is_idle,
    a_service_has_ports_and_what_is_no_host_is_refused,
    another_resolv_conf_is_followed,
);

const PATIENCE: Duration = Duration::from_secs(10);
const SERVER: u8 = 2;

/// The server's answers.
#[derive(Clone, Debug)]
struct Zone {
    code: u8,
    is_silent: bool,
    /// Whether answers by UDP are truncated, with more by TCP.
    is_truncated: bool,
    addresses: Vec<Ipv4Addr>,
    /// Priority, port, and the last number of the server's address.
    services: Vec<(u16, u16, u8)>,
}

struct Bed {
    zone: Arc<Mutex<Zone>>,
    daemon: Daemon,
    chain: Chain,
    resolv: NamedTempFile,
}

fn host(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 1, last)
}

/// The answer to a question; `None` for no answer.
fn answer(zone: &Zone, question: &[u8], is_tcp: bool) -> Option<Vec<u8>> {
    if zone.is_silent || question.len() < 17 {
        return None;
    }
    let mut end = 12;
    let mut first = String::new();
    while question[end] != 0 {
        let label = &question[end + 1..end + 1 + usize::from(question[end])];
        if first.is_empty() {
            first = String::from_utf8_lossy(label).to_lowercase();
        }
        end += 1 + usize::from(question[end]);
    }
    end += 5;
    let kind = u16::from_be_bytes([question[end - 4], question[end - 3]]);
    let is_cut = zone.is_truncated && !is_tcp;
    let mut records: Vec<(u16, Vec<u8>)> = Vec::new();
    if zone.code == 0 && !is_cut {
        match (kind, first.as_str()) {
            (33, "_rtp") => records.extend(zone.services.iter().map(|(priority, port, last)| {
                let mut record = [*priority, 1, *port].map(u16::to_be_bytes).concat();
                let label = format!("host{last}");
                record.push(label.len() as u8);
                record.extend(label.bytes());
                record.extend(b"\x04test\x00");
                (33, record)
            })),
            (1, name) => match name.strip_prefix("host") {
                Some(last) => records.push((1, host(last.parse().unwrap()).octets().to_vec())),
                None => records.extend(zone.addresses.iter().map(|at| (1, at.octets().to_vec()))),
            },
            _ => {}
        }
    }
    let mut reply = question[..2].to_vec();
    reply.extend([0x85 | if is_cut { 2 } else { 0 }, 0x80 | zone.code, 0, 1]);
    reply.extend((records.len() as u16).to_be_bytes());
    reply.extend([0; 4]);
    reply.extend(&question[12..end]);
    for (kind, data) in records {
        reply.extend([0xc0, 12]);
        reply.extend(kind.to_be_bytes());
        // Class Internet, TTL 0.
        reply.extend([0, 1, 0, 0, 0, 0]);
        reply.extend((data.len() as u16).to_be_bytes());
        reply.extend(data);
    }
    Some(reply)
}

fn serve(chain: &Chain, at: u8, zone: &Arc<Mutex<Zone>>) {
    let at = (host(at), 53);
    let (by_udp, by_tcp) = chain
        .sink
        .run(|| Ok((UdpSocket::bind(at)?, TcpListener::bind(at)?)))
        .unwrap();
    let shared = Arc::clone(zone);
    thread::spawn(move || {
        let mut buffer = [0; 1500];
        while let Ok((length, from)) = by_udp.recv_from(&mut buffer) {
            let zone = shared.lock().unwrap().clone();
            if let Some(reply) = answer(&zone, &buffer[..length], false) {
                let _ = by_udp.send_to(&reply, from);
            }
        }
    });
    let shared = Arc::clone(zone);
    thread::spawn(move || {
        for stream in by_tcp.incoming().flatten() {
            let (mut stream, zone) = (stream, shared.lock().unwrap().clone());
            thread::spawn(move || {
                let mut length = [0; 2];
                while stream.read_exact(&mut length).is_ok() {
                    let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
                    if stream.read_exact(&mut question).is_err() {
                        return;
                    }
                    if let Some(reply) = answer(&zone, &question, true) {
                        let message = [&(reply.len() as u16).to_be_bytes()[..], &reply].concat();
                        let _ = stream.write_all(&message);
                    }
                }
            });
        }
    });
}

fn bed(path: &str, output: &str, zone: Zone) -> Bed {
    let chain = Chain::plain().unwrap();
    for last in 10..20 {
        let address = format!("address add {}/24 dev veth3", host(last));
        chain.sink.ip(&address).unwrap();
    }
    let zone = Arc::new(Mutex::new(zone));
    serve(&chain, SERVER, &zone);
    let servers = "search test\nnameserver 10.0.1.2\noptions timeout:1 attempts:1\n";
    let (daemon, resolv) = resolving(&chain, path, servers);
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &[output])
        .unwrap();
    Bed {
        zone,
        daemon,
        chain,
        resolv,
    }
}

/// A daemon with its own resolv.conf.
fn resolving(chain: &Chain, path: &str, text: &str) -> (Daemon, NamedTempFile) {
    let resolv = NamedTempFile::new().unwrap();
    std::fs::write(resolv.path(), text).unwrap();
    let mount = format!(
        "mount --bind {} /etc/resolv.conf && exec \"$@\"",
        resolv.path().display()
    );
    let mut options = Options::path(path);
    options.under = ["unshare", "--mount", "sh", "-c", &mount, "sh"]
        .map(str::to_owned)
        .to_vec();
    (Daemon::start(&chain.relay, options).unwrap(), resolv)
}

fn copies(output: &OutputStats) -> &[AddressStats] {
    output.addresses.as_deref().unwrap_or_default()
}

fn addresses(lasts: &[u8]) -> Zone {
    Zone {
        code: 0,
        is_silent: false,
        is_truncated: false,
        addresses: lasts.iter().map(|last| host(*last)).collect(),
        services: Vec::new(),
    }
}

impl Bed {
    fn set(&self, change: impl FnOnce(&mut Zone)) {
        change(&mut self.zone.lock().unwrap());
    }

    fn wait(&self, what: &str, is_so: impl Fn(&OutputStats) -> bool) -> RuleStats {
        self.daemon
            .wait_for("cam1", what, |rule| is_so(&rule.outputs[0]))
            .unwrap()
    }

    /// Waits until copies go to exactly these.
    fn wait_for(&self, expected: &[&str]) -> RuleStats {
        self.wait(&format!("{expected:?}"), |output| {
            let all_up = copies(output).iter().all(|to| to.state == State::Up);
            let present: Vec<&str> = copies(output)
                .iter()
                .map(|to| to.address.as_str())
                .collect();
            all_up && present == expected
        })
    }

    fn receiver(&self, last: u8, port: u16) -> Receiver {
        Receiver::bind(&self.chain.sink, (host(last), port).into()).unwrap()
    }

    fn sender(&self) -> Sender {
        Sender::open((&self.chain.sender, "veth0"), IpAddr::from([10, 0, 0, 1])).unwrap()
    }
}

fn group() -> IpAddr {
    [239, 1, 1, 1].into()
}

fn who_stays_loses_nothing_while_others_come_and_go(path: &str) {
    let bed = bed(path, "recorders:7000,all,refresh=1s", addresses(&[10, 11]));
    bed.wait_for(&["10.0.1.10", "10.0.1.11"]);
    let receivers = [10, 11, 12].map(|last| bed.receiver(last, 7000));
    let ended = AtomicBool::new(false);
    let sender = bed.sender();
    let sent = thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut sent = 0_u64;
            while !ended.load(Ordering::Relaxed) {
                sender.send(group(), 5001, &payload(sent, 200)).unwrap();
                sent += 1;
                thread::sleep(Duration::from_millis(1));
            }
            sent
        });
        for lasts in [&[10, 12][..], &[10, 11, 12], &[10], &[10, 11]] {
            bed.set(|zone| zone.addresses = lasts.iter().map(|last| host(*last)).collect());
            let expected: Vec<String> = lasts.iter().map(|last| host(*last).to_string()).collect();
            bed.wait_for(&expected.iter().map(String::as_str).collect::<Vec<_>>());
        }
        ended.store(true, Ordering::Relaxed);
        sending.join().unwrap()
    });
    receivers[0].expect(sent, PATIENCE).unwrap();
    // Copies to all addresses count in the output, so it sends more than the rule received.
    let stats = bed.wait("all is counted", |output| {
        copies(output)[0].sent.packets == sent
    });
    assert_eq!(
        (stats.received.packets, stats.dropped.len()),
        (sent, 0),
        "{stats:?}"
    );
    let output = &stats.outputs[0];
    let others = output.sent.packets - sent;
    assert!(others >= copies(output)[1].sent.packets, "{output:?}");
    for words in [
        "10.0.1.12 gets copies from now on",
        "10.0.1.11 gets copies no more",
    ] {
        wait::until(words, || bed.daemon.log().contains(words)).unwrap();
    }
    let shown = bed.daemon.mcr(&["show", "cam1"]).unwrap();
    assert!(shown.contains("10.0.1.10  up"), "{shown}");
}

fn failures_keep_what_was_and_nobody_is_idle(path: &str) {
    let bed = bed(path, "recorders.:7000,all,refresh=1s", addresses(&[10, 11]));
    bed.wait_for(&["10.0.1.10", "10.0.1.11"]);
    bed.set(|zone| zone.code = 2);
    let stats = bed.wait("SERVFAIL is told", |output| output.name_error.is_some());
    assert_eq!(copies(&stats.outputs[0]).len(), 2);
    bed.set(|zone| zone.code = 5);
    bed.wait("REFUSED is told", |output| {
        output
            .name_error
            .as_deref()
            .is_some_and(|why| why.contains("Refused"))
    });
    bed.set(|zone| (zone.code, zone.is_silent) = (0, true));
    bed.wait("silence is told", |output| {
        output
            .name_error
            .as_deref()
            .is_some_and(|why| why.contains("no name server"))
    });
    let receiver = bed.receiver(10, 7000);
    bed.sender().send_numbered(group(), 5001, 50, 200).unwrap();
    receiver.expect(50, PATIENCE).unwrap();
    // No such name, answered twice.
    bed.set(|zone| (zone.code, zone.is_silent) = (3, false));
    let stats = bed.wait("nobody is left", |output| copies(output).is_empty());
    assert!(stats.outputs[0].is_idle(), "{stats:?}");
    assert_eq!(stats.outputs[0].state, State::Up);
    bed.sender().send_numbered(group(), 5001, 30, 200).unwrap();
    bed.wait("nobody wants it", |output| {
        output.dropped.get("not_wanted") == Some(&30)
    });
    bed.set(|zone| zone.code = 0);
    bed.wait_for(&["10.0.1.10", "10.0.1.11"]);
}

fn a_service_has_ports_and_what_is_no_host_is_refused(path: &str) {
    let mut zone = addresses(&[13, 12, 11]);
    zone.services = vec![(1, 7001, 10), (1, 7002, 11), (2, 7003, 12)];
    zone.is_truncated = true;
    let bed = bed(path, "_rtp._udp.recorders,all,refresh=1s", zone);
    bed.wait_for(&["10.0.1.10:7001", "10.0.1.11:7002"]);
    let receivers = [bed.receiver(10, 7001), bed.receiver(11, 7002)];
    bed.sender().send_numbered(group(), 5001, 50, 200).unwrap();
    for receiver in &receivers {
        receiver.expect(50, PATIENCE).unwrap();
    }
    bed.daemon.mcr(&["remove", "cam1"]).unwrap();
    bed.daemon
        .add(
            "cam1",
            "239.1.1.1%veth1:5001",
            &["recorders:7000,all,max=2,refresh=1s"],
        )
        .unwrap();
    bed.wait_for(&["10.0.1.11", "10.0.1.12"]);
    let stats = bed.daemon.rule("cam1").unwrap();
    assert_eq!(stats.outputs[0].left_out, Some(1));
    let is_reported = || bed.daemon.log().contains("name_truncated");
    wait::until("it is told", is_reported).unwrap();
    bed.set(|zone| {
        let strange = [
            [127, 0, 0, 1],
            [169, 254, 1, 1],
            [224, 1, 1, 1],
            [10, 0, 1, 1],
            [10, 0, 1, 255],
        ];
        zone.addresses = strange.map(Ipv4Addr::from).to_vec();
    });
    // This host's own address is no reason to use another path.
    let stats = bed.wait("two are left, and down", |output| {
        copies(output).len() == 2 && copies(output).iter().all(|to| to.state == State::Down)
    });
    let output = &stats.outputs[0];
    let why = copies(output)[1].reason.as_deref().unwrap();
    assert!(why.contains("every host on veth2"), "{why}");
    assert_eq!(copies(output)[0].address, "10.0.1.1");
    assert_eq!(stats.path, path);
    let why = output.name_error.as_deref().unwrap();
    assert!(why.contains("127.0.0.1 is refused"), "{why}");
    // Nor can a name of one address reach every host.
    bed.daemon.mcr(&["remove", "cam1"]).unwrap();
    bed.set(|zone| (zone.is_truncated, zone.addresses) = (false, vec![host(255)]));
    bed.daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["recorders:7000"])
        .unwrap();
    bed.wait("it is down", |output| {
        let why = output.reason.as_deref().unwrap_or_default();
        output.state == State::Down && why.contains("every host on veth2")
    });
}

fn another_resolv_conf_is_followed(path: &str) {
    let bed = bed(path, "recorders:7000,all,refresh=1s", addresses(&[10, 11]));
    bed.wait_for(&["10.0.1.10", "10.0.1.11"]);
    let other = Arc::new(Mutex::new(addresses(&[11, 12])));
    serve(&bed.chain, 13, &other);
    let follow = |text: &str| std::fs::write(bed.resolv.path(), text).unwrap();
    follow("search test\nnameserver 10.0.1.13\noptions timeout:1 attempts:1\n");
    bed.wait_for(&["10.0.1.11", "10.0.1.12"]);
    // No server at this address: the previous copies stay.
    follow("search test\nnameserver 10.0.1.14\noptions timeout:1 attempts:1\n");
    bed.wait("its silence is told", |output| output.name_error.is_some());
    bed.wait_for(&["10.0.1.11", "10.0.1.12"]);
    // The second server is queried if the first is silent.
    follow(
        "search test\nnameserver 10.0.1.14\nnameserver 10.0.1.2\noptions timeout:1 attempts:1\n",
    );
    bed.wait_for(&["10.0.1.10", "10.0.1.11"]);
}
