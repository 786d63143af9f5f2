//! Requests of operators.

use std::time::Duration;

use api::reply::FleetRelayState;
use config::OnIsolation;
use etcd::KeyRange;
use fleet::error::Error;

use crate::cluster::{Cluster, needs_etcd};
use crate::node::{each_at_one, eventually, pair, shares};
use crate::recorder::never_two;

#[tokio::test(flavor = "multi_thread")]
async fn shares_go_where_operators_want_them() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let (a, b) = pair(&cluster, OnIsolation::Peers, 20).await;
    let drain = |drained| b.relay().drain("relay-a".to_owned(), drained);
    drain(true).await.unwrap();
    eventually("drained", || b.host.open() == shares(20)).await;
    drain(false).await.unwrap();
    eventually("in service", || {
        b.relay().status().member.relays["relay-a"].reported.state != FleetRelayState::Drained
    })
    .await;
    let move_to = |name: &str, relay: &str| {
        let (names, relay) = (vec![name.to_owned()], relay.to_owned());
        async { b.relay().move_to(names, relay).await }
    };
    assert_eq!(move_to("r7", "relay-a").await.unwrap(), ["r7"]);
    eventually("moved", || a.host.open().contains("r7")).await;
    let unknown = move_to("r77", "relay-a").await.unwrap_err();
    assert!(matches!(unknown, Error::NotFound(_)), "{unknown}");
    let unknown = move_to("r7", "relay-c").await.unwrap_err();
    assert!(matches!(unknown, Error::NotFound(_)), "{unknown}");
    let moved = b.relay().rebalance().await.unwrap();
    assert!(!moved.is_empty());
    eventually("spread", || {
        a.host.open().len().abs_diff(b.host.open().len()) <= 4
    })
    .await;
    let status = b.relay().full_status().await;
    assert!(status.etcd.version.is_some());
    a.relay().leave(Duration::from_secs(20)).await;
    assert!(a.host.open().is_empty());
    eventually("the other has all", || b.host.open() == shares(20)).await;
    let knows = || b.relay().status().member.relays.contains_key("relay-a");
    eventually("it has gone", || !knows()).await;
    never_two(&[&a.host, &b.host]);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_silent_relay_is_fenced_by_hand() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let (mut a, b) = pair(&cluster, OnIsolation::Peers, 4).await;
    let fence = || b.relay().fence("relay-a".to_owned());
    let alive = fence().await.unwrap_err();
    assert!(matches!(alive, Error::Conflict(_)), "{alive}");
    assert!(each_at_one(&[&a, &b], 4));
    a.crash();
    // A monitor may have been faster.
    match fence().await {
        Ok(()) | Err(Error::Conflict(_)) => {}
        Err(error) => panic!("{error}"),
    }
    eventually("the other has all", || b.host.open() == shares(4)).await;
    never_two(&[&a.host, &b.host]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_lives_is_not_fenced_because_its_beat_key_is_deleted() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let (a, b) = pair(&cluster, OnIsolation::Peers, 4).await;
    let beat = KeyRange::key("/mcr/plant/beats/relay-a");
    let deleted = cluster.client().delete(beat, Duration::from_secs(5)).await;
    assert_eq!(deleted.unwrap(), 1);
    let alive = b.relay().fence("relay-a".to_owned()).await.unwrap_err();
    assert!(matches!(alive, Error::Conflict(_)), "{alive}");
    eventually("all are forwarded", || each_at_one(&[&a, &b], 4)).await;
    never_two(&[&a.host, &b.host]);
}

/// It has no entry any more, and nobody sees its beats: the operator knows that it is dead.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_whose_keys_are_deleted_is_fenced_by_hand() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let (mut a, b) = pair(&cluster, OnIsolation::Peers, 4).await;
    a.crash();
    for kind in ["beats", "relays"] {
        let key = KeyRange::key(format!("/mcr/plant/{kind}/relay-a"));
        let deleted = cluster.client().delete(key, Duration::from_secs(5)).await;
        assert_eq!(deleted.unwrap(), 1);
    }
    // Another relay may have been faster, and has written its entry.
    match b.relay().fence("relay-a".to_owned()).await {
        Ok(()) | Err(Error::Conflict(_)) => {}
        Err(error) => panic!("{error}"),
    }
    eventually("the other has all", || b.host.open() == shares(4)).await;
    never_two(&[&a.host, &b.host]);
}
