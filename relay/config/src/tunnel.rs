//! Tunnels: interfaces that the daemon creates, which carry whole packets in UDP to another relay over a
//! network without multicast.

use std::fmt;
use std::net::IpAddr;

use rules::net::LOOPBACK;
use rules::setting::{ANY, Form, Refusal, Row, Setting, Table, TextForm};
use serde::Serialize;

use super::{InterfaceTable, Over};

/// The port of VXLAN (RFC 7348 section 8).
pub const TUNNEL_PORT: u16 = 4789;

/// The network identifier that both ends use by default.
pub const TUNNEL_ID: u32 = 1;

/// The smallest MTU that every IPv4 host accepts (RFC 791 section 3.1).
pub(super) const MTU_MIN: u32 = 576;

/// The largest that IPv4 can express.
pub(super) const MTU_MAX: u32 = 65_535;

/// The keys that only tunnels have.
const KEYS: [&str; 5] = ["local", "remote", "port", "id", "mtu"];

/// A tunnel, from the view of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// The own address that it sends from; by default the route decides.
    pub local: Option<IpAddr>,
    /// The other end.
    pub remote: IpAddr,
    /// UDP port of both ends.
    pub port: u16,
    /// Network identifier (VNI), the same at both ends.
    pub id: u32,
    /// MTU in bytes; by default what the network below leaves room for.
    pub mtu: Option<u32>,
}

impl Tunnel {
    /// Bytes before a packet in the tunnel: an IP, a UDP and a VXLAN header and the Ethernet
    /// header of the packet itself (RFC 7348 section 5).
    #[must_use]
    pub const fn headers(&self) -> u32 {
        match self.remote {
            IpAddr::V4(_) => 20 + 8 + 8 + 14,
            IpAddr::V6(_) => 40 + 8 + 8 + 14,
        }
    }

    /// Its MTU in bytes, over an interface whose MTU is `below`.
    #[must_use]
    pub fn mtu_over(&self, below: u32) -> u32 {
        let room = below.saturating_sub(self.headers());
        self.mtu.unwrap_or_else(|| room.clamp(MTU_MIN, MTU_MAX))
    }

    /// Parses the tunnel in the table of an interface; `None` without `over`.
    ///
    /// # Errors
    /// What is wrong with it, and what to write.
    pub(super) fn read(table: &InterfaceTable) -> Result<Option<Self>, String> {
        if table.over.is_none() {
            let mut given = table.values().into_iter();
            let own = given.find(|(row, text)| KEYS.contains(&row.key) && text.is_some());
            return own.map_or(Ok(None), |(Row { key, .. }, _)| {
                Err(format!(
                    "{key}: is a tunnel's; add over = \"udp\", or take {key} out"
                ))
            });
        }
        let Some(End(remote)) = table.remote else {
            return Err(
                "over = \"udp\": has no remote; give remote = \"ADDRESS\" of the other relay"
                    .into(),
            );
        };
        let tunnel = Self {
            remote,
            local: table.local.map(|End(local)| local),
            port: table.port.unwrap_or(TUNNEL_PORT),
            id: table.id.unwrap_or(TUNNEL_ID),
            mtu: table.mtu,
        };
        if let Some(local) = tunnel.local {
            if local.is_ipv4() != tunnel.remote.is_ipv4() {
                let remote = tunnel.remote;
                return Err(format!(
                    "local = \"{local}\": is of another family than remote = \"{remote}\"; give both \
                     of one"
                ));
            }
            if local == tunnel.remote {
                return Err(format!(
                    "remote = \"{local}\": is the local address; name the other relay's"
                ));
            }
        }
        Ok(Some(tunnel))
    }

    /// Why two tunnels of one host clash, if they do: the kernel assigns packets to a tunnel only by port and
    /// identifier.
    #[must_use]
    pub(super) fn clash(&self, other: &Self) -> Option<String> {
        let Self {
            port, id, remote, ..
        } = self;
        let is_same =
            (*port, *id) == (other.port, other.id) && remote.is_ipv4() == other.remote.is_ipv4();
        is_same.then(|| {
            format!("port {port} and id {id}; give one of them another id, at both its ends")
        })
    }

