//! Users, passwords, roles and certificates.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd::{Client, Error, KeyRange, RangeOptions, Secret, Tls, WatchTarget};
use tempfile::TempDir;
use tokio::io::copy;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};

use crate::cluster::{Cluster, PATIENCE, address, answers, config, needs_etcd};

/// A user `relay` who may read and write what begins with `/mcr/`.
fn protect(cluster: &Cluster, more: &[&str]) {
    let commands = [
        "user add root:root",
        "user grant-role root root",
        "role add relay",
        "role grant-permission relay readwrite --prefix /mcr/",
        "user add relay:secret",
        "user grant-role relay relay",
        "auth enable",
    ];
    for command in commands {
        etcdctl(cluster, more, command, "");
    }
}

fn etcdctl(cluster: &Cluster, more: &[&str], command: &str, input: &str) {
    let mut child = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", &cluster.members[0].endpoint])
        .args(more)
        .args(command.split(' '))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "{input}").unwrap();
    drop(stdin);
    assert!(child.wait().unwrap().success(), "{command}");
}

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
    // A member forgets its tokens when it ends: the next request brings a new one.
    cluster.members[0].end();
    cluster.members[0].start();
    answers(&client).await;
    may_use_its_prefix_only(&client).await;
}

/// How often etcd was asked for a token.
fn authentications(cluster: &Cluster) -> f64 {
    let at = cluster.members[0].endpoint.strip_prefix("http://").unwrap();
    let mut stream = std::net::TcpStream::connect(at).unwrap();
    stream
        .write_all(format!("GET /metrics HTTP/1.0\r\nhost: {at}\r\n\r\n").as_bytes())
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let is_it = |line: &&str| {
        line.starts_with("grpc_server_started_total") && line.contains("\"Authenticate\"")
    };
    let line = text.lines().find(is_it).unwrap();
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
async fn a_user_is_let_in_where_nobody_has_to_say_who_he_is() {
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

fn openssl(directory: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .current_dir(directory)
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    assert!(output.status.success(), "openssl {arguments}: {output:?}");
}

/// A CA, a member's certificate and a client's, of user `relay`.
fn certificates() -> TempDir {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    let new = "req -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256";
    for ca in ["ca", "stranger"] {
        openssl(
            path,
            &format!("{new} -x509 -days 2 -subj /CN={ca} -keyout {ca}.key -out {ca}.pem"),
        );
    }
    let address = address();
    let of_clients = "extendedKeyUsage=clientAuth\n".to_owned();
    for (name, days, extensions) in [
        ("member", 2, format!("subjectAltName=IP:{address}\n")),
        ("relay", 2, of_clients.clone()),
        ("root", 2, of_clients.clone()),
        ("expired", -1, of_clients),
        ("old", 2, String::new()),
    ] {
        std::fs::write(path.join("extensions"), extensions).unwrap();
        openssl(
            path,
            &format!("{new} -subj /CN={name} -keyout {name}.key -out {name}.csr"),
        );
        openssl(
            path,
            &format!(
                "x509 -req -days {days} -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial \
                 -extfile extensions -out {name}.pem"
            ),
        );
    }
    directory
}

/// A member that knows its clients by their certificates.
async fn with_certificates(files: &TempDir) -> Cluster {
    let text = |name: &str| files.path().join(name).display().to_string();
    let arguments = [
        "--client-cert-auth",
        "--trusted-ca-file",
        &text("ca.pem"),
        "--cert-file",
        &text("member.pem"),
        "--key-file",
        &text("member.key"),
    ];
    let mut cluster = Cluster::prepare(1, "https", &arguments.map(str::to_owned));
    cluster.run().await;
    let mut config = cluster.config();
    config.tls = Some(shown(files, "ca", Some("relay")));
    answers(&Client::new(config).unwrap()).await;
    cluster
}

/// The files of a client that shows a certificate.
fn shown(files: &TempDir, ca: &str, own: Option<&str>) -> Tls {
    let file = |name: &str, kind| files.path().join(format!("{name}.{kind}"));
    Tls {
        ca: file(ca, "pem"),
        certificate: own.map(|name| file(name, "pem")),
        key: own.map(|name| file(name, "key")),
    }
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
    // Each time anew, whichever comes first: what etcd says, or that it has hung up.
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

/// What `openssl x509 -req` makes where nobody asks for an extension.
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

/// Lets connections through to `to`, and counts them.
async fn counted(to: String) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((address(), 0)).await.unwrap();
    let at = format!("https://{}", listener.local_addr().unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((from, _)) = listener.accept().await {
            counter.fetch_add(1, Ordering::Relaxed);
            let to = TcpStream::connect(&to).await.unwrap();
            let (mut asks, mut hears) = from.into_split();
            let (mut answers, mut asked) = to.into_split();
            // Each by itself: what was said last arrives where nobody listens any more.
            tokio::spawn(async move { copy(&mut asks, &mut asked).await });
            tokio::spawn(async move { copy(&mut answers, &mut hears).await });
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
        let at = cluster.members[0].endpoint.strip_prefix("https://");
        let at = at.unwrap();
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
        // Files that are put right serve without a restart.
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
