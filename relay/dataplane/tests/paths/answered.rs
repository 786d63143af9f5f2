//! Rules that reflect, and answers by unicast to what they sent: returned to the requester, with the responder's
//! source, and only if there was a request. Questions arrive by two egresses, their answers by the ingress.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use compile::table::{MergeLegs, Output, Route, RouteKey, Table, Ttl};
use packet::answer::LIFETIME_NS;
use packet::craft::{Craft, group_mac};
use packet::verdict::{DropReason, Verdict};
use rules::merge::{By, Merge};
use rules::net::{Ifindex, Ports, Prefix};
use sys::socket_lookup::SocketLookup;

use crate::bed::Bound;
use crate::case::{
    A, B, Expected, GROUP, INGRESS, Outlet, Packet, address, egress_mac, output, route, sent, with,
};
use crate::relayed::{Relay, Sum};

const RULE: &str = "asked";
/// In the order of inputs and outputs.
const INTERFACES: [Ifindex; 3] = [INGRESS, A, B];
const RESPONDER: u8 = 9;

/// Asks and answers in both families.
pub(crate) fn demand(relay: &mut Relay<'_>) {
    if let Err(error) = SocketLookup::open()
        && relay.is_in_userspace()
    {
        eprintln!("skipped: this kernel does not tell workers of UDP sockets: {error}");
        return;
    }
    for ipv6 in [false, true] {
        let scene = Scene { ipv6, port: 1900 };
        relay.apply(&scene.table(Ttl::Keep));
        scene.ask(relay, A, 4_009);
        let asked = Instant::now();
        scene.returns_answers(relay);
        scene.passes_unsolicited_packets_up(relay);
        scene.sockets_of_the_host_take_precedence(relay);
        scene.answers_are_judged(relay);
        scene.removed_rules_return_nothing(relay);
        relay.apply(&scene.table(Ttl::Keep));
        let late = Duration::from_nanos(LIFETIME_NS);
        let until = |time: Duration| std::thread::sleep(time.saturating_sub(asked.elapsed()));
        until(late / 2);
        scene.ask(relay, A, 4_010);
        until(late);
        scene.passes_up(relay, "too late", &scene.answer(4_009));
        scene.is_answered(relay, "still in time", &scene.answer(4_010), A);
        let mdns = Scene {
            port: 5353,
            ..scene
        };
        relay.apply(&mdns.table(Ttl::Keep));
        mdns.ask(relay, A, 5353);
        mdns.passes_up(relay, "to the group of mDNS", &mdns.answer(5353));
        mdns.ask(relay, A, 4_011);
        mdns.is_answered(relay, "from another port", &mdns.answer(4_011), A);
        relay.end(&[RULE]);
    }
}

struct Scene {
    ipv6: bool,
    /// The group's.
    port: u16,
}

impl Scene {
    fn host(&self, interface: Ifindex, number: u8) -> IpAddr {
        address(&if self.ipv6 {
            format!("fd00:{interface}::{number}")
        } else {
            format!("10.0.{interface}.{number}")
        })
    }

    fn group(&self) -> SocketAddr {
        let group = if self.ipv6 { "ff02::c" } else { GROUP };
        SocketAddr::new(address(group), self.port)
    }

    /// A table that reflects every interface's packets to all others.
    fn table(&self, ttl: Ttl) -> Table {
        let lines: Vec<String> = INTERFACES.map(|link| format!("in{link}")).into();
        let merge = MergeLegs {
            how: Merge {
                by: By::Once,
                window: Duration::from_millis(1),
                ..Merge::default()
            },
            lines: lines.clone(),
        };
        let outputs = INTERFACES.map(|link| {
            with(output(link), |egress| {
                egress.destination = Prefix::host(self.group().ip());
                egress.ports = Ports::single(self.port);
                egress.source = Some(self.host(link, 1));
                egress.ttl = ttl;
                egress.answers = true;
            })
        });
        let outputs: Vec<Output> = route(RULE, outputs.into()).outputs;
        let inputs = INTERFACES.into_iter().zip(lines).zip(0..);
        let routes = inputs.map(|((ingress, line), own)| {
            let key = RouteKey {
                ingress,
                groups: Prefix::host(self.group().ip()),
                ports: Ports::single(self.port),
                source: None,
            };
            let others = outputs.iter().filter(|output| output.index != own);
            let route = Route {
                input: Some(line),
                merge: Some(Box::new(merge.clone())),
                outputs: others.cloned().collect(),
                ..route(RULE, Vec::new())
            };
            (key, route)
        });
        Table {
            routes: routes.collect(),
            ..Table::default()
        }
    }

