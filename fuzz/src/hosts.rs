//! `hosts.toml` of remote control: `--host` can name each host in it, which has an address with a port.

use config::{ConfigFile, hosts as read};

/// Reads the text as `hosts.toml`.
///
/// # Panics
/// If a host is read that `--host` cannot name, or that has no address.
pub fn hosts(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let file = ConfigFile {
        name: "hosts.toml".to_owned(),
        text: text.to_owned(),
    };
    match read(&file) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(hosts) => {
            for (name, host) in hosts {
                assert_eq!(name.split(',').collect::<Vec<_>>(), [name.as_str()]);
                assert!(name != "all" && !name.contains(char::is_control));
                let address = host.address();
                let port = address
                    .rsplit_once(':')
                    .map(|(_, port)| port.parse::<u16>());
                assert!(matches!(port, Some(Ok(_))), "{address:?}");
            }
        }
    }
}
