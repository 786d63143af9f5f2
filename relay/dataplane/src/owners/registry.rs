//! The rules that this process knows by name, with their inputs and outputs: what it can report on.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use super::name::{Hash, Kind, Name};

/// Who owns the counters of each rule, by the rule's name.
#[derive(Debug, Default)]
pub(crate) struct KnownRules {
    rules: BTreeMap<Arc<str>, KnownRule>,
    names: HashMap<Hash, Arc<str>>,
}

/// The owners of one rule's counters.
#[derive(Debug)]
pub(crate) struct KnownRule {
    /// The rule itself.
    pub(crate) hash: Hash,
    /// Each input that is or was one of several.
    pub(crate) inputs: BTreeMap<String, Hash>,
    /// Each output beside its index in the rule, in their order; the latest of an index.
    pub(crate) outputs: Vec<(u64, Hash)>,
}

/// How many rules a part of a reading has at most: of the kernel path it takes some milliseconds.
pub(crate) const PART: usize = 512;

/// How far a reading of the rules has come, by their names: they may come and go on the way.
#[derive(Debug, Default)]
pub(crate) enum Progress {
    /// Not begun.
    #[default]
    Nowhere,
    /// This far.
    UpTo(Arc<str>),
    /// To the end.
    Done,
}

impl Progress {
    pub(crate) const fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }
}

impl KnownRules {
    /// Remembers names of a rule.
    pub(crate) fn learn<'a>(&mut self, rule: &str, names: impl Iterator<Item = Name<'a>>) {
        if !self.rules.contains_key(rule) {
            let (name, hash) = (Arc::<str>::from(rule), Name::Rule(rule).hash());
            self.names.insert(hash, Arc::clone(&name));
            let known = KnownRule {
                hash,
                inputs: BTreeMap::new(),
                outputs: Vec::new(),
            };
            self.rules.insert(name, known);
        }
        let Some(known) = self.rules.get_mut(rule) else {
            return;
        };
        // Most rules have one output, and there may be ten thousand rules.
        let (outputs, others) = (known.outputs.len(), 1);
        let missing = names.size_hint().0.saturating_sub(others + outputs);
        known.outputs.reserve_exact(missing);
        for name in names {
            match name {
                Name::Rule(_) => {}
                Name::Input(_, at) => {
                    known.inputs.insert(at.to_owned(), name.hash());
                }
                Name::Output(_, index, _) => known.learn_output(index, name.hash()),
            }
        }
    }

    /// Forgets a rule and says who owned its counters.
    pub(crate) fn forget(&mut self, rule: &str) -> impl Iterator<Item = (Kind, Hash)> + use<> {
        let known = self.rules.remove(rule);
        if let Some(known) = &known {
            self.names.remove(&known.hash);
        }
        known.into_iter().flat_map(|known| {
            let outputs = known.outputs.into_iter();
            let outputs = outputs.map(|(_, hash)| (Kind::Output, hash));
            let inputs = known.inputs.into_values().map(|hash| (Kind::Input, hash));
            inputs.chain(outputs).chain([(Kind::Rule, known.hash)])
        })
    }

    /// Reads the next part of the rules.
    pub(crate) fn read(
        &self,
        progress: &mut Progress,
        mut read: impl FnMut(&Arc<str>, &KnownRule),
    ) {
        let behind = match progress {
            Progress::Nowhere => Bound::Unbounded,
            Progress::UpTo(name) => Bound::Excluded(&**name),
            Progress::Done => return,
        };
        let mut rules = self.rules.range::<str, _>((behind, Bound::Unbounded));
        let part = rules.by_ref().take(PART);
        let last = part.inspect(|(name, rule)| read(name, rule)).last();
        let last = last.map(|(name, _)| Arc::clone(name));
        *progress = match last {
            Some(last) if rules.next().is_some() => Progress::UpTo(last),
            _ => Progress::Done,
        };
    }

    /// The rule of that name.
    pub(crate) fn get(&self, rule: &str) -> Option<&KnownRule> {
        self.rules.get(rule)
    }

    /// The name of the rule that counts under this one.
    pub(crate) fn name(&self, rule: &Hash) -> Option<&Arc<str>> {
        self.names.get(rule)
    }
}

impl KnownRule {
    fn learn_output(&mut self, index: u64, hash: Hash) {
        let outputs = &mut self.outputs;
        match outputs.binary_search_by_key(&index, |(index, _)| *index) {
            Ok(at) => outputs[at].1 = hash,
            Err(at) => outputs.insert(at, (index, hash)),
        }
    }
}
