//! Users, passwords, roles and certificates.

use std::path::Path;
use std::process::{Command, Stdio};

use etcd::{Client, Error, KeyRange, RangeOptions, Secret, Tls, WatchTarget};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::cluster::{Cluster, PATIENCE, address, answers, needs_etcd};

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
        let status = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &cluster.members[0].endpoint])
            .args(more)
            .args(command.split(' '))
            .stdout(Stdio::null())
            .status();
        assert!(status.unwrap().success(), "{command}");
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
    for (name, extensions) in [
        ("member", format!("subjectAltName=IP:{address}\n")),
        ("relay", "extendedKeyUsage=clientAuth\n".to_owned()),
        ("root", "extendedKeyUsage=clientAuth\n".to_owned()),
    ] {
        std::fs::write(path.join("extensions"), extensions).unwrap();
        openssl(
            path,
            &format!("{new} -subj /CN={name} -keyout {name}.key -out {name}.csr"),
        );
        openssl(
            path,
            &format!(
                "x509 -req -days 2 -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial \
                 -extfile extensions -out {name}.pem"
            ),
        );
    }
    directory
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_has_a_certificate() {
    needs_etcd!();
    let files = certificates();
    let file = |name: &str| files.path().join(name);
    let text = |name: &str| file(name).display().to_string();
    let arguments = [
        ("--client-cert-auth", None),
        ("--trusted-ca-file", Some(text("ca.pem"))),
        ("--cert-file", Some(text("member.pem"))),
        ("--key-file", Some(text("member.key"))),
    ];
    let arguments = arguments.into_iter();
    let arguments: Vec<String> = arguments
        .flat_map(|(name, value)| [Some(name.to_owned()), value])
        .flatten()
        .collect();
    let mut cluster = Cluster::prepare(1, "https", &arguments);
    cluster.run().await;
    let client = |ca: &str, own: Option<&str>| {
        let mut config = cluster.config();
        config.tls = Some(Tls {
            ca: file(ca),
            certificate: own.map(|name| file(&format!("{name}.pem"))),
            key: own.map(|name| file(&format!("{name}.key"))),
        });
        Client::new(config).unwrap()
    };
    let relay = client("ca.pem", Some("relay"));
    answers(&relay).await;
    let (ca, certificate, key) = (text("ca.pem"), text("root.pem"), text("root.key"));
    protect(
        &cluster,
        &["--cacert", &ca, "--cert", &certificate, "--key", &key],
    );
    may_use_its_prefix_only(&relay).await;
    let nobody = client("ca.pem", None).put("/mcr/k", "", PATIENCE).await;
    let text = nobody.unwrap_err();
    assert!(matches!(text, Error::Unavailable { .. }), "{text}");
    assert!(text.to_string().contains("client certificate"), "{text}");
    let stranger = client("stranger.pem", Some("relay"))
        .put("/mcr/k", "", PATIENCE)
        .await;
    let text = stranger.unwrap_err();
    assert!(matches!(text, Error::Unavailable { .. }), "{text}");
    assert!(text.to_string().contains("UnknownIssuer"), "{text}");
}
