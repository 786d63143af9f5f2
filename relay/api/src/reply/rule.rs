//! State and statistics of a rule, its inputs and its outputs.

use std::collections::BTreeMap;

use rules::named::named;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use counters::counter::{Number, Value};
use counters::counters;

use super::{By, HealthStats, LineStats, MergeStats, Rates, ResidenceStats, Traffic};

/// One rule's state and counters.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RuleStats {
    /// Name of the rule.
    pub name: String,
    /// Its labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The share of a fleet that it belongs to; none of the host's own rules.
    pub share: Option<String>,
    /// `reflect`: packets of an input leave by all outputs but the one of its interface, and `answers`
    /// by one alone, so that (received - dropped - answers) times (outputs - 1), and the answers, are
    /// what all outputs sent and dropped together.
    pub mode: Option<String>,
    /// How it does in one word, the worse of its state and its stream's; `waiting` and `silent` besides.
    pub condition: Option<Condition>,
    /// Who sees to its trouble, where somebody said so of how it does now.
    pub acknowledged: Option<Acknowledgement>,
    /// Worst state of its inputs and outputs.
    pub state: State,
    /// Why the state is not `up`.
    pub state_reason: Option<String>,
    /// `kernel` or `userspace`.
    pub path: String,
    /// Why it runs there.
    pub path_reason: String,
    /// Inputs and their memberships.
    pub inputs: Vec<InputStats>,
    /// The input that is relayed, where they stand by for each other (`failover`).
    pub active: Option<String>,
    /// Seconds since it is.
    pub active_seconds: Option<f64>,
    /// Times that another input has taken over.
    pub switches: Option<u64>,
    /// What its inputs brought together, where they are merged (`merge`).
    pub merge: Option<MergeStats>,
    /// Packets that matched an input.
    pub received: Traffic,
    /// Of those received and not dropped, answers by unicast, which go to whoever asked; only of a rule
    /// that reflects.
    pub answers: Option<u64>,
    /// Packets dropped before the outputs, by reason; only reasons that occurred.
    pub dropped: BTreeMap<String, u64>,
    /// Outputs in the order of the rule.
    pub outputs: Vec<OutputStats>,
    /// What the rule receives per second.
    #[serde(default)]
    pub rates: Rates,
    /// Seconds since its last packet, where packets came and have stopped: none has for longer than
    /// `silence` of `[daemon]` allows, or, where the stream is watched, for as long as makes it `down`.
    /// None where packets need not come: of rules that reflect, are disabled, or nobody listens to.
    pub silent_seconds: Option<f64>,
    /// Seconds since the rule was made or the daemon started, where nothing has come since it was made,
    /// over restarts too; none where packets need not come.
    pub waiting_seconds: Option<f64>,
    /// `true` where packets need not come: of a rule that reflects or is disabled, that nobody listens to,
    /// or whose `silence` is `off`.
    pub may_be_silent: Option<bool>,
    /// How its stream does; none unless the rule has `health`.
    pub health: Option<HealthStats>,
    /// How long its packets stay, by the path that relayed them; none until one was looked at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub residence: Vec<ResidenceStats>,
}

