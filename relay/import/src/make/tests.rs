//! Which rules streams become.

use config::{self, Config, ConfigFile, Settings};

use super::*;
use crate::read::read;
use crate::sdp::tests::ST2110;

fn options(interfaces: &[&str], to: &[&str]) -> Options {
    Options {
        interfaces: interfaces.iter().map(|name| (*name).to_owned()).collect(),
        to: to.iter().map(|to| to.parse().unwrap()).collect(),
        ports: None,
    }
}

/// The rules as a file, after a round trip through the parser, and the remarks.
fn made(text: &str, options: &Options) -> (String, Vec<String>) {
    let imported = make(read(text.as_bytes(), None).unwrap(), options).unwrap();
    let text = config::export(&imported.rules, &Settings::default());
    let file = ConfigFile {
        name: "rules.toml".to_owned(),
        text: text.clone(),
    };
    let config = Config::load(&[file], Policy::default()).unwrap();
    assert_eq!(config.rules, imported.rules);
    let remarks = imported.remarks.iter().map(ToString::to_string);
    (text, remarks.collect())
}

#[test]
fn legs_are_merged_and_arrive_by_an_interface_each() {
    let (text, remarks) = made(ST2110, &options(&["red", "blue"], &["%eth1,dscp=34"]));
    assert_eq!(
        text,
        r#"version = 1

[[rule]]
name = "Studio-3-Camera-1-Video"
inputs = [
    "192.168.10.20@239.100.1.1%red:20000",
    "192.168.20.20@239.101.1.1%blue:20000",
]
outputs = ["239.100.1.1%eth1:20000,dscp=34"]
merge = "rtp"
comment = "Studio 3: Camera 1 Video"

[[rule]]
name = "Studio-3-Camera-1-audio"
inputs = [
    "192.168.10.20@239.100.1.2%red:20002",
    "192.168.20.20@239.101.1.2%blue:20002",
]
outputs = ["239.100.1.2%eth1:20002,dscp=34"]
merge = "rtp"
comment = "Studio 3: Camera 1 audio"
"#
    );
    assert_eq!(remarks, [""; 0]);
    let (text, _) = made(ST2110, &options(&["eth0"], &["%eth1"]));
    assert!(text.contains("239.101.1.1%eth0:20000"), "{text}");
}

#[test]
fn legs_that_are_the_same_on_one_interface_are_one_input() {
    let same = ST2110
        .replace("239.101", "239.100")
        .replace("192.168.20", "192.168.10");
    let (text, remarks) = made(&same, &options(&["eth0"], &["%eth1"]));
    assert!(!text.contains("merge"), "{text}");
    assert_eq!(remarks.len(), 2);
    assert!(remarks[0].starts_with("7: not taken over: its legs are one and the same"));
    let (text, remarks) = made(&same, &options(&["red", "blue"], &["%eth1"]));
    assert!(text.contains("merge") && remarks.is_empty(), "{text}");
}

#[test]
fn a_route_of_smcroute_does_what_it_did_there() {
    let routes = "mroute from eth0 source 10.0.0.5 group 225.1.2.3 to eth1 eth2\n\
                  mroute from eth+ group 225.3.0.0/24 to lan0\n";
    let (text, remarks) = made(routes, &Options::default());
    assert_eq!(
        text,
        r#"version = 1

[[rule]]
name = "eth0-10.0.0.5-225.1.2.3"
input = "10.0.0.5@225.1.2.3%eth0:1-65535"
outputs = [
    "225.1.2.3%eth1:1-65535,ttl=dec,source=keep",
    "225.1.2.3%eth2:1-65535,ttl=dec,source=keep",
]

[[rule]]
name = "eth-225.3.0.0-24"
input = "225.3.0.0/24%eth*:1-65535"
outputs = ["225.3.0.0/24%lan0:1-65535,ttl=dec,source=keep"]
"#
    );
    assert_eq!(remarks, [""; 0]);
    let given = Options {
        ports: Some(Ports::single(5000)),
        ..options(&[], &["%eth7"])
    };
    let (text, remarks) = made(routes, &given);
    assert!(text.contains("225.1.2.3%eth1:5000,ttl=dec"), "{text}");
    assert_eq!(
        remarks,
        [" note: --to is not used: the file says itself where its streams go"]
    );
}

