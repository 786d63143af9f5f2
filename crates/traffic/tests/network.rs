//! Generator and receiver against each other, over a veth pair between two namespaces of their own
//! (root), and over loopback. Nothing here depends on speed.

#![expect(
    clippy::unwrap_used,
    reason = "whatever is missing here fails the test that needs it"
)]

use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use sys::netns::Namespace;
use traffic::endpoint::{self, Destination, Listen};
use traffic::framing::Framing;
use traffic::generator::{self, Faults, Line, Method, Options, Sizes};
use traffic::receiver;
use traffic::report::{Injected, ReceiveReport, SendReport};

/// A sender's and a receiver's namespace, veth0 - veth1.
struct Pair {
    sender: Namespace,
    receiver: Namespace,
}

impl Pair {
    /// `None`, with the reason printed, where namespaces cannot be made.
    fn new() -> Option<Self> {
        let make = |label| Namespace::create("mcrtraffic", label);
        let (sender, receiver) = match (make("sender"), make("receiver")) {
            (Ok(sender), Ok(receiver)) => (sender, receiver),
            (Err(error), _) | (_, Err(error)) => {
                eprintln!("skipped: {error}");
                return None;
            }
        };
        let pair = Self { sender, receiver };
        let peer = pair.receiver.name().to_owned();
        ip(
            &pair.sender,
            &format!("link add veth0 type veth peer name veth1 netns {peer}"),
        );
        for (namespace, device, number) in
            [(&pair.sender, "veth0", 1), (&pair.receiver, "veth1", 2)]
        {
            ip(
                namespace,
                &format!("addr add 10.0.0.{number}/24 dev {device}"),
            );
            ip(
                namespace,
                &format!("addr add fd00::{number}/64 dev {device} nodad"),
            );
            ip(namespace, &format!("link set {device} up"));
        }
        for (namespace, device) in [(&pair.sender, "veth0"), (&pair.receiver, "veth1")] {
            wait_until_ipv6_works(namespace, device);
        }
        Some(pair)
    }

    /// Receives what `options` send, until `expect` packets came or 10 seconds passed.
    fn exchange(
        &self,
        endpoints: &[&str],
        options: &Options,
        expect: u64,
    ) -> (SendReport, ReceiveReport) {
        let endpoints = endpoints.iter().map(|text| listen(text)).collect();
        let control = receiver::Control::default();
        thread::scope(|scope| {
            let receiving = scope.spawn(|| {
                let receive = || receiver::run(&until(endpoints, expect), &control);
                self.receiver.run(receive).unwrap().unwrap()
            });
            wait_until_ready(&control);
            let send = || generator::run(options, &generator::Control::default());
            let sent = self.sender.run(send).unwrap().unwrap();
            (sent, receiving.join().unwrap())
        })
    }
}

fn until(endpoints: Vec<Listen>, count: u64) -> receiver::Options {
    receiver::Options {
        endpoints,
        count: Some(count),
        duration: Some(Duration::from_secs(10)),
        idle: None,
        cpu: None,
    }
}

fn wait_until_ready(control: &receiver::Control) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !control.ready.load(Ordering::Acquire) {
        assert!(Instant::now() < deadline, "the receiver never became ready");
        thread::sleep(Duration::from_millis(1));
    }
}

