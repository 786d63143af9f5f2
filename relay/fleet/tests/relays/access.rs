//! Relays that etcd identifies by certificate or password, as configured, and relays that it refuses: what
//! they report, and that they take part once they are admitted.

use config::{FleetTls, OnIsolation};
use fleet::host::Event;
use tokio::time::{Duration, Instant, sleep};

use crate::cluster::{Cluster, needs_etcd};
use crate::node::{Node, each_at_one, eventually, rules};
use crate::secured::{certificates, etcdctl, protect, with_certificates};

const PASSWORD: &str = "guessed-by-nobody";

fn prepare(cluster: &Cluster) -> Node {
    let endpoints = cluster.members.iter().map(|member| member.endpoint.clone());
    Node::prepare("relay-a", endpoints.collect(), OnIsolation::Peers)
}

fn reason(node: &Node) -> String {
    let status = node.relay().status();
    status.etcd.reason.clone().unwrap_or_default()
}

/// The reported events that concern etcd.
fn etcd_events(node: &Node) -> Vec<String> {
    let events = node.host.events();
    let of_etcd = |event: &Event| match event {
        Event::EtcdAway { why } => Some(why.clone()),
        Event::EtcdBack => Some("back".to_owned()),
        _ => None,
    };
    events.iter().filter_map(of_etcd).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_shows_its_certificate_and_has_what_its_role_permits() {
    needs_etcd!();
    let files = certificates();
    let cluster = with_certificates(&files).await;
    let file = |name: &str| files.path().join(name);
    let text = |name: &str| file(name).display().to_string();
    let options = [
        ("--cacert", "ca.pem"),
        ("--cert", "root.pem"),
        ("--key", "root.key"),
    ]
    .map(|(name, value)| [name.to_owned(), text(value)]);
    let root: Vec<&str> = options.as_flattened().iter().map(String::as_str).collect();
    protect(&cluster, &root);
    let mut node = prepare(&cluster);
    let tls = |ca: &str, own: &str| FleetTls {
        ca: file(&format!("{ca}.pem")),
        cert: Some(file(&format!("{own}.pem"))),
        key: Some(file(&format!("{own}.key"))),
    };
    let cases = [
        ("stranger", "relay", "is not signed by a CA in"),
        ("ca", "expired", "etcd refuses the certificate"),
    ];
    for (ca, own, words) in cases {
        node.settings().tls = Some(tls(ca, own));
        node.run().await;
        eventually("it says why", || reason(&node).contains(words)).await;
        node.crash();
    }
    node.settings().tls = Some(tls("ca", "relay"));
    node.run().await;
    node.joined().await;
    node.relay().apply(rules(3), None, false).await.unwrap();
    eventually("all are open", || each_at_one(&[&node], 3)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_relay_reports_a_remedy_and_takes_part_once_it_is_admitted() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    protect(&cluster, &[]);
    let root = ["--user", "root:root"];
    let password = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(password.path(), format!("{PASSWORD}\n")).unwrap();
    let mut node = prepare(&cluster);
    node.settings().user = Some("relay".to_owned());
    node.settings().password_file = Some(password.path().to_owned());
    node.run().await;
    let reports = |words: &str| reason(&node).contains(words);
    eventually("it says why", || {
        reports("user \"relay\": etcdserver: authentication failed")
            && reports("etcdctl user passwd")
    })
    .await;
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        let applied = node.relay().apply(rules(1), None, false).await;
        let error = applied.unwrap_err();
        assert!(
            matches!(error, fleet::error::Error::Unavailable(_)),
            "{error}"
        );
        assert!(!error.to_string().contains(PASSWORD));
        sleep(Duration::from_millis(50)).await;
    }
    let events = etcd_events(&node);
    assert!(
        events.len() == 1 && events[0].contains("authentication failed"),
        "{events:?}"
    );
    assert!(!format!("{:?} {events:?}", node.relay().status()).contains(PASSWORD));
    etcdctl(
        &cluster,
        &root,
        "role revoke-permission relay --prefix /mcr/",
        "",
    );
    etcdctl(
        &cluster,
        &root,
        "role grant-permission relay read --prefix /mcr/",
        "",
    );
    let passwd = "user passwd --interactive=false relay";
    etcdctl(&cluster, &root, passwd, PASSWORD);
    eventually("it says what it may not", || {
        reports("permission denied") && reports("etcdctl role grant-permission")
    })
    .await;
    let write = "role grant-permission relay readwrite --prefix /mcr/";
    etcdctl(&cluster, &root, write, "");
    node.joined().await;
    eventually("people are told", || {
        etcd_events(&node).last().is_some_and(|it| it == "back")
    })
    .await;
    node.relay().apply(rules(3), None, false).await.unwrap();
    eventually("all are open", || each_at_one(&[&node], 3)).await;
}

/// A host may boot before any name server answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_starts_where_the_names_of_etcd_have_no_address() {
    let endpoints = vec!["http://etcd.mcr.invalid:2379".to_owned()];
    let mut node = Node::prepare("relay-a", endpoints, OnIsolation::Peers);
    node.settings().peer = None;
    node.run().await;
    let words = "cannot find the address of etcd.mcr.invalid";
    eventually("it says why", || reason(&node).contains(words)).await;
    eventually("people are told", || etcd_events(&node).len() == 1).await;
}
