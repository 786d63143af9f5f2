//! What is wrong with the files, and where.

use std::io;
use std::ops::Range;
use std::path::Path;

use rules::near;
use rules::printable::printable;
use rules::problem::lines;
use serde::Serialize;

use super::ConfigFile;

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
    /// A syntax error of the TOML parser.
    pub(super) fn unread(file: &ConfigFile, span: Option<Range<usize>>, message: &str) -> Self {
        let offset = span.map_or(0, |span| span.start.min(file.text.len()));
        let before = &file.text.as_bytes()[..offset];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        let text = file.text.lines().nth(line - 1).unwrap_or_default();
        Self::at((file.name.clone(), line), unread(message, text))
    }

    pub(super) fn at((file, line): (String, usize), message: String) -> Self {
        Self {
            file,
            line,
            message,
        }
    }
}

/// The TOML parser's message about a value, in the terms of a configuration, with the key if the value has
/// the wrong type.
pub(super) fn words(error: &toml::de::Error) -> String {
    let message = error.message();
    if let Some((key, _)) = named(message, "missing field `") {
        return format!("{key} is missing");
    }
    if let Some((key, rest)) = named(message, "unknown field `") {
        let (_, expected) = rest.rsplit_once("expected ").unwrap_or_default();
        let list = expected.trim_start_matches("one of ").replace('`', "");
        let list = list.split_once("; ").map_or(&*list, |(keys, _)| keys);
        let keys = list.replace(" or ", ", ");
        let instead = match near::nearest(key, keys.split(", ")) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("there are {keys}"),
        };
        return format!("there is no key {key} here; {instead}");
    }
    let types = message.strip_prefix("invalid type: ");
    let Some((actual, expected)) = types.and_then(|types| types.split_once(", expected ")) else {
        return message.to_owned();
    };
    let value = match actual {
        "sequence" => "[…]",
        "map" => "{…}",
        _ => match actual.strip_prefix("string ") {
            Some(text) => text,
            None => actual.split('`').nth(1).unwrap_or(actual),
        },
    };
    let remedy = match expected {
        "a boolean" => "true or false",
        "a sequence" => "a list, as in [\"…\"]",
        "a string" => "a text in quotes",
        "a map" => "a table, as in { … }",
        _ if expected.starts_with("struct ") => "a table, as in { … }",
        expected => expected,
    };
    // An error that is displayed without its text has the path of keys in its last line.
    let shown = error.to_string();
    let path = shown.trim_end().rsplit_once("\nin `");
    let key = path.map_or("", |(_, key)| key.trim_end_matches('`'));
    let is = if key.is_empty() { "" } else { " = " };
    format!("{key}{is}{value}: give {remedy}")
}

/// The name in backquotes after a prefix, and the rest.
fn named<'a>(message: &'a str, before: &str) -> Option<(&'a str, &'a str)> {
    message.strip_prefix(before)?.split_once('`')
}

/// Remedies for syntax errors, by how the TOML parser's message begins.
const REMEDIES: [(&str, &str); 17] = [
    (
        "string values must be quoted",
        "write texts in quotes, as in \"…\", and true and false without",
    ),
    (
        "invalid basic string",
        "the text has no end: close it with \"",
    ),
    (
        "invalid literal string",
        "the text has no end: close it with '",
    ),
    (
        "invalid multi-line",
        "the text has no end: close it with three quotes, as it begins",
    ),
    ("missing escaped value", "write \\\\ for a backslash"),
    ("unclosed array table", "close it with ]], as in [[rule]]"),
    ("unclosed table", "close it with ], as in [daemon]"),
    ("unclosed array", "the list has no end: close it with ]"),
    (
        "unclosed inline table",
        "the table has no end: close it with }",
    ),
    ("duplicate key", "it stands there twice; take one away"),
    (
        "unexpected key or value",
        "begin a line of its own for each key",
    ),
    ("extra comma", "take the second comma away"),
    (
        "missing comma",
        "put a comma between the two, or a bracket that closes behind the first",
    ),
    (
        "invalid comment",
        "take out what cannot be seen there: it is no text",
    ),
    ("unexpected leading zero", "numbers do not begin with 0"),
    ("invalid boolean", "write true or false"),
    ("carriage return", "end lines as Unix or Windows does"),
];

/// What is wrong with a line that the TOML parser rejects, and what to do.
fn unread(message: &str, line: &str) -> String {
    let row = REMEDIES
        .iter()
        .find(|(begins, _)| message.starts_with(begins));
    let remedy = row.map_or("write KEY = VALUE, as in name = \"cam1\"", |(_, remedy)| {
        remedy
    });
    let line: String = line.trim().chars().take(SHOWN).collect();
    format!("{}: {remedy}", printable(&line))
}

/// The message that a file cannot be read, and what to do.
pub fn unreadable(path: &Path, error: &io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => "write it, or name another; a link must lead to a file",
        io::ErrorKind::PermissionDenied => "use sudo, or have its owner permit it",
        io::ErrorKind::IsADirectory => "name a file in it",
        io::ErrorKind::NotADirectory => "what stands before the last / must be a directory",
        io::ErrorKind::InvalidData => "save it as UTF-8",
        _ => return format!("{}: {error}", path.display()),
    };
    format!("{}: {error}; {remedy}", path.display())
}

/// Characters of a line that are shown.
const SHOWN: usize = 60;

/// One or more errors, by file and line; each prints on a line of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(_0))]
pub struct ConfigErrors(pub Vec<ConfigError>);
