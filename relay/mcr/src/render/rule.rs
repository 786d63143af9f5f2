//! The parts of a rule as texts.

use comfy_table::Cell;
use rules::document::RuleDocument;

/// The inputs, in whichever form they are written; of a rule that reflects the resulting ones.
pub(crate) fn inputs(rule: &RuleDocument) -> Vec<String> {
    match rule.to_rule(0) {
        Ok(reflecting) if rule.reflects() => texts(&reflecting.inputs),
        _ => rule.input.iter().chain(&rule.inputs).cloned().collect(),
    }
}

/// The outputs with their options, likewise.
pub(crate) fn outputs(rule: &RuleDocument) -> Vec<String> {
    match rule.to_rule(0) {
        Ok(reflecting) if rule.reflects() => texts(&reflecting.outputs),
        _ => texts(&rule.outputs),
    }
}

fn texts(parts: &[impl ToString]) -> Vec<String> {
    parts.iter().map(ToString::to_string).collect()
}

/// Inputs, outputs and options as a table has them.
pub(crate) fn cells(rule: &RuleDocument) -> [Cell; 3] {
    [inputs(rule), outputs(rule), options(rule)].map(|lines| Cell::new(lines.join("\n")))
}

/// The rule's own options that are not the default, as `key=value`.
pub(crate) fn options(rule: &RuleDocument) -> Vec<String> {
    let options = rule.options().into_iter();
    let texts = options.map(|(key, value)| format!("{key}={value}"));
    let labels = rule.labels().map(|label| format!("label {label}"));
    texts.chain(labels).collect()
}
