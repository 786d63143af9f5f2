//! A rate limit, and how it is written: `limit=5000pps`, `limit=20Mbit,burst=1Mbit`.
//!
//! `k`, `M` and `G` are powers of 1000, as in `tc`. The text of a limit round-trips exactly.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::setting::{ANY, TextForm};

/// The smallest default burst, one GSO super-packet, which could not pass otherwise: 64 datagrams.
const BURST_MIN_PACKETS: u64 = 64;
/// The same in bits: 64 KiB.
const BURST_MIN_BITS: u64 = 64 * 1024 * 8;

/// A rate above 0 as a regular expression.
pub(crate) const RATE_PATTERN: &str =
    r"(0*[1-9][0-9]*([.][0-9]+)?|[0-9]+[.]0*[1-9][0-9]*)([kM]?pps|[kMG]?bit)";

/// The values of `limit=`; [`parse`] returns what is wrong with another text.
pub const LIMIT: TextForm = TextForm {
    name: "RATE",
    pattern: RATE_PATTERN,
    remedy: "a rate, as in \"5000pps\" or \"20Mbit\"",
    ..ANY
};

/// The values of `burst=`.
pub const BURST: TextForm = TextForm {
    name: "SIZE",
    pattern: r"0*[1-9][0-9]*|(0*[1-9][0-9]*([.][0-9]+)?|[0-9]+[.]0*[1-9][0-9]*)[kMG]?bit",
    numbers: Some((1, u32::MAX as u64)),
    remedy: "packets, or a size as in \"1Mbit\"",
    ..ANY
};

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RateLimit {
    /// What a token is.
    pub unit: RateUnit,
    /// Tokens added per second, at least 1.
    pub rate: u64,
    /// Tokens the bucket holds when full, at least 1.
    pub burst: u64,
}

/// What a [`RateLimit`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RateUnit {
    /// Datagrams; a GSO super-packet counts as its segments.
    Packets,
    /// Bits of UDP payload.
    Bits,
}

/// What is wrong with a limit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LimitProblem {
    /// Not a number with a unit.
    #[error(
        "limit={0}: give a rate such as 5000pps or 20Mbit (pps, kpps, Mpps, bit, kbit, Mbit, Gbit)"
    )]
    Rate(String),
    /// A rate of zero.
    #[error("limit={0}: a rate of 0 would pass nothing; leave the output or rule out instead")]
    Zero(String),
    /// Not a size in the limit's unit.
    #[error("burst={text}: give {expected}")]
    Burst {
        /// What was written.
        text: String,
        /// What fits the limit's unit.
        expected: &'static str,
    },
    /// A burst alone.
    #[error("burst={0}: a burst belongs to a limit; give limit= as well, as in limit=20Mbit")]
    BurstAlone(String),
}

/// The default burst of a limit: 100 ms of its rate, at least one GSO super-packet.
pub fn default_burst(unit: RateUnit, rate: u64) -> u64 {
    let least = match unit {
        RateUnit::Packets => BURST_MIN_PACKETS,
        RateUnit::Bits => BURST_MIN_BITS,
    };
    (rate / 10).max(least)
}

/// Parses the values of `limit=` and `burst=`.
///
/// # Errors
///
/// Names the value that cannot be parsed and what to write.
pub fn parse(limit: Option<&str>, burst: Option<&str>) -> Result<Option<RateLimit>, LimitProblem> {
    let Some(limit) = limit else {
        return match burst {
            Some(burst) => Err(LimitProblem::BurstAlone(burst.to_owned())),
            None => Ok(None),
        };
    };
    let (unit, rate) = parse_rate(limit).ok_or_else(|| LimitProblem::Rate(limit.to_owned()))?;
    if rate == 0 {
        return Err(LimitProblem::Zero(limit.to_owned()));
    }
    let burst = match burst {
        Some(burst) => parse_burst(unit, burst)?,
        None => default_burst(unit, rate),
    };
    Ok(Some(RateLimit { unit, rate, burst }))
}

/// Writes the value of `limit=`.
pub fn rate_text(limit: &RateLimit) -> String {
    match limit.unit {
        RateUnit::Packets => format!("{}pps", limit.rate),
        RateUnit::Bits => bits_text(limit.rate),
    }
}

/// Writes the value of `burst=`; `None` if it is the default.
pub fn burst_text(limit: &RateLimit) -> Option<String> {
    if limit.burst == default_burst(limit.unit, limit.rate) {
        return None;
    }
    Some(match limit.unit {
        RateUnit::Packets => limit.burst.to_string(),
        RateUnit::Bits => bits_text(limit.burst),
    })
}

