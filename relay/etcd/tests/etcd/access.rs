//! Users, passwords, roles and certificates.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd::{Client, Error, KeyRange, RangeOptions, Secret, WatchTarget};
use tokio::io::copy;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};

use crate::cluster::{Cluster, PATIENCE, address, answers, config, needs_etcd};
use crate::secured::{certificates, etcdctl, protect, shown, with_certificates};

async fn client_answers(client: &Client) {
    let until = Instant::now() + PATIENCE;
    while let Err(error) = client.put("/mcr/k", "", PATIENCE).await {
        assert!(Instant::now() < until, "{error}");
        sleep(Duration::from_millis(50)).await;
    }
}

async fn may_use_its_prefix_only(client: &Client) {
    client.put("/mcr/k", "1", PATIENCE).await.unwrap();
    let denied = client.put("/other", "", PATIENCE).await.unwrap_err();
    assert!(denied.to_string().contains("permission denied"), "{denied}");
    assert!(matches!(denied, Error::Refused { code: 7, .. }));
    let read = client.range(KeyRange::prefix(""), RangeOptions::default(), PATIENCE);
    assert!(matches!(read.await, Err(Error::Refused { code: 7, .. })));
    let target = |prefix| WatchTarget {
        id: 1,
        range: KeyRange::prefix(prefix),
        start_revision: 1,
    };
    let mut watch = client.watch(vec![target("/mcr/")], PATIENCE).await.unwrap();
    let batch = timeout(PATIENCE, watch.next()).await.unwrap().unwrap();
    assert_eq!(batch.events[0].key(), b"/mcr/k");
    let mut watch = client
        .watch(vec![target("/other")], PATIENCE)
        .await
        .unwrap();
    let denied = timeout(PATIENCE, watch.next()).await.unwrap();
    assert!(
        matches!(denied, Err(Error::Refused { code: 7, .. })),
        "{denied:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_has_a_password_and_a_prefix() {
    needs_etcd!();
    let mut cluster = Cluster::start(1).await;
    protect(&cluster, &[]);
    let anybody = cluster.client().put("/mcr/k", "", PATIENCE).await;
    assert!(matches!(anybody, Err(Error::Refused { .. })), "{anybody:?}");
    let user = |password: &str| {
        let mut config = cluster.config();
        config.user = Some(("relay".to_owned(), Secret::from(password.to_owned())));
        Client::new(config).unwrap()
    };
    let wrong = user("guess").put("/mcr/k", "", PATIENCE).await.unwrap_err();
    assert!(
        wrong.to_string().contains("authentication failed"),
        "{wrong}"
    );
    let client = user("secret");
    may_use_its_prefix_only(&client).await;
    // A member forgets its tokens when it ends: the next request gets a new one.
    cluster.members[0].end();
    cluster.members[0].start();
    answers(&client).await;
    may_use_its_prefix_only(&client).await;
}

/// How many authentication requests etcd has received.
fn authentications(cluster: &Cluster) -> f64 {
    let at = cluster.members[0].endpoint.strip_prefix("http://").unwrap();
    let mut stream = std::net::TcpStream::connect(at).unwrap();
    stream
        .write_all(format!("GET /metrics HTTP/1.0\r\nhost: {at}\r\n\r\n").as_bytes())
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let is_counter = |line: &&str| {
        line.starts_with("grpc_server_started_total") && line.contains("\"Authenticate\"")
    };
    let line = text.lines().find(is_counter).unwrap();
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_password_is_tried_less_and_less_often() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    protect(&cluster, &[]);
    let mut config = cluster.config();
    config.user = Some(("relay".to_owned(), Secret::from("guess".to_owned())));
    let client = Client::new(config).unwrap();
    let before = authentications(&cluster);
    let until = Instant::now() + Duration::from_millis(1200);
    while Instant::now() < until {
        let wrong = client.put("/mcr/k", "", PATIENCE).await.unwrap_err();
        let text = wrong.to_string();
        assert!(matches!(wrong, Error::Refused { code: 3, .. }), "{text}");
        assert!(text.contains("user \"relay\": "), "{text}");
        assert!(!text.contains("guess"), "{text}");
        sleep(Duration::from_millis(20)).await;
    }
    // At 0, 100, 300 and 700 ms, or later.
    let asked = authentications(&cluster) - before;
    assert!((2.0..=4.0).contains(&asked), "{asked}");
    etcdctl(
        &cluster,
        &["--user", "root:root"],
        "user passwd --interactive=false relay",
        "guess",
    );
    client_answers(&client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_is_admitted_while_authentication_is_off() {
    needs_etcd!();
    let cluster = Cluster::start(1).await;
    let mut config = cluster.config();
    config.user = Some(("relay".to_owned(), Secret::from("secret".to_owned())));
    let client = Client::new(config).unwrap();
    client.put("/mcr/k", "", PATIENCE).await.unwrap();
    protect(&cluster, &[]);
    client.put("/mcr/k", "", PATIENCE).await.unwrap();
    may_use_its_prefix_only(&client).await;
    etcdctl(&cluster, &["--user", "root:root"], "auth disable", "");
    client.put("/mcr/k", "", PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_has_a_certificate() {
    needs_etcd!();
    let files = certificates();
    let file = |name: &str| files.path().join(name);
    let text = |name: &str| file(name).display().to_string();
    let cluster = with_certificates(&files).await;
    let client = |ca: &str, own: Option<&str>| {
        let mut config = cluster.config();
        config.tls = Some(shown(&files, ca, own));
        Client::new(config).unwrap()
    };
    let relay = client("ca", Some("relay"));
    answers(&relay).await;
    let (ca, certificate, key) = (text("ca.pem"), text("root.pem"), text("root.key"));
    protect(
        &cluster,
        &["--cacert", &ca, "--cert", &certificate, "--key", &key],
    );
    may_use_its_prefix_only(&relay).await;
    // Repeated, as either may come first: etcd's alert, or the end of the connection.
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        let cases = [
            (
                client("ca", None),
                ["etcd wants a client certificate", "and its key"],
            ),
            (
                client("ca", Some("stranger")),
                ["etcd refuses the certificate", "stranger.pem"],
            ),
            (
                client("ca", Some("expired")),
                ["etcd refuses the certificate", "expired.pem"],
            ),
            (
                client("stranger", Some("relay")),
                ["UnknownIssuer", "is not signed by a CA in"],
            ),
        ];
        for (client, words) in cases {
            let refused = client.put("/mcr/k", "", PATIENCE).await.unwrap_err();
            let text = refused.to_string();
            assert!(matches!(refused, Error::Unavailable { .. }), "{text}");
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
    }
}

/// As `openssl x509 -req` makes it without extensions.
#[test]
fn a_certificate_of_an_old_version_is_named() {
    let files = certificates();
    let mut config = config(["https://127.0.0.1:1"]);
    config.tls = Some(shown(&files, "ca", Some("old")));
    let Err(error) = Client::new(config) else {
        panic!("it is taken");
    };
    let text = error.to_string();
    assert!(text.contains("old.pem: "), "{text}");
    assert!(text.contains("X.509 version 3"), "{text}");
}

/// Forwards connections to `to`, and counts them.
async fn counted(to: String) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((address(), 0)).await.unwrap();
    let at = format!("https://{}", listener.local_addr().unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((from, _)) = listener.accept().await {
            counter.fetch_add(1, Ordering::Relaxed);
            let to = TcpStream::connect(&to).await.unwrap();
            let (mut client_reads, mut client_writes) = from.into_split();
            let (mut server_reads, mut server_writes) = to.into_split();
            // Separate tasks: an alert must pass even if the client no longer reads.
            tokio::spawn(async move { copy(&mut client_reads, &mut server_writes).await });
            tokio::spawn(async move { copy(&mut server_reads, &mut client_writes).await });
        }
    });
    (at, count)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_certificate_is_shown_less_and_less_often() {
    needs_etcd!();
    for (ca, own) in [("ca", "stranger"), ("stranger", "relay")] {
        let files = certificates();
        let cluster = with_certificates(&files).await;
        let (_, at) = cluster.members[0].endpoint.split_once("://").unwrap();
        let (endpoint, count) = counted(at.to_owned()).await;
        let file = |name: String| files.path().join(name);
        let mut config = config([endpoint.as_str()]);
        config.tls = Some(shown(&files, ca, Some(own)));
        let client = Client::new(config).unwrap();
        let until = Instant::now() + Duration::from_millis(1200);
        while Instant::now() < until {
            client.put("/mcr/k", "", PATIENCE).await.unwrap_err();
            sleep(Duration::from_millis(20)).await;
        }
        let shown = count.load(Ordering::Relaxed);
        assert!((2..=4).contains(&shown), "{ca} {own}: {shown}");
        // Files that are corrected take effect without a restart.
        for (right, wrong) in [("ca", ca), ("relay", own)] {
            for kind in ["pem", "key"] {
                let (right, wrong) = (format!("{right}.{kind}"), format!("{wrong}.{kind}"));
                if right != wrong {
                    std::fs::copy(file(right), file(wrong)).unwrap();
                }
            }
        }
        client_answers(&client).await;
    }
}
