//! Sizes of the UDP payload: fixed, a range, or a weighted mix.

use std::str::FromStr;

use thiserror::Error;

use crate::random::{self, Choice};

/// Sizes in bytes of UDP payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// Always the same.
    Fixed(usize),
    /// Evenly distributed from the first to the second, both included.
    Range(usize, usize),
    /// Sizes with their weights; never empty, weights above 0.
    Mix(Vec<(usize, u32)>),
}

/// The text is not a size, a range or a mix.
#[derive(Debug, Error)]
#[error("\"{0}\": write 1024, 64-1400, 64:7,576:4,1400:1 or imix")]
pub struct ParseError(String);

impl Sizes {
    /// The simple IMIX (7 : 4 : 1 packets of 60, 576 and 1500 bytes with IPv4 and UDP headers).
    pub fn imix() -> Self {
        Self::Mix(vec![(32, 7), (548, 4), (1472, 1)])
    }

    /// The size of the `number`-th packet.
    pub(crate) fn pick(&self, seed: u64, number: u64) -> usize {
        let bits = || random::bits(seed, Choice::Size, number);
        match self {
            Self::Fixed(size) => *size,
            Self::Range(first, last) => {
                first + random::below(bits(), (last - first + 1) as u64) as usize
            }
            Self::Mix(mix) => {
                let total: u64 = mix.iter().map(|&(_, weight)| u64::from(weight)).sum();
                let mut position = random::below(bits(), total);
                for &(size, weight) in mix {
                    match position.checked_sub(u64::from(weight)) {
                        None => return size,
                        Some(rest) => position = rest,
                    }
                }
                self.largest()
            }
        }
    }

    /// The smallest size that can occur.
    pub fn smallest(&self) -> usize {
        match self {
            Self::Fixed(size) | Self::Range(size, _) => *size,
            Self::Mix(mix) => mix.iter().map(|&(size, _)| size).min().unwrap_or(0),
        }
    }

    /// The largest size that can occur.
    pub fn largest(&self) -> usize {
        match self {
            Self::Fixed(size) | Self::Range(_, size) => *size,
            Self::Mix(mix) => mix.iter().map(|&(size, _)| size).max().unwrap_or(0),
        }
    }

    /// The size to expect on average.
    pub fn mean(&self) -> f64 {
        match self {
            Self::Fixed(size) => *size as f64,
            Self::Range(first, last) => (first + last) as f64 / 2.0,
            Self::Mix(mix) => {
                let weighted = |&(size, weight): &(usize, u32)| size as f64 * f64::from(weight);
                let total: f64 = mix.iter().map(|&(_, weight)| f64::from(weight)).sum();
                mix.iter().map(weighted).sum::<f64>() / total
            }
        }
    }
}

impl FromStr for Sizes {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        if text == "imix" {
            return Ok(Self::imix());
        }
        let parsed = if text.contains(':') {
            let part = |part: &str| {
                let (size, weight) = part.split_once(':')?;
                Some((size.parse().ok()?, weight.parse().ok().filter(|&w| w > 0)?))
            };
            text.split(',')
                .map(part)
                .collect::<Option<_>>()
                .map(Self::Mix)
        } else if let Some((first, last)) = text.split_once('-') {
            let range = first.parse().ok().zip(last.parse().ok());
            range
                .filter(|(first, last)| first <= last)
                .map(|(first, last)| Self::Range(first, last))
        } else {
            text.parse().ok().map(Self::Fixed)
        };
        parsed.ok_or_else(|| ParseError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_documented() {
        assert_eq!("1024".parse::<Sizes>().unwrap(), Sizes::Fixed(1024));
        assert_eq!("64-1400".parse::<Sizes>().unwrap(), Sizes::Range(64, 1400));
        assert_eq!(
            "64:7,1400:1".parse::<Sizes>().unwrap(),
            Sizes::Mix(vec![(64, 7), (1400, 1)])
        );
        assert_eq!("imix".parse::<Sizes>().unwrap(), Sizes::imix());
        for text in ["", "9-8", "64:0", "64:", "big", "1,2"] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_mix_follows_its_weights() {
        let mix = Sizes::Mix(vec![(100, 3), (200, 1)]);
        let small = (0..10_000).filter(|&n| mix.pick(1, n) == 100).count();
        assert!((7300..7700).contains(&small), "{small} of 10000");
        assert!((mix.mean() - 125.0).abs() < 1e-9);
    }

    #[test]
    fn a_range_reaches_both_its_ends() {
        let range = Sizes::Range(10, 12);
        for size in 10..=12 {
            assert!((0..100).any(|n| range.pick(1, n) == size), "{size}");
        }
    }
}
