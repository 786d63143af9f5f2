//! The streams of the demonstration.

/// One stream of the demonstration.
pub(super) struct Stream {
    pub(super) rule: &'static str,
    pub(super) shows: &'static str,
    /// Group and port that the generator sends to and the rule receives.
    input: (&'static str, u16),
    /// Where the rule sends it, and with which options.
    pub(super) outputs: &'static [(&'static str, &'static str)],
    pub(super) receiver: Receiver,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Receiver {
    Mcr,
    Socat,
}

impl Receiver {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Mcr => "mcr receive",
            Self::Socat => "socat",
        }
    }
}

/// The receiver joins (S,G) with the relay's own address: nothing arrives unless the source was
/// rewritten, for no route leads back from it to the sender.
pub(super) const STREAMS: [Stream; 4] = [
    Stream {
        rule: "camera",
        shows: "new group, port, source",
        input: ("239.1.1.1", 5001),
        outputs: &[("239.10.1.1%veth2:6001", "")],
        receiver: Receiver::Mcr,
    },
    Stream {
        rule: "wall",
        shows: "one to three",
        input: ("239.1.1.2", 5002),
        outputs: &[
            ("239.10.2.1%veth2:6002", ""),
            ("239.10.2.2%veth2:6002", ", ttl = 32"),
            ("239.10.2.3%veth2:6003", ", dscp = 34"),
        ],
        receiver: Receiver::Mcr,
    },
    Stream {
        rule: "cloud",
        shows: "multicast to unicast",
        input: ("239.1.1.3", 5003),
        outputs: &[("10.0.1.2:7000", "")],
        receiver: Receiver::Mcr,
    },
    Stream {
        rule: "stock",
        shows: "to a stock receiver",
        input: ("239.1.1.4", 5004),
        outputs: &[("239.10.4.1%veth2:6004", "")],
        receiver: Receiver::Socat,
    },
];

impl Stream {
    /// The group that the rule receives.
    pub(super) const fn group(&self) -> &'static str {
        self.input.0
    }

    /// Its endpoint on a link.
    pub(super) fn on(&self, link: &str) -> String {
        let (group, port) = self.input;
        format!("{group}%{link}:{port}")
    }

    /// Where the receiver listens for what is sent to an output.
    pub(super) fn at(&self, output: &str) -> String {
        let at = output.replace("%veth2", "%veth3");
        match self.receiver {
            Receiver::Mcr if at.contains('%') => format!("10.0.1.1@{at}"),
            _ => at,
        }
    }
}

/// The daemon's configuration, TOML, with a rule for each stream.
pub(super) fn configuration() -> String {
    let rules = STREAMS.iter().map(|stream| {
        let copies = stream.outputs.iter();
        let outputs: String = copies
            .map(|(to, options)| format!("    {{ to = \"{to}\"{options} }},\n"))
            .collect();
        format!(
            "\n[[rule]]\nname = \"{}\"\ninput = \"{}\"\noutputs = [\n{outputs}]\n",
            stream.rule,
            stream.on("veth1")
        )
    });
    "version = 1\n".to_owned() + &rules.collect::<String>()
}
