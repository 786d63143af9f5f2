//! Files that are right, files that are wrong, and the way to a file and back.

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
fn names_file_and_line_of_every_error() {
    let text = r#"version = 1
ruels = []
[interface.eth0]
gor = true
[interface."a b"]
[[rule]]
name = "cam1"
input = "239.1.1.1%eth0:0"
outputs = [
    "239.10.1.1%eth1:6001",
    "239.10.1.1%eth1",
    { to = "10.9.9.9:7000", ttl = 0 },
]
[[rule]]
name = "cam1"
inptu = "239.1.1.2%eth0:1"
outputs = []
[[rule]]
name = "cam3"
input = "239.1.1.3%eth0:1"
path = "fast"
outputs = []
[[rule]]
input = "239.1.1.3%eth0:1"
outputs = ["x"]
[[rule]]
name = "cam4"
input = "239.1.1.3%eth0:1"
outputs = [7]
[[rule]]
name = "cam5"
input = "239.1.1.3%eth0:1"
outputs = []
limit = "fast"
"#;
    assert_eq!(
        errors(text),
        [
            "mcr.toml:2: unknown key \"ruels\"; there are version, allow_link_local, [api], [budget], [daemon], [fleet], [interface.NAME], join, [notify], [[rule]]",
            "mcr.toml:4: interface eth0: there is no key gor here; did you mean gro?",
            "mcr.toml:5: interface \"a b\": holds white space; write it without",
            "mcr.toml:8: rule \"cam1\": input 239.1.1.1%eth0:0: port 0 cannot be used; give 1 to 65535",
            "mcr.toml:11: rule \"cam1\": output 239.10.1.1%eth1: has no port; write 239.10.1.1%eth1:PORT, as in 239.10.1.1%eth1:5001",
            "mcr.toml:12: rule \"cam1\": output 10.9.9.9:7000,ttl=0: ttl=0: give 1 to 255, dec (one less, as a router) or keep",
            "mcr.toml:16: rule \"cam1\": there is no key inptu here; did you mean input?",
            "mcr.toml:21: rule \"cam3\": path = \"fast\": give \"auto\", \"kernel\" or \"userspace\"",
            "mcr.toml:23: rule without a name: name is missing",
            "mcr.toml:29: rule \"cam4\": outputs = 7: give an output: \"GROUP%IFACE:PORT\" or { to = \"GROUP%IFACE:PORT\", … }",
            "mcr.toml:34: rule \"cam5\": limit=fast: give a rate such as 5000pps or 20Mbit (pps, kpps, Mpps, bit, kbit, Mbit, Gbit)",
        ]
    );
}

#[test]
fn a_value_of_another_type_is_told_in_words_with_its_key() {
    for (lines, expected) in [
        (
            "outputs = \"10.9.9.9:7000\"",
            "rule \"a\": outputs = \"10.9.9.9:7000\": give a list, as in [\"…\"]",
        ),
        (
            "outputs = []\nenabled = \"no\"",
            "rule \"a\": enabled = \"no\": give true or false",
        ),
        (
            "outputs = []\nhealth = 5",
            "rule \"a\": health = 5: give a table, as in { … }",
        ),
        (
            "outputs = []\nlabels = [\"x\"]",
            "rule \"a\": labels = […]: give a table, as in { … }",
        ),
        (
            "outputs = []\ninput = [\"x\"]",
            "rule \"a\": input = […]: give one text, [SOURCE@]GROUP%IFACE:PORT, or several by inputs = [\"…\"]",
        ),
        (
            "outputs = []\nlimit = 99999999999999999999999",
            "rule \"a\": limit = 99999999999999999999999: give a rate, as in \"5000pps\" or \"20Mbit\"",
        ),
        (
            "outputs = []\nburst = [1]",
            "rule \"a\": burst = […]: give packets, or a size as in \"1Mbit\"",
        ),
        (
            "outputs = []\n[daemon]\nwatch = 1.5",
            "daemon: watch = 1.5: give true or false",
        ),
        (
            "outputs = []\n[notify]\nwebhook = { a = 1 }",
            "notify: webhook = {…}: give a text in quotes",
        ),
        (
            "outputs = []\n[daemon]\nlisten_names = 5",
            "daemon: listen_names = 5: give a list, as in [\"…\"]",
        ),
    ] {
        let told = errors(&format!("version = 1\n[[rule]]\nname = \"a\"\n{lines}\n"));
        let is_told = told.iter().any(|told| told.contains(expected));
        assert!(is_told, "{told:?}");
    }
}