/// IPv6 sends nothing until duplicate address detection has let the link-local address pass.
fn wait_until_ipv6_works(namespace: &Namespace, device: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let mut command = namespace.command("ip");
        command.args(["-6", "addr", "show", "dev", device]);
        let shown = String::from_utf8(command.output().unwrap().stdout).unwrap();
        if shown.contains("scope link") && !shown.contains("tentative") {
            return;
        }
        assert!(Instant::now() < deadline, "{device} has no IPv6: {shown}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn ip(namespace: &Namespace, arguments: &str) {
    let status = namespace
        .command("ip")
        .args(arguments.split(' '))
        .status()
        .unwrap();
    assert!(status.success(), "ip {arguments}");
}

fn listen(text: &str) -> Listen {
    Listen::resolve(&text.parse().unwrap()).unwrap()
}

fn to(texts: &[&str]) -> Options {
    let resolve = |text: &&str| Destination::resolve(&text.parse().unwrap()).unwrap();
    let destinations = texts.iter().flat_map(resolve).collect();
    Options {
        rate_pps: Some(10_000.0),
        count: Some(500),
        ..Options::to(destinations)
    }
}

fn is_clean(report: &ReceiveReport) -> bool {
    let total = &report.total;
    !total.has_loss() && total.duplicated == 0 && total.reordered == 0
}

#[test]
fn every_packet_arrives_by_every_method_and_family() {
    let Some(pair) = Pair::new() else { return };
    for method in [Method::Auto, Method::Sockets, Method::Gso, Method::Raw] {
        for (destination, endpoint) in [
            ("239.1.1.1%veth0:5001", "239.1.1.1%veth1:5001"),
            (
                "232.1.1.1%veth0:5001",
                "10.0.0.9,10.0.0.1@232.1.1.1%veth1:5001",
            ),
            ("[ff3e::1%veth0]:5001", "[fd00::1@ff3e::1%veth1]:5001"),
        ] {
            let source = destination
                .starts_with('[')
                .then(|| "fd00::1".parse().unwrap());
            let options = Options {
                method,
                source,
                ..to(&[destination])
            };
            let (sent, received) = pair.exchange(&[endpoint], &options, 500);
            let context = format!("{method:?} {endpoint}: {received:?}");
            assert_eq!((sent.sent.packets, sent.errors), (500, 0), "{context}");
            assert_eq!(received.total.packets, 500, "{context}");
            assert_eq!(received.total.bytes, sent.sent.bytes, "{context}");
            assert!(is_clean(&received), "{context}");
            assert!(received.total.latency_us.p50.is_some(), "{context}");
        }
    }
}

#[test]
fn sizes_and_framings_pass_the_check() {
    let Some(pair) = Pair::new() else { return };
    let all = [
        Framing::Own,
        Framing::Rtp,
        Framing::Ts,
        Framing::RtpTs,
        Framing::Moldudp64,
        Framing::Mdp3,
    ];
    let sizes = all.map(|framing| (framing, Sizes::Fixed(framing.usual_size())));
    let mixed = [Sizes::imix(), Sizes::Range(32, 1400)].map(|sizes| (Framing::Own, sizes));
    for (framing, sizes) in sizes.into_iter().chain(mixed) {
        for method in [Method::Sockets, Method::Gso, Method::Raw] {
            let sizes = sizes.clone();
            let options = Options {
                framing,
                sizes,
                method,
                burst: Some(7),
                ..to(&["239.1.1.1%veth0:5001"])
            };
            let (_, received) = pair.exchange(&["239.1.1.1%veth1:5001"], &options, 500);
            assert_eq!(
                received.total.packets, 500,
                "{framing:?} {method:?}: {received:?}"
            );
            assert!(is_clean(&received), "{framing:?} {method:?}: {received:?}");
        }
    }
}

#[test]
fn faults_put_in_are_the_faults_found() {
    let Some(pair) = Pair::new() else { return };
    let faults = Faults {
        lose: 2.0,
        duplicate: 1.0,
        reorder: 3.0,
        corrupt: 1.0,
    };
    for framing in [Framing::Own, Framing::RtpTs] {
        let sizes = Sizes::Fixed(framing.usual_size());
        let options = Options {
            faults,
            framing,
            sizes,
            seed: 5,
            count: Some(5000),
            ..to(&["239.1.1.1%veth0:5001"])
        };
        // The same seed makes the same choices: a first run says how many packets there will be.
        let first = pair
            .sender
            .run(|| generator::run(&options, &generator::Control::default()).unwrap());
        let Injected {
            lost, duplicated, ..
        } = first.unwrap().injected.unwrap();
        let expect = 5000 - lost + duplicated;
        let (sent, received) = pair.exchange(&["239.1.1.1%veth1:5001"], &options, expect);
        let total = received.total;
        let found = Injected {
            lost: total.lost,
            duplicated: total.duplicated,
            reordered: total.reordered,
            corrupt: total.corrupt,
        };
        assert_eq!(Some(found), sent.injected);
        assert_eq!(total.packets, sent.sent.packets);
    }
}

#[test]
fn each_endpoint_accounts_for_its_own_group_and_port_only() {
    let Some(pair) = Pair::new() else { return };
    let options = to(&[
        "239.1.1.1%veth0:5001",
        "239.1.1.2%veth0:5001",
        "239.1.1.1%veth0:5002",
    ]);
    let endpoints = [
        "239.1.1.1%veth1:5001",
        "239.1.1.2%veth1:5001-5003",
        "239.1.1.1%veth1:5002",
    ];
    let (_, received) = pair.exchange(&endpoints, &options, 1500);
    let packets: Vec<_> = received
        .endpoints
        .iter()
        .map(|endpoint| endpoint.tally.packets)
        .collect();
    assert_eq!(packets, [500, 500, 500]);
    assert!(received.total.skew_us.is_none());
}

#[test]
fn copies_of_one_stream_show_their_skew() {
    let Some(pair) = Pair::new() else { return };
    let endpoints = ["239.1.1.1%veth1:5001"; 2];
    let (_, received) = pair.exchange(&endpoints, &to(&["239.1.1.1%veth0:5001"]), 1000);
    assert!(is_clean(&received), "{received:?}");
    assert!(received.total.skew_us.is_some());
}

#[test]
fn five_hundred_groups_need_no_sysctl() {
    let Some(pair) = Pair::new() else { return };
    let describe = |first: &str| {
        let endpoints = endpoint::count_up(&first.parse().unwrap(), 500).unwrap();
        endpoints
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    let destinations = describe("239.1.1.1%veth0:5001");
    let endpoints = describe("239.1.1.1%veth1:5001");
    let texts: Vec<_> = destinations.iter().map(String::as_str).collect();
    let endpoints: Vec<_> = endpoints.iter().map(String::as_str).collect();
    let options = Options {
        rate_pps: Some(100.0),
        count: Some(4),
        ..to(&texts)
    };
    let (_, received) = pair.exchange(&endpoints, &options, 2000);
    assert!(
        received
            .endpoints
            .iter()
            .all(|endpoint| endpoint.tally.packets == 4)
    );
    assert!(is_clean(&received));
}

#[test]
fn a_foreign_source_address_takes_raw_frames() {
    let Some(pair) = Pair::new() else { return };
    let sysctl = "net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.veth1.rp_filter=0";
    let loosened = pair
        .receiver
        .command("sysctl")
        .arg("-qw")
        .args(sysctl.split(' '))
        .status();
    assert!(loosened.unwrap().success());
    let source = Some("192.0.2.7".parse().unwrap());
    let options = Options {
        source,
        ..to(&["232.1.1.1%veth0:5001"])
    };
    let (_, received) = pair.exchange(&["192.0.2.7@232.1.1.1%veth1:5001"], &options, 500);
    assert_eq!(received.total.packets, 500);
}

fn on(lines: &[&str]) -> Options {
    let lines = lines.iter().map(|text| text.parse::<Line>().unwrap());
    Options {
        rate_pps: Some(10_000.0),
        count: Some(2000),
        seed: 3,
        ..Options::on(lines.collect())
    }
}

#[test]
fn each_line_arrives_as_the_sender_reports_it() {
    let Some(pair) = Pair::new() else { return };
    for (method, burst) in [
        (Method::Sockets, None),
        (Method::Gso, Some(8)),
        (Method::Raw, None),
    ] {
        let options = Options {
            method,
            burst,
            framing: Framing::Rtp,
            ..on(&[
                "239.1.1.1%veth0:5001,lose=10%,burst=5,jitter=1ms,duplicate=2%",
                "239.2.1.1%veth0:5002,lose=10%,delay=20ms,reorder=2%,cut=100ms-120ms",
            ])
        };
        let endpoints = ["239.1.1.1%veth1:5001", "239.2.1.1%veth1:5002"];
        // The same seed makes the same choices, so that the number is known before.
        let first = pair
            .sender
            .run(|| generator::run(&options, &generator::Control::default()).unwrap());
        let expect = first.unwrap().sent.packets;
        let (sent, received) = pair.exchange(&endpoints, &options, expect);
        assert_eq!((sent.sent.packets, sent.errors), (expect, 0));
        for (line, endpoint) in sent.lines.iter().zip(&received.endpoints) {
            let tally = &endpoint.tally;
            let context = format!("{method:?} {line:?} {tally:?}");
            assert_eq!(tally.packets, line.sent, "{context}");
            assert_eq!(tally.duplicated, line.duplicated, "{context}");
            assert_eq!(tally.reordered, line.reordered, "{context}");
            assert_eq!(
                line.sent - line.duplicated + line.lost + line.cut,
                2000,
                "{context}"
            );
            assert!(line.lost > 0 && line.missed > 0, "{context}");
        }
        let [a, b] = &sent.lines[..] else {
            panic!("two lines: {sent:?}");
        };
        assert!(a.cut == 0 && b.cut > 0, "{sent:?}");
        assert!(received.total.skew_us.is_some(), "{received:?}");
    }
}

#[test]
fn the_union_of_lines_is_judged_by_the_senders_report() {
    let Some(pair) = Pair::new() else { return };
    // Both lines lead to one place, so that the receiver sees the union with every copy.
    let options = on(&[
        "239.1.1.1%veth0:5001,lose=20%",
        "239.1.1.1%veth0:5001,lose=20%,delay=5ms",
    ]);
    let run = || generator::run(&options, &generator::Control::default()).unwrap();
    let expect = pair.sender.run(run).unwrap().sent.packets;
    let (sent, received) = pair.exchange(&["239.1.1.1%veth1:5001"], &options, expect);
    let union = sent.union.unwrap();
    let mut judged = received.endpoints[0].clone();
    judged.judge(&union);
    let judgement = judged.union.unwrap();
    assert_eq!((judgement.missing, judgement.received), (0, union.on_any));
    assert_eq!(judgement.twice, sent.sent.packets - union.on_any);
    assert_eq!(judgement.reordered, 0, "{received:?} {union:?}");
    assert_eq!(received.total.lost, union.lost);
    assert!(
        union.on_any < union.numbers && union.reordered > 0,
        "{union:?}"
    );
    assert!(!judgement.is_exact());
}

/// A socket on loopback for each of so many lines, and what options lead there.
fn loopback(lines: usize, options: impl Fn(Options) -> Options) -> Vec<Vec<Vec<u8>>> {
    let sockets: Vec<_> = (0..lines)
        .map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap())
        .collect();
    let texts: Vec<_> = sockets
        .iter()
        .map(|socket| socket.local_addr().unwrap().to_string())
        .collect();
    let texts: Vec<_> = texts.iter().map(String::as_str).collect();
    let sent = generator::run(&options(on(&texts)), &generator::Control::default()).unwrap();
    assert_eq!(sent.errors, 0);
    let receive = |(socket, line): (&UdpSocket, &traffic::report::LineReport)| {
        let patience = Some(Duration::from_secs(10));
        socket.set_read_timeout(patience).unwrap();
        let mut buffer = [0; 2048];
        (0..line.sent)
            .map(|_| {
                let bytes = socket.recv(&mut buffer).unwrap();
                buffer[..bytes].to_vec()
            })
            .collect()
    };
    sockets.iter().zip(&sent.lines).map(receive).collect()
}

#[test]
fn all_lines_carry_the_same_bytes() {
    for framing in [
        Framing::Own,
        Framing::Rtp,
        Framing::RtpTs,
        Framing::Moldudp64,
        Framing::Mdp3,
    ] {
        let lines = loopback(3, |options| Options {
            framing,
            sizes: Sizes::Fixed(framing.usual_size()),
            count: Some(50),
            ..options
        });
        assert_eq!(lines[0].len(), 50, "{framing:?}");
        assert!(lines[0] == lines[1] && lines[1] == lines[2], "{framing:?}");
    }
}

#[test]
fn numbers_wrap_and_senders_restart_as_asked() {
    let lines = loopback(1, |options| Options {
        framing: Framing::Rtp,
        senders: 2,
        count: Some(40),
        rate_pps: Some(1000.0),
        start: Some(65_530),
        restarts: vec!["20ms".parse().unwrap(), "at=30ms,number=9".parse().unwrap()],
        ..options
    });
    let headers: Vec<_> = lines[0]
        .iter()
        .map(|packet| packet::rtp::Header::read(packet).unwrap())
        .collect();
    for sender in 0..2 {
        let own: Vec<_> = headers.iter().skip(sender).step_by(2).collect();
        let numbers: Vec<u16> = own.iter().map(|header| header.sequence).collect();
        let run = |from: u16, count: u16| (0..count).map(move |n| from.wrapping_add(n));
        let expected: Vec<u16> = run(65_530, 20)
            .chain(run(65_530, 10))
            .chain(run(9, 10))
            .collect();
        assert_eq!(numbers, expected);
        let sources: Vec<u32> = own.iter().map(|header| header.ssrc).collect();
        assert!(sources[..20].iter().all(|&ssrc| ssrc == sources[0]));
        assert!(sources[20..].iter().all(|&ssrc| ssrc == sources[20]));
        assert_ne!(sources[0], sources[20]);
        assert_ne!(headers[0].ssrc, headers[1].ssrc);
    }
}

#[test]
fn a_run_ends_at_once_when_told_to_and_still_reports() {
    let control = receiver::Control::default();
    let listen = Listen {
        addresses: vec!["127.0.0.1:0".parse().unwrap()],
        ..listen("127.0.0.1:1")
    };
    let options = receiver::Options {
        count: None,
        duration: None,
        ..until(vec![listen], 0)
    };
    let sending = generator::Control::default();
    let forever = Options {
        rate_pps: Some(0.01),
        count: None,
        ..to(&["127.0.0.1:9"])
    };
    thread::scope(|scope| {
        let received = scope.spawn(|| receiver::run(&options, &control).unwrap());
        let sent = scope.spawn(|| generator::run(&forever, &sending).unwrap());
        wait_until_ready(&control);
        control.stop.store(true, Ordering::Relaxed);
        sending.stop.store(true, Ordering::Relaxed);
        assert_eq!(received.join().unwrap().total.packets, 0);
        assert!(sent.join().unwrap().seconds < 10.0);
    });
}

#[test]
fn unicast_over_loopback_needs_no_privilege() {
    let port = {
        let probe = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        probe.local_addr().unwrap().port()
    };
    let at = format!("127.0.0.1:{port}");
    let listen = listen(&at);
    let control = receiver::Control::default();
    let options = Options {
        ramp: Duration::from_millis(50),
        ..to(&[&at])
    };
    let (sent, received) = thread::scope(|scope| {
        let receiving = scope.spawn(|| receiver::run(&until(vec![listen], 500), &control).unwrap());
        wait_until_ready(&control);
        let sent = generator::run(&options, &generator::Control::default()).unwrap();
        (sent, receiving.join().unwrap())
    });
    assert_eq!((sent.sent.packets, received.total.packets), (500, 500));
    assert!(is_clean(&received), "{received:?}");
}

#[test]
fn what_stands_in_the_way_is_named() {
    let error = generator::run(
        &to(&["239.1.1.1%nosuch0:5001"]),
        &generator::Control::default(),
    );
    assert!(error.unwrap_err().to_string().contains("nosuch0"));
    let listen = listen("239.1.1.1%nosuch0:5001");
    let error = receiver::run(&until(vec![listen], 1), &receiver::Control::default());
    assert!(error.unwrap_err().to_string().contains("nosuch0"));
    let tiny = Options {
        sizes: Sizes::Fixed(8),
        ..to(&["127.0.0.1:9"])
    };
    assert!(generator::run(&tiny, &generator::Control::default()).is_err());
    let unnumbered = Options {
        start: Some(1),
        ..to(&["127.0.0.1:9"])
    };
    let error = generator::run(&unnumbered, &generator::Control::default());
    assert!(error.unwrap_err().to_string().contains("--framing rtp"));
}

#[test]
fn a_capture_is_replayed_datagram_by_datagram() {
    let Some(pair) = Pair::new() else { return };
    if Command::new("tcpdump").arg("--version").output().is_err() {
        eprintln!("skipped: tcpdump is not installed");
        return;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut tcpdump = pair.receiver.command("tcpdump");
    let path = file.path().to_str().unwrap();
    tcpdump.args([
        "-i",
        "veth1",
        "-c",
        "500",
        "-U",
        "-Z",
        "root",
        "-w",
        path,
        "udp port 5001",
    ]);
    let mut tcpdump = tcpdump
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_listening(&mut tcpdump);
    let (sent, _) = pair.exchange(
        &["239.1.1.1%veth1:5001"],
        &to(&["239.1.1.1%veth0:5001"]),
        500,
    );
    assert!(tcpdump.wait().unwrap().success());
    let capture = traffic::capture::Capture::open(file.path()).unwrap();
    assert_eq!((capture.datagrams(), capture.flows.len()), (500, 1));
    let options = Options {
        replay: Some(capture),
        count: None,
        ..to(&["239.2.2.2%veth0:6001"])
    };
    let (replayed, received) = pair.exchange(&["239.2.2.2%veth1:6001"], &options, 500);
    assert_eq!(replayed.sent, sent.sent);
    assert!(
        is_clean(&received) && received.total.packets == 500,
        "{received:?}"
    );
}

/// tcpdump says on standard error when its tap is open.
fn wait_for_listening(tcpdump: &mut std::process::Child) {
    use std::io::{BufRead, BufReader};
    let stderr = tcpdump.stderr.take().unwrap();
    let mut lines = BufReader::new(stderr).lines();
    let said = lines.find(|line| {
        line.as_ref()
            .is_ok_and(|line| line.contains("listening on"))
    });
    assert!(said.is_some(), "tcpdump ended before it listened");
    // Drained to the end, so that tcpdump never writes into a closed pipe.
    thread::spawn(move || lines.for_each(drop));
}