impl RuleStats {
    /// Its condition in one word, the same in all displays.
    pub fn word(&self) -> &'static str {
        self.condition().as_str()
    }

    /// Its condition: the one that is given, or else the one that its other fields imply.
    pub fn condition(&self) -> Condition {
        if let Some(condition) = self.condition {
            return condition;
        }
        match (self.worst().0, self.silent_seconds) {
            _ if self.state == State::Down => Condition::Down,
            (State::Up, _) if self.is_idle() => Condition::Idle,
            (State::Disabled, _) => Condition::Disabled,
            (_, Some(_)) => Condition::Silent,
            (State::Down, None) => Condition::Down,
            (State::Degraded, None) => Condition::Degraded,
            (State::Up, None) if self.waiting_seconds.is_some() => Condition::Waiting,
            (State::Up, None) => Condition::Up,
        }
    }

    /// Returns whether it needs attention: the stream of a new rule has a minute to arrive.
    pub fn is_troubled(&self) -> bool {
        match self.condition() {
            Condition::Down | Condition::Silent | Condition::Degraded => true,
            Condition::Waiting => self.waiting_seconds.is_none_or(|s| s >= WAITING_SECONDS),
            Condition::Up | Condition::Idle | Condition::Disabled => false,
        }
    }

    /// Returns whether its name, an endpoint, its path, its state or a label as `key=value` contains a
    /// text, which is given in lower case.
    pub fn contains(&self, text: &str) -> bool {
        let contains = |part: &str| part.to_lowercase().contains(text);
        text.is_empty()
            || [&*self.name, &*self.path, self.word()]
                .into_iter()
                .any(contains)
            || self.inputs.iter().any(|input| contains(&input.at))
            || self.outputs.iter().any(|output| contains(&output.to))
            || self
                .labels
                .iter()
                .any(|(key, value)| contains(&format!("{key}={value}")))
    }

    /// Returns whether all outputs are on demand, and nobody listens.
    pub fn is_idle(&self) -> bool {
        !self.outputs.is_empty() && self.outputs.iter().all(OutputStats::is_idle)
    }

    /// The worse of the rule's state and its stream's, and why it is not `up`.
    pub fn worst(&self) -> (State, Option<&str>) {
        let own = (self.state, self.state_reason.as_deref());
        match &self.health {
            Some(stream) if stream.state > self.state => (stream.state, stream.reason.as_deref()),
            _ => own,
        }
    }
}

/// That somebody sees to a rule's trouble.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Acknowledgement {
    /// Who.
    pub by: By,
    /// Since when, in milliseconds since the epoch.
    pub at_ms: u64,
    /// Why, or what is being done, as they said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// How the rule did then.
    pub condition: Condition,
}

/// How long a rule may wait for its stream before that is a trouble, in seconds.
const WAITING_SECONDS: f64 = 60.0;

named! {
    /// How a rule does, worst first: the worse of its own state and its stream's, `silent` where packets
    /// came and come no more, and `waiting` where none ever came.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "lowercase")]
    pub enum Condition {
        /// Does not work, or no packet of its stream ever came.
        Down = "down",
        /// Packets came and have stopped.
        Silent = "silent",
        /// Some of it does not work.
        Degraded = "degraded",
        /// Works, and no packet has come since it was made.
        Waiting = "waiting",
        /// Works.
        Up = "up",
        /// All outputs are on demand, and nobody listens.
        Idle = "idle",
        /// Not forwarding, as it was asked for.
        Disabled = "disabled",
    }
}

named! {
    /// State of a rule or an output.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "lowercase")]
    pub enum State {
        /// Configured and, as it was asked for, not forwarding.
        Disabled = "disabled",
        /// Works.
        Up = "up",
        /// A rule some of whose inputs or outputs do not work; an output that drops everything.
        Degraded = "degraded",
        /// Does not work; the reason stands beside it.
        Down = "down",
    }
}

