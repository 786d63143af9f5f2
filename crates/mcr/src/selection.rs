//! `-l`: chooses rules by their labels.

use std::collections::BTreeMap;
use std::str::FromStr;

use model::rule::is_label_key;

/// Which rules.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Selection {
    /// Only rules with this label, or that have this key; several must all hold
    #[arg(short = 'l', long = "label", value_name = "KEY[=VALUE]")]
    labels: Vec<Asked>,
}

/// A label that a rule must have.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asked {
    key: String,
    value: Option<String>,
}

impl FromStr for Asked {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (text, None),
        };
        if !is_label_key(key) {
            return Err("is written KEY=VALUE, as in site=y, or KEY".to_owned());
        }
        Ok(Self {
            key: key.to_owned(),
            value,
        })
    }
}

impl Selection {
    /// Says whether a rule with these labels is meant.
    pub(crate) fn takes(&self, labels: &BTreeMap<String, String>) -> bool {
        self.labels.iter().all(|asked| {
            let value = labels.get(&asked.key);
            value.is_some_and(|value| asked.value.as_ref().is_none_or(|asked| asked == value))
        })
    }

    /// What is said where no rule is meant.
    pub(crate) fn none(&self) -> &'static str {
        match self.labels.is_empty() {
            true => "no rules; add one with mcr add INPUT OUTPUT",
            false => "no rule has these labels; mcr list -o wide shows all",
        }
    }
}

/// Reads `KEY=VALUE`, to give a rule.
pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    match text.parse()? {
        Asked {
            key,
            value: Some(value),
        } => Ok((key, value)),
        Asked { .. } => Err("is written KEY=VALUE, as in site=y".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_labels_that_are_asked_for_must_be_there() {
        let labels = [("site", "y"), ("customer", "x")];
        let labels = labels
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        for (asked, takes) in [
            (&[][..], true),
            (&["site=y"], true),
            (&["site=y", "customer"], true),
            (&["site=y", "customer=z"], false),
            (&["floor"], false),
        ] {
            let labels_asked = asked.iter().map(|text| text.parse().unwrap());
            let selection = Selection {
                labels: labels_asked.collect(),
            };
            assert_eq!(selection.takes(&labels), takes, "{asked:?}");
        }
        assert!("si te=y".parse::<Asked>().is_err());
        assert!(label("site").is_err());
    }
}
