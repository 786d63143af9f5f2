//! Daemons on other hosts, from `~/.config/mcr/hosts.toml`: the hosts of `mcr --host` and the credentials for
//! them. The files that it names are read by the client.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use super::{ConfigErrors, ConfigFile, file};

/// The port of `[api] listen` where an address names none.
const PORT: u16 = 9471;

/// How a host is reached.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostEntry {
    address: String,
    /// A name in its certificate, if the address is none.
    pub server_name: Option<String>,
    /// The CA that signed its certificate.
    pub ca: Option<PathBuf>,
    /// The client's certificate, with its key.
    pub certificate: Option<PathBuf>,
    /// The certificate's key.
    pub key: Option<PathBuf>,
    /// The file of the client's token.
    pub token_file: Option<PathBuf>,
}

/// Parses the hosts, by their names.
///
/// # Errors
/// Everything that is wrong with the file.
pub fn hosts(file: &ConfigFile) -> Result<BTreeMap<String, HostEntry>, ConfigErrors> {
    file::tables(file, |name| {
        let is_separator = |c: char| c == ',' || c.is_whitespace() || c.is_control();
        if name.is_empty() || name == "all" || name.contains(is_separator) {
            Err(format!(
                "{name:?} is no name of a host: give one without commas and spaces, other than all"
            ))
        } else {
            Ok(())
        }
    })
}

impl HostEntry {
    /// Where it listens, with a port, unless it is a URL.
    pub fn address(&self) -> String {
        let has_port = self.address.contains("://")
            || self.address.rsplit_once(':').is_some_and(|(host, port)| {
                port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']'))
            });
        if has_port {
            self.address.clone()
        } else {
            format!("{}:{PORT}", self.address)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<BTreeMap<String, HostEntry>, String> {
        let file = ConfigFile {
            name: "hosts.toml".to_owned(),
            text: text.to_owned(),
        };
        hosts(&file).map_err(|errors| errors.to_string())
    }

    #[test]
    fn errors_are_worded_as_those_of_a_configuration() {
        for (text, expected) in [
            (
                "[a]\naddress = \"x\n",
                "hosts.toml:2: address = \"x: the text has no end: close it with \"",
            ),
            ("[a\n", "hosts.toml:1: [a: close it with ], as in [daemon]"),
            (
                "[a]\naddress = 7\n",
                "hosts.toml:2: a: address = 7: give a text in quotes",
            ),
            (
                "\n[a]\nadress = \"x\"\n",
                "hosts.toml:3: a: there is no key adress here; did you mean address?",
            ),
            (
                "[a]\naddress = \"x\"\ntoken = \"mcr_x\"\n",
                "hosts.toml:3: a: there is no key token here; there are address, server_name, ca, \
                 certificate, key, token_file",
            ),
            ("[a]\nca = \"x\"\n", "hosts.toml:1: a: address is missing"),
            ("a = 3\n", "hosts.toml:1: a: 3: give a table, as in { … }"),
        ] {
            assert_eq!(read(text).unwrap_err(), expected);
        }
        let errors = read("[all]\naddress = \"x\"\n[b]\nkey = 1\n").unwrap_err();
        assert_eq!(errors.lines().count(), 2, "{errors}");
    }

    #[test]
    fn an_address_has_a_port_and_a_host_a_valid_name() {
        for (given, address) in [
            ("relay1", "relay1:9471"),
            ("relay1:9", "relay1:9"),
            ("10.0.0.1", "10.0.0.1:9471"),
            ("::1", "::1:9471"),
            ("[::1]", "[::1]:9471"),
            ("[::1]:9", "[::1]:9"),
        ] {
            let read = read(&format!("[a]\naddress = \"{given}\"\n")).unwrap();
            assert_eq!(read["a"].address(), address);
        }
        for name in ["all", "\"a,b\"", "\"a b\"", "\"\"", "\"\\u001b\""] {
            let refused = read(&format!("[{name}]\naddress = \"x\"\n")).unwrap_err();
            assert!(refused.contains("no name"), "{refused}");
        }
    }
}