const RATES: [(&str, RateUnit, u64); 7] = [
    ("kpps", RateUnit::Packets, 1_000),
    ("Mpps", RateUnit::Packets, 1_000_000),
    ("pps", RateUnit::Packets, 1),
    ("kbit", RateUnit::Bits, 1_000),
    ("Mbit", RateUnit::Bits, 1_000_000),
    ("Gbit", RateUnit::Bits, 1_000_000_000),
    ("bit", RateUnit::Bits, 1),
];

pub(crate) fn parse_rate(text: &str) -> Option<(RateUnit, u64)> {
    let (number, (_, unit, scale)) = RATES
        .iter()
        .find_map(|entry| Some((text.strip_suffix(entry.0)?, entry)))?;
    Some((*unit, scaled(number, *scale)?))
}

fn parse_burst(unit: RateUnit, text: &str) -> Result<u64, LimitProblem> {
    let (size, expected) = match unit {
        RateUnit::Packets => (
            scaled(text, 1),
            "a number of packets from 1, as the limit is in packets",
        ),
        RateUnit::Bits => (
            parse_rate(text)
                .filter(|(unit, _)| *unit == RateUnit::Bits)
                .map(|(_, size)| size),
            "a size such as 500kbit or 1Mbit, as the limit is in bits",
        ),
    };
    size.filter(|size| *size > 0)
        .ok_or_else(|| LimitProblem::Burst {
            text: text.to_owned(),
            expected,
        })
}

/// Parses a decimal number, times `scale`; `None` unless the result is a whole number that fits.
fn scaled(text: &str, scale: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| {
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| part.parse::<u64>().ok()).flatten()
    };
    let divisor = 10_u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let fraction = digits(fraction)?.checked_mul(scale)?;
    if fraction % divisor != 0 {
        return None;
    }
    digits(whole)?
        .checked_mul(scale)?
        .checked_add(fraction / divisor)
}

pub(crate) fn bits_text(bits: u64) -> String {
    for (suffix, scale) in [
        ("Gbit", 1_000_000_000),
        ("Mbit", 1_000_000),
        ("kbit", 1_000),
    ] {
        if bits >= scale && bits.is_multiple_of(scale) {
            return format!("{}{suffix}", bits / scale);
        }
    }
    format!("{bits}bit")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(limit: &str, burst: Option<&str>) -> RateLimit {
        parse(Some(limit), burst).unwrap().unwrap()
    }

    fn error(limit: Option<&str>, burst: Option<&str>) -> String {
        parse(limit, burst).unwrap_err().to_string()
    }

    #[test]
    fn reads_packets_and_bits_with_decimal_prefixes() {
        let limit = read("5000pps", None);
        assert_eq!(limit.unit, RateUnit::Packets);
        assert_eq!((limit.rate, limit.burst), (5_000, 500));
        assert_eq!(read("5kpps", None), limit);
        let limit = read("20Mbit", Some("1Mbit"));
        assert_eq!(limit.unit, RateUnit::Bits);
        assert_eq!((limit.rate, limit.burst), (20_000_000, 1_000_000));
        assert_eq!(read("1.5Gbit", None).rate, 1_500_000_000);
    }

    #[test]
    fn gives_every_default_burst_room_for_one_super_packet() {
        assert_eq!(read("1pps", None).burst, 64);
        assert_eq!(read("1kbit", None).burst, 524_288);
    }

    #[test]
    fn an_error_contains_what_to_write() {
        assert_eq!(
            error(Some("fast"), None),
            "limit=fast: give a rate such as 5000pps or 20Mbit (pps, kpps, Mpps, bit, kbit, Mbit, Gbit)"
        );
        assert_eq!(
            error(Some("0pps"), None),
            "limit=0pps: a rate of 0 would pass nothing; leave the output or rule out instead"
        );
        assert_eq!(
            error(Some("20Mbit"), Some("500")),
            "burst=500: give a size such as 500kbit or 1Mbit, as the limit is in bits"
        );
        assert_eq!(
            error(Some("20pps"), Some("0")),
            "burst=0: give a number of packets from 1, as the limit is in packets"
        );
        assert_eq!(
            error(None, Some("500")),
            "burst=500: a burst belongs to a limit; give limit= as well, as in limit=20Mbit"
        );
    }

    #[test]
    fn refuses_what_does_not_fit() {
        for text in [
            "99999999999Gbit",
            "0.5bit",
            "1.pps",
            ".5kpps",
            "-1pps",
            "1e3pps",
            "pps",
        ] {
            assert!(parse(Some(text), None).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn survives_printing_and_parsing(limit in crate::samples::limit()) {
            let rate = rate_text(&limit);
            let burst = burst_text(&limit);
            prop_assert_eq!(parse(Some(&rate), burst.as_deref()).unwrap(), Some(limit));
        }
    }
}
