//! The names under which a path counts: a rule's, those of its inputs and of its outputs.
//!
//! A restarted daemon, or another version of it, recognises them.

use std::fmt;

use compile::table::{Output, Route};

/// 128 bits that stand for a name.
pub(crate) type Hash = [u64; 2];

/// What a counter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub(crate) enum Kind {
    /// A rule.
    Rule = 0,
    /// An output of a rule.
    Output = 1,
    /// One of a rule's several inputs.
    Input = 2,
}

/// The owner of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name<'a> {
    /// A rule.
    Rule(&'a str),
    /// An input of a rule, by its endpoint as written: reordered inputs keep their counters.
    Input(&'a str, &'a str),
    /// An output of a rule, by its index and its destination as written.
    Output(&'a str, u64, &'a str),
}

/// The inputs of a route's rule that stand by for each other or are merged, as the rule writes them.
pub(crate) fn lines_of(route: &Route) -> impl Iterator<Item = &String> {
    let standing_by = route.failover.iter().flat_map(|failover| &failover.lines);
    let merged = route.merge.iter().flat_map(|merge| &merge.lines);
    standing_by.chain(merged)
}

impl Kind {
    /// All kinds.
    pub(crate) const ALL: [Self; 3] = [Self::Rule, Self::Output, Self::Input];
}

impl<'a> Name<'a> {
    /// The names under which a route counts: its rule's, its input's where the rule has several, those
    /// of the other inputs where they stand by for each other or are merged, and its outputs' in their
    /// order.
    pub(crate) fn all_of(route: &'a Route) -> impl Iterator<Item = Self> {
        let input = route.input.as_deref();
        let outputs = route.outputs.iter();
        let others = lines_of(route)
            .map(String::as_str)
            .filter(move |at| input != Some(*at));
        [Self::Rule(&route.rule)]
            .into_iter()
            .chain(
                input
                    .into_iter()
                    .chain(others)
                    .map(|at| Self::Input(&route.rule, at)),
            )
            .chain(outputs.map(|output| Self::output(&route.rule, output)))
    }

    /// The name of a rule's output.
    pub(crate) fn output(rule: &'a str, output: &'a Output) -> Self {
        Self::Output(rule, output.index, &output.to)
    }

    /// The rule that the name is of, or belongs to.
    pub(crate) const fn rule(self) -> &'a str {
        match self {
            Self::Rule(rule) | Self::Input(rule, _) | Self::Output(rule, ..) => rule,
        }
    }

    /// The kind of thing that is named.
    pub(crate) const fn kind(self) -> Kind {
        match self {
            Self::Rule(_) => Kind::Rule,
            Self::Input(..) => Kind::Input,
            Self::Output(..) => Kind::Output,
        }
    }

    /// Reads what was written with `Display`.
    pub(crate) fn parse(kind: Kind, text: &'a str) -> Option<Self> {
        match kind {
            Kind::Rule => Some(Self::Rule(text)),
            Kind::Input => {
                let (rule, at) = text.split_once(' ')?;
                Some(Self::Input(rule, at))
            }
            Kind::Output => {
                let mut words = text.splitn(3, ' ');
                let (rule, index, to) = (words.next()?, words.next()?, words.next()?);
                Some(Self::Output(rule, index.parse().ok()?, to))
            }
        }
    }

    /// The hash that identifies it.
    pub(crate) fn hash(self) -> Hash {
        match self {
            Self::Rule(rule) => hash(&[b"rule", rule.as_bytes()]),
            Self::Input(rule, at) => hash(&[b"input", rule.as_bytes(), at.as_bytes()]),
            Self::Output(rule, index, to) => {
                // Indices had 32 bits, and what is counted under those continues.
                let bytes = index.to_le_bytes();
                let index = match bytes.split_at(4) {
                    (low, [0, 0, 0, 0]) => low,
                    _ => &bytes,
                };
                hash(&[b"output", rule.as_bytes(), index, to.as_bytes()])
            }
        }
    }
}

/// The name in one line; spaces are not part of a rule's name.
impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => write!(f, "{rule}"),
            Self::Input(rule, at) => write!(f, "{rule} {at}"),
            Self::Output(rule, index, to) => write!(f, "{rule} {index} {to}"),
        }
    }
}

/// FNV-1a, 128 bits: stable across versions and machines, which the standard hasher is not.
fn hash(parts: &[&[u8]]) -> Hash {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let mix = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(PRIME);
    let hash = parts.iter().fold(OFFSET, |hash, part| {
        let length = (part.len() as u64).to_le_bytes();
        length.iter().chain(*part).copied().fold(hash, mix)
    });
    [hash as u64, (hash >> 64) as u64]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_do_not_run_parts_together() {
        assert_ne!(hash(&[b"ab", b"c"]), hash(&[b"a", b"bc"]));
    }

    /// Another hash, and what the version before has counted under the name begins at zero.
    #[test]
    fn hashes_are_those_of_the_version_before() {
        let hashed = [
            Name::Rule("cam1"),
            Name::Input("cam1", "239.1.1.1%eth0:5001"),
            Name::Output("cam1", 3, "239.10.1.1%eth1:6001"),
        ]
        .map(|name| name.hash()[0]);
        assert_eq!(
            hashed,
            [
                0x02ee_cee8_c0fb_2e29,
                0x6d12_4412_6b2e_20b2,
                0xfca2_4fe0_604d_599e
            ]
        );
        assert_ne!(
            Name::Output("cam1", 3 << 32, "239.10.1.1%eth1:6001").hash(),
            Name::Output("cam1", 0, "239.10.1.1%eth1:6001").hash()
        );
    }

    #[test]
    fn names_are_read_as_they_were_written() {
        let names = [
            Name::Rule("cam1"),
            Name::Input("cam1", "10.0.0.5@232.1.1.1%eth0:5001"),
            Name::Output("cam1", 3, "239.10.1.1%eth1:6001"),
        ];
        for name in names {
            assert_eq!(Name::parse(name.kind(), &name.to_string()), Some(name));
        }
    }
}
