//! Failed authentications by address: each further failure delays the reply to that address more. Valid
//! credentials are answered at once, from any address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::super::body_quota::ClientId;

/// The most addresses that are tracked.
const ADDRESSES_MAX: usize = 4096;
/// How long after its last failure an address is tracked.
const EXPIRY: Duration = Duration::from_secs(600);
/// The delay of the first refusal, and the longest.
const DELAYS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));

/// The client that an address stands for: an IPv4 address is one client, an IPv6 /64 is one.
pub(super) fn client_id(address: IpAddr) -> ClientId {
    match address.to_canonical() {
        IpAddr::V4(address) => 1 << 100 | u128::from(address.to_bits()),
        IpAddr::V6(address) => 1 << 101 | address.to_bits() >> 64,
    }
}

#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<HashMap<ClientId, (u64, Instant)>>);

impl Failures {
    /// Counts a failure of an address; returns how many there were, and the delay of the reply.
    pub(super) fn note(&self, from: IpAddr) -> (u64, Duration) {
        let mut failures = self.0.lock();
        let (now, client) = (Instant::now(), client_id(from));
        if failures.len() >= ADDRESSES_MAX && !failures.contains_key(&client) {
            failures.retain(|_, (_, last)| last.elapsed() < EXPIRY);
            let oldest = failures.iter().min_by_key(|(_, (_, last))| *last);
            if failures.len() >= ADDRESSES_MAX
                && let Some(oldest) = oldest.map(|(client, _)| *client)
            {
                failures.remove(&oldest);
            }
        }
        let (times, last) = failures.entry(client).or_insert((0, now));
        *times = if last.elapsed() < EXPIRY {
            *times + 1
        } else {
            1
        };
        *last = now;
        let doublings = u32::try_from(*times - 1).unwrap_or(u32::MAX).min(16);
        (*times, (DELAYS.0 * (1 << doublings)).min(DELAYS.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_waits_the_longer_the_more_often_it_fails() {
        let failures = Failures::default();
        let note = |from: &str| failures.note(from.parse().unwrap());
        let delays: Vec<u128> = (0..8).map(|_| note("10.0.0.1").1.as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3000, 3000, 3000]);
        assert_eq!(note("10.0.0.2").0, 1);
        assert_eq!(note("::ffff:10.0.0.2").0, 2, "the same address");
        assert_eq!((note("fd00::1").0, note("fd00::2").0), (1, 2), "one /64");
        assert_eq!(note("fd00:0:0:1::1").0, 1);
    }

    #[test]
    fn the_number_of_tracked_addresses_is_bounded() {
        let failures = Failures::default();
        for host in 0..5000_u32 {
            failures.note(IpAddr::V4((0x0a00_0000 + host).into()));
        }
        assert_eq!(failures.0.lock().len(), ADDRESSES_MAX);
        assert_eq!(failures.note(IpAddr::V4((0x0a00_0000 + 4999).into())).0, 2);
        assert_eq!(
            failures.note(IpAddr::V4(0x0a00_0000.into())).0,
            1,
            "the oldest went"
        );
    }
}