#[test]
fn refuses_lines_that_cannot_be_merged() {
    let text = r#"version = 1
[[rule]]
name = "one"
input = "239.1.1.1%red:5001"
outputs = ["239.10.1.1%eth1:6001"]
merge = "rtp"
[[rule]]
name = "both"
inputs = ["239.1.1.2%red:5001", "239.2.1.2%blue:5001"]
outputs = ["239.10.1.2%eth1:6001"]
failover = "200ms"
merge = { by = "mdp3", window = "10ms" }
[[rule]]
name = "same"
inputs = ["239.1.1.3%red:5001", "239.1.1.3%red:5001"]
outputs = ["239.10.1.3%eth1:6001"]
merge = "moldudp64"
[[rule]]
name = "range"
inputs = ["239.1.4.0/24%red:5001", "239.2.4.0/24%blue:5001"]
outputs = ["239.10.4.0/24%eth1:6001"]
merge = "payload"
[[rule]]
name = "not"
inputs = ["239.1.1.5%red:5001", "239.2.1.5%blue:5001"]
outputs = ["239.10.1.5%eth1:6001"]
merge = "none"
[[rule]]
name = "where"
inputs = ["239.1.1.6%red:5001", "239.2.1.6%blue:5001"]
outputs = ["239.10.1.6%eth1:6001"]
merge = "sequence"
"#;
    let (sensible, unreadable) = text.split_at(text.find("[[rule]]\nname = \"where\"").unwrap());
    assert_eq!(
        errors(sensible),
        [
            "mcr.toml:6: rule \"one\": merge: has one input; give a second that brings the same, or leave merge out",
            "mcr.toml:12: rule \"both\": merge: there is failover too; legs are merged or stand by for each other, so leave one of the two out",
            "mcr.toml:15: rule \"same\": input 239.1.1.3%red:5001: is an input of this rule already; a stream belongs to one rule, which may have many outputs",
            "mcr.toml:22: rule \"range\": merge: input 239.1.4.0/24%red:5001 may be several streams; a leg is one, so give each a rule of its own",
        ]
    );
    assert_eq!(
        errors(&format!("version = 1\n{unreadable}")),
        [
            "mcr.toml:6: rule \"where\": merge: by=sequence needs offset; give offset and bytes of the number, as in by=sequence,offset=8,bytes=4"
        ]
    );
}

#[test]
fn names_the_line_of_broken_toml() {
    for (text, expected) in [
        (
            "version = 1\n[[rule]\nname = \"a\"\n",
            "mcr.toml:2: [[rule]: close it with ]], as in [[rule]]",
        ),
        (
            "version = 1\nversion = 1\n",
            "mcr.toml:2: version = 1: it stands there twice; take one away",
        ),
        (
            "version = 1\n\nname = \"a\n",
            "mcr.toml:3: name = \"a: the text has no end: close it with \"",
        ),
        (
            "version = 1\n\nname = a\n",
            "mcr.toml:3: name = a: write texts in quotes, as in \"…\", and true and false without",
        ),
        (
            "version = 1\nname: \"a\"\n",
            "mcr.toml:2: name: \"a\": write KEY = VALUE, as in name = \"cam1\"",
        ),
        (
            "version = 1\n[[rule]]\njoin = [\"239.1.1.1%eth0\"]\n",
            "mcr.toml:3: rule without a name: join stands at the top of a file, before [[rule]]",
        ),
        (
            "version = 1\n[rule]\nname = \"a\"\n",
            "mcr.toml:2: rules are a list; write [[rule]] with double brackets before each",
        ),
        (
            "",
            "mcr.toml:1: there is no version; begin the file with version = 1",
        ),
        (
            "# MCR\nversion = 2\n",
            "mcr.toml:2: version = 2: this MCR reads version = 1",
        ),
        (
            "version = \"1\"\n",
            "mcr.toml:1: version = \"1\": this MCR reads version = 1",
        ),
        (
            "version = 1\nrule = [3]\n",
            "mcr.toml:2: a rule is a table; write [[rule]] before its keys",
        ),
        (
            "version = 1\nallow_link_local = 1\n",
            "mcr.toml:2: allow_link_local: give true or false",
        ),
        (
            "version = 1\n[interface.eth0]\ngro = 5\n",
            "mcr.toml:3: interface eth0: gro = \"5\": give \"auto\", \"on\" or \"off\"",
        ),
        (
            "version = 1\ninterface = 1\n",
            "mcr.toml:2: settings stand in a table for each interface; write [interface.eth0]",
        ),
    ] {
        let errors = errors(text);
        assert!(errors[0].starts_with(expected), "{errors:#?}");
        assert_eq!(errors.len(), 1, "{errors:#?}");
    }
}

