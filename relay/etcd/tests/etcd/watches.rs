//! Watches: several targets, resuming from a revision, compaction, silence.

use std::process::Command;
use std::time::Duration;

use etcd::{Client, Error, Event, KeyRange, Watch, WatchTarget};
use nix::sys::signal::Signal;
use tokio::time::timeout;

use crate::cluster::{Cluster, PATIENCE, needs_etcd};

fn target(id: i64, prefix: &str, start_revision: i64) -> WatchTarget {
    WatchTarget {
        id,
        range: KeyRange::prefix(prefix),
        start_revision,
    }
}

pub(crate) fn compact(cluster: &Cluster, revision: i64) {
    let status = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", &cluster.members[0].endpoint, "compact"])
        .arg(revision.to_string())
        .status();
    assert!(status.unwrap().success());
}

/// The next key that was written or deleted, with its target and whether it was written.
async fn next_change(watch: &mut Watch) -> (i64, String, bool) {
    loop {
        let batch = timeout(PATIENCE, watch.next()).await.unwrap().unwrap();
        let Some(event) = batch.events.first() else {
            continue;
        };
        assert_eq!(batch.events.len(), 1, "{batch:?}");
        assert_eq!(batch.revision, event.mod_revision());
        let key = String::from_utf8(event.key().to_vec()).unwrap();
        return (batch.target, key, matches!(event, Event::Put(_)));
    }
}

async fn put(client: &Client, key: &str) -> i64 {
    client.put(key, "", PATIENCE).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_the_changes_of_each_target() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let client = cluster.client();
    let targets = vec![target(1, "a/", 0), target(2, "b/", 0)];
    let mut watch = client.watch(targets, PATIENCE).await.unwrap();
    // Both have started when an added one reports the past.
    let past = put(&client, "c/0").await;
    watch.add(target(7, "c/", past));
    assert_eq!(next_change(&mut watch).await, (7, "c/0".to_owned(), true));
    put(&client, "b/1").await;
    assert_eq!(next_change(&mut watch).await, (2, "b/1".to_owned(), true));
    put(&client, "elsewhere").await;
    put(&client, "a/1").await;
    assert_eq!(next_change(&mut watch).await, (1, "a/1".to_owned(), true));
    client.delete(KeyRange::key("a/1"), PATIENCE).await.unwrap();
    assert_eq!(next_change(&mut watch).await, (1, "a/1".to_owned(), false));
    watch.cancel(1);
    put(&client, "a/2").await;
    put(&client, "b/2").await;
    assert_eq!(next_change(&mut watch).await, (2, "b/2".to_owned(), true));
}

#[tokio::test(flavor = "multi_thread")]
async fn resumes_where_another_ended() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let client = cluster.client();
    let mut watch = client
        .watch(vec![target(1, "k", 0)], PATIENCE)
        .await
        .unwrap();
    put(&client, "k0").await;
    assert_eq!(next_change(&mut watch).await.1, "k0");
    let targets = watch.targets();
    drop(watch);
    for n in 1..=3000 {
        client.put(format!("k{n}"), "", PATIENCE).await.unwrap();
    }
    let mut watch = client.watch(targets, PATIENCE).await.unwrap();
    let mut keys = Vec::new();
    while keys.len() < 3000 {
        let batch = timeout(PATIENCE, watch.next()).await.unwrap().unwrap();
        if let Some(last) = batch.events.last() {
            assert_eq!(batch.revision, last.mod_revision());
        }
        keys.extend(batch.events.iter().map(|event| event.key().to_vec()));
    }
    let expected: Vec<_> = (1..=3000).map(|n| format!("k{n}").into_bytes()).collect();
    assert!(keys == expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_large_changes_in_parts() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let mut config = cluster.config();
    config.reply_max = 4 << 20;
    let client = Client::new(config).unwrap();
    let value = vec![b'v'; 1 << 20];
    let first = client.put("k0", value.clone(), PATIENCE).await.unwrap();
    for n in 1..12 {
        client
            .put(format!("k{n}"), value.clone(), PATIENCE)
            .await
            .unwrap();
    }
    let mut watch = client
        .watch(vec![target(1, "k", first)], PATIENCE)
        .await
        .unwrap();
    let mut count = 0;
    while count < 12 {
        let batch = timeout(PATIENCE, watch.next()).await.unwrap().unwrap();
        count += batch.events.len();
        assert!(batch.revision < first + 12);
    }
    assert_eq!(count, 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn distinguishes_compaction() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let client = cluster.client();
    let old = put(&client, "k").await;
    put(&client, "k").await;
    let new = put(&client, "k").await;
    compact(&cluster, new);
    let mut watch = client
        .watch(vec![target(1, "k", old)], PATIENCE)
        .await
        .unwrap();
    let error = timeout(PATIENCE, watch.next()).await.unwrap().unwrap_err();
    assert_eq!(error, Error::Compacted { revision: new });
}

#[tokio::test(flavor = "multi_thread")]
async fn stays_alive_while_nothing_happens() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let mut config = cluster.config();
    config.silence = Duration::from_secs(2);
    let client = Client::new(config).unwrap();
    let mut watch = client
        .watch(vec![target(1, "k", 0)], PATIENCE)
        .await
        .unwrap();
    let quiet = timeout(Duration::from_secs(6), watch.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    put(&client, "k").await;
    assert_eq!(next_change(&mut watch).await.1, "k");
}

#[tokio::test(flavor = "multi_thread")]
async fn notices_silence() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let client = cluster.client();
    let mut watch = client
        .watch(vec![target(1, "k", 0)], PATIENCE)
        .await
        .unwrap();
    cluster.members[0].signal(Signal::SIGSTOP);
    let error = timeout(PATIENCE, watch.next()).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("silent"), "{error}");
    cluster.members[0].signal(Signal::SIGCONT);
    let mut watch = client.watch(watch.targets(), PATIENCE).await.unwrap();
    put(&client, "k").await;
    assert_eq!(next_change(&mut watch).await.1, "k");
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_when_its_member_loses_the_leader() {
    needs_etcd!();
    let mut cluster = Cluster::start(3).await;
    let only = crate::cluster::config([cluster.members[0].endpoint.as_str()]);
    let client = Client::new(only).unwrap();
    let mut watch = client
        .watch(vec![target(1, "k", 0)], PATIENCE)
        .await
        .unwrap();
    cluster.members[1].end();
    cluster.members[2].end();
    let error = timeout(PATIENCE, watch.next()).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("no leader"), "{error}");
    // And a write is refused before it is proposed.
    let error = client.put("k", "", PATIENCE).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
}

/// A watch that resumed on an etcd that has lost its data would report nothing for an hour.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_is_ahead_of_etcd_fails() {
    needs_etcd!();
    let mut cluster = Cluster::start(1).await;
    let client = cluster.client();
    put(&client, "a/1").await;
    let revision = put(&client, "a/2").await;
    cluster.members[0].end();
    cluster.members[0].wipe();
    cluster.members[0].start();
    let until = tokio::time::Instant::now() + PATIENCE;
    let error = loop {
        assert!(tokio::time::Instant::now() < until);
        let targets = vec![target(1, "a/", revision + 1)];
        let Ok(mut watch) = client.watch(targets, PATIENCE).await else {
            continue;
        };
        match timeout(PATIENCE, watch.next()).await.unwrap() {
            Err(Error::Unavailable { .. }) => {}
            next => break next.unwrap_err(),
        }
    };
    let is_behind = matches!(&error, Error::Behind { revision, .. } if *revision < 3);
    assert!(is_behind, "{error}");
}
