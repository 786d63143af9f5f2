//! The rules of a fleet: one text for all relays, split into chunks that fit into etcd, and shares, the
//! groups of rules that change hands together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ring::digest;
use rules::document::RuleDocument;
use rules::problem::Problems;
use rules::roles;
use rules::ruleset::{Policy, RuleSet};

/// Bytes of the text in one key; etcd takes requests of 1.5 MiB.
pub const CHUNK: usize = 512 * 1024;
/// The most bytes of the whole text.
pub const TEXT_MAX: usize = 32 * 1024 * 1024;
/// The most chunks of a text.
pub const CHUNKS_MAX: usize = TEXT_MAX / CHUNK;
/// The most shares. Rules without a share of their own are grouped if they would make more.
pub const SHARES_MAX: usize = 1000;

/// A text, ready to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// SHA-256 of the whole, in hex.
    pub hash: String,
    /// The whole.
    pub bytes: Vec<u8>,
}

/// Why a text is not a valid set of rules.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// Something is missing or was altered.
    #[error("the text's SHA-256 is {found}, not {hash}; apply the rules again")]
    Damaged {
        /// What it should be.
        hash: String,
        /// What it is.
        found: String,
    },
    /// It cannot be read.
    #[error("the text is not one of rules: {0}; apply the rules again")]
    Unreadable(#[from] serde_json::Error),
    /// It is too long.
    #[error("the rules take {0} bytes, and a fleet holds {TEXT_MAX}")]
    TooLong(usize),
}

impl Text {
    /// Serialises rules.
    ///
    /// # Errors
    ///
    /// [`TextError::TooLong`].
    pub fn of(rules: &[RuleDocument]) -> Result<Self, TextError> {
        let bytes = serde_json::to_vec(rules)?;
        if bytes.len() > TEXT_MAX {
            return Err(TextError::TooLong(bytes.len()));
        }
        let hash = hash(&bytes);
        Ok(Self { hash, bytes })
    }

    /// The chunks, in order; there is at least one.
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks(CHUNK)
    }

    /// Parses rules, if the text has this hash.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn read(bytes: &[u8], hash: &str) -> Result<Vec<RuleDocument>, TextError> {
        let found = self::hash(bytes);
        if found != hash {
            let hash = hash.to_owned();
            return Err(TextError::Damaged { hash, found });
        }
        Ok(serde_json::from_slice(bytes)?)
    }
}

fn hash(bytes: &[u8]) -> String {
    let digest = digest::digest(&digest::SHA256, bytes);
    digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The rules of the fleet, sorted into shares.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Counts the changes, from 1; 0: there never were rules.
    pub generation: u64,
    /// Who applied them.
    pub by: String,
    /// As they were applied: with roles for interfaces.
    pub documents: Vec<RuleDocument>,
    /// The indices in `documents` of each share's rules.
    indices: BTreeMap<String, Vec<usize>>,
    /// The roles that each share's rules need.
    shares: BTreeMap<String, BTreeSet<String>>,
    /// The names of each share's rules.
    names: Arc<BTreeMap<String, Vec<String>>>,
}

impl Rules {
    /// Checks rules and sorts them into shares.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with the rules.
    pub fn new(
        generation: u64,
        documents: Vec<RuleDocument>,
        policy: Policy,
    ) -> Result<Self, Problems> {
        RuleSet::from_documents(&documents, policy)?;
        let mut indices: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (index, share) in shares_of(&documents).into_iter().enumerate() {
            indices.entry(share).or_default().push(index);
        }
        let mut shares = BTreeMap::new();
        let mut names = BTreeMap::new();
        for (share, indices) in &indices {
            let documents = indices.iter().map(|index| &documents[*index]);
            let of_share = documents.clone().map(|document| document.name.clone());
            names.insert(share.clone(), of_share.collect());
            shares.insert(share.clone(), documents.flat_map(roles::roles).collect());
        }
        Ok(Self {
            generation,
            by: String::new(),
            documents,
            indices,
            shares,
            names: Arc::new(names),
        })
    }

    /// Every share, with the roles that its rules need.
    #[must_use]
    pub fn shares(&self) -> &BTreeMap<String, BTreeSet<String>> {
        &self.shares
    }

    /// The names of each share's rules; shared, as they are read several times a second.
    #[must_use]
    pub fn names(&self) -> Arc<BTreeMap<String, Vec<String>>> {
        Arc::clone(&self.names)
    }

    /// The rules of a share, in their order.
    pub fn of_share(&self, share: &str) -> impl Iterator<Item = &RuleDocument> {
        let indices = self.indices.get(share).into_iter().flatten();
        indices.map(|index| &self.documents[*index])
    }

    /// The share with the rule of that name, or else the share of that name.
    #[must_use]
    pub fn share_of(&self, name: &str) -> Option<&str> {
        let has_rule = |indices: &[usize]| {
            let mut documents = indices.iter().map(|index| &self.documents[*index]);
            documents.any(|document| document.name == name)
        };
        let of_rule = self.indices.iter().find(|(_, indices)| has_rule(indices));
        of_rule
            .map(|(share, _)| share)
            .or_else(|| Some(self.shares.get_key_value(name)?.0))
            .map(String::as_str)
    }

    /// The rules of these shares for a host with these interfaces, each with its share set, and the
    /// shares for which the host lacks interfaces, with the reason.
    #[must_use]
    pub fn on_host(
        &self,
        shares: &BTreeSet<String>,
        interfaces: &BTreeMap<String, String>,
    ) -> (Vec<RuleDocument>, BTreeMap<String, String>) {
        let (mut rules, mut refused) = (Vec::new(), BTreeMap::new());
        for share in shares {
            let documents = self.of_share(share);
            let mapped: Result<Vec<_>, _> = documents
                .map(|document| roles::on_host(document, interfaces))
                .collect();
            match mapped {
                Ok(mapped) => rules.extend(mapped.into_iter().map(|document| RuleDocument {
                    share: Some(share.clone()),
                    ..document
                })),
                Err(role) => {
                    let why = format!("this host has no interface for the role {role:?}");
                    refused.insert(share.clone(), why);
                }
            }
        }
        (rules, refused)
    }
}

