//! `mcr import`: `mcr check` accepts what it prints, what it leaves out is reported with its line,
//! and the exit status shows which.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

const SDP: &str = "v=0\r
o=- 1443716955 1443716955 IN IP4 192.168.10.20\r
s=Camera 1\r
t=0 0\r
a=group:DUP primary secondary\r
m=video 20000 RTP/AVP 96\r
c=IN IP4 239.100.1.1/64\r
a=source-filter: incl IN IP4 239.100.1.1 192.168.10.20\r
a=rtpmap:96 raw/90000\r
a=mid:primary\r
m=video 20000 RTP/AVP 96\r
c=IN IP4 239.101.1.1/64\r
a=source-filter: incl IN IP4 239.101.1.1 192.168.20.20\r
a=mid:secondary\r
";

const PLAYLIST: &str = "#EXTM3U
#EXTINF:-1 group-title=\"HD\",Das Erste HD
udp://@239.35.10.4:10000
#EXTINF:-1,ZDF HD
rtp://10.0.0.5@232.35.10.2:10000
udp://@[ff3e::8000:1]:5000
";

const XSPF: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>
<playlist xmlns=\"http://xspf.org/ns/0/\" version=\"1\"><trackList>
<track><location>udp://@239.35.10.4:10000</location><title>One</title></track>
</trackList></playlist>";

const ROUTES: &str = "phyint eth0 enable
mgroup from eth0 group 225.1.2.3
mroute from eth0 source 192.168.1.42 group 225.1.2.3 to eth1 eth2
mroute from eth0 group 225.0.0.0/24 to eth1
";

const IS05: &str = r#"{"sender_id": null, "master_enable": true, "transport_params": [
    {"multicast_ip": "232.105.26.177", "source_ip": "192.168.200.10", "destination_port": 5000,
     "interface_ip": "192.168.200.15", "rtp_enabled": true},
    {"multicast_ip": "232.3.28.144", "source_ip": "192.168.210.10", "destination_port": 5000,
     "interface_ip": "192.168.210.15", "rtp_enabled": true}]}"#;

const GIVEN: [&str; 4] = ["--input-interface", "red", "--to", "%eth1,ttl=16"];

/// What a run printed, and its exit status.
struct Ran {
    out: String,
    err: String,
    status: i32,
}

