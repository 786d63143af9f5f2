//! Configurations: every error names an existing line, and a valid configuration is exported so that
//! it loads the same.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::LazyLock;

use compile::compile;
use compile::diff::TableDiff;
use compile::host::{Host, Interface};
use compile::placement::{PathChoice, Support};
use config::{Config, ConfigFile, export};
use rules::net::{Ifindex, Mac};
use rules::ruleset::{Policy, RuleSet};

/// Separates the main file from the one of `conf.d`.
const NEXT_FILE: &str = "\n---\n";

static HOST: LazyLock<Host> = LazyLock::new(|| {
    let link = |index: u8, name: &str| Interface {
        index: Ifindex(index.into()),
        name: name.to_owned(),
        up: index != 4,
        no_carrier: index == 4,
        mtu: 1500,
        mac: (index != 5).then_some(Mac([2, 0, 0, 0, 0, index])),
        addresses: vec![
            IpAddr::from([10, 0, index, 1]),
            IpAddr::from([0xfd00, 0, 0, index.into(), 0, 0, 0, 1]),
        ],
        broadcasts: vec![[10, 0, index, 255].into()],
        ..Interface::default()
    };
    let links = [
        link(2, "eth0"),
        link(3, "eth1"),
        link(4, "eth2"),
        link(5, "tun0"),
    ];
    Host {
        interfaces: links.into_iter().map(|link| (link.index, link)).collect(),
        next_hops: BTreeMap::new(),
        ..Host::default()
    }
});

/// Loads the text as one configuration file or two.
///
/// # Panics
/// If a valid configuration does not survive its export, or an error names no line of its file.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let texts = text
        .splitn(2, NEXT_FILE)
        .zip(["mcr.toml", "conf.d/more.toml"]);
    let file = |(text, name): (&str, &str)| ConfigFile {
        name: name.to_owned(),
        text: text.to_owned(),
    };
    let files: Vec<ConfigFile> = texts.map(file).collect();
    match Config::load(&files, Policy::default()) {
        Ok(config) => survives(&config),
        Err(errors) => {
            assert!(!errors.0.is_empty());
            for error in &errors.0 {
                let file = files.iter().find(|file| file.name == error.file);
                let lines = file.map_or(0, |file| file.text.split('\n').count());
                assert!((1..=lines).contains(&error.line), "{error}: {lines} lines");
            }
        }
    }
}

fn survives(config: &Config) {
    let file = |text| ConfigFile {
        name: "export.toml".to_owned(),
        text,
    };
    let again = Config::load(&[file(config.export())], Policy::default());
    assert_eq!(again.as_ref(), Ok(config));
    let rules = Config::load(
        &[file(export(&config.rules, &config.settings))],
        Policy::default(),
    );
    assert_eq!(rules.map(|config| config.rules).as_ref(), Ok(&config.rules));
    let policy = config.settings.policy(Policy::default());
    let documents = config.rules.to_documents();
    let rebuilt = RuleSet::from_documents(&documents, policy);
    assert_eq!(rebuilt.as_ref(), Ok(&config.rules));
    compiles(config);
}

fn compiles(config: &Config) {
    let both = Support {
        kernel: Ok(()),
        userspace: Ok(()),
    };
    let kernel = Support {
        kernel: Ok(()),
        userspace: Err("no userspace".to_owned()),
    };
    let choices = config.settings.path_choices(PathChoice::Auto);
    let here = compile(&config.rules, &HOST, &both, &choices);
    let nowhere = compile(&config.rules, &Host::default(), &kernel, &choices);
    assert!(nowhere.table.routes.is_empty());
    for compiled in [&here, &nowhere] {
        assert_eq!(compiled.rules.len(), config.rules.len());
        compiled
            .rules
            .values()
            .for_each(|rule| drop(rule.troubles()));
    }
    let diff = TableDiff::between(&nowhere.table, &here.table);
    assert_eq!(diff.set.len(), here.table.routes.len());
    assert!(TableDiff::between(&here.table, &here.table).is_empty());
}