/// The share of each rule: its own, its name, or if that makes too many, a group of rules with the same
/// roles, chosen by its name.
fn shares_of(documents: &[RuleDocument]) -> Vec<String> {
    let given: BTreeSet<&String> = documents.iter().filter_map(|d| d.share.as_ref()).collect();
    let own_names = documents.iter().filter(|d| d.share.is_none()).count();
    let groups = (given.len() + own_names > SHARES_MAX).then(|| Groups::of(documents, given.len()));
    let share = |document: &RuleDocument| match (&document.share, &groups) {
        (Some(share), _) => share.clone(),
        (None, None) => document.name.clone(),
        (None, Some(groups)) => groups.of_rule(document),
    };
    documents.iter().map(share).collect()
}

/// How rules are grouped if there are too many.
struct Groups {
    /// The number of groups for each set of roles.
    each: u64,
}

impl Groups {
    fn of(documents: &[RuleDocument], given: usize) -> Self {
        let without = documents.iter().filter(|document| document.share.is_none());
        let kinds: BTreeSet<BTreeSet<String>> = without.map(roles::roles).collect();
        let each = SHARES_MAX.saturating_sub(given) / kinds.len().max(1);
        Self {
            each: each.max(1) as u64,
        }
    }

    fn of_rule(&self, document: &RuleDocument) -> String {
        let roles: Vec<String> = roles::roles(document).into_iter().collect();
        let kind = &hash(roles.join("\n").as_bytes())[..8];
        let digest = digest::digest(&digest::SHA256, document.name.as_bytes());
        let number = digest
            .as_ref()
            .iter()
            .take(8)
            .fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
        format!("group-{kind}-{:03}", number % self.each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(number: usize, input: &str, share: Option<&str>) -> RuleDocument {
        let (high, low) = (number / 250, number % 250 + 1);
        RuleDocument {
            name: format!("r{number}"),
            inputs: vec![format!("239.1.{high}.{low}%{input}:5000")],
            outputs: vec![format!("239.2.{high}.{low}%out:6000").as_str().into()],
            share: share.map(str::to_owned),
            ..RuleDocument::default()
        }
    }

    fn rules(count: usize) -> Vec<RuleDocument> {
        (0..count).map(|number| rule(number, "red", None)).collect()
    }

    fn fleet(documents: Vec<RuleDocument>) -> Rules {
        Rules::new(1, documents, Policy::default()).expect("sound rules")
    }

    #[test]
    fn a_text_is_split_into_chunks_and_joined_again() {
        let rules = rules(10_000);
        let text = Text::of(&rules).unwrap();
        assert!(text.chunks().count() > 1);
        let whole: Vec<u8> = text.chunks().flatten().copied().collect();
        assert_eq!(Text::read(&whole, &text.hash).unwrap(), rules);
        let error = Text::read(&whole[..CHUNK], &text.hash).unwrap_err();
        assert!(matches!(error, TextError::Damaged { .. }), "{error}");
    }

    #[test]
    fn each_rule_is_a_share_unless_it_names_one() {
        let fleet = fleet(vec![
            rule(0, "red", None),
            rule(1, "blue", Some("both")),
            rule(2, "red", Some("both")),
        ]);
        let roles = |roles: &[&str]| roles.iter().map(|role| (*role).to_owned()).collect();
        let shares = BTreeMap::from([
            ("r0".to_owned(), roles(&["out", "red"])),
            ("both".to_owned(), roles(&["blue", "out", "red"])),
        ]);
        assert_eq!(*fleet.shares(), shares);
        assert_eq!(fleet.share_of("r2"), Some("both"));
        assert_eq!(fleet.share_of("both"), Some("both"));
        assert_eq!(fleet.share_of("r3"), None);
    }

    #[test]
    fn many_rules_are_grouped_by_what_they_need() {
        assert_eq!(fleet(rules(SHARES_MAX)).shares().len(), SHARES_MAX);
        let mut many = rules(3 * SHARES_MAX);
        for (number, document) in many.iter_mut().enumerate().skip(2 * SHARES_MAX) {
            *document = rule(number, "blue", None);
        }
        let fleet = fleet(many);
        let shares = fleet.shares();
        assert!(shares.len() <= SHARES_MAX, "{} shares", shares.len());
        assert!(shares.len() > SHARES_MAX / 2, "{} shares", shares.len());
        assert!(shares.values().all(|roles| roles.len() == 2));
        let most = fleet.indices.values().map(Vec::len).max();
        assert!(most.is_some_and(|most| most < 20), "{most:?} in one");
    }

    #[test]
    fn roles_become_interfaces_or_a_reason() {
        let fleet = fleet(vec![rule(0, "red", None), rule(1, "blue", None)]);
        let shares = fleet.shares().keys().cloned().collect();
        let interfaces = [("red", "eth0"), ("out", "eth1")]
            .map(|(role, name)| (role.to_owned(), name.to_owned()));
        let (rules, refused) = fleet.on_host(&shares, &BTreeMap::from(interfaces));
        assert_eq!(rules.len(), 1);
        assert_eq!(rules[0].inputs, ["239.1.0.1%eth0:5000"]);
        assert_eq!(rules[0].share.as_deref(), Some("r0"));
        assert!(refused["r1"].contains("blue"), "{refused:?}");
    }
}
