//! The schema of the configuration, JSON Schema draft 7, by which editors complete and check a file, derived
//! from the rows. It describes each key alone; [`Config::load`](super::Config::load) checks keys together,
//! and rules.

use rules::document::RuleDocument;
use rules::setting::Schemas;
use serde_json::{Value, json};
use utoipa::{PartialSchema, ToSchema};

use super::{ApiSettings, FILE, NotifyTable, Settings, VERSION};

/// The schema of a file.
#[must_use]
pub fn schema() -> Value {
    let mut schemas = Schemas::new();
    schemas.push((RuleDocument::name().into(), RuleDocument::schema()));
    RuleDocument::schemas(&mut schemas);
    Settings::schemas(&mut schemas);
    of_files::<ApiSettings>(&mut schemas);
    of_files::<NotifyTable>(&mut schemas);
    let definitions = schemas
        .iter()
        .map(|(name, schema)| (name.clone(), json!(schema)));
    let mut root = json!(Settings::schema());
    root["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    root["title"] = "mcr.toml".into();
    root["description"] = "Configuration of the multicast relay MCR".into();
    root["definitions"] = Value::Object(definitions.collect());
    let properties = &mut root["properties"];
    for row in FILE {
        properties[row.key] = json!(row.schema());
    }
    properties["version"] =
        json!({ "const": VERSION, "description": properties["version"]["description"] });
    properties["api"] = json!({ "$ref": "#/components/schemas/ApiSettings" });
    properties["notify"] = json!({ "$ref": "#/components/schemas/NotifyTable" });
    properties["rule"] = json!({
        "type": "array",
        "items": { "$ref": "#/components/schemas/RuleDocument" },
        "description": "Rules: what arrives at the inputs of one is relayed to every of its outputs.",
    });
    properties["interface"]["propertyNames"] = json!({ "pattern": r"^[^\s/%,@:*?]{1,15}$" });
    without_null(&mut root);
    root
}

/// Adds the schema of a table that only files have.
fn of_files<T: ToSchema>(schemas: &mut Schemas) {
    schemas.push((T::name().into(), T::schema()));
    T::schemas(schemas);
}

/// Converts OpenAPI's form to what TOML needs: there is no null, and definitions are in the root.
fn without_null(schema: &mut Value) {
    match schema {
        Value::Array(schemas) => schemas.iter_mut().for_each(without_null),
        Value::Object(keys) => {
            if let Some(Value::String(name)) = keys.get_mut("$ref") {
                *name = name.replace("#/components/schemas/", "#/definitions/");
            }
            let is_null = |value: &Value| {
                let only = json!([Value::Null, "null", { "type": "null" }, { "type": ["null"] }]);
                only.as_array().is_some_and(|only| only.contains(value))
            };
            for key in ["type", "enum", "oneOf"] {
                if let Some(Value::Array(choices)) = keys.get_mut(key) {
                    choices.retain(|choice| !is_null(choice));
                }
            }
            keys.values_mut().for_each(without_null);
        }
        _ => {}
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::sync::LazyLock;

    use rules::ruleset::Policy;

    use super::super::{Config, ConfigFile};
    use super::*;

    /// The schema's objections to a file.
    pub(crate) fn errors(text: &str) -> Vec<String> {
        let file: toml::Table = text.parse().unwrap();
        static VALIDATOR: LazyLock<jsonschema::Validator> =
            LazyLock::new(|| jsonschema::draft7::new(&schema()).unwrap());
        let file = json!(file);
        let errors = VALIDATOR.iter_errors(&file);
        errors.map(|error| error.to_string()).collect()
    }

    #[test]
    fn is_a_schema() {
        let schema = schema();
        assert!(jsonschema::draft7::meta::validate(&schema).is_ok());
        assert!(!schema.to_string().contains("null"), "{schema}");
        for (name, table) in schema["definitions"].as_object().unwrap() {
            let rows = table["properties"].as_object().into_iter().flatten();
            for (key, row) in rows.filter(|(_, row)| row.get("default").is_some()) {
                let fits = jsonschema::draft7::is_valid(row, &row["default"]);
                assert!(fits, "{name} {key}: {row}");
            }
        }
        assert!(!schema.to_string().contains("components"), "{schema}");
    }

    #[test]
    fn refuses_what_is_wrong_with_a_key_of_a_file_or_a_rule() {
        let rule = "name = \"a\"\ninput = \"239.1.1.1%eth0:1\"\noutputs = [\"10.9.9.9:1\"]";
        assert_eq!(errors(&format!("version = 1\n[[rule]]\n{rule}")), [""; 0]);
        for text in [
            "ruels = []",
            "version = 2",
            "version = \"1\"",
            "rule = 1",
            "rule = [3]",
            "rule = [{ input = \"239.1.1.1%eth0:1\" }]",
            "allow_link_local = 1",
            "daemon = 1",
            "interface = 1",
            "interface.eth0.gor = true",
            "interface.eth0.gro = 5",
            "interface.\"a b\" = {}",
            "interface.\"eth*\" = {}",
        ] {
            assert_ne!(errors(text), [""; 0], "{text}");
        }
        for (key, value) in [
            ("inptu", "\"239.1.1.2%eth0:1\""),
            ("name", "\"cam 1\""),
            ("input", "\"239.1.1.1%eth0:0\""),
            ("input", "\"239.1.1.1%eth0\""),
            ("outputs", "[\"239.10.1.1%eth1\"]"),
            ("outputs", "[\"x\"]"),
            ("outputs", "[7]"),
            ("outputs", "[{ to = \"10.9.9.9:7000\", ttl = 0 }]"),
            ("outputs", "[{ to = \"10.9.9.9:7000\", tll = 1 }]"),
            ("outputs", "[{ ttl = 1 }]"),
            ("path", "\"fast\""),
            ("local", "\"sometimes\""),
            ("limit", "\"fast\""),
            ("limit", "\"0pps\""),
            ("share", "\"the studio\""),
            ("mode", "\"mirror\""),
            ("group", "\"239.1.1.0/24:5000\""),
            ("interfaces", "[\"a b\"]"),
            ("source", "\"10.0.0.1\""),
            ("window", "\"5s\""),
            ("merge", "{ by = \"sequence\", session = 5 }"),
            ("merge", "{ by = \"sequence\", session = { at = 5 } }"),
            ("merge", "{ window = \"5ms\" }"),
            ("health", "{ loud = 1 }"),
            ("enabled", "1"),
        ] {
            let others = rule.lines().filter(|line| !line.starts_with(key));
            let lines: Vec<&str> = others.collect();
            let text = format!("[[rule]]\n{}\n{key} = {value}", lines.join("\n"));
            assert_ne!(errors(&text), [""; 0], "{text}");
        }
    }

    #[test]
    fn tables_within_outputs_are_taken_and_their_wrong_keys_refused() {
        let text = |output: &str| {
            format!(
                "version = 1\n[[rule]]\nname = \"a\"\ninput = \"239.1.1.0/24%eth0:1\"\n\
                 outputs = [{{ {output} }}]"
            )
        };
        let group = r#"to = "239.9.9.0/24%eth1:1", demand"#;
        let name = r#"to = "recorders.media.svc:7000", all"#;
        let loads = |text: &str| {
            let file = ConfigFile {
                name: "mcr.toml".to_owned(),
                text: text.to_owned(),
            };
            Config::load(&[file], Policy::default()).map(drop)
        };
        for output in [
            format!(r#"{group} = "igmp""#),
            format!(r#"{group} = {{ by = "igmp" }}"#),
            format!(r#"{group} = {{ by = "igmp", querier = true, linger = "30s" }}"#),
            format!(
                r#"{group} = "igmp", listeners = {{ allow = ["10.0.0.0/8", "fe80::/10"], deny = "10.0.0.5", groups_each = 4, groups_all = 64 }}"#
            ),
            format!(r#"{group} = "igmp", linger = "30s", allow = "10.0.0.0/8", groups_each = 4"#),
            format!(r#"{name} = true, max = 64, refresh = "5s""#),
            r#"to = "_rtp._udp.recorders.media.svc", all = true"#.to_owned(),
        ] {
            let text = text(&output).replace(
                "239.1.1.0/24",
                if output.contains(group) {
                    "239.1.1.0/24"
                } else {
                    "239.1.1.1"
                },
            );
            assert_eq!(errors(&text), [""; 0], "{text}");
            assert_eq!(
                loads(&text).map_err(|error| error.to_string()),
                Ok(()),
                "{text}"
            );
        }
        for output in [
            format!(r#"{group} = {{ linger = "30s" }}"#),
            format!(r#"{group} = {{ by = "igmp", ttl = 5 }}"#),
            format!(r#"{group} = {{ by = "igmp", demand = "igmp" }}"#),
            format!(r#"{group} = {{ by = "igmp", linger = "500ms" }}"#),
            format!(r#"{group} = {{ by = "pim" }}"#),
            format!(r#"{group} = "igmp", listeners = {{ alow = [] }}"#),
            format!(r#"{group} = "igmp", listeners = {{ ttl = 5 }}"#),
            format!(r#"{group} = "igmp", listeners = {{ allow = ["me"] }}"#),
            format!(r#"{group} = "igmp", listeners = {{ groups_each = 0 }}"#),
            format!(r#"{group} = "igmp", listeners = "10.0.0.0/8""#),
            format!(r#"{name} = true, max = 0"#),
            format!(r#"{name} = true, max = 1025"#),
            format!(r#"{name} = true, refresh = "2h""#),
            format!(r#"{name} = "some""#),
        ] {
            let text = text(&output);
            assert_ne!(errors(&text), [""; 0], "{text}");
            assert!(loads(&text).is_err(), "{text}");
        }
    }

    /// The documents and the files of the distribution.
    fn files() -> Vec<PathBuf> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let entries = fs::read_dir(root.join("docs")).unwrap();
        let documents = entries.map(|file| file.unwrap().path());
        let more = ["README.md", "dist/mcr.toml"].map(|name| root.join(name));
        documents
            .filter(|path| path.is_file())
            .chain(more)
            .collect()
    }

    #[test]
    fn takes_every_configuration_of_the_documents() {
        let mut seen = 0;
        for path in files() {
            let text = fs::read_to_string(&path).unwrap();
            let blocks: Vec<&str> = if path.extension().is_some_and(|end| end == "toml") {
                vec![&text]
            } else {
                let blocks = text.split("```toml\n").skip(1);
                blocks
                    .filter_map(|block| block.split("```").next())
                    .collect()
            };
            for block in blocks {
                assert_eq!(errors(block), [""; 0], "{}: {block}", path.display());
                seen += 1;
            }
        }
        assert!(seen > 10, "{seen}");
    }

    proptest::proptest! {
        #[test]
        fn takes_every_rule_as_it_is_written(rule in rules::samples::valid_rule()) {
            let set = rules::ruleset::RuleSet::new(vec![rule], rules::ruleset::Policy::default());
            if let Ok(set) = set {
                let text = super::super::export(&set, &Settings::default());
                proptest::prop_assert_eq!(errors(&text), [""; 0], "{}", text);
            }
        }
    }
}
