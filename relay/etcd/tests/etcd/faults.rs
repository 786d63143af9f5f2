//! Members that stop, die and come back; endpoints where nobody answers.

use std::time::Duration;

use etcd::{Client, Error, KeyRange, RangeOptions};
use nix::sys::signal::Signal;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use crate::cluster::{Cluster, PATIENCE, address, config, needs_etcd};

#[tokio::test(flavor = "multi_thread")]
async fn does_not_know_what_a_stopped_member_did() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let client = cluster.client();
    client.put("k", "before", PATIENCE).await.unwrap();
    cluster.members[0].signal(Signal::SIGSTOP);
    let lost = client.put("k", "while", Duration::from_millis(500)).await;
    assert!(matches!(lost, Err(Error::Unknown { .. })), "{lost:?}");
    // The silent connection is retired, and a new one gets no answer: nothing more is sent.
    let unsent = client.put("k", "never", Duration::from_millis(500)).await;
    assert!(
        matches!(unsent, Err(Error::Unavailable { .. })),
        "{unsent:?}"
    );
    let (key, options) = (KeyRange::key("k"), RangeOptions::default());
    let unread = client.range(key, options, Duration::from_millis(500)).await;
    assert!(
        matches!(unread, Err(Error::Unavailable { .. })),
        "{unread:?}"
    );
    cluster.members[0].signal(Signal::SIGCONT);
    crate::cluster::answers(&client).await;
    let read = client.range(KeyRange::key("k"), RangeOptions::default(), PATIENCE);
    let value = read.await.unwrap().keys.remove(0).value;
    assert_ne!(value, b"never");
}

#[tokio::test(flavor = "multi_thread")]
async fn goes_to_the_next_endpoint_past_a_stopped_one() {
    needs_etcd!();
    let cluster = Cluster::start(3).await;
    let stopped = (cluster.leader().await + 1) % 3;
    let other = (stopped + 1) % 3;
    cluster.members[stopped].signal(Signal::SIGSTOP);
    let endpoints = [stopped, other].map(|n| cluster.members[n].endpoint.as_str());
    let client = Client::new(config(endpoints)).unwrap();
    // The kernel accepts the connection, but nobody answers on it: surely not sent, so it is sent
    // to the next one.
    let written = client.put("k", "", PATIENCE).await;
    cluster.members[stopped].signal(Signal::SIGCONT);
    written.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn asks_another_member_when_the_leader_is_killed() {
    needs_etcd!();
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    cluster.members.rotate_left(leader);
    let client = cluster.client();
    client.put("k", "before", PATIENCE).await.unwrap();
    cluster.members[0].end();
    let until = Instant::now() + PATIENCE;
    loop {
        match client.put("k", "after", Duration::from_secs(5)).await {
            Ok(_) => break,
            Err(error @ Error::Refused { .. }) => panic!("{error}"),
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
    let read = client.range(KeyRange::key("k"), RangeOptions::default(), PATIENCE);
    assert_eq!(read.await.unwrap().keys[0].value, b"after");
}

#[tokio::test(flavor = "multi_thread")]
async fn reaches_a_member_that_was_started_again() {
    needs_etcd!();
    let mut cluster = Cluster::start(1).await;
    let client = cluster.client();
    let revision = client.put("k", "1", PATIENCE).await.unwrap();
    cluster.members[0].end();
    let down = client.put("k", "2", Duration::from_secs(2)).await;
    // The end of the connection may be noticed only after the request was sent.
    assert!(
        !matches!(down, Ok(_) | Err(Error::Refused { .. })),
        "{down:?}"
    );
    let down = client.put("k", "2", Duration::from_secs(2)).await;
    assert!(matches!(down, Err(Error::Unavailable { .. })), "{down:?}");
    cluster.members[0].start();
    crate::cluster::answers(&client).await;
    assert_eq!(client.put("k", "3", PATIENCE).await, Ok(revision + 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_why_each_endpoint_is_not_reached() {
    let listener = TcpListener::bind((address(), 0)).await.unwrap();
    let mute = listener.local_addr().unwrap();
    let endpoints = [format!("http://{mute}"), "http://127.0.0.1:1".to_owned()];
    let client = Client::new(config(endpoints.iter().map(String::as_str))).unwrap();
    let started = Instant::now();
    let error = client
        .put("k", "", Duration::from_secs(1))
        .await
        .unwrap_err();
    assert!(started.elapsed() < PATIENCE);
    let text = error.to_string();
    assert!(matches!(error, Error::Unavailable { .. }), "{text}");
    assert!(
        text.contains(&format!("{mute}: no connection yet")),
        "{text}"
    );
    assert!(text.contains("127.0.0.1:1: Connection refused"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn finds_the_address_of_a_name() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let client = Client::new(config(["http://no-such-host.invalid:2379"])).unwrap();
    let error = client.put("k", "", PATIENCE).await.unwrap_err();
    assert!(
        error.to_string().contains("no-such-host.invalid"),
        "{error}"
    );
    assert!(matches!(error, Error::Unavailable { .. }));
    let port = cluster.members[0].endpoint.rsplit(':').next().unwrap();
    // No member listens at localhost itself: what counts is that it is resolved.
    let client = Client::new(config([format!("http://localhost:{port}").as_str()])).unwrap();
    let error = client.put("k", "", PATIENCE).await.unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
}