    /// Writes it into a table, without defaults.
    pub(super) fn write(&self, table: &mut InterfaceTable) {
        table.over = Some(Over::Udp);
        table.local = self.local.map(End);
        table.remote = Some(End(self.remote));
        table.port = Some(self.port).filter(|port| *port != TUNNEL_PORT);
        table.id = Some(self.id).filter(|id| *id != TUNNEL_ID);
        table.mtu = self.mtu;
    }
}

impl fmt::Display for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            local,
            remote,
            port,
            id,
            mtu,
        } = self;
        if let Some(local) = local {
            write!(f, "{local} ")?;
        }
        write!(f, "over udp to {remote} port {port} id {id}")?;
        mtu.map_or(Ok(()), |mtu| write!(f, " mtu {mtu}"))
    }
}

/// The address of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct End(pub IpAddr);

const ADDRESS: TextForm = TextForm {
    name: "ADDRESS",
    pattern: "[0-9]{1,3}([.][0-9]{1,3}){3}|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*",
    ..ANY
};

impl Setting for End {
    const FORM: Form = Form::Text(&ADDRESS);

    fn parse(text: &str, _: &Form) -> Result<Self, Refusal> {
        let refused = |why| Err(Refusal::Because(why));
        let Ok(address) = text.parse::<IpAddr>() else {
            return refused(
                "is no IP address; give one, as in \"10.9.9.9\", the port stands in port",
            );
        };
        match address {
            IpAddr::V4(address) if address.is_broadcast() => {
                refused("is the broadcast address; give a host's")
            }
            IpAddr::V6(address) if address.is_unicast_link_local() => {
                refused("is link-local; give an address that does not need an interface beside it")
            }
            _ if address.is_multicast() => {
                refused("is a multicast group; a tunnel leads to one host")
            }
            _ if address.is_unspecified() => refused("is no host's address"),
            _ => Ok(Self(address)),
        }
    }

    fn text(&self, _: &Form) -> String {
        self.0.to_string()
    }
}

