//! Clients that are let in, that are refused, and that lose their access.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use lab::namespace::Namespace;
use lab::process::{self, Process};
use lab::wait;
use serde_json::Value;

use super::{Bed, PATIENCE, RELAY, TOKENS, ends_in};
use crate::bed::{INPUT, OUTPUT, can_run};

#[test]
fn nobody_else_is_let_in() {
    let named = |name: &str| {
        format!(
            "[[api.client]]\nname = \"{name}\"\nrole = \"view\"\ncertificate = \"{name}.common\"\n"
        )
    };
    let Some(bed) = Bed::new(&(named("plain") + &named("unlisted"))) else {
        return;
    };
    let keys = &bed.keys;
    // The common name counts if there is no other name.
    keys.sign(
        "plain",
        "clients",
        "extendedKeyUsage=clientAuth",
        "-days 30",
    );
    bed.mcr("plain", &["stats"]);
    keys.sign(
        "stranger",
        "strangers",
        "subjectAltName=DNS:ci.example",
        "-days 30",
    );
    keys.sign(
        "ended",
        "clients",
        "subjectAltName=DNS:ci.example",
        "-days -1",
    );
    keys.sign(
        "unlisted",
        "clients",
        "subjectAltName=DNS:other.example",
        "-days 30",
    );
    for host in ["stranger", "ended", "unlisted"] {
        bed.refuses(host, &["stats"], 77, host);
    }
    let (status, body) = bed.curl(&format!("--tlsv1.1 --tls-max 1.1 https://{RELAY}/healthz"));
    assert_eq!(status, 0, "{body}");
    // The refusal may have been that of curl's own library; openssl does try the version.
    let mut openssl = bed.chain.sink.command("openssl");
    let line = format!("s_client -connect {RELAY} -tls1_1 -cipher DEFAULT@SECLEVEL=0");
    openssl.args(line.split(' '));
    let old = process::run(openssl, PATIENCE).unwrap();
    assert!(
        !old.status.success() && old.stderr.contains("alert"),
        "{}",
        old.stderr
    );
    let (status, body) = bed.curl(&format!("--tlsv1.2 --tls-max 1.2 https://{RELAY}/healthz"));
    assert_eq!(status, 0, "{body}");
    let (status, body) = bed.curl(&format!("http://{RELAY}/healthz"));
    assert_eq!(status, 0, "{body}");
    // The health checks need no credentials.
    assert_eq!(
        bed.curl(&format!("https://{RELAY}/healthz")),
        (200, "ok\n".to_owned())
    );
    assert_eq!(
        bed.curl(&format!("https://{RELAY}/readyz")),
        (200, "ready\n".to_owned())
    );
    assert!(bed.status()["api"]["refused"].as_u64().unwrap() >= 5);
    let events = bed
        .daemon
        .mcr(&["events", "-n", "1", "--recent", "200", "api"])
        .unwrap();
    assert!(events.contains("api_"), "{events}");
    bed.configure("tls = \"1.2\"");
    wait::until("TLS 1.2 is spoken", || {
        bed.curl(&format!("--tls-max 1.2 https://{RELAY}/healthz"))
            .0
            == 200
    })
    .unwrap();
}

#[test]
fn who_is_a_client_no_more_is_cut_off_within_a_second() {
    let Some(bed) = Bed::new("") else { return };
    bed.keys.revoke(&[]);
    let crl = format!(
        "client_crl = \"{}\"",
        bed.keys.path("clients.crl").display()
    );
    bed.configure(&crl);
    let mut following: Vec<Process> = ["view", "operate", "ci"]
        .map(|host| Process::start(bed.command(host, &["events", "--json"])).unwrap())
        .into();
    let has_received = |following: &Process, what: &str| following.stdout().contains(what);
    wait::until("all follow", || {
        bed.daemon.mcr(&["log", "debug"]).unwrap();
        bed.daemon.add("x", INPUT, &[OUTPUT]).ok();
        bed.daemon.mcr(&["remove", "x"]).ok();
        following.iter().all(|one| has_received(one, "rule_"))
    })
    .unwrap();
    // The first client is removed from the configuration, the others stay.
    let path = bed.daemon.config_file();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replace(&tls::token::hash(TOKENS[0].1), &tls::token::hash("other")),
    )
    .unwrap();
    bed.daemon.mcr(&["reload"]).unwrap();
    let reloaded = Instant::now();
    wait::until("the stream of the first ends", || {
        !following[0].is_running()
    })
    .unwrap();
    assert!(
        wait::is_within(reloaded.elapsed(), Duration::from_millis(1500)),
        "{:?}",
        reloaded.elapsed()
    );
    assert!(following[1].is_running() && following[2].is_running());
    bed.refuses("view", &["stats"], 77, "nobody's");
    // Revoking a certificate in the file also ends its connections, without a reload.
    bed.keys.revoke(&["ci"]);
    wait::until("the stream of the revoked ends", || {
        !following[2].is_running()
    })
    .unwrap();
    bed.refuses("ci", &["stats"], 77, "ci");
    assert!(following[1].is_running());
    bed.mcr("operate", &["stats"]);
}

