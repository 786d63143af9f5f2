//! The parts of a rule as texts.

use model::document::RuleDocument;
use serde::Serialize;

/// The inputs, in either form of writing them.
pub(crate) fn inputs(rule: &RuleDocument) -> Vec<String> {
    rule.input.iter().chain(&rule.inputs).cloned().collect()
}

/// The outputs with their options.
pub(crate) fn outputs(rule: &RuleDocument) -> Vec<String> {
    let text = |output: &model::document::OutputDocument| match output.to_output() {
        Ok(output) => output.to_string(),
        Err(error) => error.text,
    };
    rule.outputs.iter().map(text).collect()
}

/// The rule's own options that are not the default, as `key=value`.
pub(crate) fn options(rule: &RuleDocument) -> Vec<String> {
    let mut options = Vec::new();
    options.extend(rule.enabled.filter(|enabled| !enabled).map(|_| "enabled=no".to_owned()));
    options.extend(rule.path.map(|path| format!("path={}", word(&path))));
    options.extend(rule.local.map(|local| format!("local={}", word(&local))));
    options.extend(rule.limit.as_ref().map(|limit| format!("limit={limit}")));
    options.extend(rule.burst.as_ref().map(|burst| format!("burst={burst}")));
    if let Some(health) = &rule.health {
        let pairs = health.pairs();
        let texts: Vec<String> = pairs
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let texts = if texts.is_empty() {
            "on".to_owned()
        } else {
            texts.join(",")
        };
        options.push(format!("health={texts}"));
    }
    options
}

/// A value's word in JSON and TOML.
fn word(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}
