//! The features of an interface that `ethtool -k` shows, read and switched through the same ioctl.
//!
//! Features are identified by the kernel's own names (`rx-gro-list`), whose numbers differ between kernels and are
//! queried each time.

#![expect(
    unsafe_code,
    reason = "SIOCETHTOOL takes a pointer to a buffer whose size its first words tell"
)]

mod device;

use std::ffi::CStr;
use std::io;

pub use self::device::{Device, device, statistics};
use crate::ifreq::control;

const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETH_SS_FEATURES: u32 = 4;
const ETH_GSTRING_LEN: usize = 32;
/// Bytes of `struct ethtool_get_features_block`: available, requested, active, never_changed.
const GET_BLOCK: usize = 16;
/// Bytes of `struct ethtool_set_features_block`: valid, requested.
const SET_BLOCK: usize = 8;

/// One feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// The kernel's name.
    pub name: String,
    /// Whether it is in effect.
    pub active: bool,
    /// Whether it can be switched.
    pub available: bool,
}

/// Reads all features of an interface of the calling thread's network namespace.
///
/// # Errors
/// `ENODEV` for an unknown interface, `EOPNOTSUPP` where the kernel has no such call.
pub fn features(interface: &str) -> io::Result<Vec<Feature>> {
    let names = names(interface)?;
    let blocks = names.len().div_ceil(32);
    let mut buffer = header(&[ETHTOOL_GFEATURES, blocks as u32], blocks * GET_BLOCK);
    ioctl(interface, &mut buffer)?;
    let features = names.into_iter().enumerate().map(|(number, name)| {
        let bit = |word: usize| {
            let at = 8 + number / 32 * GET_BLOCK + word * 4;
            word_at(&buffer, at) >> (number % 32) & 1 == 1
        };
        Feature {
            name,
            available: bit(0),
            active: bit(2),
        }
    });
    Ok(features
        .filter(|feature| !feature.name.is_empty())
        .collect())
}

/// One feature by its number, to be read of many interfaces with one call each.
#[derive(Clone, Copy, Debug)]
pub struct Switch {
    number: usize,
    blocks: usize,
}

impl Switch {
    /// Looks up a feature by its name; `None` if this kernel does not have it.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the kernel has no such call.
    pub fn named(feature: &str) -> io::Result<Option<Self>> {
        let names = names("lo")?;
        let number = names.iter().position(|name| name == feature);
        let blocks = names.len().div_ceil(32);
        Ok(number.map(|number| Self { number, blocks }))
    }

    /// Returns whether the feature is in effect on an interface of the calling thread's network
    /// namespace.
    ///
    /// # Errors
    /// `ENODEV` for an unknown interface.
    pub fn is_on(self, interface: &str) -> io::Result<bool> {
        let words = [ETHTOOL_GFEATURES, self.blocks as u32];
        let mut buffer = header(&words, self.blocks * GET_BLOCK);
        ioctl(interface, &mut buffer)?;
        let active = word_at(&buffer, 8 + self.number / 32 * GET_BLOCK + 8);
        Ok(active >> (self.number % 32) & 1 == 1)
    }
}

/// Switches one feature of an interface.
///
/// # Errors
/// `EOPNOTSUPP` for a feature that the kernel does not know or the driver cannot switch, `EPERM`
/// without CAP_NET_ADMIN.
pub fn switch(interface: &str, feature: &str, on: bool) -> io::Result<()> {
    let names = names(interface)?;
    let position = names.iter().position(|name| name == feature);
    let number = position.ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
    let blocks = names.len().div_ceil(32);
    let mut buffer = header(&[ETHTOOL_SFEATURES, blocks as u32], blocks * SET_BLOCK);
    let at = 8 + number / 32 * SET_BLOCK;
    let bit = 1_u32 << (number % 32);
    buffer[at..at + 4].copy_from_slice(&bit.to_ne_bytes());
    let requested = if on { bit } else { 0 };
    buffer[at + 4..at + 8].copy_from_slice(&requested.to_ne_bytes());
    ioctl(interface, &mut buffer)?;
    let now = features(interface)?;
    match now.iter().find(|have| have.name == feature) {
        Some(have) if have.active == on => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
    }
}

/// The names of all features, in the order of their numbers.
fn names(interface: &str) -> io::Result<Vec<String>> {
    let count = set_size(interface, ETH_SS_FEATURES)?;
    let words = [ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count as u32];
    let mut strings = header(&words, count * ETH_GSTRING_LEN);
    ioctl(interface, &mut strings)?;
    let names = strings[12..].chunks_exact(ETH_GSTRING_LEN);
    Ok(names.map(text).collect())
}

/// The number of strings in a set; 0 where the device has none.
fn set_size(interface: &str, set: u32) -> io::Result<usize> {
    // struct ethtool_sset_info: cmd, reserved, sset_mask (u64), one count.
    let mut info = header(&[ETHTOOL_GSSET_INFO, 0, 1 << set, 0], 4);
    ioctl(interface, &mut info)?;
    // The returned mask has the existing sets.
    Ok(if word_at(&info, 8) == 0 {
        0
    } else {
        word_at(&info, 16) as usize
    })
}

/// A string of fixed size, which ends at its first zero.
fn text(bytes: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(bytes).unwrap_or_default();
    text.to_string_lossy().into_owned()
}

/// The words of a request, and room for its reply.
fn header(words: &[u32], room: usize) -> Vec<u8> {
    let mut buffer: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    buffer.resize(buffer.len() + room, 0);
    buffer
}

fn word_at(buffer: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&buffer[at..at + 4]);
    u32::from_ne_bytes(word)
}

fn ioctl(interface: &str, buffer: &mut [u8]) -> io::Result<()> {
    // SAFETY: `buffer` outlives the call. How much the kernel writes follows from the
    // command: as many feature blocks as the header names; the one count asked for; the fixed
    // structures of device.rs; and as many strings or counters as their set has, for which `names`
    // and `statistics` keep the room (the first is a constant of the running kernel,
    // NETDEV_FEATURE_COUNT, the second may grow, and there is room for twice as many).
    unsafe {
        control(interface.as_bytes(), SIOCETHTOOL, |request| {
            request.ifr_ifru.ifru_data = buffer.as_mut_ptr().cast();
        })
    }
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_interface_is_no_device() {
        let error = features("no-such-device0").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
        let error = features("a-name-that-is-too-long").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn loopback_has_its_known_features() {
        let features = features("lo").unwrap();
        let named = |name| features.iter().find(|feature| feature.name == name);
        assert!(named("rx-gro").is_some(), "{features:?}");
        assert!(named("loopback").unwrap().active);
        assert!(
            Switch::named("loopback")
                .unwrap()
                .unwrap()
                .is_on("lo")
                .unwrap()
        );
        assert!(
            !Switch::named("rx-gro-list")
                .unwrap()
                .unwrap()
                .is_on("lo")
                .unwrap()
        );
        assert!(Switch::named("no-such-feature").unwrap().is_none());
    }
}
