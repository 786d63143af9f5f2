//! The keys of `[fleet]`, what is refused, and what awaits a restart.

use rules::ruleset::Policy;

use super::super::{Config, ConfigFile, export_fleet, fleet_rules};
use super::*;

fn load(table: &str) -> Result<Option<FleetSettings>, String> {
    let file = ConfigFile {
        name: "mcr.toml".to_owned(),
        text: format!("version = 1\n[fleet]\n{table}"),
    };
    let loaded = Config::load(&[file], Policy::default());
    loaded
        .map(|config| config.settings.fleet)
        .map_err(|errors| errors.to_string())
}

const LEAST: &str = "name = \"plant\"\nendpoints = [\"http://e1:2379\"]\n\
                     interfaces = { red = \"eth0\" }\n";

#[test]
fn reads_required_and_optional_keys() {
    let least = load(LEAST).unwrap().unwrap();
    assert_eq!((least.hold(), least.weight()), (HOLD, WEIGHT));
    assert_eq!(least.interfaces["red"], "eth0");
    let loaded = load(
        "name = \"plant\"\nendpoints = [\"https://e1:2379/\", \"https://[fd00::1]:2379\"]\n\
         relay = \"relay-a\"\ninterfaces = { red = \"eth0\", out = \"eth2\" }\n\
         on_isolation = \"stop\"\nhold = \"300ms\"\nweight = 200\npeer = \"10.0.0.1:9470\"\n\
         tls = { ca = \"/e/ca\", cert = \"/e/cert\", key = \"/e/key\" }\n\
         user = \"relay-a\"\npassword_file = \"/e/password\"\n",
    );
    let all = loaded.unwrap().unwrap();
    assert_eq!(all.endpoints, ["https://e1:2379", "https://[fd00::1]:2379"]);
    assert_eq!(all.on_isolation, Some(OnIsolation::Stop));
    assert_eq!(all.hold(), Duration::from_millis(300));
    let mut config = Config::default();
    config.settings.fleet = Some(all);
    let file = ConfigFile {
        name: "mcr.toml".to_owned(),
        text: config.export(),
    };
    assert_eq!(Config::load(&[file], Policy::default()), Ok(config));
}

#[test]
fn what_is_wrong_is_named_with_its_line_and_what_to_do() {
    let with = |line: &str| format!("{LEAST}{line}");
    let tls = "name = \"p\"\nendpoints = [\"https://e1:2379\"]\ninterfaces = { a = \"b\" }\n";
    for (table, line, expected) in [
        (
            "name = \"p\"\n".to_owned(),
            2,
            "fleet: endpoints is missing",
        ),
        (
            with("hold = \"200ms\""),
            6,
            "hold = \"200ms\": give a time from \"300ms\" to \"5s\"",
        ),
        (with("hold = 2"), 6, "hold = \"2\": give a time"),
        (with("weight = 0"), 6, "weight = 0: give 1 to 1000"),
        (
            with("on_isolation = \"go\""),
            6,
            "give \"stop\", \"peers\" or \"hold\"",
        ),
        (
            with("peer = \"0.0.0.0:9\""),
            6,
            "an address that the other relays reach",
        ),
        (
            with("relay = \"a/b\""),
            6,
            "relay = \"a/b\": give a letter or digit",
        ),
        (
            with("user = \"a\""),
            2,
            "user and password_file belong together",
        ),
        (
            with("tls = { ca = \"ca\" }"),
            6,
            "give the whole path, from / on",
        ),
        (
            with("tls = { ca = \"/ca\" }"),
            2,
            "http://e1:2379 is not encrypted",
        ),
        (with("engine = 1"), 6, "there is no key engine here"),
        (tls.to_owned(), 2, "https://e1:2379 needs tls = "),
        (
            format!("{tls}tls = {{ ca = \"/a\", key = \"/b\" }}"),
            2,
            "cert and key belong together",
        ),
        (
            LEAST.replace("http:", "ftp:"),
            4,
            "is no http or https address",
        ),
        (LEAST.replace(":2379", ""), 4, "has no port"),
        (
            LEAST.replace("e1", "eve:secret@e1"),
            4,
            "endpoint \"e1:2379\": names a user",
        ),
        (
            LEAST.replace("eth0", "eth*"),
            5,
            "stands for several; name one, without * and ?",
        ),
        (LEAST.replace("red", "\"a b\""), 5, "role \"a b\""),
    ] {
        let error = load(&table).unwrap_err();
        // The schema cannot check keys together; such errors have the table's own line.
        let is_one_key = line > 2 || expected.contains("is missing");
        let refused = super::super::schema::tests::errors(&format!("[fleet]\n{table}"));
        assert_eq!(refused.is_empty(), !is_one_key, "{table}: {refused:?}");
        assert!(error.contains(expected), "{table}: {error}");
        assert!(
            error.starts_with(&format!("mcr.toml:{line}: fleet: ")),
            "{table}: {error}"
        );
        assert!(!error.contains("secret"), "{error}");
    }
}

#[test]
fn a_change_awaits_a_restart_and_names_the_current_value() {
    let running = load(LEAST).unwrap().unwrap();
    let configured = FleetSettings {
        hold: Some(Hold(Duration::from_secs(2))),
        weight: Some(WEIGHT),
        ..running.clone()
    };
    assert_eq!(
        FleetSettings::awaiting_restart(Some(&configured), Some(&running)),
        ["[fleet] hold: 2s takes effect when the daemon is started again; until then 1200ms"]
    );
    assert_eq!(
        FleetSettings::awaiting_restart(Some(&configured), None),
        [
            "[fleet]: fleet \"plant\" takes effect when the daemon is started again; until then \
             no fleet"
        ]
    );
    assert_eq!(FleetSettings::awaiting_restart(None, None), [""; 0]);
}

fn file(text: &str) -> ConfigFile {
    ConfigFile {
        name: "plant.toml".to_owned(),
        text: text.to_owned(),
    }
}

const RULE: &str = "version = 1\n\n[[rule]]\nname = \"cam1\"\ninput = \"239.1.1.1%red:5001\"\n\
                    outputs = [\"239.10.1.1%out:6001\"]\nshare = \"cams\"\n";

#[test]
fn a_file_for_a_fleet_is_read_and_written_back() {
    let rules = fleet_rules(&file(RULE)).unwrap();
    assert_eq!(rules[0].share.as_deref(), Some("cams"));
    assert_eq!(export_fleet(rules), RULE);
    let more = format!("{RULE}input = 5\n[fleet]\n{LEAST}");
    assert!(fleet_rules(&file(&more)).is_err());
    let problems = fleet_rules(&file(&format!("{RULE}[fleet]\n{LEAST}"))).unwrap_err();
    let errors = problems.to_string();
    assert!(
        errors.starts_with("plant.toml:8: [fleet]: is not a fleet's to say"),
        "{errors}"
    );
}

#[test]
fn a_host_has_no_rules_with_a_share_of_its_own() {
    let problems = Config::load(&[file(RULE)], Policy::default()).unwrap_err();
    let errors = problems.to_string();
    assert!(
        errors.starts_with("plant.toml:7: rule \"cam1\": only rules of a fleet"),
        "{errors}"
    );
}