#[test]
fn who_ends_or_may_do_something_else_is_cut_off_too() {
    let Some(bed) = Bed::new("") else { return };
    let follow = || {
        let following = Process::start(bed.command("operate", &["events", "--json"])).unwrap();
        wait::until("it follows", || {
            let _ = bed.daemon.add("x", INPUT, &[OUTPUT]);
            let _ = bed.daemon.mcr(&["remove", "x"]);
            following.stdout().contains("rule_")
        })
        .unwrap();
        following
    };
    let path = bed.daemon.config_file();
    let text = fs::read_to_string(&path).unwrap();
    let begins_with = |more: &str| {
        let client = format!("token = \"{}\"\n", tls::token::hash(TOKENS[1].1));
        fs::write(&path, text.replace(&client, &format!("{client}{more}"))).unwrap();
        bed.daemon.mcr(&["reload"]).unwrap();
    };
    let ends = |mut following: Process, since: Instant| {
        wait::until("the stream ends", || !following.is_running()).unwrap();
        let took = since.elapsed();
        assert!(
            wait::is_within(took, Duration::from_millis(1500)),
            "{took:?}"
        );
    };
    let following = follow();
    begins_with("from = [\"10.0.1.0/24\"]\n");
    ends(following, Instant::now());
    let mut following = follow();
    let remaining = Duration::from_secs(4);
    begins_with(&format!("expires = \"{}\"\n", ends_in(remaining.as_secs())));
    let changed = Instant::now();
    wait::until("it is another client", || !following.is_running()).unwrap();
    let (following, end) = (follow(), changed + remaining);
    ends(following, end.max(Instant::now()));
    assert!(
        Instant::now() + Duration::from_secs(1) > end,
        "it was to last"
    );
    bed.refuses("operate", &["stats"], 77, "has ended");
}

#[test]
fn changed_files_are_read_and_wrong_ones_are_reported() {
    let Some(bed) = Bed::new("") else { return };
    let ends = |api: &Value| api["certificate_expires"].as_u64().unwrap_or_default();
    let first = ends(&bed.status()["api"]);
    // Swapped as certificate managers do it: by renaming over the file.
    let pem = bed.keys.path("relay.pem");
    let good = fs::read(&pem).unwrap();
    fs::write(bed.keys.path("wrong.pem"), "nonsense").unwrap();
    fs::rename(bed.keys.path("wrong.pem"), &pem).unwrap();
    bed.wait_for("the wrong file is told", |api| {
        api["state"] == "degraded" && api["reason"].as_str().unwrap().contains("stays in use")
    });
    assert_eq!(bed.status()["state"], "degraded");
    bed.mcr("view", &["stats"]);
    fs::write(&pem, good).unwrap();
    bed.wait_for("all is well again", |api| api["state"] == "up");
    // The daemon has given up root's power to read files without permission.
    let (key, other) = (bed.keys.path("relay.key"), bed.keys.path("other.key"));
    let own = fs::read(&key).unwrap();
    bed.secret("other.key", &String::from_utf8_lossy(&own));
    std::os::unix::fs::chown(&other, Some(65534), Some(65534)).unwrap();
    fs::rename(other, &key).unwrap();
    bed.wait_for("who may not read it says so", |api| {
        let reason = api["reason"].as_str().unwrap_or_default();
        reason.contains("relay.key") && reason.contains("Permission denied")
    });
    bed.mcr("view", &["stats"]);
    bed.secret("own.key", &String::from_utf8_lossy(&own));
    fs::rename(bed.keys.path("own.key"), &key).unwrap();
    bed.wait_for("it may read its own", |api| api["state"] == "up");
    bed.keys
        .sign("relay", "servers", "subjectAltName=IP:10.0.1.1", "-days 5");
    bed.wait_for("the new one is in use", |api| {
        ends(api) < first && api["state"] == "up"
    });
    bed.mcr("view", &["stats"]);
    // Swapped as a link to another file.
    let fifth = ends(&bed.status()["api"]);
    bed.keys
        .sign("next", "servers", "subjectAltName=IP:10.0.1.1", "-days 4");
    for kind in ["pem", "key"] {
        let link = bed.keys.path("link");
        std::os::unix::fs::symlink(format!("next.{kind}"), &link).unwrap();
        fs::rename(link, bed.keys.path(&format!("relay.{kind}"))).unwrap();
    }
    bed.wait_for("the link is followed", |api| {
        ends(api) < fifth && api["state"] == "up"
    });
    bed.mcr("view", &["stats"]);
    let soon = |api: &Value| api["expiring"].to_string().contains("certificate");
    assert!(soon(&bed.status()["api"]), "{}", bed.status());
    let events = bed.daemon.log();
    for kind in ["api_degraded", "api_up", "expires_soon"] {
        assert!(events.contains(kind), "{kind}: {events}");
    }
}

