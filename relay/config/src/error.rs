//! What is wrong with the files, and where.

use rules::problem::lines;
use serde::Serialize;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{file}:{line}: {message}")]
pub struct ConfigError {
    /// Name of the file.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// What is wrong there and what to do.
    pub message: String,
}

impl ConfigError {
    pub(super) fn at((file, line): (String, usize), message: String) -> Self {
        Self {
            file,
            line,
            message,
        }
    }
}

/// What TOML's reader says of a value, in the words of a configuration, with its key where it is of
/// another type than it has to be.
pub(super) fn words(error: &toml::de::Error) -> String {
    let message = error.message();
    let wrong = message.strip_prefix("invalid type: ");
    let Some((found, expected)) = wrong.and_then(|wrong| wrong.split_once(", expected ")) else {
        return message.to_owned();
    };
    let found = match found {
        "sequence" => "[…]",
        "map" => "{…}",
        _ => match found.strip_prefix("string ") {
            Some(text) => text,
            None => found.split('`').nth(1).unwrap_or(found),
        },
    };
    let expected = match expected {
        "a boolean" => "true or false",
        "a sequence" => "a list, as in [\"…\"]",
        "a string" => "a text in quotes",
        "a map" => "a table, as in { … }",
        _ if expected.starts_with("struct ") => "a table, as in { … }",
        expected => expected,
    };
    // Where it is shown without its text, the keys that lead to it stand in its last line.
    let shown = error.to_string();
    let key = shown.trim_end().rsplit_once("\nin `");
    let key = key.map_or("", |(_, key)| key.trim_end_matches('`'));
    let is = if key.is_empty() { "" } else { " = " };
    format!("{key}{is}{found}: give {expected}")
}

/// One or more errors, by file and line; each prints on a line of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(_0))]
pub struct ConfigErrors(pub Vec<ConfigError>);
