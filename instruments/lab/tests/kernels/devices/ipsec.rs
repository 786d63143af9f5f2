//! What IPsec protects: associations and policies, and bursts that have to leave encrypted.

use std::fmt::Write;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use api::reply::State;
use lab::daemon::Daemon;
use lab::frame::FrameReceiver;
use lab::socket::{Receiver, Sender};
use lab::topology::Chain;

use super::{BURST, PATIENCE, describe, named};

/// What an IPsec policy protects: input, output, and the family's ends of the relay's link.
pub(super) const PROTECTED: [(&str, &str, (&str, &str)); 3] = [
    (
        "239.3.1.1%veth1:5001",
        "10.99.0.9:7001",
        ("10.0.1.1", "10.0.1.2"),
    ),
    (
        "239.3.1.2%veth1:5001",
        "239.99.0.9%veth2:7001",
        ("10.0.1.1", "10.0.1.2"),
    ),
    (
        "[ff1e::3:1%veth1]:5001",
        "[fd99::9]:7001",
        ("fd00:1::1", "fd00:1::2"),
    ),
];

pub(super) fn protected_rules() -> String {
    let rules = PROTECTED.into_iter().map(|(input, output, _)| {
        let name = named(output);
        format!("[[rule]]\nname = {name:?}\ninput = {input:?}\noutputs = [{output:?}]\n")
    });
    rules.collect()
}

/// Networks behind the sink that are reached only encrypted.
pub(super) fn protect(chain: &Chain) -> Result<()> {
    for (namespace, is_first) in [(&chain.relay, true), (&chain.sink, false)] {
        let mut script = String::new();
        for ((one, other), id, networks) in [
            (PROTECTED[0].2, 9004, &["10.99.0.0/24", "239.99.0.0/16"][..]),
            (PROTECTED[2].2, 9006, &["fd99::/64"]),
        ] {
            let (local, remote) = if is_first { (one, other) } else { (other, one) };
            let ends = (local, remote, is_first);
            script += &associations(ends, id, "");
            for to in networks {
                let direction = if is_first { "out" } else { "in" };
                let template =
                    format!("tmpl src {one} dst {other} proto esp reqid {id} mode tunnel");
                writeln!(
                    script,
                    "xfrm policy add dst {to} dir {direction} {template}"
                )?;
            }
        }
        script += if is_first {
            "route add 10.99.0.0/24 via 10.0.1.2\nroute add fd99::/64 via fd00:1::2\n"
        } else {
            "address add 10.99.0.9/32 dev lo\naddress add fd99::9/128 dev lo\n"
        };
        namespace.ip_batch(&script)?;
    }
    Ok(())
}

/// A burst to a network with a policy: it arrives, and leaves only as ESP.
pub(super) fn send_protected(
    chain: &Chain,
    daemon: &Daemon,
    (input, output): (&str, &str),
) -> Result<()> {
    let name = named(output);
    daemon.wait_for(&name, "up", |rule| rule.state == State::Up)?;
    let is_ipv4 = !input.starts_with('[');
    let group: IpAddr = input
        .trim_start_matches('[')
        .split('%')
        .next()
        .unwrap()
        .parse()?;
    let source: IpAddr = if is_ipv4 { "10.0.0.1" } else { "fd00::1" }.parse()?;
    let wire = FrameReceiver::open((&chain.relay, "veth2"))?;
    let sink = match output.parse() {
        Ok(at) => Receiver::bind(&chain.sink, at)?,
        Err(_) => Receiver::join((&chain.sink, "veth3"), "239.99.0.9".parse()?, 7001)?,
    };
    let sender = Sender::open((&chain.sender, "veth0"), source)?;
    sender.send_numbered(group, 5001, BURST, 700)?;
    let received = sink.expect(BURST, PATIENCE);
    let rule = daemon.settled(&name, BURST)?;
    received.map_err(|why| why.context(describe(Some(&rule))))?;
    let protocol = |frame: &[u8]| {
        if is_ipv4 {
            frame.get(23).copied()
        } else {
            frame.get(20).copied()
        }
    };
    let association = if is_ipv4 { 9004 } else { 9006 };
    let (mut esp, mut clear) = (0, 0);
    wire.receive(Duration::ZERO, |frame| {
        // Others' associations carry what hosts themselves send by the devices upon them.
        let spi = if is_ipv4 {
            frame.get(34..38)
        } else {
            frame.get(54..58)
        };
        let is_ours = spi == Some(&spi_of(association, true).to_be_bytes()[..]);
        esp += u64::from(protocol(frame) == Some(50) && is_ours);
        // So do tunnels in UDP.
        let to = if is_ipv4 {
            frame.get(36..38)
        } else {
            frame.get(56..58)
        };
        let is_copy = to == Some(&7001_u16.to_be_bytes()[..]);
        clear += u64::from(protocol(frame) == Some(17) && is_copy);
        false
    })?;
    ensure!(
        (esp, clear) == (BURST, 0),
        "{esp} as ESP, {clear} in clear: {}",
        describe(Some(&rule))
    );
    Ok(())
}

fn spi_of(association: usize, forth: bool) -> u32 {
    2 * association as u32 + u32::from(forth)
}

/// Associations of both directions, numbered.
pub(super) fn associations(
    (local, remote, is_first): (&str, &str, bool),
    id: usize,
    more: &str,
) -> String {
    let keys = "enc cbc(aes) 0x000102030405060708090a0b0c0d0e0f \
                auth hmac(sha1) 0x000102030405060708090a0b0c0d0e0f10111213";
    let ways = [(local, remote, is_first), (remote, local, !is_first)];
    let state = ways.map(|(from, to, forth)| {
        let spi = spi_of(id, forth);
        format!(
            "xfrm state add src {from} dst {to} proto esp spi {spi} reqid {id} mode tunnel \
             flag af-unspec {keys} {more}\n"
        )
    });
    state.concat()
}

/// Policies of both directions.
pub(super) fn policies(
    (local, remote, _): (&str, &str, bool),
    id: usize,
    all: &str,
    more: &str,
) -> String {
    let ways = [("out", local, remote), ("in", remote, local)];
    let policies = ways.map(|(direction, from, to)| {
        let template = format!("tmpl src {from} dst {to} proto esp reqid {id} mode tunnel");
        format!("xfrm policy add {all} dir {direction} {template} {more}\n")
    });
    policies.concat()
}