#[test]
fn merges_files_and_names_both_places_of_a_conflict() {
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
    let errors: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
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

#[test]
fn reads_a_budget_and_says_what_is_wrong_with_one() {
    let read = |budget: &str| {
        let text = format!("version = 1\n{budget}");
        Config::load(&[file("mcr.toml", &text)], Policy::default())
    };
    let config = read("[budget]\nunicast = \"1Gbit\"\nburst = \"5Mbit\"\n").unwrap();
    let budget = config.settings.budget.unwrap().0;
    assert_eq!((budget.rate, budget.burst), (1_000_000_000, 5_000_000));
    let exported = config.export();
    assert_eq!(
        Config::load(&[file("mcr.toml", &exported)], Policy::default()).unwrap(),
        config
    );
    for (text, expected) in [
        (
            "[budget]\nunicast = \"fast\"\n",
            "mcr.toml:2: budget: unicast=fast: give a rate such as 5000pps or 20Mbit (pps, kpps, \
             Mpps, bit, kbit, Mbit, Gbit)",
        ),
        (
            "[budget]\nunicast = \"0pps\"\n",
            "mcr.toml:2: budget: unicast=0pps: a rate of 0 would stop every unicast output; \
             remove them instead",
        ),
        (
            "[budget]\nmulticast = \"1Gbit\"\n",
            "mcr.toml:3: budget: there is no key multicast here; there are unicast, burst",
        ),
        ("[budget]\n", "mcr.toml:2: budget: unicast is missing"),
    ] {
        assert_eq!(read(text).unwrap_err().to_string(), expected);
        assert_ne!(schema::tests::errors(text), [""; 0], "{text}");
    }
}

#[test]
fn reads_how_a_daemon_is_started_and_says_what_is_wrong_with_it() {
    let text = r#"version = 1

[daemon]
listen = "127.0.0.1:9469"
listen_names = ["relay1.example"]
path = "userspace"
workers = 2
worker_user = "relay"
log = "json"
max_rules = 100
max_memberships = 200
gro = "off"
xdp = "on"
backlog = "off"
silence = "5s"
on_full = "warn"
allow_link_local = true
keep_forwarding = false
watch = true

[[rule]]
name = "mdns"
input = "224.0.0.251%eth0:5353"
outputs = ["224.0.0.251%eth1:5353"]
"#;
    let config = load(text).unwrap();
    let expected = DaemonSettings {
        listen: Some("127.0.0.1:9469".parse().unwrap()),
        listen_names: Some(vec!["relay1.example".to_owned()]),
        path: Some(PathChoice::Userspace),
        workers: Some(2),
        worker_user: Some("relay".to_owned()),
        log: Some(LogForm::Json),
        max_rules: Some(100),
        max_memberships: Some(200),
        gro: Some(Automatic::Off),
        xdp: Some(Xdp::On),
        backlog: Some(Automatic::Off),
        silence: Some(Silence::After(Duration::from_secs(5))),
        on_full: Some(OnFull::Warn),
        allow_link_local: Some(true),
        keep_forwarding: Some(false),
        watch: Some(true),
    };
    assert_eq!(config.settings.daemon, expected);
    assert_eq!(config.export(), text);
    let changes = config.settings.changes_since(&Settings::default());
    assert_eq!(changes[2], "daemon path: userspace (was auto)");

    for (line, expected) in [
        (
            "listen = 9469",
            "listen = 9469: give ADDRESS:PORT, as in 127.0.0.1:9469, [::1]:9469, localhost:9469, or :9469 for all of IPv4",
        ),
        (
            "path = \"fast\"",
            "path = \"fast\": give \"auto\", \"kernel\" or \"userspace\"",
        ),
        ("workers = 0", "workers = 0: give 1 to 1024"),
        ("workers = 1025", "workers = 1025: give 1 to 1024"),
        (
            "log = \"xml\"",
            "log = \"xml\": give \"auto\", \"text\", \"json\" or \"journal\"",
        ),
        (
            "worker_user = \"\"",
            "worker_user = : give the name of a user, or a number",
        ),
        ("max_rules = 0", "max_rules = 0: give 1 or more"),
        ("max_memberships = 0", "max_memberships = 0: give 1 or more"),
        ("gro = \"on\"", "gro = \"on\": give \"auto\" or \"off\""),
        (
            "silence = \"soon\"",
            "silence = \"soon\": give auto, a time from 1s to 24h such as 5s, or off",
        ),
        ("backlog = 9", "backlog = \"9\": give \"auto\" or \"off\""),
        (
            "on_full = \"stop\"",
            "on_full = \"stop\": give \"refuse\" or \"warn\"",
        ),
        (
            "keep_forwarding = 1",
            "keep_forwarding = 1: give true or false",
        ),
        (
            "instance = \"a\"",
            "there is no key instance here; there are listen, listen_names, path, workers, worker_user, log, \
             max_rules, max_memberships, gro, xdp, backlog, silence, on_full, allow_link_local, \
             keep_forwarding, watch",
        ),
    ] {
        let text = format!("version = 1\n\n[daemon]\n{line}\n");
        assert_ne!(schema::tests::errors(&text), [""; 0], "{line}");
        assert_eq!(errors(&text), [format!("mcr.toml:4: daemon: {expected}")]);
    }
    assert!(errors("version = 1\ndaemon = 1\n")[0].starts_with("mcr.toml:2: daemon: "));

    let twice = [
        file("mcr.toml", "version = 1\n[daemon]\nworkers = 1\n"),
        file("conf.d/b.toml", "[daemon]\npath = \"kernel\"\n"),
    ];
    assert_eq!(
        Config::load(&twice, Policy::default())
            .unwrap_err()
            .to_string(),
        "conf.d/b.toml:1: daemon: is set already at mcr.toml:2; keep one"
    );
}
