//! Who showed what nobody knows: each address is answered the later the more often it did. Who shows
//! what is known is answered at once, wherever it comes from.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::super::body_quota::Whose;

/// How many addresses are remembered.
const REMEMBERED: usize = 4096;
/// After how long one is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// How long the first refusal waits, and any at most.
const DELAYS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));

/// Whose it is what comes from an address: an address of IPv4 is somebody's, of IPv6 a /64 is.
pub(super) fn whose(address: IpAddr) -> Whose {
    match address.to_canonical() {
        IpAddr::V4(address) => 1 << 100 | u128::from(address.to_bits()),
        IpAddr::V6(address) => 1 << 101 | address.to_bits() >> 64,
    }
}

#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<HashMap<Whose, (u64, Instant)>>);

impl Failures {
    /// One more of an address: how many there were, and how long the answer waits.
    pub(super) fn note(&self, from: IpAddr) -> (u64, Duration) {
        let mut known = self.0.lock();
        let (now, whose) = (Instant::now(), whose(from));
        if known.len() >= REMEMBERED && !known.contains_key(&whose) {
            known.retain(|_, (_, last)| last.elapsed() < FORGOTTEN);
            let oldest = known.iter().min_by_key(|(_, (_, last))| *last);
            let oldest = oldest.map(|(whose, _)| *whose);
            if let Some(oldest) = oldest.filter(|_| known.len() >= REMEMBERED) {
                known.remove(&oldest);
            }
        }
        let (times, last) = known.entry(whose).or_insert((0, now));
        *times = if last.elapsed() < FORGOTTEN {
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
    fn no_more_than_so_many_addresses_are_remembered() {
        let failures = Failures::default();
        for host in 0..5000_u32 {
            failures.note(IpAddr::V4((0x0a00_0000 + host).into()));
        }
        assert_eq!(failures.0.lock().len(), REMEMBERED);
        assert_eq!(failures.note(IpAddr::V4((0x0a00_0000 + 4999).into())).0, 2);
        assert_eq!(
            failures.note(IpAddr::V4(0x0a00_0000.into())).0,
            1,
            "the oldest went"
        );
    }
}
