//! Generator and receiver against each other, over a veth pair between two namespaces of their own
//! (root), and over loopback. Nothing here depends on speed.

#![expect(
    clippy::unwrap_used,
    reason = "whatever is missing here fails the test that needs it"
)]

mod bed;
mod lines;
mod replay;

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use traffic::endpoint::{self, Listen};
use traffic::framing::Framing;
use traffic::generator::{self, Faults, Method, Options, Sizes};
use traffic::receiver;
use traffic::report::Injected;

use bed::{Pair, is_clean, listen, to, until, wait_until_ready};

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
            let options = Options {
                framing,
                sizes: sizes.clone(),
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
fn injected_faults_are_the_faults_counted() {
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
        // The same seed makes the same choices: a first run shows how many packets there will be.
        let first = pair
            .sender
            .run(|| generator::run(&options, &generator::Control::default()).unwrap());
        let Injected {
            lost, duplicated, ..
        } = first.unwrap().injected.unwrap();
        let expect = 5000 - lost + duplicated;
        let (sent, received) = pair.exchange(&["239.1.1.1%veth1:5001"], &options, expect);
        let total = received.total;
        let counted = Injected {
            lost: total.lost,
            duplicated: total.duplicated,
            reordered: total.reordered,
            corrupt: total.corrupt,
        };
        assert_eq!(Some(counted), sent.injected);
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
    let sender_texts = describe("239.1.1.1%veth0:5001");
    let receiver_texts = describe("239.1.1.1%veth1:5001");
    let destinations: Vec<_> = sender_texts.iter().map(String::as_str).collect();
    let endpoints: Vec<_> = receiver_texts.iter().map(String::as_str).collect();
    let options = Options {
        rate_pps: Some(100.0),
        count: Some(4),
        ..to(&destinations)
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
    let status = pair
        .receiver
        .command("sysctl")
        .arg("-qw")
        .args(sysctl.split(' '))
        .status();
    assert!(status.unwrap().success());
    let source = Some("192.0.2.7".parse().unwrap());
    let options = Options {
        source,
        ..to(&["232.1.1.1%veth0:5001"])
    };
    let (_, received) = pair.exchange(&["192.0.2.7@232.1.1.1%veth1:5001"], &options, 500);
    assert_eq!(received.total.packets, 500);
}

#[test]
fn a_run_ends_at_once_when_stopped_and_still_reports() {
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
fn errors_name_their_cause() {
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
