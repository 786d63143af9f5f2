//! Clusters that authenticate their clients by passwords or certificates.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use etcd::{Client, Tls};
use tempfile::TempDir;

use crate::cluster::{Cluster, address, answers};

/// Adds a user `relay` that may read and write keys below `/mcr/`.
pub(crate) fn protect(cluster: &Cluster, more: &[&str]) {
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

pub(crate) fn etcdctl(cluster: &Cluster, more: &[&str], command: &str, input: &str) {
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

fn openssl(directory: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .current_dir(directory)
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    assert!(output.status.success(), "openssl {arguments}: {output:?}");
}

/// A CA, a member's certificate and a client's, of user `relay`.
pub(crate) fn certificates() -> TempDir {
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

/// A member that authenticates its clients by their certificates.
pub(crate) async fn with_certificates(files: &TempDir) -> Cluster {
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

/// The files of a client with a certificate.
pub(crate) fn shown(files: &TempDir, ca: &str, own: Option<&str>) -> Tls {
    let file = |name: &str, kind| files.path().join(format!("{name}.{kind}"));
    Tls {
        ca: file(ca, "pem"),
        certificate: own.map(|name| file(name, "pem")),
        key: own.map(|name| file(name, "key")),
    }
}
