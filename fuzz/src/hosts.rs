//! `hosts.toml` of who steers from elsewhere: each host in it can be asked for by its name, at an
//! address with a port.

use config::{ConfigFile, hosts as read};

/// Reads the text as `hosts.toml`.
///
/// # Panics
/// Where a host is read that `--host` cannot mean, or that is nowhere.
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
