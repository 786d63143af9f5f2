//! What the demonstration relays.

/// One stream of the demonstration.
pub(super) struct Stream {
    pub(super) rule: &'static str,
    pub(super) shows: &'static str,
    pub(super) input: &'static str,
    /// Where the generator sends it.
    pub(super) source: &'static str,
    pub(super) outputs: &'static [Copy],
    pub(super) receiver: Receiver,
}

/// One output of a rule, and where the receiver listens for it.
pub(super) struct Copy {
    pub(super) to: &'static str,
    pub(super) options: &'static str,
    pub(super) at: &'static str,
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
        input: "239.1.1.1%veth1:5001",
        source: "239.1.1.1%veth0:5001",
        outputs: &[Copy {
            to: "239.10.1.1%veth2:6001",
            options: "",
            at: "10.0.1.1@239.10.1.1%veth3:6001",
        }],
        receiver: Receiver::Mcr,
    },
    Stream {
        rule: "wall",
        shows: "one to three",
        input: "239.1.1.2%veth1:5002",
        source: "239.1.1.2%veth0:5002",
        outputs: &[
            Copy {
                to: "239.10.2.1%veth2:6002",
                options: "",
                at: "10.0.1.1@239.10.2.1%veth3:6002",
            },
            Copy {
                to: "239.10.2.2%veth2:6002",
                options: ", ttl = 32",
                at: "10.0.1.1@239.10.2.2%veth3:6002",
            },
            Copy {
                to: "239.10.2.3%veth2:6003",
                options: ", dscp = 34",
                at: "10.0.1.1@239.10.2.3%veth3:6003",
            },
        ],
        receiver: Receiver::Mcr,
    },
    Stream {
        rule: "cloud",
        shows: "multicast to unicast",
        input: "239.1.1.3%veth1:5003",
        source: "239.1.1.3%veth0:5003",
        outputs: &[Copy {
            to: "10.0.1.2:7000",
            options: "",
            at: "10.0.1.2:7000",
        }],
        receiver: Receiver::Mcr,
    },
    Stream {
        rule: "stock",
        shows: "to a stock receiver",
        input: "239.1.1.4%veth1:5004",
        source: "239.1.1.4%veth0:5004",
        outputs: &[Copy {
            to: "239.10.4.1%veth2:6004",
            options: "",
            at: "239.10.4.1%veth3:6004",
        }],
        receiver: Receiver::Socat,
    },
];

impl Stream {
    /// The group that the rule receives.
    pub(super) fn group(&self) -> &'static str {
        self.input.split('%').next().unwrap_or(self.input)
    }
}

/// The daemon's configuration, TOML, with a rule for each stream.
pub(super) fn configuration() -> String {
    let rules = STREAMS.iter().map(|stream| {
        let copies = stream.outputs.iter();
        let outputs: String = copies
            .map(|copy| format!("    {{ to = \"{}\"{} }},\n", copy.to, copy.options))
            .collect();
        format!(
            "\n[[rule]]\nname = \"{}\"\ninput = \"{}\"\noutputs = [\n{outputs}]\n",
            stream.rule, stream.input
        )
    });
    "version = 1\n".to_owned() + &rules.collect::<String>()
}
