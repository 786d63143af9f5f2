//! Rules as documents, against the schema and back.

use std::sync::LazyLock;

use jsonschema::Validator;
use proptest::prelude::*;
use serde_json::json;
use utoipa::{PartialSchema, ToSchema};

use super::*;

/// The schema's objections to a rule in TOML.
fn errors(rule: &str) -> Vec<String> {
    static VALIDATOR: LazyLock<Validator> = LazyLock::new(|| {
        let mut schemas = vec![("RuleDocument".to_owned(), RuleDocument::schema())];
        RuleDocument::schemas(&mut schemas);
        let schemas: BTreeMap<_, _> = schemas.into_iter().collect();
        let rule = json!({
            "$ref": "#/components/schemas/RuleDocument",
            "components": { "schemas": schemas },
        });
        jsonschema::draft202012::new(&rule).unwrap()
    });
    let rule: toml::Table = rule.parse().unwrap();
    let rule = json!(rule);
    let errors = VALIDATOR.iter_errors(&rule);
    errors.map(|error| error.to_string()).collect()
}

/// Asserts that the schema refuses what is wrong with one option, which the command line writes as
/// `text`; it cannot judge several options together, nor what a value means.
pub(crate) fn check_in_a_rule(key: &str, text: &str, problem: &str) {
    const BEYOND: [&str; 10] = [
        "not shorter than silence",
        "is above",
        "needs ",
        "share bytes",
        "says where a sequence",
        "takes no",
        "cannot send",
        "family",
        "belongs to",
        "is for names",
    ];
    if problem.contains("is given twice") {
        // TOML cannot express that.
        return;
    }
    let pairs: Option<Vec<String>> = text
        .split(',')
        .map(|part| part.split_once('='))
        .map(|pair| pair.map(|(key, value)| format!("{key} = {value:?}")))
        .collect();
    let value = match pairs {
        _ if key == "outputs" => format!("[{text:?}]"),
        Some(pairs) => format!("{{ {} }}", pairs.join(", ")),
        _ => format!("{text:?}"),
    };
    let rule = format!("name = \"a\"\n{key} = {value}");
    let refused = errors(&rule);
    let is_beyond = BEYOND.iter().any(|beyond| problem.contains(beyond));
    assert_eq!(
        refused.is_empty(),
        is_beyond,
        "{rule}: {problem}: {refused:?}"
    );
}

fn document(json: &str) -> RuleDocument {
    serde_json::from_str(json).unwrap()
}

#[test]
fn reads_an_output_as_text_and_as_table() {
    let rule = document(
        r#"{"name": "cam1", "input": "239.1.1.1%eth0:5001", "outputs": [
            "239.10.1.1%eth1:6001,ttl=16",
            {"to": "10.9.9.9:7000", "ttl": "dec", "fragment": true, "dscp": 34}
        ]}"#,
    )
    .to_rule(0)
    .unwrap();
    let outputs: Vec<String> = rule.outputs.iter().map(ToString::to_string).collect();
    assert_eq!(
        outputs,
        [
            "239.10.1.1%eth1:6001,ttl=16",
            "10.9.9.9:7000,ttl=dec,dscp=34,fragment=yes"
        ]
    );
}

#[test]
fn reports_every_part_that_cannot_be_read() {
    let problems = document(
        r#"{"name": "cam 1", "input": "239.1.1.1%eth0:0", "limit": "fast",
            "share": "the studio", "outputs": ["239.10.1.1%eth1", {"to": "10.9.9.9:7000", "ttl": 0}]}"#,
    )
    .to_rule(0)
    .unwrap_err();
    assert_eq!(
        problems.to_string().lines().collect::<Vec<_>>(),
        [
            "rule \"cam 1\": the name must start with a letter or digit and hold only letters, digits, '.', '_', '-' and ':', at most 63 of them",
            "rule \"cam 1\": input 239.1.1.1%eth0:0: port 0 cannot be used; give 1 to 65535",
            "rule \"cam 1\": output 239.10.1.1%eth1: has no port; write 239.10.1.1%eth1:PORT, as in 239.10.1.1%eth1:5001",
            "rule \"cam 1\": output 10.9.9.9:7000,ttl=0: ttl=0: give 1 to 255, dec (one less, as a router) or keep",
            "rule \"cam 1\": limit=fast: give a rate such as 5000pps or 20Mbit (pps, kpps, Mpps, bit, kbit, Mbit, Gbit)",
            "rule \"cam 1\": the share must start with a letter or digit and hold only letters, digits, '.', '_', '-' and ':', at most 63 of them",
        ]
    );
}

#[test]
fn refuses_unknown_keys_by_name() {
    for (json, expected) in [
        (
            r#"{"name": "a", "outputs": [], "inptu": "x"}"#,
            "unknown field `inptu`",
        ),
        (
            r#"{"name": "a", "outputs": [{"to": "x", "tll": 1}]}"#,
            "unknown field `tll`",
        ),
        (r#"{"name": "a", "outputs": [5]}"#, "expected an output: "),
        (
            r#"{"name": "a", "outputs": [], "path": "fast"}"#,
            "path = \"fast\": give \"auto\", \"kernel\" or \"userspace\"",
        ),
    ] {
        let error = serde_json::from_str::<RuleDocument>(json).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn null_is_as_good_as_nothing_and_a_whole_number_is_whole_however_written() {
    let rule = document(
        r#"{"name": "a", "input": "239.1.1.1%eth0:1", "path": null, "local": null,
            "limit": null, "burst": null, "outputs": [{"to": "10.9.9.9:7000", "ttl": 5.0}]}"#,
    );
    assert_eq!(
        serde_json::to_string(&RuleDocument::from(rule.to_rule(0).unwrap())).unwrap(),
        r#"{"name":"a","inputs":["239.1.1.1%eth0:1"],"outputs":["10.9.9.9:7000,ttl=5"]}"#
    );
    let half = r#"{"name": "a", "outputs": [{"to": "10.9.9.9:7000", "ttl": 5.5}]}"#;
    let error = serde_json::from_str::<RuleDocument>(half).unwrap_err();
    assert!(error.to_string().contains("5.5"), "{error}");
}

#[test]
fn writes_a_single_input_short_only_when_asked() {
    let json = r#"{"name":"a","inputs":["239.1.1.1%eth0:1"],"outputs":["10.9.9.9:7000"]}"#;
    let long = document(json);
    assert_eq!(serde_json::to_string(&long).unwrap(), json);
    let short = long.clone().with_short_input();
    assert_eq!(short.input.as_deref(), Some("239.1.1.1%eth0:1"));
    assert_eq!(short.to_rule(0), long.to_rule(0));
}

proptest! {
    #[test]
    fn survives_the_way_to_a_rule_and_back(
        rule in prop_oneof![crate::samples::rule(), crate::samples::reflecting()]
    ) {
        let document = RuleDocument::from(&rule);
        prop_assert_eq!(document.to_rule(0).unwrap(), rule.clone());
        let json = serde_json::to_string(&document).unwrap();
        prop_assert_eq!(serde_json::from_str::<Rule>(&json).unwrap(), rule);
    }
}
