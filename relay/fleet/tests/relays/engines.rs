//! An etcd that is away, stops or loses its data.

use std::process::{Command, Stdio};
use std::time::Duration;

use config::OnIsolation;
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep};

use crate::cluster::{Cluster, needs_etcd};
use crate::node::{Node, PATIENCE, each_at_one, eventually, pair, rules};
use crate::recorder::never_two;

/// How long etcd is away: longer than two holds.
const AWAY: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn monitors_carry_relays_over_while_etcd_is_away() {
    needs_etcd!();
    let mut cluster = Cluster::start(3).await;
    let (a, b) = pair(&cluster, OnIsolation::Peers, 20).await;
    let held = a.host.open();
    let leader = cluster.leader().await;
    cluster.members[leader].signal(Signal::SIGSTOP);
    sleep(AWAY).await;
    assert_eq!(a.host.open(), held, "one member stopped");
    cluster.members[leader].signal(Signal::SIGCONT);
    cluster.members.iter_mut().for_each(|member| member.end());
    sleep(AWAY).await;
    assert_eq!(a.host.open(), held, "all of etcd is away");
    assert!(each_at_one(&[&a, &b], 20));
    cluster.members.iter_mut().for_each(|member| member.start());
    let back = |node: &Node| {
        node.relay()
            .status()
            .member
            .last_ack_ms
            .is_some_and(|ms| ms < 600)
    };
    eventually("etcd is back", || back(&a) && back(&b)).await;
    eventually("each share is open at one", || each_at_one(&[&a, &b], 20)).await;
    never_two(&[&a.host, &b.host]);
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_that_are_to_stop_do_and_begin_again() {
    needs_etcd!();
    let mut cluster = Cluster::start(1).await;
    let (a, b) = pair(&cluster, OnIsolation::Stop, 20).await;
    cluster.members[0].end();
    sleep(AWAY).await;
    assert!(a.host.open().is_empty() && b.host.open().is_empty());
    let away = |node: &Node| {
        let events = node.host.events();
        let is_away = |event: &&_| matches!(event, fleet::host::Event::EtcdAway { .. });
        events.iter().filter(is_away).count()
    };
    assert_eq!((away(&a), away(&b)), (1, 1), "told once");
    cluster.members[0].start();
    eventually("each share is open at one", || each_at_one(&[&a, &b], 20)).await;
    never_two(&[&a.host, &b.host]);
}

/// Changes that were compacted while a watch was broken are read anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_while_nobody_watches_loses_nothing() {
    needs_etcd!();
    let mut cluster = Cluster::start(3).await;
    let endpoint = cluster.members[0].endpoint.clone();
    let mut cut = Node::prepare("relay-a", vec![endpoint], OnIsolation::Stop);
    cut.run().await;
    let whole = Node::start("relay-b", &cluster).await;
    cut.joined().await;
    whole.joined().await;
    whole.relay().apply(rules(3), None, false).await.unwrap();
    eventually("rules", || cut.relay().status().rules.len() == 3).await;
    cluster.members[0].end();
    // It may have been the leader.
    let until = Instant::now() + PATIENCE;
    while let Err(error) = whole.relay().apply(rules(5), None, false).await {
        assert!(Instant::now() < until, "{error}");
    }
    let client = cluster.client();
    let revision = client.put("/any", "", PATIENCE).await.unwrap();
    let compacted = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", &cluster.members[1].endpoint])
        .args(["compact", &revision.to_string()])
        .stdout(Stdio::null())
        .status();
    assert!(compacted.unwrap().success());
    cluster.members[0].start();
    eventually("rules of after", || cut.relay().status().rules.len() == 5).await;
    eventually("each share is open at one", || {
        each_at_one(&[&cut, &whole], 5)
    })
    .await;
    never_two(&[&cut.host, &whole.host]);
}

/// Its contents contradict their replicas, and nobody restarts them.
#[tokio::test(flavor = "multi_thread")]
async fn relays_join_an_etcd_that_has_lost_its_data() {
    needs_etcd!();
    let mut cluster = Cluster::start(1).await;
    let (a, b) = pair(&cluster, OnIsolation::Peers, 20).await;
    for round in 1..3 {
        cluster.members[0].end();
        cluster.members[0].wipe();
        cluster.members[0].start();
        let has_seen = |node: &Node| {
            let events = node.host.events();
            let is_it = |event: &&_| matches!(event, fleet::host::Event::RelayFenced { why, .. } if why.contains("another cluster"));
            events.iter().filter(is_it).count() == round
        };
        eventually("both have seen it", || has_seen(&a) && has_seen(&b)).await;
        eventually("each share is open at one", || each_at_one(&[&a, &b], 20)).await;
    }
    never_two(&[&a.host, &b.host]);
    a.relay().apply(rules(5), None, false).await.unwrap();
    for node in [&a, &b] {
        eventually("rules", || node.relay().status().rules.len() == 5).await;
    }
}
