//! Relays that restart.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use api::reply::FleetShareState;
use config::OnIsolation;

use crate::cluster::{Cluster, needs_etcd};
use crate::node::{Node, each_at_one, eventually, pair, rules, shares};
use crate::recorder::never_two;

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_resumes_its_session() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let (mut a, b) = pair(&cluster, OnIsolation::Peers, 20).await;
    let (session, held) = (a.session(), a.host.open());
    let file = a.directory().join("fleet-session.json");
    let mode = std::fs::metadata(file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    a.crash();
    a.run().await;
    a.joined().await;
    if a.session() == session {
        assert_eq!(a.host.open(), held);
        assert!(!a.host.was_emptied(), "rules stay in the data plane");
    } else {
        eprintln!("the machine is too busy: the restart took longer than the hold");
    }
    eventually("each share is open at one", || each_at_one(&[&a, &b], 20)).await;
    never_two(&[&a.host, &b.host]);
}

/// Its former session has ended meanwhile: until it is known what it stands by for, what runs stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_after_a_fence_leaves_the_rules_in_the_data_plane() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let (mut a, b) = pair(&cluster, OnIsolation::Peers, 20).await;
    let session = a.session();
    a.crash();
    eventually("the other has all", || b.host.open() == shares(20)).await;
    a.run().await;
    a.joined().await;
    assert!(a.session() > session);
    eventually("it stands by", || {
        a.relay()
            .status()
            .member
            .shares
            .values()
            .all(|share| share.standby.as_deref() == Some("relay-a"))
    })
    .await;
    assert_eq!(a.host.installed(), shares(20));
    assert!(!a.host.was_emptied());
    never_two(&[&a.host, &b.host]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_etcd_uses_the_saved_rules() {
    needs_etcd!();
    let mut cluster = Cluster::start(1).await;
    let mut a = Node::start("relay-a", &cluster).await;
    a.joined().await;
    a.relay().apply(rules(5), None, false).await.unwrap();
    eventually("all are open", || each_at_one(&[&a], 5)).await;
    a.crash();
    cluster.members[0].end();
    eventually("gates are shut", || a.host.open().is_empty()).await;
    std::fs::remove_dir_all(a.directory()).unwrap();
    a.run().await;
    eventually("kept rules", || a.relay().status().rules.len() == 5).await;
    assert!(a.host.open().is_empty());
    assert_eq!(a.session(), 0);
    cluster.members[0].start();
    eventually("all are open", || each_at_one(&[&a], 5)).await;
}

/// A relay with policy `hold` whose daemon crashed with the gates of two shares open, and etcd with it.
async fn crashed_without_etcd() -> (Cluster, Node) {
    let mut cluster = Cluster::start(1).await;
    let mut a = Node::start_with("relay-a", &cluster, OnIsolation::Hold).await;
    a.joined().await;
    a.relay().apply(rules(2), None, false).await.unwrap();
    eventually("all are open", || each_at_one(&[&a], 2)).await;
    a.crash();
    cluster.members[0].end();
    (cluster, a)
}

/// A share is shown as forwarded, whether or not its holder is known.
#[tokio::test(flavor = "multi_thread")]
async fn gates_that_stay_open_without_etcd_are_reported() {
    needs_etcd!();
    let (_cluster, mut a) = crashed_without_etcd().await;
    a.run().await;
    let reported = || {
        let member = a.relay().status().member.clone();
        let shares = member.shares.values();
        let open = shares.filter(|share| share.state == FleetShareState::Open);
        (open.count(), member.deadline_ms > 0)
    };
    eventually("they are told of", || reported() == (2, true)).await;
    assert!(each_at_one(&[&a], 2));
}

/// A gate that a process with another policy left open for good is shut before etcd is asked.
#[tokio::test(flavor = "multi_thread")]
async fn a_gate_without_a_deadline_does_not_outlive_its_policy() {
    needs_etcd!();
    let (_cluster, mut a) = crashed_without_etcd().await;
    assert!(each_at_one(&[&a], 2));
    a.set_policy(OnIsolation::Stop);
    a.run().await;
    eventually("gates are shut", || a.host.open().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_that_the_daemon_refused_are_tried_again() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let a = Node::start("relay-a", &cluster).await;
    a.joined().await;
    a.relay().apply(rules(2), None, false).await.unwrap();
    eventually("all are open", || each_at_one(&[&a], 2)).await;
    a.host.refuse_rules();
    a.relay().apply(rules(3), None, false).await.unwrap();
    eventually("all are open", || each_at_one(&[&a], 3)).await;
}

/// Called from within a runtime, as by the daemon.
#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_another_has_is_named() {
    let endpoints = vec!["http://127.0.0.1:1".to_owned()];
    let mut a = Node::prepare("relay-a", endpoints, OnIsolation::Peers);
    a.run().await;
    let error = a.start_again().unwrap_err().to_string();
    assert!(
        error.starts_with("[fleet] peer: cannot listen on UDP"),
        "{error}"
    );
}

/// An etcd that does not answer is not asked, member by member, for its own status.
#[tokio::test(flavor = "multi_thread")]
async fn the_status_does_not_wait_for_an_etcd_that_is_away() {
    let mute = [(); 40].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let endpoint = |of: &std::net::TcpListener| format!("http://{}", of.local_addr().unwrap());
    let endpoints = mute.iter().map(endpoint).collect();
    let mut a = Node::prepare("relay-a", endpoints, OnIsolation::Peers);
    a.run().await;
    eventually("etcd is away", || !a.relay().status().member.etcd_reachable).await;
    let status = tokio::time::timeout(Duration::from_secs(8), a.relay().full_status()).await;
    assert!(
        status.is_ok(),
        "twenty seconds of waiting for forty members"
    );
}
