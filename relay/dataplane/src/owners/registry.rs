//! The rules registered by name, with their inputs and outputs: what this process can report on.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use super::name::{Hash, Kind, Name};

/// The owners of each rule's counters, by the rule's name.
#[derive(Debug, Default)]
pub(crate) struct RuleRegistry {
    rules: BTreeMap<Arc<str>, RuleNames>,
    names: HashMap<Hash, Arc<str>>,
}

/// The owners of one rule's counters.
#[derive(Debug)]
pub(crate) struct RuleNames {
    /// The rule itself.
    pub(crate) hash: Hash,
    /// Each input that is or was one of several.
    pub(crate) inputs: BTreeMap<String, Hash>,
    /// Each output beside its index in the rule, in their order; the latest of an index.
    pub(crate) outputs: Vec<(u64, Hash)>,
}

/// The most rules in a part of a reading: on the kernel path it takes some milliseconds.
pub(crate) const PART: usize = 512;

/// Progress of a reading of the rules, by their names: rules may be added and removed meanwhile.
#[derive(Debug, Default)]
pub(crate) enum Progress {
    /// Not begun.
    #[default]
    Nowhere,
    /// Up to this rule.
    UpTo(Arc<str>),
    /// To the end.
    Done,
}

impl Progress {
    pub(crate) const fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }
}

impl RuleRegistry {
    /// Registers names of a rule.
    pub(crate) fn register<'a>(&mut self, rule: &str, names: impl Iterator<Item = Name<'a>>) {
        if !self.rules.contains_key(rule) {
            let (name, hash) = (Arc::<str>::from(rule), Name::Rule(rule).hash());
            self.names.insert(hash, Arc::clone(&name));
            let names = RuleNames {
                hash,
                inputs: BTreeMap::new(),
                outputs: Vec::new(),
            };
            self.rules.insert(name, names);
        }
        let Some(registered) = self.rules.get_mut(rule) else {
            return;
        };
        // Most rules have one output, and there may be ten thousand rules.
        let (outputs, others) = (registered.outputs.len(), 1);
        let missing = names.size_hint().0.saturating_sub(others + outputs);
        registered.outputs.reserve_exact(missing);
        for name in names {
            match name {
                Name::Rule(_) => {}
                Name::Input(_, at) => {
                    registered.inputs.insert(at.to_owned(), name.hash());
                }
                Name::Output(_, index, _) => registered.register_output(index, name.hash()),
            }
        }
    }

    /// Forgets a rule and returns the owners of its counters.
    pub(crate) fn forget(&mut self, rule: &str) -> impl Iterator<Item = (Kind, Hash)> + use<> {
        let removed = self.rules.remove(rule);
        if let Some(names) = &removed {
            self.names.remove(&names.hash);
        }
        removed.into_iter().flat_map(|names| {
            let output = |(_, hash)| (Kind::Output, hash);
            let outputs = names.outputs.into_iter().map(output);
            let inputs = names.inputs.into_values().map(|hash| (Kind::Input, hash));
            inputs.chain(outputs).chain([(Kind::Rule, names.hash)])
        })
    }

    /// Reads the next part of the rules.
    pub(crate) fn read(
        &self,
        progress: &mut Progress,
        mut read: impl FnMut(&Arc<str>, &RuleNames),
    ) {
        let behind = match progress {
            Progress::Nowhere => Bound::Unbounded,
            Progress::UpTo(name) => Bound::Excluded(&**name),
            Progress::Done => return,
        };
        let mut rules = self.rules.range::<str, _>((behind, Bound::Unbounded));
        let part = rules.by_ref().take(PART);
        let last = part.inspect(|(name, rule)| read(name, rule)).last();
        *progress = match last {
            Some((name, _)) if rules.next().is_some() => Progress::UpTo(Arc::clone(name)),
            _ => Progress::Done,
        };
    }

    /// The rule of that name.
    pub(crate) fn get(&self, rule: &str) -> Option<&RuleNames> {
        self.rules.get(rule)
    }

    /// The name of the rule that counts under this one.
    pub(crate) fn name(&self, rule: &Hash) -> Option<&Arc<str>> {
        self.names.get(rule)
    }
}

impl RuleNames {
    fn register_output(&mut self, index: u64, hash: Hash) {
        let outputs = &mut self.outputs;
        match outputs.binary_search_by_key(&index, |(index, _)| *index) {
            Ok(position) => outputs[position].1 = hash,
            Err(position) => outputs.insert(position, (index, hash)),
        }
    }
}