#[test]
fn without_certificate_or_client_nothing_listens_and_the_reason_is_reported() {
    let Some(bed) = Bed::new("") else { return };
    let path = bed.daemon.config_file();
    for (text, why) in [
        ("[api]\nlisten = \":9471\"\n", "no certificate"),
        (
            "[api]\nlisten = \":9471\"\ncertificate = \"/c\"\nkey = \"/k\"\n",
            "names no client",
        ),
    ] {
        fs::write(&path, format!("version = 1\n{text}")).unwrap();
        bed.daemon.mcr(&["reload"]).unwrap();
        bed.wait_for(why, |api| {
            api["state"] == "degraded" && api["reason"].as_str().unwrap().contains(why)
        });
        assert_eq!(bed.curl(&format!("https://{RELAY}/healthz")).0, 0, "{why}");
    }
    fs::write(&path, "version = 1\n").unwrap();
    bed.daemon.mcr(&["reload"]).unwrap();
    let status = bed.status();
    assert_eq!(
        (&status["api"], &status["state"]),
        (&Value::Null, &"up".into())
    );
    let sockets = bed.chain.relay.tool("ss", "-Hltn").unwrap();
    assert!(!sockets.contains("9471"), "{sockets}");
}

#[test]
fn a_crowd_of_the_wrong_keeps_no_operator_out() {
    let Some(bed) = Bed::new("") else { return };
    let rules = 20;
    let opened = |from: &Namespace, count: usize, at: &str| {
        let half_open = from.run(|| {
            let streams = (0..count).map(|_| {
                let mut stream = TcpStream::connect(at)?;
                stream.write_all(&[22, 3, 1])?;
                Ok(stream)
            });
            streams.collect::<anyhow::Result<Vec<TcpStream>>>()
        });
        half_open.unwrap()
    };
    // Also from the operator's address.
    let half_open = opened(&bed.chain.sender, 512, "10.0.0.2:9471");
    let _beside = opened(&bed.chain.sink, 256, RELAY);
    let (_, token) = TOKENS[2];
    bed.secret("change.header", &format!("Authorization: Bearer {token}\n"));
    let slow = "for i in $(seq 32); do sleep 60 | curl -sk -T - -X PUT -o /dev/null -H @change.header \
                https://10.0.1.1:9471/v1/rules & done; wait";
    let mut command = bed.chain.sink.command("bash");
    command.args(["-c", slow]).current_dir(bed.keys.directory());
    let slow = Process::start(command).unwrap();
    let wrong = "for i in $(seq 100); do curl -sk --max-time 9 -o /dev/null -H 'Authorization: Bearer wrong' \
                 https://10.0.0.2:9471/v1/stats & done; wait";
    let mut command = bed.chain.sender.command("bash");
    command.args(["-c", wrong]);
    let wrong = Process::start(command).unwrap();
    for number in 0..rules {
        let name = format!("cam{number}");
        let began = Instant::now();
        bed.mcr("change", &["add", INPUT, OUTPUT, "--name", &name]);
        bed.mcr("change", &["remove", &name]);
        assert!(
            wait::is_within(began.elapsed(), Duration::from_secs(8)),
            "{:?}",
            began.elapsed()
        );
    }
    drop((wrong, slow));
    let mut first = &half_open[0];
    first
        .set_read_timeout(Some(wait::scaled(Duration::from_secs(10))))
        .unwrap();
    let mut rest = Vec::new();
    // Closed or reset, within the time limit of a handshake.
    let ended = first.read_to_end(&mut rest);
    let is_reset = |error: &std::io::Error| error.kind() == ErrorKind::ConnectionReset;
    assert!(ended.as_ref().map_or_else(is_reset, |_| true), "{ended:?}");
    assert!(
        bed.status()["api"]["refused"].as_u64().unwrap() > 20,
        "{}",
        bed.status()
    );
}

