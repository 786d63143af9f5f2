//! Foreign files that `mcr import` turns into rules: the result is a configuration that loads, and the
//! remarks on the rest contain no misleading characters.

use config::{Config, ConfigFile, Settings, export};
use import::{Format, Options, make, read};
use rules::net::Ports;
use rules::printable::is_misleading;
use rules::ruleset::Policy;

/// Every kind of file, and its detection.
const FORMATS: [Option<Format>; 6] = [
    None,
    Some(Format::Sdp),
    Some(Format::M3u),
    Some(Format::Xspf),
    Some(Format::Smcroute),
    Some(Format::Is05),
];

/// Imports the bytes as each kind of file.
///
/// # Panics
/// If rules are made that a configuration cannot hold, or a remark is more than a line.
pub fn import(data: &[u8]) {
    let to = ["%eth1", "239.20.0.0/16%eth2:6000", "[%eth1]", "10.9.9.9"];
    let options = Options {
        interfaces: vec!["eth0".to_owned(), "eth*".to_owned()],
        to: to.iter().filter_map(|to| to.parse().ok()).collect(),
        ports: Some(Ports::single(5000)).filter(|_| data.len().is_multiple_of(2)),
    };
    for format in FORMATS {
        let Ok(parsed) = read(data, format) else {
            continue;
        };
        let by_default = make(parsed.clone(), &Options::default());
        assert!(by_default.is_ok() || !parsed.streams.is_empty());
        let made = make(parsed, &options).expect("nothing is missing where all is given");
        for remark in &made.remarks {
            let line = remark.to_string();
            assert!(!line.contains(is_misleading), "{line:?}");
        }
        let file = ConfigFile {
            name: "import.toml".to_owned(),
            text: export(&made.rules, &Settings::default()),
        };
        let config = Config::load(&[file], Policy::default());
        assert_eq!(config.map(|config| config.rules), Ok(made.rules));
    }
}