    /// A question of a host on an interface, from a port of its own.
    fn question(&self, interface: Ifindex, port: u16) -> Craft {
        let from = SocketAddr::new(self.host(interface, 5), port);
        let payload = format!("{interface} asks from {port}").into_bytes();
        Craft {
            macs: (group_mac(self.group().ip()), requester_mac(interface)),
            ..Craft::new(from, self.group(), payload)
        }
    }

    /// An answer that arrives by the ingress to this host's address there and that port.
    fn answer(&self, port: u16) -> Craft {
        let from = SocketAddr::new(self.host(INGRESS, RESPONDER), self.port);
        let to = SocketAddr::new(self.host(INGRESS, 1), port);
        Craft {
            macs: (egress_mac(INGRESS), [2, 0, 0, 0, 0, 0x79]),
            ..Craft::new(from, to, b"here".to_vec())
        }
    }

    /// The answer as the requester on an interface gets it.
    fn given(&self, answer: &Craft, interface: Ifindex) -> Craft {
        let port = answer.destination.port();
        Craft {
            destination: SocketAddr::new(self.host(interface, 5), port),
            macs: (requester_mac(interface), egress_mac(interface)),
            ..answer.clone()
        }
    }

    /// Sends a question, and checks that it leaves by the other interfaces.
    fn ask(&self, relay: &mut Relay<'_>, interface: Ifindex, port: u16) {
        let question = self.question(interface, port);
        let others = (0..).zip(INTERFACES).filter(|(_, link)| *link != interface);
        let outlets = others.map(|(index, link)| {
            let copy = Craft {
                source: SocketAddr::new(self.host(link, 1), port),
                macs: (question.macs.0, egress_mac(link)),
                ..question.clone()
            };
            (index, sent(link, copy))
        });
        let packet = Packet::from(question.clone());
        let mut expected = Sum::default();
        let outlets = outlets.collect();
        expected.expect(
            &packet,
            &expect(&question, interface, Verdict::Forwarded, outlets),
        );
        // There is no receiver there.
        expected.copies.remove(&INGRESS);
        let seen = relay.forward_by(interface, &packet, &expected);
        assert_eq!(seen, expected, "{question:?}");
        // Within the window the same packet would be a duplicate.
        std::thread::sleep(Duration::from_millis(2));
    }

    /// Sends an answer to a host on an interface.
    fn is_answered(&self, relay: &mut Relay<'_>, what: &str, answer: &Craft, interface: Ifindex) {
        let given = self.given(answer, interface);
        self.ends_in(relay, what, answer, (interface, sent(interface, given)));
    }

    /// Sends an answer to a host on an interface, with that outcome.
    fn ends_in(
        &self,
        relay: &mut Relay<'_>,
        what: &str,
        answer: &Craft,
        (interface, outlet): (Ifindex, Outlet),
    ) {
        let index = INTERFACES.iter().position(|link| *link == interface);
        let outlets = [(index.expect("one of them") as u64, outlet)].into();
        let expected = expect(answer, INGRESS, Verdict::Forwarded, outlets);
        let packet = Packet::from(answer.clone());
        let mut sum = Sum::default();
        sum.expect(&packet, &expected);
        let rule = sum.counters.entry(RULE.to_owned()).or_default();
        rule.received.answers = 1;
        let seen = relay.forward([&packet], &sum);
        assert_eq!(seen, sum, "{what}: {answer:?}");
    }