/// Runs `mcr` with `input` as its standard input.
fn mcr(arguments: &[&str], input: &[u8]) -> Ran {
    let mut child = Command::new(env!("CARGO_BIN_EXE_mcr"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that reads nothing closes it.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    Ran {
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
        status: output.status.code().unwrap(),
    }
}

/// Imports a text, expects this status, and that `mcr check` takes what was printed.
#[track_caller]
fn import(text: &str, options: &[&str], status: i32) -> Ran {
    let ran = mcr(&[&["import", "-"], options].concat(), text.as_bytes());
    assert_eq!(ran.status, status, "{}", ran.err);
    let checked = mcr(&["check", "-"], ran.out.as_bytes());
    assert_eq!(checked.status, 0, "{}\n{}", ran.out, checked.err);
    ran
}

#[test]
fn what_is_made_of_every_kind_of_file_passes_the_check() {
    for (text, format, rules) in [
        (SDP, "sdp", 1),
        (PLAYLIST, "m3u", 3),
        (XSPF, "xspf", 1),
        (ROUTES, "smcroute", 2),
        (IS05, "is05", 1),
    ] {
        let ran = import(text, &GIVEN, 0);
        assert_eq!(ran.out.matches("[[rule]]").count(), rules, "{}", ran.out);
        let named = [&GIVEN[..], &["--format", format]].concat();
        assert_eq!(import(text, &named, 0).out, ran.out);
    }
}

#[test]
fn legs_become_inputs_of_one_rule_that_merges_them() {
    for text in [SDP, IS05] {
        let both = [&GIVEN[..], &["--input-interface", "blue"]].concat();
        let ran = import(text, &both, 0);
        for expected in ["%red:", "%blue:", "merge = \"rtp\"", "%eth1:", ",ttl=16\""] {
            assert!(ran.out.contains(expected), "{expected}: {}", ran.out);
        }
        assert_eq!(ran.err, "");
    }
}

#[test]
fn json_is_a_list_of_rules_as_export_has_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tv.m3u");
    std::fs::write(&file, PLAYLIST).unwrap();
    let arguments = [&["import", file.to_str().unwrap(), "--json"], &GIVEN[..]].concat();
    let ran = mcr(&arguments, b"");
    assert_eq!(ran.status, 0, "{}", ran.err);
    let list: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(list["rules"][0]["name"], "Das-Erste-HD");
    assert_eq!(list["rules"][0]["comment"], "Das Erste HD");
    assert_eq!(
        list["rules"][1]["inputs"][0],
        "10.0.0.5@232.35.10.2%red:10000"
    );
    assert_eq!(
        list["rules"][2]["outputs"][0],
        "[ff3e::8000:1%eth1]:5000,ttl=16"
    );
}

#[test]
fn what_is_left_out_is_reported_with_its_line_and_is_status_1() {
    let text = format!("{PLAYLIST}http://example.org/\x1b[2Jx\nudp://@10.0.0.1:1\n");
    let ran = import(&text, &GIVEN, 1);
    assert_eq!(
        ran.err,
        "mcr import: standard input:7: not taken over: http://example.org/\\u{1b}[2Jx: http is not \
         multicast over UDP\n\
         mcr import: standard input:8: not taken over: udp://@10.0.0.1:1: 10.0.0.1 is not a \
         multicast group, and rules take groups\n\
         mcr import: 3 rules made, 2 things not taken over\n"
    );
    let routes = ROUTES.replace("eth0 enable", "eth0 enable ttl-threshold 11");
    let ran = import(&routes, &[], 1);
    assert!(
        ran.err
            .contains("standard input:1: not taken over: phyint eth0"),
        "{}",
        ran.err
    );
}

#[test]
fn what_is_missing_is_named_and_nothing_is_printed() {
    let ports = [&["import", "-", "--port", "0"], &GIVEN[..]].concat();
    let (only, given) = (&["import", "-"][..], &GIVEN[..]);
    for (arguments, text, status, words) in [
        (
            only,
            PLAYLIST,
            2,
            &["3 of the file's streams", "--input-interface", "--to %eth1"][..],
        ),
        (
            &["import", "-", "--to", "%eth1"],
            SDP,
            2,
            &["--input-interface eth0"],
        ),
        (
            &["import", "-", "--input-interface", "eth0"],
            SDP,
            2,
            &["--to %eth1"],
        ),
        (
            &["import", "-", "--to", "eth1"],
            SDP,
            2,
            &["\"eth1\" is not", "write %IFACE"],
        ),
        (
            &["import", "-", "--input-interface", "a b"],
            SDP,
            2,
            &["white space"],
        ),
        (&ports, ROUTES, 2, &["port 0"]),
        (
            &[only, given].concat(),
            "hello\n",
            78,
            &["standard input: ", "--format"],
        ),
        (
            &[only, given].concat(),
            "#EXTM3U\n",
            78,
            &["no rule can be made of it"],
        ),
        (&[only, given].concat(), "{\"a\": ", 78, &["JSON", "line 1"]),
        (
            &["import", "/nonexistent.sdp"],
            "",
            78,
            &["/nonexistent.sdp", "No such file"],
        ),
    ] {
        let ran = mcr(arguments, text.as_bytes());
        assert_eq!(
            (ran.status, &*ran.out),
            (status, ""),
            "{arguments:?}: {}",
            ran.err
        );
        for word in words {
            assert!(
                ran.err.contains(word),
                "{arguments:?}: no {word:?} in {}",
                ran.err
            );
        }
    }
}
