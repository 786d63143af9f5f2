//! Values that other relays, operators and strangers put into a fleet's etcd, and datagrams to a relay's
//! port: nonsense is refused, and nothing of it opens a gate.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};

use config::OnIsolation;
use fleet::keys::{
    Beat, Current, Drained, FleetSettings, Key, Keys, Move, RelayEntry, ShareEntry, Value,
};
use fleet::member::{Change, Command, Config, Input, KeyValue, Member, Patience};
use fleet::peers::{Message, Secret};
use fleet::rules::{Rules, Text, TextError};
use rules::ruleset;

const PREFIX: &str = "/mcr/plant/";

/// A key after the fleet's prefix on the first line, and its value after that.
///
/// # Panics
/// If a key or a value is not the same after it was written again, or opens a gate.
pub fn fleet_keys(data: &[u8]) {
    let line_end = data.iter().position(|byte| *byte == b'\n');
    let (name, value) = data.split_at(line_end.unwrap_or(data.len()));
    let value = value.get(1..).unwrap_or_default();
    let Ok(name) = std::str::from_utf8(name) else {
        return;
    };
    let keys = keys();
    let text = format!("{PREFIX}{name}");
    match keys.parse(&text) {
        Ok(key) => {
            assert_eq!(keys.text(&key), text);
            read_value(&key, &text, value);
        }
        Err(error) => assert!(error.to_string().contains("key")),
    }
    let entry = KeyValue {
        key: text.clone(),
        value: value.to_vec(),
        created: 7,
        modified: 7,
    };
    let deleted = Change::Deleted {
        key: text,
        revision: 9,
    };
    let listed = Input::Listed {
        cluster: 1,
        revision: 8,
        keys: vec![entry.clone()],
    };
    let changed = Input::Changed {
        revision: 9,
        changes: vec![Change::Put(entry.clone()), deleted],
    };
    let seen = Input::BeatSeen {
        relay: "relay-a".to_owned(),
        revision: 9,
        beat: Some(entry),
    };
    opens_nothing([listed, seen, changed, Input::Tick]);
}

/// A message with a valid HMAC, and the same bytes without.
///
/// # Panics
/// If a message is not the same after it was sent again, or opens a gate.
pub fn fleet_peers(data: &[u8]) {
    let secret = Secret::new(&[7; 32]);
    assert_eq!(secret.open(data), None);
    let Some(message) = secret.open(&secret.sign(data)) else {
        return;
    };
    assert_eq!(secret.open(&secret.seal(&message)).as_ref(), Some(&message));
    opens_nothing([match message {
        Message::Question(question) => Input::Question(question),
        Message::Answer(answer) => Input::Answer(answer),
    }]);
}

fn keys() -> Keys {
    Keys::new("plant").expect("a name")
}

fn read_value(key: &Key, text: &str, value: &[u8]) {
    match key {
        Key::Beat(_) => reads_back::<Beat>(text, value),
        Key::Drained(_) => reads_back::<Drained>(text, value),
        Key::Move(_) => reads_back::<Move>(text, value),
        Key::Relay(_) => reads_back::<RelayEntry>(text, value),
        Key::Rules => reads_back::<Current>(text, value),
        Key::Settings => reads_back::<FleetSettings>(text, value),
        Key::Share(_) => reads_back::<ShareEntry>(text, value),
        Key::Blob { .. } => rules(value),
        Key::Counters(_) => {}
    }
}

fn reads_back<T: Value + PartialEq + std::fmt::Debug>(key: &str, value: &[u8]) {
    match T::read(key, value) {
        Ok(read) => assert_eq!(T::read(key, &read.write()).as_ref(), Ok(&read)),
        Err(error) => assert_eq!(error.key, key.chars().take(200).collect::<String>()),
    }
}

/// A text of rules, whatever its hash.
fn rules(text: &[u8]) {
    let Err(TextError::Damaged { found: hash, .. }) = Text::read(text, "") else {
        panic!("nothing has this hash");
    };
    let Ok(documents) = Text::read(text, &hash) else {
        return;
    };
    let again = Text::of(&documents).expect("it was shorter");
    assert_eq!(
        Text::read(&again.bytes, &again.hash).ok().as_ref(),
        Some(&documents)
    );
    let Ok(rules) = Rules::new(1, documents, ruleset::Policy::default()) else {
        return;
    };
    let shares: BTreeSet<String> = rules.shares().keys().cloned().collect();
    let all: usize = rules.names().values().map(Vec::len).sum();
    assert_eq!(all, rules.documents.len());
    let roles = rules.shares().values().flatten().cloned();
    let interfaces: BTreeMap<_, _> = roles.map(|role| (role, "eth0".to_owned())).collect();
    let (on_host, refused) = rules.on_host(&shares, &interfaces);
    assert_eq!((on_host.len(), refused.len()), (all, 0));
    let (on_host, _) = rules.on_host(&shares, &BTreeMap::new());
    assert!(on_host.len() <= all);
}

/// Feeds the inputs to a relay without a session.
fn opens_nothing(inputs: impl IntoIterator<Item = Input>) {
    let config = Config {
        keys: keys(),
        fleet: "plant".to_owned(),
        relay: "relay-a".to_owned(),
        process: 1,
        policy: OnIsolation::Peers,
        hold_ns: 1_200_000_000,
        peer: SocketAddr::from((Ipv4Addr::LOCALHOST, 9470)),
        roles: BTreeSet::from(["red".to_owned()]),
        weight: 100,
        version: "1".to_owned(),
        patience_ns: Patience {
            down: 500_000_000,
            silent: 1_000_000_000,
        },
        boot_unix_ms: 0,
    };
    let mut member = Member::new(config, None);
    let shares = BTreeMap::from([("r0".to_owned(), BTreeSet::new())]);
    let rules = Input::Rules {
        generation: 1,
        shares,
    };
    let mut now = 1_000_000_000;
    for input in [rules, Input::Alive].into_iter().chain(inputs) {
        now += 1_000_000;
        member.take(now, input);
        for command in member.decide(now) {
            let opens = matches!(command, Command::Gate { until, .. } if until > 0);
            assert!(
                !opens && !matches!(command, Command::Answer(_)),
                "{command:?}"
            );
        }
        drop(member.status(now));
    }
}
