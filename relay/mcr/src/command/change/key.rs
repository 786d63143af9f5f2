//! `KEY=VALUE`: a key of a rule as the configuration writes it, and its value as text.

use std::str::FromStr;

use rules::document::{
    FailoverDocument, HealthDocument, MergeDocument, REFLECT_KEYS, RuleDocument,
};
use rules::near;
use rules::setting::{Form, Row, Table};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::failure::{Failure, usage};

/// What one key is to be; without a value its default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    key: String,
    value: Option<String>,
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((key, value)) = text.split_once('=') else {
            return Err("is written KEY=VALUE, as in limit=20Mbit".to_owned());
        };
        let value = Some(value.to_owned()).filter(|value| !value.is_empty());
        Ok(Self {
            key: key.to_owned(),
            value,
        })
    }
}

impl Setting {
    /// Sets the key of a rule.
    pub(super) fn apply(&self, rule: &mut RuleDocument) -> Result<(), Failure> {
        let Self { key, value } = self;
        let refused = |what: String| {
            let text = value.as_deref().unwrap_or_default();
            usage(format!("rule {:?}: {key}={text}: {what}", rule.name))
        };
        let mut document = json!(rule);
        let value = self.json().map_err(refused)?;
        let (table, key) = match key.split_once('.') {
            None => (&mut document, key.as_str()),
            Some((table, key)) => {
                let table = table_mut(&mut document, table).map_err(refused)?;
                if table.is_null() && !value.is_null() {
                    *table = Value::Object(Map::new());
                }
                (table, key)
            }
        };
        if let Some(keys) = table.as_object_mut() {
            match value {
                Value::Null => keys.remove(key),
                value => keys.insert(key.to_owned(), value),
            };
        }
        *rule = serde_json::from_value(document).map_err(|error| refused(error.to_string()))?;
        Ok(())
    }

    fn json(&self) -> Result<Value, String> {
        match self.key.as_str() {
            "mode" | "name" => {
                let key = &self.key;
                return Err(format!(
                    "a rule keeps its {key}; add another and remove this"
                ));
            }
            "input" | "inputs" => return Err("use --add-input and --remove-input".to_owned()),
            "output" | "outputs" => return Err("use --add-output and --remove-output".to_owned()),
            _ => {}
        }
        let (key, is_nested) = match self.key.split_once('.') {
            Some((key, _)) => (key, true),
            None => (self.key.as_str(), false),
        };
        let named = RuleDocument::ROWS.iter().find(|row| row.key == key);
        let fitting = named.filter(|row| match row.form {
            Form::Table(_) => true,
            Form::Map(_) => is_nested || self.value.is_none(),
            _ => !is_nested,
        });
        // A map's own name is not the answer to what is said of it as a whole.
        let others = || settable().filter(|row| is_nested || Some(*row) != named);
        let hint = || near::hint(key, others().map(|row| row.key));
        let row = fitting
            .ok_or_else(|| format!("there is no such key; there are {}{}", keys(), hint()))?;
        let Some(text) = self.value.as_deref() else {
            return Ok(Value::Null);
        };
        Ok(match (row.form, key, text) {
            (Form::Flag, _, "yes" | "true") => json!(true),
            (Form::Flag, _, "no" | "false") => json!(false),
            (Form::Flag, ..) => return Err("give yes or no".to_owned()),
            (Form::List(_), ..) => json!(text.split(',').collect::<Vec<_>>()),
            (Form::Table(_), ..) if is_nested => json!(text),
            (Form::Table(_), "merge", "none") => Value::Null,
            (Form::Table(_), "merge", _) => table(MergeDocument::from_text(text))?,
            (Form::Table(_), _, "on") => json!({}),
            (Form::Table(_), "failover", _) => table(FailoverDocument::from_text(text))?,
            (Form::Table(_), ..) => table(HealthDocument::from_text(text))?,
            _ => json!(text),
        })
    }
}

fn table<E: ToString>(parsed: Result<impl Serialize, E>) -> Result<Value, String> {
    parsed
        .map(|table| json!(table))
        .map_err(|error| error.to_string())
}

/// The rows whose keys take a value.
pub(crate) fn settable() -> impl Iterator<Item = &'static Row> {
    const ENDS: [&str; 5] = ["name", "input", "inputs", "outputs", "mode"];
    let rows = RuleDocument::ROWS.iter();
    rows.filter(|row| !ENDS.contains(&row.key))
}

/// The keys that take a value.
fn keys() -> String {
    let (own, others): (Vec<&Row>, Vec<&Row>) =
        settable().partition(|row| REFLECT_KEYS.contains(&row.key));
    let listed = |rows: Vec<&Row>| {
        let keys = rows.into_iter().map(|row| match row.form {
            Form::Table(_) => format!("{0}, {0}.KEY", row.key),
            Form::Map(_) => format!("{}.KEY", row.key),
            _ => row.key.to_owned(),
        });
        keys.collect::<Vec<String>>().join(", ")
    };
    let (own, others) = (listed(own), listed(others));
    format!("{others} and, of a rule that reflects, {own}")
}

