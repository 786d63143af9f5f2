//! Which rules need a longer queue, and how the setting follows.

use compile::host::Interface;
use compile::placement::{PathChoices, Support};
use compile::{Compiled, compile};
use config::{Config, ConfigFile};
use rules::net::Mac;
use rules::ruleset::Policy;

use super::*;

const QUEUED_LINK: Ifindex = Ifindex(2);

/// A host with an input and two outputs, one of which goes through the queue.
fn host() -> Host {
    let mut host = Host::default();
    for (index, name) in [(1, "eth0"), (2, "veth0"), (3, "eth1")] {
        let interface = Interface {
            index: Ifindex(index),
            name: name.to_owned(),
            up: true,
            mtu: 1500,
            mac: Some(Mac([2, 0, 0, 0, 0, index as u8])),
            addresses: vec![format!("10.0.{index}.1").parse().unwrap()],
            ..Interface::default()
        };
        host.interfaces.insert(Ifindex(index), interface);
    }
    host
}

/// Compiles rules with these numbers of outputs to each interface.
fn compiled(host: &Host, rules: &[(&str, u8, u8)]) -> Compiled {
    let mut text = "version = 1\n".to_owned();
    for (number, (name, queued, others)) in rules.iter().enumerate() {
        let to = |interface: &str, count: u8| {
            let each = (0..count).map(|n| format!("\"239.10.{number}.{n}%{interface}:6001\""));
            each.collect::<Vec<_>>()
        };
        let outputs = [to("veth0", *queued), to("eth1", *others)]
            .concat()
            .join(", ");
        text += &format!(
            "[[rule]]\nname = {name:?}\ninput = \"239.1.1.{number}%eth0:5001\"\noutputs = [{outputs}]\n"
        );
    }
    let file = ConfigFile {
        name: "mcr.toml".to_owned(),
        text,
    };
    let set = Config::load(&[file], Policy::default()).unwrap().rules;
    let support = Support {
        kernel: Ok(()),
        userspace: Ok(()),
    };
    compile(&set, host, &support, &PathChoices::default())
}

fn need(rules: &[(&str, u8, u8)]) -> Option<Need> {
    let host = host();
    let table = compiled(&host, rules).table;
    Need::by(&table, &host, |index| index == QUEUED_LINK)
}

#[test]
fn the_rule_with_the_most_copies_behind_virtual_links_counts() {
    let widest = need(&[("a", 3, 60), ("b", 50, 1), ("c", 4, 0)]).unwrap();
    let expected = Need {
        rule: "b".to_owned(),
        copies: 50,
        interface: "veth0".to_owned(),
    };
    assert_eq!(widest, expected);
    assert_eq!(need(&[("a", 0, 60)]), None);
}

#[test]
fn the_queue_is_to_hold_some_polls_and_has_a_bound() {
    let copies = |copies| Need {
        rule: "a".to_owned(),
        copies,
        interface: "veth0".to_owned(),
    };
    assert_eq!(copies(15).beyond(1000), None);
    assert_eq!(copies(50).beyond(1000), Some(25_600));
    assert_eq!(copies(50).beyond(3200), None);
    assert_eq!(copies(60_000).beyond(1000), Some(65_536));
    assert_eq!(copies(60_000).beyond(65_536), None);
}

/// A setting of its own.
fn setting(directory: &Path, packets: &str) -> PathBuf {
    let file = directory.join("setting");
    fs::write(&file, packets).unwrap();
    file
}

#[test]
fn the_setting_is_raised_and_that_is_reported_once() {
    let directory = tempfile::tempdir().unwrap();
    let file = setting(directory.path(), "1000\n");
    let need = need(&[("a", 50, 0)]).unwrap();
    let mut backlog = Backlog::new(&file, Automatic::Auto);
    let Some(Outcome::Raised(message)) = backlog.settle(&need) else {
        panic!("it is not raised");
    };
    for part in [
        "1000 to 25600",
        "\"a\"",
        "50 copies",
        "veth0",
        "backlog = \"off\"",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "25600");
    assert_eq!(backlog.settle(&need), None);
    // Never lowered.
    fs::write(&file, "100000").unwrap();
    assert_eq!(backlog.settle(&need), None);
    assert_eq!(fs::read_to_string(&file).unwrap(), "100000");
}

#[test]
fn a_setting_that_cannot_be_written_is_reported_once_and_a_missing_one_never() {
    let directory = tempfile::tempdir().unwrap();
    let need = need(&[("a", 50, 0)]).unwrap();
    let mut backlog = Backlog::new(&directory.path().join("none"), Automatic::Auto);
    assert_eq!(backlog.settle(&need), None);
    // A number below 2,000 that not even root can write.
    let mut backlog = Backlog::new(Path::new("/proc/self/oom_score"), Automatic::Auto);
    let many = Need {
        copies: 500,
        ..need
    };
    assert!(matches!(backlog.settle(&many), Some(Outcome::Short(_))));
    assert_eq!(backlog.settle(&many), None);
}

#[test]
fn nothing_is_checked_unless_something_changed_and_it_is_wanted() {
    let directory = tempfile::tempdir().unwrap();
    let file = setting(directory.path(), "1000");
    for (choice, stale) in [(Automatic::Auto, true), (Automatic::Off, false)] {
        let mut backlog = Backlog::new(&file, choice);
        assert!(!backlog.is_stale);
        backlog.doubt();
        assert_eq!(backlog.is_stale, stale);
    }
}