/// Checks that an interface of this name can be a tunnel.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    match name {
        LOOPBACK => Err(format!(
            "{LOOPBACK} is there already; give the tunnel a name of its own"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::{Config, ConfigFile, InterfaceSettings, Settings};
    use rules::ruleset::Policy;

    fn load(text: &str) -> Result<Settings, String> {
        let file = ConfigFile {
            name: "mcr.toml".to_owned(),
            text: format!("version = 1\n{text}"),
        };
        let config =
            Config::load(&[file], Policy::default()).map_err(|errors| errors.to_string())?;
        let again = ConfigFile {
            name: "again".to_owned(),
            text: config.export(),
        };
        let read = Config::load(&[again], Policy::default()).unwrap();
        assert_eq!(read, config, "written and read again");
        Ok(config.settings)
    }

    fn refused(keys: &str) -> String {
        load(&format!("[interface.wan]\n{keys}\n")).unwrap_err()
    }

    #[test]
    fn a_tunnel_needs_only_the_other_end() {
        let settings = load("[interface.wan]\nover = \"udp\"\nremote = \"10.9.9.9\"\n").unwrap();
        let tunnel = settings.interface["wan"].tunnel.unwrap();
        assert_eq!(tunnel.to_string(), "over udp to 10.9.9.9 port 4789 id 1");
        assert_eq!((tunnel.mtu_over(1500), tunnel.mtu_over(100)), (1450, 576));
        let all = "[interface.wan]\nover = \"udp\"\nlocal = \"2001:db8::1\"\nremote = \"2001:db8::9\"\n\
                   port = 5000\nid = 0\nmtu = 1400\ngro = \"auto\"\n";
        let tunnel = load(all).unwrap().interface["wan"].tunnel.unwrap();
        let text = "2001:db8::1 over udp to 2001:db8::9 port 5000 id 0 mtu 1400";
        assert_eq!(tunnel.to_string(), text);
        assert_eq!((tunnel.mtu_over(9000), tunnel.headers()), (1400, 70));
    }

    #[test]
    fn an_invalid_tunnel_is_refused_with_what_to_write() {
        for (keys, expected) in [
            (
                "remote = \"10.9.9.9\"",
                "mcr.toml:2: interface wan: remote: is a tunnel's; add over = \"udp\"",
            ),
            ("over = \"udp\"", "has no remote; give remote = \"ADDRESS\""),
            (
                "over = \"gre\"\nremote = \"10.9.9.9\"",
                "over = \"gre\": give \"udp\"",
            ),
            (
                "over = \"udp\"\nremote = \"there\"",
                "remote = \"there\": is no IP address",
            ),
            (
                "over = \"udp\"\nremote = \"10.9.9.9:4789\"",
                "the port stands in port",
            ),
            (
                "over = \"udp\"\nremote = \"239.1.1.1\"",
                "is a multicast group",
            ),
            (
                "over = \"udp\"\nremote = \"0.0.0.0\"",
                "is no host's address",
            ),
            ("over = \"udp\"\nremote = \"fe80::1\"", "is link-local"),
            (
                "over = \"udp\"\nremote = \"10.9.9.9\"\nlocal = \"::1\"",
                "of another family",
            ),
            (
                "over = \"udp\"\nremote = \"10.9.9.9\"\nlocal = \"10.9.9.9\"",
                "is the local address",
            ),
            (
                "over = \"udp\"\nremote = \"10.9.9.9\"\nid = 16777216",
                "id = 16777216: give a number from 0 to 16777215",
            ),
            (
                "over = \"udp\"\nremote = \"10.9.9.9\"\nport = 0",
                "port = 0: give a number from 1 to 65535",
            ),
            (
                "over = \"udp\"\nremote = \"10.9.9.9\"\nmtu = 68",
                "mtu = 68: give a number from 576",
            ),
            (
                "over = \"udp\"\nremote = \"10.9.9.9\"\nttl = 3",
                "there is no key ttl here",
            ),
        ] {
            let problem = refused(keys);
            // The schema cannot check keys together, nor what an address is.
            const MEANING: [&str; 7] = [
                "is a tunnel's",
                "has no remote",
                "is a multicast group",
                "is no host's",
                "is link-local",
                "another family",
                "is the local",
            ];
            let is_meaning = MEANING.iter().any(|what| expected.contains(what));
            let errors = crate::schema::tests::errors(&format!("[interface.wan]\n{keys}"));
            assert_eq!(errors.is_empty(), is_meaning, "{keys}: {errors:?}");
            assert!(problem.contains(expected), "{keys}: {problem}");
        }
        let problem = load("[interface.lo]\nover = \"udp\"\nremote = \"10.9.9.9\"\n").unwrap_err();
        assert!(
            problem.contains("interface lo: lo is there already"),
            "{problem}"
        );
    }

    #[test]
    fn two_tunnels_differ_in_port_or_id() {
        let two = |more: &str| {
            load(&format!(
                "[interface.east]\nover = \"udp\"\nremote = \"10.9.9.9\"\n\
                 [interface.west]\nover = \"udp\"\nremote = \"10.8.8.8\"\n{more}"
            ))
        };
        let problem = two("").unwrap_err();
        let expected =
            "mcr.toml:5: interface west: has the same as interface east: port 4789 and id 1";
        assert!(problem.contains(expected), "{problem}");
        assert!(two("id = 2\n").is_ok() && two("port = 4790\n").is_ok());
        let json = r#"{"interface": {
            "east": {"over": "udp", "remote": "10.9.9.9"}, "west": {"over": "udp", "remote": "10.8.8.8"}
        }}"#;
        let problem = serde_json::from_str::<Settings>(json)
            .unwrap_err()
            .to_string();
        assert!(
            problem.contains("interface west: has the same as interface east"),
            "{problem}"
        );
    }

    #[test]
    fn a_change_names_the_previous_tunnel() {
        let with = load("[interface.wan]\nover = \"udp\"\nremote = \"10.9.9.9\"\n").unwrap();
        let changes = with.changes_since(&Settings::default());
        let expected = "interface wan: gro as the daemon decides, path auto, over udp to 10.9.9.9 port 4789 id 1 (was nothing)";
        assert_eq!(changes, [expected]);
        assert_eq!(InterfaceSettings::default().tunnel, None);
    }
}