    /// Sends a packet that is left to the host.
    fn passes_up(&self, relay: &mut Relay<'_>, what: &str, packet: &Craft) {
        let expected = Expected {
            verdict: Verdict::Passed,
            rule: None,
            input: None,
            passed_up: true,
            packets: 0,
            bytes: 0,
            limited: 0,
            outputs: [].into(),
        };
        let packet = Packet::from(packet.clone());
        let mut sum = Sum::default();
        sum.expect(&packet, &expected);
        let seen = relay.forward([&packet], &sum);
        assert_eq!(seen, sum, "{what}: {packet:?}");
    }

    fn returns_answers(&self, relay: &mut Relay<'_>) {
        self.ask(relay, A, 4_000);
        self.is_answered(relay, "at once", &self.answer(4_000), A);
        self.is_answered(relay, "the same again", &self.answer(4_000), A);
        let from_another_port = Craft {
            source: SocketAddr::new(self.host(INGRESS, RESPONDER), 50_000),
            ..self.answer(4_000)
        };
        self.is_answered(relay, "from a port of its own", &from_another_port, A);
        self.ask(relay, B, 4_001);
        self.is_answered(relay, "each to its own", &self.answer(4_001), B);
        self.is_answered(relay, "each to its own", &self.answer(4_000), A);
        self.ask(relay, B, 4_000);
        self.is_answered(relay, "the later asker", &self.answer(4_000), B);
        self.ask(relay, A, self.port);
        let own = self.answer(self.port);
        self.is_answered(relay, "from the group's own port", &own, A);
    }

    fn passes_unsolicited_packets_up(&self, relay: &mut Relay<'_>) {
        self.passes_up(relay, "another port", &self.answer(4_002));
        let to_another_address = Craft {
            destination: SocketAddr::new(self.host(B, 1), 4_000),
            ..self.answer(4_000)
        };
        self.passes_up(relay, "another address", &to_another_address);
        // By another interface: a later packet by it shows that it was seen.
        let packet = Packet::from(self.answer(4_000));
        let nothing = Sum::default();
        assert_eq!(relay.forward_by(B, &packet, &nothing), nothing);
        self.ask(relay, B, 4_003);
    }

    fn sockets_of_the_host_take_precedence(&self, relay: &mut Relay<'_>) {
        self.ask(relay, A, 4_004);
        let socket = Bound::new(4_004);
        self.passes_up(relay, "a socket waits for it", &self.answer(4_004));
        drop(socket);
        self.is_answered(relay, "none does any more", &self.answer(4_004), A);
    }

    fn answers_are_judged(&self, relay: &mut Relay<'_>) {
        self.ask(relay, A, 4_005);
        let large = Craft {
            payload: vec![3; 1_600],
            ..self.answer(4_005)
        };
        let too_big = Outlet::Dropped(DropReason::TooBig);
        self.ends_in(relay, "above the MTU", &large, (A, too_big));
        relay.apply(&self.table(Ttl::Decrement));
        let last = Craft {
            ttl: 1,
            ..self.answer(4_005)
        };
        let expired = Outlet::Dropped(DropReason::TtlExpired);
        self.ends_in(relay, "at its last hop", &last, (A, expired));
        let answer = self.answer(4_005);
        let given = Craft {
            ttl: answer.ttl - 1,
            ..self.given(&answer, A)
        };
        let nearer = (A, sent(A, given));
        self.ends_in(relay, "as the rule says", &answer, nearer);
        relay.apply(&self.table(Ttl::Keep));
    }

    fn removed_rules_return_nothing(&self, relay: &mut Relay<'_>) {
        self.ask(relay, A, 4_006);
        relay.apply(&Table::default());
        self.passes_up(relay, "no rule", &self.answer(4_006));
    }
}

/// The expected outcome of a packet that arrives by an interface.
fn expect(
    packet: &Craft,
    interface: Ifindex,
    verdict: Verdict,
    outputs: std::collections::BTreeMap<u64, Outlet>,
) -> Expected {
    Expected {
        verdict,
        rule: Some(RULE.to_owned()),
        input: Some(format!("in{interface}")),
        passed_up: false,
        packets: 1,
        bytes: packet.payload.len() as u64,
        limited: 0,
        outputs,
    }
}

const fn requester_mac(interface: Ifindex) -> [u8; 6] {
    [2, 0, 0, 0, 5, interface.0 as u8]
}