#[test]
fn what_cannot_be_a_rule_beside_others_is_reported_with_its_line() {
    let playlist = "#EXTM3U\n#EXTINF:-1,One\nudp://@239.1.1.1:1234\n#EXTINF:-1,One again\n\
                    udp://@239.1.1.1:1234\nudp://@224.0.0.251:5353\nudp://@[ff3e::1]:1234\n";
    let (text, remarks) = made(playlist, &options(&["eth0"], &["239.2.0.0/16%eth1"]));
    assert_eq!(text.matches("[[rule]]").count(), 1, "{text}");
    let starts = [
        "5: not taken over: rule \"One-again\": input 239.1.1.1%eth0:1234: is an input of rule",
        "6: not taken over: 224.0.0.251 stays on its link",
        "7: not taken over: no --to is of its family",
    ];
    assert_eq!(remarks.len(), 3, "{remarks:?}");
    for (remark, start) in remarks.iter().zip(starts) {
        assert!(remark.starts_with(start), "{remark}");
    }
    // Sent back to its own input.
    let (text, remarks) = made("udp://@239.1.1.1:1", &options(&["eth0"], &["%eth0"]));
    assert_eq!(text, "version = 1\n");
    assert!(
        remarks[0].contains("feeds the rule's own input"),
        "{remarks:?}"
    );
}

#[test]
fn says_where_streams_would_mix() {
    let playlist = "udp://@239.1.1.1:1234\nudp://@239.1.1.2:1234\nudp://@239.1.1.3:1235\n";
    let (_, remarks) = made(playlist, &options(&["eth0"], &["10.9.9.9"]));
    assert_eq!(
        remarks,
        [
            " note: 10.9.9.9:1234: 2 rules send to it, where their packets mix; --to without a group \
          or port keeps theirs"
        ]
    );
}

#[test]
fn says_which_options_are_missing() {
    let parsed = |text: &str| read(text.as_bytes(), None).unwrap();
    let error = |text, options: &Options| make(parsed(text), options).unwrap_err().to_string();
    let none = Options::default();
    let both = error("udp://@239.1.1.1:1\nudp://@[ff05::1%25eth0]:1\n", &none);
    let lines: Vec<&str> = both.lines().collect();
    assert!(lines[0].starts_with("1 of the file's streams do not say on which interface"));
    assert!(lines[1].starts_with("2 of the file's streams do not say where they are to go"));
    assert!(
        error("udp://@239.1.1.1:1", &options(&[], &["%eth1"])).contains("--input-interface eth0")
    );
    assert!(error("udp://@239.1.1.1:1", &options(&["eth0"], &[])).contains("--to %eth1"));
}

/// A description of two legs, with further lines for the session, the first and the second leg.
fn two_legs(head: &str, first: &str, second: &str) -> String {
    format!(
        "v=0\ns=cam\n{head}m=video 5000 RTP/AVP 96\nc=IN IP4 239.1.1.1/32\n{first}\
         m=video 5000 RTP/AVP 96\nc=IN IP4 239.2.1.1/32\n{second}"
    )
}

#[test]
fn a_leg_keeps_its_interface_whatever_becomes_of_the_other() {
    let both = "a=group:DUP a b\n";
    for (description, inputs) in [
        (
            two_legs(both, "a=mid:a\na=inactive\n", "a=mid:b\n"),
            "\ninput = \"239.2.1.1%blue:5000\"",
        ),
        (
            two_legs(both, "a=mid:a\n", "a=mid:b\na=inactive\n"),
            "\ninput = \"239.1.1.1%red:5000\"",
        ),
        (
            two_legs(both, "a=mid:a\n", "a=mid:b\n").replacen("m=video 5000", "m=video 0", 1),
            "\ninput = \"239.2.1.1%blue:5000\"",
        ),
        (
            two_legs(both, "a=mid:a\n", "a=mid:b\n").replacen("239.1.1.1/32", "10.0.0.1", 1),
            "\ninput = \"239.2.1.1%blue:5000\"",
        ),
        // Nothing says which of them the group means.
        (two_legs(both, "", ""), "\ninput = \"239.2.1.1%blue:5000\""),
        (
            two_legs("a=group:DUP a c\n", "a=mid:a\n", "a=mid:b\n"),
            "\ninput = \"239.2.1.1%blue:5000\"",
        ),
    ] {
        let (text, remarks) = made(&description, &options(&["red", "blue"], &["%eth1"]));
        assert!(text.contains(inputs), "{description}: {text}");
        assert_eq!(remarks.len(), 1, "{remarks:?}");
    }
    for first in [
        r#""multicast_ip": "239.1.1.1", "rtp_enabled": false"#,
        r#""multicast_ip": "10.0.0.1""#,
        r#""broker_topic": "x""#,
    ] {
        let text = format!(
            r#"{{"transport_params": [{{{first}, "destination_port": 5000}},
                {{"multicast_ip": "239.2.1.1", "destination_port": 5000}}]}}"#
        );
        let (text, remarks) = made(&text, &options(&["red", "blue"], &["%eth1"]));
        assert!(text.contains("\ninput = \"239.2.1.1%blue:5000\""), "{text}");
        assert_eq!(remarks.len(), 1, "{remarks:?}");
    }
    // Parameters take precedence over the SDP.
    let sdp = two_legs(both, "a=mid:a\n", "a=mid:b\n").replace('\n', "\\r\\n");
    let text = format!(
        r#"{{"transport_params": [{{"multicast_ip": "auto"}},
            {{"multicast_ip": "239.7.7.7", "destination_port": 5000}}],
            "transport_file": {{"data": "{sdp}", "type": "application/sdp"}}}}"#
    );
    let (text, remarks) = made(&text, &options(&["red", "blue"], &["%eth1"]));
    assert!(text.contains("239.1.1.1%red:5000") && text.contains("239.7.7.7%blue:5000"));
    assert_eq!(remarks, [""; 0]);
}

