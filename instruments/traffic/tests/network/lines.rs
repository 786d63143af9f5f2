//! One stream on several legs, each with its own faults.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use traffic::framing::Framing;
use traffic::generator::{self, Line, Method, Options, Sizes};

use crate::bed::Pair;

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
        // The same seed makes the same choices, so the number is known in advance.
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
fn the_union_of_lines_is_compared_with_the_senders_report() {
    let Some(pair) = Pair::new() else { return };
    // Both legs lead to one endpoint, so that the receiver sees the union with every copy.
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

/// Sends on `lines` legs, each to its own loopback socket; returns what each received.
fn loopback(lines: usize, options: impl Fn(Options) -> Options) -> Vec<Vec<Vec<u8>>> {
    let sockets: Vec<_> = (0..lines)
        .map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap())
        .collect();
    let texts: Vec<_> = sockets
        .iter()
        .map(|socket| socket.local_addr().unwrap().to_string())
        .collect();
    let addresses: Vec<_> = texts.iter().map(String::as_str).collect();
    let sent = generator::run(&options(on(&addresses)), &generator::Control::default()).unwrap();
    assert_eq!(sent.errors, 0);
    let receive = |(socket, line): (&UdpSocket, &traffic::report::LineReport)| {
        let timeout = Some(Duration::from_secs(10));
        socket.set_read_timeout(timeout).unwrap();
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
fn numbers_wrap_and_senders_restart_as_requested() {
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