/// One input of a rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InputStats {
    /// The endpoint as the rule writes it.
    pub at: String,
    /// Whether its group is joined on its interface, of a rule on demand whether what is wanted of it is;
    /// of an address of this host, whether the interface has it.
    pub joined: bool,
    /// Why it is not joined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `down` (not joined), `waiting` (no packet has come by it since it was made; never said of one that
    /// stands by, reflects, or nobody listens to), `up` or `disabled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<Condition>,
    /// Packets that matched it: what the rule received, if it is the rule's only input; else what
    /// came by it since the rule has several.
    #[serde(default)]
    pub received: Traffic,
    /// Packets that the rule dropped because they came by it, by reason; only reasons that occurred.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dropped: BTreeMap<String, u64>,
    /// Whether it is relayed, where the rule's inputs stand by for each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
    /// What it brought, where the rule's inputs are merged.
    #[serde(flatten)]
    pub line: Option<LineStats>,
    /// What is wrong with it, where the rule's inputs are merged or stand by for each other, in words
    /// that go on from its name: `is silent`, `loses packets`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Seconds since the last of them came; none while none has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_packet_seconds: Option<f64>,
    /// Whether its interface merges packets before they are relayed, and why; absent where nobody
    /// asks for it and nothing would be gained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merging: Option<String>,
    /// Where the kernel path takes its packets: `xdp`, before the kernel makes an skb of each, or `tc`;
    /// absent on the userspace path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<String>,
    /// Why they are taken at tc.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook_reason: Option<String>,
    /// Whether XDP was asked for there; only where packets are taken at tc.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xdp_asked: Option<bool>,
    /// Who on this host gets its packets besides sockets: the bridge that its interface is a port
    /// of, macvlans upon it, the kernel's multicast routing. With `local=auto` the original goes on
    /// to them, with `local=no` they get nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_with: Option<String>,
}

/// One output of a rule.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutputStats {
    /// Destination as the rule writes it, without options.
    pub to: String,
    /// Whether it sends.
    pub state: State,
    /// Why it does not.
    pub reason: Option<String>,
    /// The address that its name stands for; none where it gives an address itself, or has none yet.
    pub address: Option<String>,
    /// Why the name could not be looked up when that was tried last; what was good stays in use.
    pub name_error: Option<String>,
    /// The interface it leaves by, whose own drops stand in `egress`; none while it is not known.
    pub interface: Option<String>,
    /// The source address of its copies; none where each keeps its own, and while it cannot send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The gateway, or a unicast destination on the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_hop: Option<String>,
    /// The Ethernet address of the next hop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_hop_mac: Option<String>,
    /// What fits the interface, in bytes of the IP packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Where that interface is a tunnel, its other end. Sources are kept there, unless the output sets one.
    pub tunnel: Option<String>,
    /// Why this host's own stack sends its copies, by a socket: an IPsec policy that may be for them, a
    /// route that is more than a device and a neighbour.
    pub by_socket: Option<String>,
    /// Groups that hosts on its interface listen to, where it is on demand (`demand`); where none is, it
    /// is idle, which is no trouble.
    pub wanted: Option<u64>,
    /// Hosts that listen to them.
    pub members: Option<u64>,
    /// Why its copies reach nobody, as far as a bridge of this host or `demand` knows.
    pub unheard: Option<String>,
    /// Copies handed to the egress device.
    pub sent: Traffic,
    /// Seconds since the last of them was; none while none was.
    pub last_packet_seconds: Option<f64>,
    /// Copies dropped, by reason: `too_big` always, the others once they occurred.
    pub dropped: BTreeMap<String, u64>,
    /// Of a name with all its addresses: each, whose copies are among those above; those of addresses that
    /// went stay there. Where it has none the output is idle, which is no trouble.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Vec<AddressStats>>,
    /// How many addresses the name has beyond `max`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<u64>,
}

/// One of the addresses of a name that all get copies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AddressStats {
    /// The address, of a service with its port.
    pub address: String,
    /// Whether copies are sent to it.
    pub state: State,
    /// Why they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Copies handed to the egress device.
    pub sent: Traffic,
    /// Copies dropped, by reason, once they occurred.
    pub dropped: BTreeMap<String, u64>,
}

impl OutputStats {
    /// Returns whether it is on demand and nobody listens, or its name has no addresses.
    pub fn is_idle(&self) -> bool {
        let has_nobody = self.addresses.as_ref().is_some_and(Vec::is_empty);
        self.wanted == Some(0) || has_nobody && self.state == State::Up
    }

