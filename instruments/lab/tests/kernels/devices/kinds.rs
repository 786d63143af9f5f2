//! Kinds of devices: how an end of each is made, and what has to become of packets there.

use super::DeviceEnd;

/// What has to become of the packets of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// All arrive.
    Arrive,
    /// Its input or output is down, for a reason with these words in it.
    Down(&'static str),
}
use Fate::{Arrive, Down};

/// A kind of device.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// The commands of `ip` that make an end.
    pub(super) make: fn(&DeviceEnd<'_>) -> String,
    /// Of which families it carries packets: IPv4, IPv6.
    pub(super) families: (bool, bool),
    /// As an input and as an output: on the kernel path, on the userspace path.
    pub(super) input: (Fate, Fate),
    pub(super) output: (Fate, Fate),
    /// Whether the ordinary tests include it.
    pub(super) is_short: bool,
}

/// PPP, which programs make.
pub(super) const PPP: &str = "PPP";

/// With its links beneath it; as an input it is a wildcard that also matches those.
pub(super) const BOND: &str = "bond and its links";

/// One that relays everything on both paths.
const fn plain(name: &'static str, make: fn(&DeviceEnd<'_>) -> String) -> Kind {
    Kind {
        name,
        make,
        families: (true, true),
        input: (Arrive, Arrive),
        output: (Arrive, Arrive),
        is_short: false,
    }
}

const VEILED: Fate = Down("does not look behind");
const BARRED: Fate = Down("forces the kernel path");

pub(super) const KINDS: &[Kind] = &[
    Kind {
        is_short: true,
        ..plain("gre", |p| {
            format!("type gre {} ttl 8 key {}", p.ends(), p.id)
        })
    },
    Kind {
        is_short: true,
        input: (VEILED, Arrive),
        output: (BARRED, Arrive),
        ..plain("gre to a group", |p| {
            let (local, lower) = (p.local, p.lower);
            let ends = format!("local {local} remote 239.255.0.1 dev {lower}");
            format!("type gre {ends} ttl 8 key {}", p.id)
        })
    },
    Kind {
        is_short: true,
        input: (VEILED, Arrive),
        output: (Down("no remote"), Down("no remote")),
        ..plain("gre without a remote", |p| {
            format!("type gre {} ttl 8 key {}", p.relay_without_remote(), p.id)
        })
    },
    Kind {
        is_short: true,
        ..plain("xfrm interface", |p| {
            format!("type xfrm dev {} if_id {}", p.lower, p.id)
        })
    },
    Kind {
        is_short: true,
        ..plain("vti", |p| format!("type vti {} key {}", p.ends(), p.id))
    },
    plain("vti6", |p| format!("type vti6 {} key {}", p.ends6(), p.id)),
    Kind {
        is_short: true,
        ..plain("in a VRF", |p| p.wire())
    },
    Kind {
        is_short: true,
        ..plain(PPP, |_| String::new())
    },
    Kind {
        input: (VEILED, Arrive),
        output: (Arrive, Arrive),
        ..plain("VLAN that keeps its tags", |p| {
            format!(
                "link {} type vlan id {} reorder_hdr off",
                p.lower,
                100 + p.id
            )
        })
    },
    plain("VLAN", |p| {
        format!("link {} type vlan id {}", p.lower, 100 + p.id)
    }),
    plain("vxlan", |p| {
        format!("type vxlan id {} {} dstport 4789", p.id, p.ends())
    }),
    Kind {
        output: (Down("no remote"), Down("no remote")),
        ..plain("vxlan without a remote", |p| {
            let ends = p.relay_without_remote();
            format!("type vxlan id {} {ends} dstport 4789", p.id)
        })
    },
    Kind {
        output: (Down("external"), Down("external")),
        ..plain("vxlan that is told each remote", |p| {
            if p.is_relay {
                format!("type vxlan external dstport {}", 4789 + p.id)
            } else {
                format!(
                    "type vxlan id {} {} dstport {}",
                    p.id,
                    p.ends(),
                    4789 + p.id
                )
            }
        })
    },
    plain("geneve", |p| {
        format!("type geneve id {} remote {}", p.id, p.remote)
    }),
    plain("gretap", |p| {
        format!("type gretap {} ttl 8 key {}", p.ends(), p.id)
    }),
    plain("erspan", |p| {
        let id = p.id;
        format!(
            "type erspan {} seq key {id} erspan_ver 1 erspan 1",
            p.ends()
        )
    }),
    plain("ip6gre", |p| {
        format!("type ip6gre {} key {}", p.ends6(), p.id)
    }),
    plain("ip6gretap", |p| {
        format!("type ip6gretap {} key {}", p.ends6(), p.id)
    }),
    Kind {
        families: (true, false),
        ..plain("ipip", |p| format!("type ipip {} ttl 8", p.ends()))
    },
    Kind {
        families: (false, true),
        ..plain("sit", |p| format!("type sit {} ttl 8", p.ends()))
    },
    plain("ip6tnl", |p| format!("type ip6tnl {} mode any", p.ends6())),
    plain(BOND, |p| {
        if p.is_relay {
            "type bond mode active-backup miimon 50".to_owned()
        } else {
            "type bridge mcast_snooping 0".to_owned()
        }
    }),
    plain("macvlan", |p| {
        format!("link {} type macvlan mode bridge", p.lower)
    }),
];

impl DeviceEnd<'_> {
    /// Both ends, of IPv4 and of IPv6.
    fn ends(&self) -> String {
        format!("local {} remote {}", self.local, self.remote)
    }

    /// The same, without a remote for the relay's end.
    fn relay_without_remote(&self) -> String {
        if self.is_relay {
            format!("local {}", self.local)
        } else {
            self.ends()
        }
    }

    fn ends6(&self) -> String {
        let (local, remote) = self.addresses6();
        format!("local {local} remote {remote}")
    }

    /// The IPv6 addresses of both ends.
    pub(super) fn addresses6(&self) -> (String, String) {
        let six = |address: &str| {
            let mut parts = address.split('.').skip(2);
            let (net, host) = (parts.next().unwrap(), parts.next().unwrap());
            format!("fd00:{net}::{host}")
        };
        (six(self.local), six(self.remote))
    }

    /// A separate link, made from its first end.
    fn wire(&self) -> String {
        if self.is_first {
            format!("type veth peer name {} netns {}", self.dev, self.other)
        } else {
            String::new()
        }
    }
}
