//! Interfaces in sysfs, which shows the network namespace that it was mounted in: another one may have
//! an interface of the same name.

use std::fs;
use std::path::{Path, PathBuf};

/// The usual directory of interfaces in sysfs.
pub const INTERFACES: &str = "/sys/class/net";

/// The directory of an interface below `root`, if it is the one with this index and Ethernet address;
/// without an address the index decides.
pub fn interface(root: &Path, name: &str, index: u32, mac: Option<[u8; 6]>) -> Option<PathBuf> {
    if name.contains('/') {
        return None;
    }
    let directory = root.join(name);
    let read = |file: &str| fs::read_to_string(directory.join(file)).ok();
    let is_same_mac = |mac: [u8; 6]| {
        let text = mac.map(|byte| format!("{byte:02x}")).join(":");
        read("address").is_some_and(|address| address.trim() == text)
    };
    let is_own = read("ifindex")?.trim().parse() == Ok(index) && mac.is_none_or(is_same_mac);
    is_own.then_some(directory)
}
