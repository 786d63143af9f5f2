//! Daemons on other hosts, as `~/.config/mcr/hosts.toml` has them: whom `mcr --host` asks, and what it
//! shows them. The files that it names are read by whoever asks.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

/// The port of `[api] listen` where an address names none.
const PORT: u16 = 9471;

/// How a host is reached.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostEntry {
    address: String,
    /// A name in its certificate, where the address is none.
    pub server_name: Option<String>,
    /// Who signed its certificate.
    pub ca: Option<PathBuf>,
    /// What is shown there, with its key.
    pub certificate: Option<PathBuf>,
    /// The certificate's key.
    pub key: Option<PathBuf>,
    /// Where the token is that is shown there.
    pub token_file: Option<PathBuf>,
}

/// What is wrong with the file.
#[derive(Debug, thiserror::Error)]
pub enum HostsError {
    /// It cannot be read.
    #[error(transparent)]
    Toml(#[from] toml::de::Error),
    /// Nobody could ask for a host of that name.
    #[error("{0:?} is no name of a host: give one without commas and spaces, other than all")]
    Name(String),
}

/// Reads the hosts, by their names.
///
/// # Errors
/// What is wrong with the text.
pub fn hosts(text: &str) -> Result<BTreeMap<String, HostEntry>, HostsError> {
    let hosts: BTreeMap<String, HostEntry> = toml::from_str(text)?;
    let divides = |c: char| c == ',' || c.is_whitespace() || c.is_control();
    let wrong = |name: &&String| name.is_empty() || *name == "all" || name.contains(divides);
    match hosts.keys().find(wrong) {
        Some(name) => Err(HostsError::Name(name.clone())),
        None => Ok(hosts),
    }
}

impl HostEntry {
    /// Where it listens, with a port.
    pub fn address(&self) -> String {
        let has_port = self.address.rsplit_once(':').is_some_and(|(host, port)| {
            port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']'))
        });
        match has_port {
            true => self.address.clone(),
            false => format!("{}:{PORT}", self.address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_port_and_a_host_a_name_that_can_be_asked_for() {
        for (given, address) in [
            ("relay1", "relay1:9471"),
            ("relay1:9", "relay1:9"),
            ("10.0.0.1", "10.0.0.1:9471"),
            ("::1", "::1:9471"),
            ("[::1]", "[::1]:9471"),
            ("[::1]:9", "[::1]:9"),
        ] {
            let read = hosts(&format!("[a]\naddress = \"{given}\"\n")).unwrap();
            assert_eq!(read["a"].address(), address);
        }
        for name in ["all", "\"a,b\"", "\"a b\"", "\"\"", "\"\\u001b\""] {
            let refused = hosts(&format!("[{name}]\naddress = \"x\"\n")).unwrap_err();
            assert!(refused.to_string().contains("no name"), "{refused}");
        }
        assert!(hosts("[a]\naddress = \"x\"\ntoken = \"mcr_x\"\n").is_err());
    }
}
