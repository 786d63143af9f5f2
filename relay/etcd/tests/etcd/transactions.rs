//! Transactions, ranges, status.

use etcd::{Compare, Error, Is, KeyRange, Op, OpReply, RangeOptions, Txn};

use crate::cluster::{Cluster, PATIENCE, needs_etcd};

#[tokio::test(flavor = "multi_thread")]
async fn compares_what_a_key_has() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let client = cluster.client();
    let created = client.put("k", "1", PATIENCE).await.unwrap();
    let changed = client.put("k", "2", PATIENCE).await.unwrap();
    assert_eq!(changed, created + 1);
    let cases = [
        (Compare::create_revision("k", Is::Equal, created), true),
        (Compare::create_revision("k", Is::NotEqual, created), false),
        (Compare::mod_revision("k", Is::Equal, changed), true),
        (Compare::mod_revision("k", Is::Equal, created), false),
        (Compare::mod_revision("k", Is::Greater, created), true),
        (Compare::mod_revision("k", Is::Less, created), false),
        (Compare::version("k", Is::Equal, 2), true),
        (Compare::version("k", Is::Less, 3), true),
        (Compare::value("k", Is::Equal, "2"), true),
        (Compare::value("k", Is::NotEqual, "2"), false),
        (Compare::absent("k"), false),
        (Compare::absent("other"), true),
        (Compare::mod_revision("other", Is::Equal, 0), true),
    ];
    for (compare, holds) in cases {
        let txn = Txn::new().when(compare.clone());
        let reply = client.txn(txn, PATIENCE).await.unwrap();
        assert_eq!(reply.succeeded, holds, "{compare:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn carries_out_one_side_of_a_transaction() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let client = cluster.client();
    let txn = || {
        Txn::new()
            .when(Compare::absent("a"))
            .then(Op::put("a", "x"))
            .then(Op::put("b", "y"))
            .otherwise(Op::range(KeyRange::key("a")))
            .otherwise(Op::delete(KeyRange::prefix("b")))
    };
    let first = client.txn(txn(), PATIENCE).await.unwrap();
    assert!(first.succeeded);
    assert_eq!(first.replies, [OpReply::Put, OpReply::Put]);
    let second = client.txn(txn(), PATIENCE).await.unwrap();
    assert!(!second.succeeded);
    let seen = second.replies[0].first().unwrap();
    assert_eq!((seen.value.as_slice(), seen.version), (&b"x"[..], 1));
    assert_eq!(seen.create_revision, first.revision);
    assert_eq!(second.replies[1], OpReply::Deleted(1));
    assert_eq!(second.revision, first.revision + 1);
    let deleted = client.delete(KeyRange::prefix(""), PATIENCE).await.unwrap();
    assert_eq!(deleted, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_why_etcd_refuses() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let client = cluster.client();
    let many = (0..200).fold(Txn::new(), |txn, n| txn.then(Op::put(format!("k{n}"), "")));
    let refused = client.txn(many, PATIENCE).await.unwrap_err();
    assert!(
        refused.to_string().contains("too many operations"),
        "{refused}"
    );
    assert!(matches!(refused, Error::Refused { code: 3, .. }));
    let large = client.put("k", vec![0; 2 << 20], PATIENCE).await;
    assert!(matches!(large, Err(Error::Refused { .. })), "{large:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_ten_thousand_keys_in_pages() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let client = cluster.client();
    for hundred in 0..100 {
        let put = |txn: Txn, n| txn.then(Op::put(format!("/p/{hundred:02}{n:02}"), vec![b'v'; 64]));
        let txn = (0..100).fold(Txn::new(), put);
        client.txn(txn, PATIENCE).await.unwrap();
    }
    client.put("/q", "not of it", PATIENCE).await.unwrap();
    let options = RangeOptions {
        limit: 700,
        ..RangeOptions::default()
    };
    let prefix = || KeyRange::prefix("/p/");
    let page = client.range(prefix(), options, PATIENCE).await.unwrap();
    assert_eq!(
        (page.keys.len(), page.count, page.more),
        (700, 10_000, true)
    );
    let listed = client.list(prefix(), options, PATIENCE).await.unwrap();
    assert_eq!((listed.keys.len(), listed.count), (10_000, 10_000));
    assert!(listed.keys.is_sorted_by(|a, b| a.key < b.key));
    assert_eq!(listed.keys[9_999].value, vec![b'v'; 64]);
    assert_eq!(listed.revision, page.revision);
    let keys_only = RangeOptions {
        keys_only: true,
        ..RangeOptions::default()
    };
    let names = client.list(prefix(), keys_only, PATIENCE).await.unwrap();
    assert!(names.keys.iter().all(|kv| kv.value.is_empty()));
}

#[tokio::test(flavor = "multi_thread")]
async fn takes_no_reply_above_its_limit() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let mut config = cluster.config();
    config.reply_max = 1000;
    let client = etcd::Client::new(config).unwrap();
    client.put("k", vec![b'v'; 1000], PATIENCE).await.unwrap();
    let read = client.range(KeyRange::key("k"), RangeOptions::default(), PATIENCE);
    let error = read.await.unwrap_err();
    assert!(
        error.to_string().contains("1000 are taken at most"),
        "{error}"
    );
    assert!(matches!(error, Error::Unavailable { .. }));
    // A write whose answer cannot be read was sent all the same.
    let txn = Txn::new()
        .then(Op::put("w", "1"))
        .then(Op::range(KeyRange::key("k")));
    let error = client.txn(txn, PATIENCE).await.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_the_status_of_a_member() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let client = cluster.client();
    let revision = client.put("k", "", PATIENCE).await.unwrap();
    let status = client
        .status(&client.endpoints()[0], PATIENCE)
        .await
        .unwrap();
    assert!(status.version.starts_with("3."), "{status:?}");
    assert_eq!(status.leader_id, status.member_id);
    assert_ne!(status.cluster_id, 0);
    assert_eq!(status.revision, revision);
    assert!(status.db_bytes > 0 && status.term > 0, "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_that_a_revision_to_read_is_compacted() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let client = cluster.client();
    let old = client.put("k", "1", PATIENCE).await.unwrap();
    let new = client.put("k", "2", PATIENCE).await.unwrap();
    let at = |revision| RangeOptions {
        revision,
        ..RangeOptions::default()
    };
    let before = client.range(KeyRange::key("k"), at(old), PATIENCE).await;
    assert_eq!(before.unwrap().keys[0].value, b"1");
    crate::watches::compact(&cluster, new);
    let compacted = client.range(KeyRange::key("k"), at(old), PATIENCE).await;
    assert_eq!(compacted.unwrap_err(), Error::Compacted { revision: 0 });
}
