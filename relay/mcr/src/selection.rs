//! `-l` selects rules by their labels, `--limit` shows some of them.

use std::collections::BTreeMap;

use api::query::{Label, NoLabel};
use api::reply;

use crate::failure::{Failure, Status};
use crate::render;

/// Which rules.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Selection {
    /// Only rules with this label, or that have this key; several must all hold
    #[arg(short = 'l', long = "label", value_name = "KEY[=VALUE]", add = crate::completion::label())]
    pub(crate) labels: Vec<Label>,
}

impl Selection {
    /// Whether a rule with these labels is selected.
    pub(crate) fn takes(&self, labels: &BTreeMap<String, String>) -> bool {
        self.labels.iter().all(|required| required.is_in(labels))
    }

    /// The message if no rule is selected.
    pub(crate) fn none(&self) -> &'static str {
        if self.labels.is_empty() {
            "no rules; add one with mcr add INPUT OUTPUT"
        } else {
            "no rule has these labels; mcr list -o wide shows all"
        }
    }
}

/// How many of the rules that are meant.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Part {
    /// Show so many rules at most
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// Begin behind so many rules
    #[arg(long, value_name = "N", default_value = "0", hide_default_value = true)]
    pub(crate) offset: u64,
}

impl Part {
    /// Whether only a part is requested.
    pub(crate) const fn is_some(&self) -> bool {
        self.limit.is_some() || self.offset > 0
    }

    /// Prints to standard error which part this is, unless it is all.
    pub(crate) fn tell(part: reply::Part) {
        let reply::Part {
            offset,
            count,
            matching,
            ..
        } = part;
        if count < matching {
            let (from, to) = (render::count(offset + 1), render::count(offset + count));
            let all = render::number::things(matching, "rule");
            match count {
                0 => eprintln!("none behind {} of {all}", render::count(offset)),
                _ => eprintln!("{from} to {to} of {all}"),
            }
        }
    }
}

/// The failure if the daemon sends all rules, whichever are requested.
pub(crate) fn not_paged() -> Failure {
    let message = "the daemon is of an older version and knows no --limit, --offset and --sort";
    Failure::new(Status::Refused, message)
}

/// Parses `KEY=VALUE`, a label for a rule.
pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    match text.parse().map_err(|error: NoLabel| error.to_string())? {
        Label {
            key,
            value: Some(value),
        } => Ok((key, value)),
        Label { .. } => Err("is written KEY=VALUE, as in site=y".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_must_have_all_requested_labels() {
        let labels = [("site", "y"), ("customer", "x")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        for (requested, takes) in [
            (&[][..], true),
            (&["site=y"], true),
            (&["site=y", "customer"], true),
            (&["site=y", "customer=z"], false),
            (&["floor"], false),
        ] {
            let required = requested.iter().map(|text| text.parse().unwrap());
            let selection = Selection {
                labels: required.collect(),
            };
            assert_eq!(selection.takes(&labels), takes, "{requested:?}");
        }
        assert!(label("site").is_err());
    }
}
