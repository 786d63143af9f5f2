//! Rules between cards as qemu emulates them, each driver's four on two wires: at XDP where the driver supports
//! it, else at tc, with the driver's name as the reason.

use std::fmt::Write;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use api::reply::State;
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::namespace::Namespace;
use lab::process;
use lab::socket::{self, Receiver, Sender};
use lab::vm::{CARDS, Card, mac};
use lab::wait;

use crate::inside::release;

const PATIENCE: Duration = Duration::from_secs(20);
const BURST: u64 = 40;

/// Sender, relay's input, relay's output, sink.
const POSITIONS: [&str; 4] = ["0", "1", "2", "3"];

#[test]
#[ignore = "runs inside a booted kernel"]
fn all() {
    let [sender, relay, sink] =
        ["sender", "relay", "sink"].map(|name| Namespace::new(name).unwrap());
    let present: Vec<(usize, &Card)> = CARDS
        .iter()
        .enumerate()
        .filter(|(number, card)| {
            let owners = [&sender, &relay, &relay, &sink];
            let is_present =
                (0..4).all(|position| take((*number, card), position, owners[position]));
            if !is_present {
                eprintln!("skipped: no driver {} here", card.driver);
            }
            is_present
        })
        .collect();
    assert!(!present.is_empty(), "no cards");
    let daemon = Daemon::start(&relay, options(&present)).unwrap();
    for (number, card) in present {
        for path in ["kernel", "userspace"] {
            let name = format!("{}-{path}", card.driver);
            let third = u8::from(path == "userspace");
            let source = IpAddr::from([10, number as u8, 0, 1]);
            let groups = [1, 10].map(|first| IpAddr::from([239, first, number as u8, third]));
            let at = |position| dev(card, position);
            let output = Receiver::join((&sink, &at(3)), groups[1], 6001).unwrap();
            let input = Sender::open((&sender, &at(0)), source).unwrap();
            wait::until("the rule is up", || {
                daemon.rule(&name).is_ok_and(|rule| rule.state == State::Up)
            })
            .unwrap();
            if path == "kernel" {
                wait_for_hook(&daemon, &name, card);
            }
            input.send_numbered(groups[0], 5001, BURST, 700).unwrap();
            let datagrams = output.collect(BURST as usize, PATIENCE).unwrap();
            let mut numbers: Vec<u64> = datagrams
                .iter()
                .map(|datagram| socket::number(&datagram.payload).unwrap())
                .collect();
            // Several queues may reorder packets.
            numbers.sort_unstable();
            assert!(numbers.iter().copied().eq(0..BURST), "{numbers:?}");
            let rule = daemon.settled(&name, BURST).unwrap();
            assert_eq!(rule.outputs[0].sent.packets, BURST, "{rule:?}");
            assert_eq!(rule.path, path, "{rule:?}");
        }
    }
}

/// At XDP, or at tc if the driver lacks it. Linux reports devices' XDP features since 6.3; before 6.6 instances
/// have a qdisc for themselves, which is no reason.
fn wait_for_hook(daemon: &Daemon, name: &str, card: &Card) {
    let mut state = String::new();
    let waited = wait::until("packets are taken where they have to be", || {
        let rule = daemon.rule(name).unwrap();
        let input = &rule.inputs[0];
        let hook = input.hook.as_deref();
        let why = input.hook_reason.as_deref().unwrap_or_default();
        state = format!("{hook:?}: {why:?}");
        match card.driver {
            _ if release() < (6, 3) => {
                hook == Some("tc") && !why.is_empty() && !why.contains("qdisc")
            }
            "virtio_net" | "vmxnet3" => hook == Some("xdp"),
            _ => hook == Some("tc") && why.contains("the driver runs no XDP"),
        }
    });
    waited.unwrap_or_else(|error| panic!("{name}: {error:#}: {state}"));
}

fn dev(card: &Card, position: usize) -> String {
    format!("{}{}", card.prefix, POSITIONS[position])
}

/// Moves a card to its namespace; `false` if there is none.
fn take((number, card): (usize, &Card), position: usize, to: &Namespace) -> bool {
    let mac = mac(number, position);
    let mut cards = Path::new("/sys/class/net").read_dir().unwrap();
    let card_name = cards.find_map(|entry| {
        let path = entry.unwrap().path();
        let address = std::fs::read_to_string(path.join("address")).ok()?;
        (address.trim() == mac).then(|| path.file_name().unwrap().to_owned())
    });
    let Some(card_name) = card_name else {
        return false;
    };
    let name = dev(card, position);
    let mut moved = Command::new("ip");
    moved.args(["link", "set", "dev"]).arg(card_name);
    moved.args(["netns", to.name(), "name", &name]);
    process::run(moved, PATIENCE).unwrap().success().unwrap();
    let end = (to, name.as_str());
    // Features that may prevent XDP, according to the doctor.
    for switch in ["rxvlan off", "lro off"] {
        let _ = link::features(end, switch);
    }
    link::up(end).unwrap();
    let (net, host) = [(0, 1), (0, 2), (1, 1), (1, 2)][position];
    link::address(end, &format!("10.{number}.{net}.{host}/24")).unwrap();
    true
}

fn options(cards: &[(usize, &Card)]) -> Options {
    let mut config = "version = 1\n".to_owned();
    for (number, card) in cards {
        let (input, output) = (dev(card, 1), dev(card, 2));
        for interface in [&input, &output] {
            writeln!(config, "[interface.{interface}]\nxdp = \"on\"").unwrap();
        }
        for (path, third) in [("kernel", 0), ("userspace", 1)] {
            let name = format!("{}-{path}", card.driver);
            writeln!(
                config,
                "[[rule]]\nname = {name:?}\npath = {path:?}\n\
                 input = \"239.1.{number}.{third}%{input}:5001\"\n\
                 outputs = [\"239.10.{number}.{third}%{output}:6001\"]"
            )
            .unwrap();
        }
    }
    Options {
        config: Some(config),
        ..Options::default()
    }
}
