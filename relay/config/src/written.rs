//! Rules as they are written outside a file: without version and settings.

use rules::document::RuleDocument;
use rules::ruleset::Policy;
use serde::Serialize;

use super::{Config, ConfigError, ConfigErrors, ConfigFile, export_fleet, file, fleet_rules};

/// Parses only rules; `is_fleets`: those of a fleet, whose interfaces are roles.
///
/// # Errors
/// Everything that is wrong with them, by line.
pub fn written(text: &str, is_fleets: bool) -> Result<Vec<RuleDocument>, ConfigErrors> {
    let has_version = text
        .lines()
        .any(|line| line.trim_start().starts_with("version"));
    let before = if has_version { "" } else { "version = 1\n" };
    let file = ConfigFile {
        name: String::new(),
        text: format!("{before}{text}"),
    };
    let parsed = if is_fleets {
        fleet_rules(&file)
    } else {
        local(&file)
    };
    parsed.map_err(|mut errors| {
        for error in errors.0.iter_mut().filter(|_| !has_version) {
            error.line = error.line.saturating_sub(1).max(1);
        }
        errors
    })
}

fn local(file: &ConfigFile) -> Result<Vec<RuleDocument>, ConfigErrors> {
    let config = Config::load(std::slice::from_ref(file), Policy::PERMISSIVE)?;
    let beyond = file::parse(file, true).beyond_rules();
    if beyond.is_empty() {
        return Ok(config.rules.to_documents());
    }
    let errors = beyond.into_iter().map(|(table, line)| {
        let message = format!("{table}: is no rule; settings stand in the configuration alone");
        ConfigError::at((file.name.clone(), line), message)
    });
    Err(ConfigErrors(errors.collect()))
}

/// Writes only rules, which [`written`] parses back.
#[must_use]
pub fn text(rules: Vec<RuleDocument>) -> String {
    let text = export_fleet(rules);
    let alone = text.split_once('\n').map_or("", |(_, rules)| rules);
    alone.trim_start().to_owned()
}

/// Writes values that may not be valid rules yet.
///
/// # Errors
/// What TOML cannot express: a null.
pub fn text_of_any(rules: &[impl Serialize]) -> Result<String, String> {
    let rules = serde_json::json!({ "rule": rules });
    toml::to_string_pretty(&rules).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: &str =
        "[[rule]]\nname = \"a\"\ninput = \"239.1.1.1%eth0:1\"\noutputs = [\"10.9.9.9:1\"]\n";

    #[test]
    fn rules_are_read_without_version_and_errors_have_their_lines() {
        let read = written(RULE, false).unwrap();
        assert_eq!(read[0].name, "a");
        assert_eq!(written(&text(read.clone()), false).unwrap(), read);
        assert_eq!(
            written(&format!("version = 1\n{RULE}"), false).unwrap(),
            read
        );
        let lines = |text: &str, is_fleets| {
            let errors = written(text, is_fleets).unwrap_err();
            errors
                .0
                .iter()
                .map(|error| error.line)
                .collect::<Vec<usize>>()
        };
        assert_eq!(
            lines(&format!("{RULE}comment = \"c\"\nlimit = \"x\"\n"), false),
            [6]
        );
        assert_eq!(
            lines(&format!("version = 1\n{RULE}limit = \"x\"\n"), false),
            [6]
        );
        assert_eq!(lines("rule = 7", false), [1]);
        assert_eq!(lines(&format!("{RULE}share = \"s\"\n"), false), [5]);
        assert!(written(&format!("{RULE}share = \"s\"\n"), true).is_ok());
        let errors = written(&format!("{RULE}[daemon]\nworkers = 2\n"), false).unwrap_err();
        assert!(errors.to_string().contains("is no rule"), "{errors}");
    }

    #[test]
    fn what_is_no_rule_yet_is_written_too() {
        let rules = [serde_json::json!({
            "name": "a", "outputs": ["x", { "to": "y", "ttl": 3 }], "health": { "silence": "2s" }
        })];
        let text = text_of_any(&rules).unwrap();
        assert!(written(&text, false).is_err());
        assert!(text_of_any(&[serde_json::json!({ "name": null })]).is_err());
    }
}
