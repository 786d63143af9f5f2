//! Settings of the budget and the daemon: valid ones, and the errors of others.

use super::*;

#[test]
fn reads_a_budget_and_reports_what_is_wrong_with_one() {
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
fn reads_how_a_daemon_is_started_and_reports_what_is_wrong_with_it() {
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
        (
            "worker_user = true",
            "worker_user = true: give the name of a user, or a number",
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
    let by_number = "version = 1\n[daemon]\nworker_user = 1000\n";
    assert_eq!(schema::tests::errors(by_number), [""; 0]);
    load(by_number).unwrap();
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
