//! How rules that reflect are parsed, and what can be wrong with them.

use super::*;
use crate::merge::By;

fn problems(json: &str) -> Vec<String> {
    let document: RuleDocument = serde_json::from_str(json).unwrap();
    let problems = document.to_rule(0).unwrap_err();
    let text = problems.to_string();
    let lines = text
        .lines()
        .map(|line| line.replacen("rule \"m\": ", "", 1));
    lines.collect()
}

#[test]
fn has_an_input_and_an_output_for_each_interface() {
    let json = r#"{"name":"m","mode":"reflect","interfaces":["eth0","eth1","wlan0"],
        "group":"[ff02::fb]:5353","ttl":255,"window":"100ms"}"#;
    let document: RuleDocument = serde_json::from_str(json).unwrap();
    let rule = document.to_rule(0).unwrap();
    let inputs: Vec<String> = rule.inputs.iter().map(ToString::to_string).collect();
    let outputs: Vec<String> = rule.outputs.iter().map(ToString::to_string).collect();
    let on = |link: &str| format!("[ff02::fb%{link}]:5353");
    assert_eq!(inputs, ["eth0", "eth1", "wlan0"].map(on));
    let with_ttl = inputs.iter().map(|text| format!("{text},ttl=255"));
    assert_eq!(outputs, with_ttl.collect::<Vec<_>>());
    assert!(rule.leads(0, 1) && !rule.leads(1, 1));
    assert_eq!(RuleDocument::from(&rule), document);
    let once = rule.passes_once().unwrap();
    assert_eq!((once.by, once.window.as_millis()), (By::Once, 100));
}

#[test]
fn the_same_payload_of_another_sender_passes_if_sources_are_kept() {
    let json = r#"{"name":"m","mode":"reflect","interfaces":["a","b"],
        "group":"239.255.255.250:1900","source":"keep"}"#;
    let document: RuleDocument = serde_json::from_str(json).unwrap();
    let rule = document.to_rule(0).unwrap();
    assert_eq!(rule.passes_once().unwrap().by, By::OnceFromEach);
    assert_eq!(RuleDocument::from(&rule), document);
}

#[test]
fn names_everything_that_is_wrong() {
    assert_eq!(
        problems(
            r#"{"name":"m","mode":"reflect","interfaces":["eth0","eth0","eth*","lo","a b"],
                "group":"239.1.1.0/24:5000","source":"10.0.0.1","window":"5s",
                "merge":"rtp","outputs":["10.9.9.9:7000"]}"#
        ),
        [
            "mode = \"reflect\" and outputs do not go together; leave one of them out",
            "mode = \"reflect\" and merge do not go together; leave one of them out",
            "interface eth0 is there twice; leave one out",
            "interface eth* may stand for several; name each",
            "interface lo hears what it sends, which would go round for ever; leave it out",
            "interfaces: \"a b\": holds white space; write it without",
            "group = \"239.1.1.0/24:5000\": give one multicast group and one port, as in \
             224.0.0.251:5353 or [ff02::fb]:5353, or 255.255.255.255:PORT for broadcasts, and each other one a rule of its own",
            "source = \"10.0.0.1\": give auto (the address of the interface that a copy leaves \
             by) or keep",
            "window = \"5s\": give 1ms to 500ms",
        ]
    );
    assert_eq!(
        problems(r#"{"name":"m","mode":"mirror"}"#),
        ["mode = \"mirror\": give \"reflect\", or leave it out"]
    );
    assert_eq!(
        problems(r#"{"name":"m","group":"239.1.1.1:1","outputs":[]}"#),
        ["group is for rules with mode = \"reflect\"; add that, or leave group out"]
    );
    assert_eq!(
        problems(r#"{"name":"m","mode":"reflect","interfaces":["a"]}"#),
        [
            "reflects between two interfaces or more; name them, as in interfaces = [\"eth0\", \
             \"eth1\"]",
            "has no group; give it one with its port, as in group = \"224.0.0.251:5353\"",
        ]
    );
}

#[test]
fn isolated_interfaces_receive_from_the_others_and_not_from_each_other() {
    let json = r#"{"name":"m","mode":"reflect","interfaces":["hub","a","b"],
        "isolated":["a","b"],"group":"255.255.255.255:9302"}"#;
    let document: RuleDocument = serde_json::from_str(json).unwrap();
    let mut rule = document.to_rule(0).unwrap();
    let led = |rule: &Rule, from: usize| (0..3).filter(move |to| rule.leads(from, *to)).collect();
    let [hub, a, b]: [Vec<usize>; 3] = [led(&rule, 0), led(&rule, 1), led(&rule, 2)];
    assert_eq!((hub, a, b), (vec![1, 2], vec![0], vec![0]));
    assert_eq!(RuleDocument::from(&rule), document);
    // An interface may have another name on another host.
    rule.inputs[1].interface = Some("vlan7".to_owned());
    assert_eq!(RuleDocument::from(&rule).isolated, ["vlan7", "b"]);
    let with = |isolated: &str| json.replace(r#"["a","b"]"#, isolated);
    assert_eq!(
        problems(&with(r#"["a","c"]"#)),
        ["isolated: c is none of the rule's interfaces; name it there too, or leave it out"]
    );
    assert_eq!(
        problems(&with(r#"["a","b","hub"]"#)),
        ["isolated has all interfaces, so none hears another; leave out the one that all hear"]
    );
    assert_eq!(
        problems(r#"{"name":"m","isolated":["a"],"outputs":[]}"#),
        ["isolated is for rules with mode = \"reflect\"; add that, or leave isolated out"]
    );
}