#[test]
fn says_where_a_leg_has_no_interface_of_its_own() {
    let leg = |n: u8| format!("m=video 5004 RTP/AVP 33\nc=IN IP4 239.{n}.1.1/32\na=mid:{n}\n");
    let head = "v=0\no=- 1 1 IN IP4 10.0.0.1\ns=three\nt=0 0\na=group:DUP 1 2 3\n";
    let text = format!("{head}{}{}{}", leg(1), leg(2), leg(3));
    let (file, remarks) = made(&text, &options(&["red", "blue"], &["%eth1"]));
    assert!(file.contains("239.3.1.1%red"), "{file}");
    assert!(
        remarks
            .iter()
            .any(|it| it.contains("leg 3 listens on red again")),
        "{remarks:?}"
    );
    for enough in [&["red"][..], &["red", "blue", "green"]] {
        let (_, remarks) = made(&text, &options(enough, &["%eth1"]));
        assert!(remarks.is_empty(), "{remarks:?}");
    }
}

#[test]
fn copies_that_come_later_have_a_window_that_is_wider() {
    let both = "a=group:DUP a b\n";
    for (head, second) in [
        ("a=duplication-delay:200\n", ""),
        ("", "a=duplication-delay:200\n"),
    ] {
        let second = format!("a=mid:b\n{second}");
        let text = two_legs(&format!("{both}{head}"), "a=mid:a\n", &second);
        let (text, remarks) = made(&text, &options(&["red", "blue"], &["%eth1"]));
        assert!(text.contains("\nwindow = \"250ms\"\n"), "{text}");
        assert!(
            remarks.len() == 1 && remarks[0].contains("window is"),
            "{remarks:?}"
        );
    }
    let head = format!("{both}a=duplication-delay:2000\n");
    let text = two_legs(&head, "a=mid:a\n", "a=mid:b\n");
    let (text, remarks) = made(&text, &options(&["red", "blue"], &["%eth1"]));
    assert!(text.contains("merge = \"rtp\""), "{text}");
    assert!(remarks[0].contains("not taken over"), "{remarks:?}");
    // A session whose sections are no copies.
    let text = two_legs("a=duplication-delay:200\n", "", "");
    let (_, remarks) = made(&text, &options(&["red"], &["%eth1"]));
    assert!(
        remarks.len() == 1 && remarks[0].contains("no sections are copies"),
        "{remarks:?}"
    );
}

#[test]
fn an_output_that_cannot_be_costs_no_other() {
    let routes = "mroute from mesh0 group 239.1.1.1 to mesh0 br-lan\n\
                  mroute from mesh0 source 10.0.0.4/31 group 239.1.1.2 to br-lan\n\
                  mroute from mesh0 source 10.0.0.0/8 group 239.1.1.3 to br-lan\n";
    let (text, remarks) = made(routes, &Options::default());
    assert!(
        text.contains("outputs = [\"239.1.1.1%br-lan:1-65535,ttl=dec,source=keep\"]"),
        "{text}"
    );
    assert!(
        text.contains("input = \"10.0.0.4,10.0.0.5@239.1.1.2%mesh0"),
        "{text}"
    );
    assert_eq!(remarks.len(), 2, "{remarks:?}");
    assert!(
        remarks[0].contains("1: not taken over: rule \"mesh0-239.1.1.1\": output 239.1.1.1%mesh0")
    );
    assert!(remarks[1].starts_with("3: not taken over"));
}

#[test]
fn says_what_a_rule_that_reflects_does_better() {
    let routes = "mroute from eth0 group 239.255.255.250 to eth1\n\
                  mroute from eth1 group 239.255.255.250 to eth0\n\
                  mroute from eth0 group 224.0.0.251 to eth1\n";
    let (text, remarks) = made(routes, &Options::default());
    assert_eq!(text.matches("[[rule]]").count(), 2, "{text}");
    assert!(
        remarks[0].contains("`mcr add 224.0.0.251:PORT --reflect IFACE,IFACE`"),
        "{remarks:?}"
    );
    assert!(
        remarks[1].contains("note: 239.255.255.250: is carried both ways between eth0 and eth1"),
        "{remarks:?}"
    );
}
