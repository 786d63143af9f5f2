//! The rules of a fleet: applying them, and invalid values in etcd.

use std::time::Duration;

use config::{Hold, OnIsolation};
use etcd::{KeyRange, RangeOptions};
use fleet::error::Error;

use crate::cluster::{Cluster, needs_etcd};
use crate::node::{Node, PATIENCE, each_at_one, eventually, pair, rules};
use crate::recorder::never_two;

#[tokio::test(flavor = "multi_thread")]
async fn rules_are_applied_by_one_at_a_time() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let (a, b) = pair(&cluster, OnIsolation::Peers, 4).await;
    let stored = b.relay().rules(false).await.unwrap();
    assert_eq!((stored.generation, stored.rules.len()), (1, 4));
    let both = (
        a.relay().apply(rules(5), Some(1), false),
        b.relay().apply(rules(6), Some(1), false),
    );
    let (of_a, of_b) = tokio::join!(both.0, both.1);
    let (won, lost) = if of_a.is_ok() {
        (of_a, of_b)
    } else {
        (of_b, of_a)
    };
    let (won, lost) = (won.unwrap(), lost.unwrap_err());
    assert_eq!(won.generation, 2);
    assert!(matches!(lost, Error::Conflict(_)), "{lost}");
    let count = 4 + won.added.len();
    eventually("each share is open at one", || {
        each_at_one(&[&a, &b], count)
    })
    .await;
    let stale = a.relay().apply(rules(4), Some(1), false).await.unwrap_err();
    assert!(matches!(stale, Error::Conflict(_)), "{stale}");
    let diff = a.relay().apply(rules(3), None, true).await.unwrap();
    assert_eq!((diff.generation, diff.unchanged), (2, 3));
    assert_eq!(diff.removed.len(), count - 3);
    let mut changed = rules(count);
    changed[0].inputs = vec!["239.9.9.9%red:5000".to_owned()];
    let applied = b.relay().apply(changed, Some(2), false).await.unwrap();
    assert_eq!(
        (applied.generation, applied.changed),
        (3, vec!["r0".to_owned()])
    );
    never_two(&[&a.host, &b.host]);
}

/// Too many for one transaction. In debug builds and on a busy machine only the result counts, not the time.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_rules_are_one_step() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let (a, b) = pair(&cluster, OnIsolation::Peers, 4).await;
    let applied = a.relay().apply(rules(10_000), None, false).await.unwrap();
    assert_eq!(applied.added.len(), 9_996);
    let names = |node: &Node| {
        let status = node.relay().status();
        status.rules.values().map(Vec::len).sum::<usize>()
    };
    eventually("all rules are there", || {
        names(&a) == 10_000 && names(&b) == 10_000
    })
    .await;
    assert_eq!(b.relay().rules(false).await.unwrap().rules.len(), 10_000);
    never_two(&[&a.host, &b.host]);
}

/// Rules whose text was damaged or lost are repaired by applying them again.
#[tokio::test(flavor = "multi_thread")]
async fn rules_that_were_lost_are_applied_again() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let a = Node::start("relay-a", &cluster).await;
    a.joined().await;
    a.relay().apply(rules(3), None, false).await.unwrap();
    eventually("all are open", || each_at_one(&[&a], 3)).await;
    let client = cluster.client();
    let blobs = KeyRange::prefix("/mcr/plant/blobs/");
    let stored = client
        .range(blobs.clone(), RangeOptions::default(), PATIENCE)
        .await
        .unwrap();
    assert_eq!(stored.keys.len(), 1);
    client
        .put(stored.keys[0].key.clone(), "{", PATIENCE)
        .await
        .unwrap();
    let b = Node::start("relay-b", &cluster).await;
    eventually("it is refused", || b.host.refuses("generation 1")).await;
    a.relay().apply(rules(3), None, false).await.unwrap();
    eventually("rules", || b.relay().status().rules.len() == 3).await;
    client.delete(blobs, PATIENCE).await.unwrap();
    let c = Node::start("relay-c", &cluster).await;
    eventually("it is refused", || c.host.refuses("generation 1")).await;
    let applied = c.relay().apply(rules(4), None, false).await.unwrap();
    assert_eq!(applied.generation, 2);
    eventually("rules", || c.relay().status().rules.len() == 4).await;
    never_two(&[&a.host, &b.host, &c.host]);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_values_are_refused_by_name_and_change_nothing() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let endpoints = vec![cluster.members[0].endpoint.clone()];
    let mut a = Node::prepare("relay-a", endpoints, OnIsolation::Peers);
    // A busy machine keeps no gate open for the default's 1.2 s.
    a.settings().hold = Some(Hold(Duration::from_secs(5)));
    a.run().await;
    a.joined().await;
    a.relay().apply(rules(3), None, false).await.unwrap();
    eventually("all are open", || each_at_one(&[&a], 3)).await;
    let session = a.session();
    let client = cluster.client();
    let huge = "9".repeat(1_000_000);
    let values = [
        "",
        "{",
        "null",
        "[[[[",
        "\u{0}",
        r#"{"relay":7}"#,
        huge.as_str(),
    ];
    let names = [
        "drained/relay-a",
        "moves/r0",
        "relays/relay-x",
        "shares/r1",
        "rules/current",
    ];
    let more = [
        "settings",
        "shares/r 1",
        "shares/\u{1}",
        "zones/z",
        "relays/",
        "rules/next",
    ];
    for name in names.into_iter().chain(more) {
        for value in values {
            let key = format!("/mcr/plant/{name}");
            client.put(key, value, PATIENCE).await.unwrap();
        }
    }
    client
        .put("/mcr/plant/beats/relay-x", "{", PATIENCE)
        .await
        .unwrap();
    client
        .put("/mcr/plant/counters/relay-x", "{", PATIENCE)
        .await
        .unwrap();
    for name in names {
        let refused = || {
            let status = a.relay().status();
            // The holder repairs its share's key at once, perhaps before this check.
            status.member.refused.keys().any(|key| key.ends_with(name))
                || name.starts_with("shares/") && a.host.refuses(name)
        };
        eventually(name, refused).await;
        assert!(a.host.refuses(name), "{name}");
    }
    eventually("settings", || a.host.refuses("settings")).await;
    assert_eq!(a.session(), session);
    assert!(each_at_one(&[&a], 3));
    assert!(a.host.never_shut());
    // Rules are applied over an invalid value, and a generation is never used again.
    let applied = a.relay().apply(rules(4), None, false).await.unwrap();
    assert_eq!(applied.generation, 2);
    eventually("all are open", || each_at_one(&[&a], 4)).await;
}
