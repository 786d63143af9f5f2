//! Ports of this host that both a rule and a program use: only one can receive the packets to an address,
//! unless the rule delivers the original locally.

use compile::InputView;
use compile::table::LocalDelivery;
use host::{UdpSocket, udp_sockets};
use rules::endpoint::Endpoint;
use rules::rule::Rule;
use rules::ruleset::RuleSet;

use crate::core::Step;

/// Lists new inputs of a step at ports that sockets have bound, and what to do.
pub(crate) fn port_conflicts(running: &RuleSet, step: &Step) -> Vec<String> {
    let mut inputs = Vec::new();
    for (rule, view) in step.differing() {
        if rule.local == LocalDelivery::Yes {
            continue;
        }
        let before = running.get(&rule.name).filter(|before| before.enabled);
        let ends = rule.inputs.iter().zip(&view.inputs);
        let new = ends.filter(|(input, view)| {
            let is_old = before.is_some_and(|before| before.inputs.contains(input));
            !view.addresses.is_empty() && !is_old
        });
        inputs.extend(new.map(|(input, view)| (rule, input, view)));
    }
    if inputs.is_empty() {
        return Vec::new();
    }
    let sockets = udp_sockets();
    let conflicts = inputs.into_iter().filter_map(|(rule, input, view)| {
        let socket = sockets.iter().find(|socket| takes(socket, input, view))?;
        Some(message(rule, input, socket))
    });
    conflicts.collect()
}

/// Returns whether a socket receives packets of an input too.
fn takes(socket: &UdpSocket, input: &Endpoint, view: &InputView) -> bool {
    let receives = |address| {
        let any = socket.address.is_unspecified();
        socket.address == address || any && (socket.address.is_ipv6() || input.is_ipv4())
    };
    let mut addresses = view.addresses.iter();
    input.ports.contains(socket.port) && addresses.any(|(_, address)| receives(*address))
}

fn message(rule: &Rule, input: &Endpoint, socket: &UdpSocket) -> String {
    format!(
        "rule {:?}: input {input}: port {} is taken by {}; stop that program or choose another port, \
         or set local = \"yes\" if both are to have the packets",
        rule.name,
        socket.port,
        socket.describe()
    )
}