/// A table of the rule; a merge that is a word becomes a table first.
fn table_mut<'a>(document: &'a mut Value, table: &str) -> Result<&'a mut Value, String> {
    let value = &mut document[table];
    if table == "merge" {
        match value {
            Value::Null => {
                return Err("its inputs are not merged; set merge=rtp before".to_owned());
            }
            Value::String(by) => *value = json!({ "by": by.as_str() }),
            _ => {}
        }
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(rule: &mut RuleDocument, setting: &str) -> Result<(), String> {
        let setting: Setting = setting.parse()?;
        setting.apply(rule).map_err(|failure| failure.to_string())
    }

    #[test]
    fn keys_are_set_and_go_back_to_their_defaults() {
        let rule = r#"{"name": "a", "outputs": [], "limit": "5pps", "health": {"clock": "1"}}"#;
        let mut rule: RuleDocument = serde_json::from_str(rule).unwrap();
        for setting in [
            "limit=20Mbit",
            "path=kernel",
            "enabled=no",
            "health.silence=2s",
        ] {
            set(&mut rule, setting).unwrap();
        }
        assert_eq!(
            serde_json::to_value(&rule).unwrap(),
            json!({"name": "a", "limit": "20Mbit", "path": "kernel",
                "enabled": false, "health": {"silence": "2s", "clock": "1"}})
        );
        set(&mut rule, "labels.site=y").unwrap();
        for setting in ["limit=", "path=", "enabled=yes", "health=", "labels="] {
            set(&mut rule, setting).unwrap();
        }
        set(&mut rule, "health.clock=").unwrap();
        assert_eq!(
            serde_json::to_value(&rule).unwrap(),
            json!({"name": "a", "enabled": true})
        );
    }

    #[test]
    fn a_merge_is_set_as_a_word_and_key_by_key() {
        let mut rule: RuleDocument =
            serde_json::from_str(r#"{"name": "a", "outputs": []}"#).unwrap();
        let mut merge = |setting: &str| {
            set(&mut rule, setting).unwrap();
            serde_json::to_value(&rule).unwrap()["merge"].clone()
        };
        assert_eq!(merge("merge=rtp"), json!("rtp"));
        let wide = json!({"by": "rtp", "window": "450ms"});
        assert_eq!(merge("merge.window=450ms"), wide);
        assert_eq!(merge("merge.window="), json!({"by": "rtp"}));
        let sequence = json!({"by": "sequence", "offset": 8, "bytes": 4});
        assert_eq!(merge("merge=by=sequence,offset=8,bytes=4"), sequence);
        let session = merge("merge.session=2:6");
        assert_eq!(session["session"], json!({"offset": 2, "bytes": 6}));
        assert_eq!(merge("merge=none"), Value::Null);
        assert_eq!(merge("merge=mdp3"), json!("mdp3"));
        assert_eq!(merge("merge="), Value::Null);
    }

    #[test]
    fn a_rule_that_reflects_gets_other_interfaces() {
        let rule = r#"{"name": "a", "mode": "reflect", "interfaces": ["x", "y"],
            "group": "224.0.0.251:5353"}"#;
        let mut rule: RuleDocument = serde_json::from_str(rule).unwrap();
        for setting in ["interfaces=x,z,w", "ttl=255", "window=100ms"] {
            set(&mut rule, setting).unwrap();
        }
        assert_eq!(
            serde_json::to_value(&rule).unwrap(),
            json!({"name": "a", "mode": "reflect", "interfaces": ["x", "z", "w"],
                "group": "224.0.0.251:5353", "ttl": "255", "window": "100ms"})
        );
    }

    #[test]
    fn what_cannot_be_set_is_refused_with_what_can() {
        let mut rule: RuleDocument =
            serde_json::from_str(r#"{"name": "a", "outputs": []}"#).unwrap();
        for (setting, expected) in [
            ("limit", "KEY=VALUE"),
            ("enabled=maybe", "rule \"a\": enabled=maybe: give yes or no"),
            ("path=fast", "give \"auto\", \"kernel\" or \"userspace\""),
            ("tll=5", "there are path, local"),
            (
                "labels=x",
                "of a rule that reflects, interfaces, isolated, group, source, ttl, window",
            ),
            ("limit.x=5", "did you mean limit?"),
            ("outputs=x", "--add-output"),
            ("health=x", "health=x: "),
            ("merge=x", "merge=x: merge: by=x: give rtp, sequence"),
            ("merge.window=5ms", "set merge=rtp before"),
            ("health.loud=1", "unknown field `loud`"),
        ] {
            let error = set(&mut rule, setting).unwrap_err();
            assert!(error.contains(expected), "{setting}: {error}");
            assert!(!error.contains("mean labels"), "{error}");
        }
    }
}
