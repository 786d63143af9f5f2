//! The rules of a fleet: one text for all relays, cut into chunks that etcd takes, and shares, the
//! groups of rules that change hands together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ring::digest;
use rules::document::RuleDocument;
use rules::problem::Problems;
use rules::roles;
use rules::ruleset::{Policy, RuleSet};

/// Bytes of the text that one key holds; etcd takes requests of 1.5 MiB.
pub const CHUNK: usize = 512 * 1024;
/// The most bytes of the whole text.
pub const TEXT_MAX: usize = 32 * 1024 * 1024;
/// The most chunks of a text.
pub const CHUNKS_MAX: usize = TEXT_MAX / CHUNK;
/// The most shares. Where rules without a share of their own would make more, they are grouped.
pub const SHARES_MAX: usize = 1000;

/// A text, ready to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// SHA-256 of the whole, in hex.
    pub hash: String,
    /// The whole.
    pub bytes: Vec<u8>,
}

/// Why a text is not one of rules.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// Something is missing or was changed.
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
    /// Writes rules down.
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

    /// Reads rules, if the text is the one that the hash is of.
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

/// The rules as the fleet has them.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Counts the changes, from 1; 0: there never were rules.
    pub generation: u64,
    /// Who applied them.
    pub by: String,
    /// As they were applied: with roles for interfaces.
    pub documents: Vec<RuleDocument>,
    /// Which of them are of which share, by their places.
    places: BTreeMap<String, Vec<usize>>,
    /// The roles that each share's rules need.
    shares: BTreeMap<String, BTreeSet<String>>,
    /// Their names, by share.
    names: Arc<BTreeMap<String, Vec<String>>>,
}

impl Rules {
    /// Makes sense of what was applied.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with it.
    pub fn new(
        generation: u64,
        documents: Vec<RuleDocument>,
        policy: Policy,
    ) -> Result<Self, Problems> {
        RuleSet::from_documents(&documents, policy)?;
        let mut places: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (place, share) in shares_of(&documents).into_iter().enumerate() {
            places.entry(share).or_default().push(place);
        }
        let roles_of = |places: &Vec<usize>| {
            let documents = places.iter().map(|place| &documents[*place]);
            documents.flat_map(roles::roles).collect()
        };
        let shares = places.iter();
        let shares = shares
            .map(|(share, places)| (share.clone(), roles_of(places)))
            .collect();
        let name = |place: &usize| documents[*place].name.clone();
        let names = places
            .iter()
            .map(|(share, places)| (share.clone(), places.iter().map(name).collect()));
        let names = Arc::new(names.collect());
        Ok(Self {
            generation,
            by: String::new(),
            documents,
            places,
            shares,
            names,
        })
    }

    /// Every share, with the roles that its rules need.
    #[must_use]
    pub fn shares(&self) -> &BTreeMap<String, BTreeSet<String>> {
        &self.shares
    }

    /// The names of each share's rules, which are asked for several times a second.
    #[must_use]
    pub fn names(&self) -> Arc<BTreeMap<String, Vec<String>>> {
        Arc::clone(&self.names)
    }

    /// The rules of a share, in their order.
    pub fn of_share(&self, share: &str) -> impl Iterator<Item = &RuleDocument> {
        let places = self.places.get(share).into_iter().flatten();
        places.map(|place| &self.documents[*place])
    }

    /// The share of that name, or that the rule of that name is in.
    #[must_use]
    pub fn share_of(&self, name: &str) -> Option<&str> {
        let named = self.shares.get_key_value(name).map(|(share, _)| share);
        let holds = |places: &[usize]| {
            let mut documents = places.iter().map(|place| &self.documents[*place]);
            documents.any(|document| document.name == name)
        };
        let holding = self.places.iter().find(|(_, places)| holds(places));
        let share = holding.map(|(share, _)| share).or(named);
        share.map(String::as_str)
    }

    /// The rules of these shares for a host with these interfaces, each marked as its share's, and
    /// the shares that the host has no interfaces for, with the reason.
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

/// The share of each rule: its own, its name, or where that makes too many the group of rules with the
/// same roles that its name falls into.
fn shares_of(documents: &[RuleDocument]) -> Vec<String> {
    let named = |document: &&RuleDocument| document.share.is_some();
    let given: BTreeSet<&String> = documents.iter().filter_map(|d| d.share.as_ref()).collect();
    let own_names = documents.len() - documents.iter().filter(named).count();
    let groups = (given.len() + own_names > SHARES_MAX).then(|| Groups::of(documents, given.len()));
    let share = |document: &RuleDocument| match (&document.share, &groups) {
        (Some(share), _) => share.clone(),
        (None, None) => document.name.clone(),
        (None, Some(groups)) => groups.of_rule(document),
    };
    documents.iter().map(share).collect()
}

/// How rules are grouped of which there are too many.
struct Groups {
    /// How many there are for each set of roles.
    each: u64,
}

impl Groups {
    fn of(documents: &[RuleDocument], given: usize) -> Self {
        let without = documents.iter().filter(|document| document.share.is_none());
        let kinds: BTreeSet<BTreeSet<String>> = without.map(roles::roles).collect();
        let room = SHARES_MAX.saturating_sub(given) / kinds.len().max(1);
        Self {
            each: room.max(1) as u64,
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
    fn a_text_is_cut_and_put_together_again() {
        let rules = rules(10_000);
        let text = Text::of(&rules).unwrap();
        assert!(text.chunks().count() > 1);
        let whole: Vec<u8> = text.chunks().flatten().copied().collect();
        assert_eq!(Text::read(&whole, &text.hash).unwrap(), rules);
        let error = Text::read(&whole[..CHUNK], &text.hash).unwrap_err();
        assert!(matches!(error, TextError::Damaged { .. }), "{error}");
    }

    #[test]
    fn each_rule_is_a_share_unless_it_says_otherwise() {
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
        let most = fleet.places.values().map(Vec::len).max();
        assert!(most.is_some_and(|most| most < 20), "{most:?} in one");
    }

    #[test]
    fn roles_become_interfaces_or_a_reason() {
        let fleet = fleet(vec![rule(0, "red", None), rule(1, "blue", None)]);
        let shares = fleet.shares().keys().cloned().collect();
        let interfaces = [("red", "eth0"), ("out", "eth1")];
        let interfaces = interfaces.map(|(role, name)| (role.to_owned(), name.to_owned()));
        let (rules, refused) = fleet.on_host(&shares, &BTreeMap::from(interfaces));
        assert_eq!(rules.len(), 1);
        assert_eq!(rules[0].inputs, ["239.1.0.1%eth0:5000"]);
        assert_eq!(rules[0].share.as_deref(), Some("r0"));
        assert!(refused["r1"].contains("blue"), "{refused:?}");
    }
}
