//! Drafts of rules: their schema, their problems, and rules imported from other formats. Nothing here
//! depends on the running rules, or names a file or another host.

use std::sync::LazyLock;

use api::reply::{ErrorReply, RulesRead, TextProblem};
use api::request::{RulesFound, RulesWritten};
use axum::Json;
use axum::http::header;
use axum::response::IntoResponse;
use rules::endpoint::check_interface_name;

use super::api_error::{ApiError, Code, Reply};
use super::body::{Body, spawn_blocking};

/// What a configuration may say, key by key, as JSON Schema: what forms and editors are made of.
#[utoipa::path(get, path = "/v1/schema", tag = "rules", responses((status = 200, body = Object)))]
pub(super) async fn schema() -> impl IntoResponse {
    static SCHEMA: LazyLock<String> = LazyLock::new(|| config::schema().to_string());
    (
        [(header::CONTENT_TYPE, "application/json")],
        SCHEMA.as_str(),
    )
}

/// Says what is wrong with rules as they are written, in the words of `mcr check`; changes nothing.
#[utoipa::path(post, path = "/v1/check", tag = "rules", request_body = RulesWritten,
    responses((status = 200, body = RulesRead)))]
pub(super) async fn check(Body(written): Body<RulesWritten>) -> Reply<Json<RulesRead>> {
    let checked = spawn_blocking(move || {
        let text = match written.toml {
            Some(text) => text,
            None => config::text_of_any(&written.rules)
                .map_err(|error| ApiError::new(Code::Usage, error))?,
        };
        Ok(match config::written(&text, written.fleet) {
            Ok(rules) => read(rules, Vec::new()),
            Err(errors) => {
                let problems = errors.0.into_iter().map(|error| {
                    let (rule, key) = location(&text, error.line);
                    TextProblem {
                        line: error.line,
                        rule,
                        key,
                        message: error.message,
                    }
                });
                RulesRead {
                    problems: problems.collect(),
                    toml: text,
                    rules: Vec::new(),
                }
            }
        })
    });
    checked.await?.map(Json)
}

/// Makes rules of a session description, a playlist, smcroute.conf or a document of IS-05, as `mcr import`
/// does; changes nothing.
#[utoipa::path(post, path = "/v1/import", tag = "rules", request_body = RulesFound,
    responses((status = 200, body = RulesRead), (status = 422, body = ErrorReply)))]
pub(super) async fn import(Body(request): Body<RulesFound>) -> Reply<Json<RulesRead>> {
    let imported = spawn_blocking(move || {
        let usage = |error: &dyn std::fmt::Display| ApiError::new(Code::Usage, error);
        let invalid = |error: &dyn std::fmt::Display| ApiError::new(Code::Invalid, error);
        for interface in &request.interfaces {
            check_interface_name(interface).map_err(|error| usage(&error))?;
        }
        let to: Result<Vec<import::To>, _> = request.to.iter().map(|to| to.parse()).collect();
        let options = import::Options {
            interfaces: request.interfaces,
            to: to.map_err(|error| usage(&error))?,
            ports: None,
        };
        let parsed =
            import::read(request.text.as_bytes(), None).map_err(|error| invalid(&error))?;
        let made = import::make(parsed, &options).map_err(|missing| invalid(&missing))?;
        let remarks = made.remarks.iter().map(|remark| TextProblem {
            message: remark.to_string(),
            ..TextProblem::default()
        });
        Ok(read(made.rules.to_documents(), remarks.collect()))
    });
    imported.await?.map(Json)
}

fn read(rules: Vec<rules::document::RuleDocument>, problems: Vec<TextProblem>) -> RulesRead {
    let toml = config::text(rules.clone());
    RulesRead {
        rules,
        toml,
        problems,
    }
}

/// The rule of a line, from 0, and the key in it.
fn location(text: &str, line: usize) -> (Option<usize>, Option<String>) {
    let (mut key, mut table) = (None, None);
    let lines: Vec<&str> = text.lines().take(line).collect();
    for (at, line) in lines.iter().enumerate().rev() {
        if let Some(named) = line.trim_start_matches('[').strip_prefix("rule.") {
            table = table.or_else(|| named.split([']', '.']).next().map(str::to_owned));
        } else if line.starts_with("[[rule]]") {
            let rules = lines[..at]
                .iter()
                .filter(|line| line.starts_with("[[rule]]"));
            return (Some(rules.count()), table.or(key));
        } else if let Some((name, _)) = line.split_once('=')
            && key.is_none()
            && !line.starts_with([' ', '"', '{'])
        {
            key = Some(name.trim().to_owned());
        }
    }
    (None, table.or(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_of_a_rule_and_its_key() {
        let text = "[[rule]]\nname = \"a\"\n\n[[rule]]\nname = \"b\"\noutputs = [\n    \"x\",\n    \"y=1\",\n]\n\n\
                    [rule.health]\nsilence = \"2s\"\n[[rule.outputs]]\nto = \"x\"\n";
        let at = |line| {
            let (rule, key) = location(text, line);
            format!("{} {}", rule.unwrap_or(9), key.unwrap_or_default())
        };
        for (line, expected) in [
            (1, "0 "),
            (2, "0 name"),
            (5, "1 name"),
            (6, "1 outputs"),
            (8, "1 outputs"),
            (11, "1 health"),
            (12, "1 health"),
            (14, "1 outputs"),
        ] {
            assert_eq!(at(line), expected, "{line}");
        }
    }
}
