//! Valid files, invalid files, and round trips.

mod errors;
mod settings;

use std::time::Duration;

use proptest::prelude::*;
use rules::health::Silence;
use rules::path::PathChoice;

use super::*;

fn file(name: &str, text: &str) -> ConfigFile {
    ConfigFile {
        name: name.to_owned(),
        text: text.to_owned(),
    }
}

fn load(text: &str) -> Result<Config, ConfigErrors> {
    Config::load(&[file("mcr.toml", text)], Policy::default())
}

fn errors(text: &str) -> Vec<String> {
    let errors = load(text).unwrap_err();
    errors.0.iter().map(ToString::to_string).collect()
}

const USUAL: &str = r#"
version = 1

[interface.eth0]
gro = "auto"
path = "userspace"

[[rule]]
name = "cam1"
input = "239.1.1.1%eth0:5001"        # or inputs = [ … ]
outputs = ["239.10.1.1%eth1:6001", { to = "10.9.9.9:7000", ttl = 32 }]

[[rule]]
name = "cam2"
inputs = ["239.1.1.2%eth0:5001", "10.0.0.5@232.1.1.2%eth*:5001"]
outputs = ["239.10.1.2%eth1:6001,ttl=dec"]
local = true
limit = "20Mbit"
"#;

#[test]
fn reads_rules_and_settings() {
    let config = load(USUAL).unwrap();
    assert_eq!(config.rules.names().collect::<Vec<_>>(), ["cam1", "cam2"]);
    let outputs = &config.rules.iter().next().unwrap().outputs;
    assert_eq!(outputs[1].to_string(), "10.9.9.9:7000,ttl=32");
    let settings = config.settings.interface["eth0"];
    assert_eq!(
        (settings.gro, settings.path),
        (Some(Gro::Auto), PathChoice::Userspace)
    );
    let choices = config.settings.path_choices(PathChoice::Kernel);
    assert_eq!(choices.interfaces["eth0"], PathChoice::Userspace);
}

#[test]
fn writes_what_it_reads_the_same_way_every_time() {
    let config = load(USUAL).unwrap();
    let text = config.export();
    assert_eq!(
        text,
        r#"version = 1

[interface.eth0]
gro = "auto"
path = "userspace"

[[rule]]
name = "cam1"
input = "239.1.1.1%eth0:5001"
outputs = [
    "239.10.1.1%eth1:6001",
    "10.9.9.9:7000,ttl=32",
]

[[rule]]
name = "cam2"
inputs = [
    "239.1.1.2%eth0:5001",
    "10.0.0.5@232.1.1.2%eth*:5001",
]
outputs = ["239.10.1.2%eth1:6001,ttl=dec"]
local = "yes"
limit = "20Mbit"
"#
    );
    let again = load(&text).unwrap();
    assert_eq!(again, config);
    assert_eq!(again.export(), text);
}

#[test]
fn exports_an_empty_set_as_a_valid_file() {
    assert_eq!(
        export(&RuleSet::default(), &Settings::default()),
        "version = 1\n"
    );
    assert_eq!(load("version = 1\n").unwrap(), Config::default());
}

#[test]
fn exports_the_permission_that_rules_need() {
    let policy = Policy {
        allow_link_local: Some(true),
    };
    let text = r#"version = 1
rule = [{ name = "mdns", input = "224.0.0.251%eth0:5353", outputs = ["224.0.0.251%eth1:5353"] }]"#;
    let config = Config::load(&[file("x", text)], policy).unwrap();
    let exported = export(&config.rules, &Settings::default());
    assert!(exported.contains("allow_link_local = true\n"));
    assert_eq!(load(&exported).unwrap().rules, config.rules);
}

#[test]
fn merges_files_and_names_both_locations_of_a_conflict() {
    let rule = |name: &str, n: u8| {
        format!(
            "[[rule]]\nname = \"{name}\"\ninput = \"239.1.1.{n}%eth0:1\"\noutputs = [\"10.9.9.9:1\"]\n"
        )
    };
    let main = file(
        "mcr.toml",
        &format!("version = 1\n[interface.eth0]\n{}", rule("a", 1)),
    );
    let more = file("conf.d/b.toml", &rule("b", 2));
    let both = Config::load(&[main.clone(), more], Policy::default()).unwrap();
    assert_eq!(both.rules.names().collect::<Vec<_>>(), ["a", "b"]);

    let text = format!("[interface.eth0]\n{}{}", rule("a", 3), rule("c", 1));
    let errors =
        Config::load(&[main, file("conf.d/b.toml", &text)], Policy::default()).unwrap_err();
    let lines: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "conf.d/b.toml:1: interface eth0: is set already at mcr.toml:2; keep one",
            "conf.d/b.toml:3: rule \"a\": the name is taken by an earlier rule; give each rule its own (the earlier one: mcr.toml:3)",
            "conf.d/b.toml:8: rule \"c\": input 239.1.1.1%eth0:1: is an input of rule \"a\" already; a stream belongs to one rule, which may have many outputs",
        ]
    );
}

#[test]
fn loads_ten_thousand_rules_without_counting_lines_from_the_start_each_time() {
    let rules = (1..=10_000).map(|n| {
        let input = format!("239.1.1.1%eth0:{n}");
        format!("[[rule]]\nname = \"r{n}\"\ninput = \"{input}\"\noutputs = [\"10.9.9.9:{n}\"]\n")
    });
    let text = format!("version = 1\n{}", rules.collect::<String>());
    let start = rules::samples::time_on_processor();
    assert_eq!(load(&text).unwrap().rules.len(), 10_000);
    assert!((rules::samples::time_on_processor() - start).as_secs() < 10);
}

proptest! {
    #[test]
    fn reads_back_what_it_exports(
        rules in proptest::collection::vec(rules::samples::valid_rule(), 0..6),
    ) {
        let mut rules = rules;
        rules.iter_mut().for_each(|rule| rule.share = None);
        rules.sort_by(|a, b| a.name.cmp(&b.name));
        rules.dedup_by(|a, b| a.name == b.name || a.inputs == b.inputs);
        let Ok(set) = RuleSet::new(rules, Policy::default()) else {
            return Ok(());
        };
        let text = export(&set, &Settings::default());
        let config = load(&text).unwrap();
        prop_assert_eq!(&config.rules, &set);
        prop_assert_eq!(config.export(), text);
    }

    #[test]
    fn never_panics_on_any_text(text in "\\PC*") {
        let _ = load(&text);
    }

    #[test]
    fn never_panics_on_a_damaged_file(at in 0..USUAL.len(), with in "\\PC{0,2}") {
        let mut text: Vec<char> = USUAL.chars().collect();
        let at = at.min(text.len() - 1);
        text.splice(at..=at, with.chars());
        let _ = load(&text.into_iter().collect::<String>());
    }
}