#[test]
fn a_created_token_is_accepted_by_the_relay() {
    let Some(bed) = Bed::new("") else { return };
    let created = bed.daemon.mcr(&[
        "token",
        "create",
        "--name",
        "noc",
        "--role",
        "operate",
        "--expires",
        "90d",
    ]);
    let made = created.unwrap();
    let (token, client) = made.split_once("\n\n").unwrap();
    assert!(
        token.starts_with("mcr_") && client.contains(&tls::token::hash(token)),
        "{made}"
    );
    let path = bed.daemon.config_file();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{text}\n{client}from = [\"10.0.0.0/24\"]\n")).unwrap();
    bed.daemon.mcr(&["check", path.to_str().unwrap()]).unwrap();
    bed.daemon.mcr(&["reload"]).unwrap();
    bed.secret("noc.header", &format!("Authorization: Bearer {token}\n"));
    let (status, body) = bed.curl(&format!("-H @noc.header https://{RELAY}/v1/status"));
    assert_eq!(status, 403, "it comes from elsewhere: {body}");
    fs::write(&path, format!("{text}\n{client}from = [\"10.0.1.0/24\"]\n")).unwrap();
    bed.daemon.mcr(&["reload"]).unwrap();
    let (status, body) = bed.curl(&format!("-H @noc.header https://{RELAY}/v1/status"));
    assert_eq!(status, 200, "{body}");
    assert!(bed.status()["api"]["expiring"].is_null());
    // Only what expires within 14 days is reported.
    let create = "token create --name soon --role view --expires 13d";
    let made = bed
        .daemon
        .mcr(&create.split(' ').collect::<Vec<_>>())
        .unwrap();
    let (_, soon) = made.split_once("\n\n").unwrap();
    fs::write(&path, format!("{text}\n{client}\n{soon}")).unwrap();
    bed.daemon.mcr(&["reload"]).unwrap();
    bed.wait_for("it is told of", |api| {
        api["expiring"] == serde_json::json!(["client soon"])
    });
    assert!(bed.daemon.log().contains("client soon ends at"));
    fs::write(&path, text).unwrap();
    bed.daemon.mcr(&["reload"]).unwrap();
    wait::until("it is over", || {
        bed.daemon.log().contains("client soon ends soon no more")
    })
    .unwrap();
}

#[test]
fn prometheus_reads_the_metrics_by_token_and_by_certificate() {
    let Some(bed) = Bed::new("") else { return };
    if let Err(reason) = can_run("prometheus") {
        eprintln!("skipped: {reason}");
        return;
    }
    let at = |name: &str| bed.keys.path(name).display().to_string();
    let (ca, token, certificate, key) = (
        at("servers.pem"),
        at("view.token"),
        at("ci.pem"),
        at("ci.key"),
    );
    let config = format!(
        "global: {{ scrape_interval: 500ms }}\n\
         scrape_configs:\n  \
         - job_name: mcr\n    scheme: https\n    authorization: {{ credentials_file: {token} }}\n    \
         tls_config: {{ ca_file: {ca} }}\n    static_configs: [{{ targets: [\"{RELAY}\"] }}]\n  \
         - job_name: mcr-by-certificate\n    scheme: https\n    tls_config:\n      ca_file: {ca}\n      \
         cert_file: {certificate}\n      key_file: {key}\n    static_configs: [{{ targets: [\"{RELAY}\"] }}]\n"
    );
    let file = bed.keys.path("prometheus.yml");
    fs::write(&file, config).unwrap();
    lab::link::up((&bed.chain.sink, "lo")).unwrap();
    let mut command = bed.chain.sink.command("prometheus");
    command
        .arg(format!("--config.file={}", file.display()))
        .arg(format!("--storage.tsdb.path={}", at("storage")))
        .arg("--web.listen-address=127.0.0.1:9191");
    let _prometheus = Process::start(command).unwrap();
    let ask = "-G --data-urlencode query=mcr_api_up==1 http://127.0.0.1:9191/api/v1/query";
    wait::until_within(PATIENCE, "both jobs read it", || {
        let (_, answer) = bed.curl(ask);
        answer.contains("\"mcr\"") && answer.contains("\"mcr-by-certificate\"")
    })
    .unwrap();
}
