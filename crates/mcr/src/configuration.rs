//! Configuration files: read, checked, and every fault named with its place.

use std::fs;
use std::path::Path;

use model::document::RuleDocument;
use model::ruleset::{Policy, RuleSet};
use serde::Deserialize;

use crate::failure::{Failure, Status};

/// A configuration file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    #[serde(default)]
    rule: Vec<RuleDocument>,
}

/// Reads the rules of a file.
pub(crate) fn read(file: &Path, allow_link_local: bool) -> Result<Vec<RuleDocument>, Failure> {
    let wrong = |what: &dyn std::fmt::Display| {
        let message = format!("{}: {what}", file.display());
        Failure::new(Status::Configuration, message)
    };
    let text = fs::read_to_string(file).map_err(|error| wrong(&error))?;
    let parsed: File = toml::from_str(&text).map_err(|error| wrong(&error))?;
    if parsed.version != 1 {
        return Err(wrong(&format!(
            "version = {}: this MCR reads version 1",
            parsed.version
        )));
    }
    RuleSet::from_documents(&parsed.rule, Policy { allow_link_local })
        .map_err(|problems| wrong(&problems))?;
    Ok(parsed.rule)
}
