//! The parts of a rule as texts.

use model::document::RuleDocument;

/// The inputs, in either form of writing them.
pub(crate) fn inputs(rule: &RuleDocument) -> Vec<String> {
    rule.input.iter().chain(&rule.inputs).cloned().collect()
}

/// The outputs with their options.
pub(crate) fn outputs(rule: &RuleDocument) -> Vec<String> {
    rule.outputs.iter().map(ToString::to_string).collect()
}

/// The rule's own options that are not the default, as `key=value`.
pub(crate) fn options(rule: &RuleDocument) -> Vec<String> {
    let options = rule.options().into_iter();
    let options = options.map(|(key, value)| format!("{key}={value}"));
    let labels = rule.labels().map(|label| format!("label {label}"));
    options.chain(labels).collect()
}
