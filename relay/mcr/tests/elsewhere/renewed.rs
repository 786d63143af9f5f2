//! Certificates, keys, CAs and revocation lists as Kubernetes mounts them: links to a directory that is
//! swapped as a whole, while clients are connected.

use std::fs;
use std::os::unix::fs::symlink;

use lab::process::Process;
use lab::wait;

use super::{Bed, config};
use crate::bed::{INPUT, OUTPUT};

/// Names of mounted files, each with the files that it is made of.
type Files<'a> = [(&'a str, Vec<&'a str>)];

/// Mounts other files as kubelet's atomic writer does, and removes the previous ones.
fn mount(bed: &Bed, number: u32, files: &Files<'_>) {
    let at = |name: &str| bed.keys.path("mounted").join(name);
    let directory = format!("..{number}");
    fs::create_dir_all(at(&directory)).unwrap();
    for (name, from) in files {
        let read = |from: &&str| fs::read_to_string(bed.keys.path(from)).unwrap();
        let text: String = from.iter().map(read).collect();
        fs::write(at(&directory).join(name), text).unwrap();
        if !at(name).is_symlink() {
            symlink(format!("..data/{name}"), at(name)).unwrap();
        }
    }
    symlink(&directory, at("..new")).unwrap();
    fs::rename(at("..new"), at("..data")).unwrap();
    let before = at(&format!("..{}", number.wrapping_sub(1)));
    let _ = fs::remove_dir_all(before);
}

#[test]
fn what_is_mounted_anew_counts_and_ends_only_those_who_are_none_any_more() {
    let Some(bed) = Bed::new("") else { return };
    let keys = &bed.keys;
    let name = "subjectAltName=DNS:ci.example";
    keys.sign("stranger", "strangers", name, "-days 30");
    let next = "subjectAltName=IP:10.0.1.1";
    keys.sign("next", "servers", next, "-days 20");
    keys.revoke(&[]);
    let files = |own: [&'static str; 2], ca: &[&'static str]| {
        let [certificate, key] = own.map(|name| vec![name]);
        [
            ("relay.pem", certificate),
            ("relay.key", key),
            ("clients.pem", ca.to_vec()),
            ("clients.crl", vec!["clients.crl"]),
        ]
    };
    let (first, renewed) = (["relay.pem", "relay.key"], ["next.pem", "next.key"]);
    mount(&bed, 1, &files(first, &["clients.pem"]));
    let mounted = |more: &str| {
        let directory = keys.directory().display().to_string();
        let text = config(keys, more).replace(&directory, &format!("{directory}/mounted"));
        fs::write(bed.daemon.config_file(), text).unwrap();
        bed.daemon.mcr(&["reload"]).unwrap();
        bed.wait_for("it serves by what is mounted", |api| api["state"] == "up");
    };
    let is_logged = || {
        bed.daemon
            .log()
            .contains("every user of this host can read")
    };
    assert!(!is_logged());
    mounted("");
    // As mounted secrets are by default, so it is reported and accepted.
    wait::until("it is told that others can read the key", is_logged).unwrap();
    let follow = |host: &str| Process::start(bed.command(host, &["events", "--json"])).unwrap();
    let goes_on = |following: &Process, rule: &str| {
        wait::until("the stream goes on", || {
            let _ = bed.daemon.add(rule, INPUT, &[OUTPUT]);
            let _ = bed.daemon.mcr(&["remove", rule]);
            following.stdout().contains(rule)
        })
        .unwrap();
    };
    let (by_token, mut by_certificate) = (follow("view"), follow("ci"));
    goes_on(&by_token, "one");
    goes_on(&by_certificate, "one");

    let ends = || bed.status()["api"]["certificate_expires"].as_u64().unwrap();
    let before = ends();
    mount(&bed, 2, &files(renewed, &["clients.pem"]));
    bed.wait_for("the certificate is the new one", |api| {
        api["certificate_expires"].as_u64() < Some(before) && api["state"] == "up"
    });
    goes_on(&by_token, "two");
    goes_on(&by_certificate, "two");
    bed.mcr("ci", &["list"]);

    // A further CA, and then that one alone.
    bed.refuses("stranger", &["list"], 77, "stranger");
    let both = ["clients.pem", "strangers.pem"];
    mount(&bed, 3, &files(renewed, &both));
    wait::until("whom the further CA signed is let in", || {
        bed.run("stranger", &["list"]).status.success()
    })
    .unwrap();
    goes_on(&by_token, "three");
    goes_on(&by_certificate, "three");
    mount(&bed, 4, &files(renewed, &["strangers.pem"]));
    wait::until("whom the former CA signed is cut off", || {
        !by_certificate.is_running()
    })
    .unwrap();
    bed.refuses("ci", &["list"], 77, "ci");
    bed.mcr("stranger", &["list"]);
    goes_on(&by_token, "four");

    // A revocation list.
    mount(&bed, 5, &files(first, &["clients.pem"]));
    let crl = keys.path("clients.crl").display().to_string();
    mounted(&format!("client_crl = \"{crl}\""));
    let mut by_certificate = follow("ci");
    goes_on(&by_certificate, "five");
    keys.revoke(&["ci"]);
    mount(&bed, 6, &files(first, &["clients.pem"]));
    wait::until("the revoked is cut off", || !by_certificate.is_running()).unwrap();
    bed.refuses("ci", &["list"], 77, "ci");
    goes_on(&by_token, "six");
    assert_eq!(bed.status()["api"]["state"], "up");
}