    /// A remark beside its state: why it does not send, that its name fails, or that nobody listens.
    pub fn remark(&self) -> Option<String> {
        let name_remark = |why: &String| {
            let address = match self.addresses {
                None => self.address.as_deref().unwrap_or("no address"),
                Some(_) => "what it had",
            };
            format!("its name cannot be looked up, {address} stays in use: {why}")
        };
        let reason = self.reason.clone();
        let failed = || self.name_error.as_ref().map(name_remark);
        reason.or_else(failed).or_else(|| self.unheard.clone())
    }
}

impl Number for State {
    fn number(&self) -> Option<Value> {
        match self {
            // Whether it could send is irrelevant.
            Self::Disabled => None,
            Self::Up | Self::Degraded | Self::Down => (*self != Self::Down).number(),
        }
    }
}

counters! { RuleStats {
    received.packets: "mcr_rule_received_packets_total",
        "Datagrams that matched an input of the rule.";
    received.bytes: "mcr_rule_received_bytes_total",
        "UDP payload bytes that matched an input of the rule.";
    switches: "mcr_rule_input_switches_total", "Times that another input has taken over.",
        "inputs switched {} times";
    silent_seconds: "mcr_rule_silent_seconds",
        "Time since the last packet of a rule whose packets have stopped.";
    waiting_seconds: "mcr_rule_waiting_seconds",
        "For how long a rule that never received anything has waited.";
    may_be_silent: "mcr_rule_may_be_silent", "1 if packets of the rule need not come.";
    answers: "mcr_rule_answers_total",
        "Answers by unicast to what the rule reflects, given to whoever asked.", "answers {}";
} }

counters! { InputStats {
    active: "mcr_input_active", "1 if the input is relayed, 0 if it stands by for another.";
    joined: "mcr_input_joined", "1 if the input's group is joined on its interface.";
    received.packets: "mcr_input_received_packets_total", "Datagrams that matched the input.";
    received.bytes: "mcr_input_received_bytes_total", "UDP payload bytes that matched the input.";
    last_packet_seconds: "mcr_input_last_packet_timestamp_seconds",
        "When the input's last packet came, seconds since the epoch.", "last packet {} ago";
} }

counters! { OutputStats {
    state: "mcr_output_up", "1 if the output can send.";
    sent.packets: "mcr_output_sent_packets_total", "Copies handed to the egress device.";
    sent.bytes: "mcr_output_sent_bytes_total", "UDP payload bytes handed to the egress device.";
    wanted: "mcr_output_wanted_groups", "Groups of the output that hosts listen to.",
        "{} group{s} listened to";
    unheard: "mcr_output_unheard",
        "1 if copies of the output reach nobody, as far as a bridge of this host or demand knows.";
    members: "mcr_output_members", "Hosts that listen to groups of the output.", "{} host{s}";
    last_packet_seconds: "mcr_output_last_packet_timestamp_seconds",
        "When the output sent its last packet, seconds since the epoch.", "last packet {} ago";
} }

#[cfg(test)]
mod tests {
    use super::super::Seconds;
    use super::*;

    #[test]
    fn the_counts_of_a_leg_are_in_its_input_and_others_have_none() {
        let plain =
            r#"{"at":"239.1.1.1%eth0:5001","joined":true,"received":{"packets":5,"bytes":7}}"#;
        let input: InputStats = serde_json::from_str(plain).unwrap();
        assert_eq!(input.line, None);
        assert_eq!(serde_json::to_string(&input).unwrap(), plain);
        let counts = r#","first":1,"duplicate":2,"repeated":3,"late":4,"stray":5,"still":0,"exceeded":0,"differently_cut":0,"missed":6,"skew_seconds":0.007,"skew_max_seconds":0.008}"#;
        let merged = plain.replace("7}}", &format!("7}}{counts}"));
        let input: InputStats = serde_json::from_str(&merged).unwrap();
        let line = input.line.unwrap();
        assert_eq!(
            (line.first, line.missed, line.skew_max_seconds),
            (1, 6, Seconds::from_ns(8_000_000))
        );
        assert_eq!(serde_json::to_string(&input).unwrap(), merged);
    }
}
