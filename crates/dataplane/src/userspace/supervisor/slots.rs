//! Which counters belong to which rule, input and output.
//!
//! A rule keeps its counters while it has no route, as when its interface is gone for a while;
//! they are given to another rule only when room runs out, the longest unused first.

use std::collections::{BTreeMap, BTreeSet};

use model::table::{Path, Route};
use packet::residence::Residence;

use super::assignment::Assignment;
use super::book::{Book, Shelf};
use crate::counters::{OutputCounters, RuleCounters};
use crate::userspace::shared::counters::{
    Counted, FlowOwner, InputSlot, MAX_INPUTS, MAX_OUTPUTS, MAX_RULES, OutputSlot, RuleSlot,
};

/// The assignment.
#[derive(Debug)]
pub(super) struct Slots {
    rules: Assignment<String>,
    inputs: Assignment<InputName>,
    outputs: Assignment<OutputName>,
    book: Option<Book>,
}

/// The counters of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Acquired {
    /// Its rule's.
    pub rule: RuleSlot,
    /// Its input's, where the rule has several.
    pub input: Option<InputSlot>,
    /// Its outputs', in their order.
    pub outputs: Vec<OutputSlot>,
}

/// What does not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shortage {
    /// Rules too many.
    pub rules: u32,
    /// Inputs too many.
    pub inputs: u32,
    /// Outputs too many.
    pub outputs: u32,
}

/// What identifies an input's counters: rule, and endpoint as written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct InputName {
    rule: String,
    at: String,
}

/// What identifies an output's counters: rule, index, and destination as written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OutputName {
    rule: String,
    index: u32,
    to: String,
}

impl Default for Slots {
    fn default() -> Self {
        Self {
            rules: Assignment::new(MAX_RULES),
            inputs: Assignment::new(MAX_INPUTS),
            outputs: Assignment::new(MAX_OUTPUTS),
            book: None,
        }
    }
}

impl Slots {
    /// Takes over what `book` says, and writes every change into it from now on.
    pub(super) fn keep(&mut self, book: Book) {
        for (slot, name, base) in book.read(Shelf::Rules) {
            self.rules.restore(name, slot, base);
        }
        for (slot, name, base) in book.read(Shelf::Inputs) {
            if let Some(name) = InputName::read(&name) {
                self.inputs.restore(name, slot, base);
            }
        }
        for (slot, name, base) in book.read(Shelf::Outputs) {
            if let Some(name) = OutputName::read(&name) {
                self.outputs.restore(name, slot, base);
            }
        }
        self.rules.collect_free();
        self.inputs.collect_free();
        self.outputs.collect_free();
        self.book = Some(book);
    }

    /// Says how much would lack room if `added` came and nothing left.
    #[must_use]
    pub(super) fn shortage<'a>(&self, added: impl Iterator<Item = &'a Route>) -> Shortage {
        let mut rules = BTreeSet::new();
        let mut inputs = BTreeSet::new();
        let mut outputs = BTreeSet::new();
        for route in added {
            rules.insert(route.rule.clone());
            inputs.extend(input_name(route));
            outputs.extend(output_names(route));
        }
        Shortage {
            rules: self.rules.shortage(&rules),
            inputs: self.inputs.shortage(&inputs),
            outputs: self.outputs.shortage(&outputs),
        }
    }

    /// Finds or assigns the counters of a route that comes into use. `now` reads a slot's counters,
    /// to know where a new owner starts.
    pub(super) fn acquire(&mut self, route: &Route, now: &impl Reading) -> Option<Acquired> {
        let rule = |slot| now.rule(RuleSlot(slot));
        let input = |slot| now.input(InputSlot(slot));
        let output = |slot| now.output(OutputSlot(slot));
        let rule = self.rules.acquire(route.rule.clone(), rule)?;
        let input = match input_name(route) {
            Some(name) => Some(InputSlot(self.inputs.acquire(name, input)?)),
            None => None,
        };
        let names = output_names(route);
        let outputs = names.map(|name| self.outputs.acquire(name, output).map(OutputSlot));
        let outputs = outputs.collect::<Option<_>>();
        self.write_down();
        Some(Acquired {
            rule: RuleSlot(rule),
            input,
            outputs: outputs?,
        })
    }

    /// Whose a rule's flows are.
    pub(super) fn flows(&self, rule: &str) -> Option<FlowOwner> {
        let owner = self.rules.owners.get(rule)?;
        Some(FlowOwner::new(RuleSlot(owner.slot), owner.epoch))
    }

    /// Gives up the counters of a route that is no longer used.
    pub(super) fn release(&mut self, route: &Route) {
        self.rules.release(&route.rule);
        if let Some(name) = input_name(route) {
            self.inputs.release(&name);
        }
        for name in output_names(route) {
            self.outputs.release(&name);
        }
    }

    /// Ends the counters of a rule that no route uses.
    pub(super) fn forget(&mut self, rule: &str) {
        self.rules
            .forget_unused(rule.to_owned(), |name| name == rule);
        let first = InputName {
            rule: rule.to_owned(),
            at: String::new(),
        };
        self.inputs.forget_unused(first, |name| name.rule == rule);
        let first = OutputName {
            rule: rule.to_owned(),
            index: 0,
            to: String::new(),
        };
        self.outputs.forget_unused(first, |name| name.rule == rule);
        self.write_down();
    }

    /// Brings the book up to date. Before a worker counts under a name, the name is there.
    fn write_down(&mut self) {
        let rules = self.rules.journal.drain(..);
        let rules = rules.map(|(slot, owner)| (Shelf::Rules, slot, owner));
        let inputs = self.inputs.journal.drain(..).map(|(slot, owner)| {
            let owner = owner.map(|(name, base)| (name.write(), base));
            (Shelf::Inputs, slot, owner)
        });
        let outputs = self.outputs.journal.drain(..).map(|(slot, owner)| {
            let owner = owner.map(|(name, base)| (name.write(), base));
            (Shelf::Outputs, slot, owner)
        });
        for (shelf, slot, owner) in rules.chain(inputs).chain(outputs) {
            match (&self.book, owner) {
                (Some(book), Some((name, base))) => book.write(shelf, slot, &name, &base),
                (Some(book), None) => book.erase(shelf, slot),
                (None, _) => {}
            }
        }
    }

    /// Reads everything counted, per rule.
    #[must_use]
    pub(super) fn read(&self, now: &impl Reading) -> BTreeMap<String, RuleCounters> {
        let mut rules: BTreeMap<String, RuleCounters> = BTreeMap::new();
        for (name, owner) in &self.rules.owners {
            let counted = owner.counted(now.rule(RuleSlot(owner.slot)));
            let rule = rules.entry(name.clone()).or_default();
            rule.received = counted.traffic;
            rule.dropped = counted.drops;
            rule.health = counted.health;
            if counted.residence != Residence::default() {
                rule.residence.insert(Path::Userspace, counted.residence);
            }
        }
        for (name, owner) in &self.inputs.owners {
            if let Some(rule) = rules.get_mut(&name.rule) {
                let counted = owner.counted(now.input(InputSlot(owner.slot)));
                rule.inputs.insert(name.at.clone(), counted.traffic);
            }
        }
        for (name, owner) in &self.outputs.owners {
            // An output that was replaced by another one of the same index is not shown.
            let shadowed = owner.uses == 0 && self.has_used_output(&name.rule, name.index);
            if let Some(rule) = rules.get_mut(&name.rule).filter(|_| !shadowed) {
                let counted = owner.counted(now.output(OutputSlot(owner.slot)));
                let output = OutputCounters {
                    sent: counted.traffic,
                    dropped: counted.drops,
                };
                rule.outputs.insert(name.index, Box::new(output));
            }
        }
        rules
    }

    /// Reads what came, per rule.
    pub(super) fn received(&self, now: &impl Reading) -> impl Iterator<Item = (&str, Counted)> {
        let owners = self.rules.owners.iter();
        owners.map(|(name, owner)| {
            let counted = owner.counted(now.rule(RuleSlot(owner.slot)));
            (name.as_str(), counted)
        })
    }

    fn has_used_output(&self, rule: &str, index: u32) -> bool {
        let first = OutputName {
            rule: rule.to_owned(),
            index,
            to: String::new(),
        };
        let mut same = self.outputs.owners.range(first..);
        let is_same = |name: &OutputName| name.rule == rule && name.index == index;
        same.by_ref()
            .take_while(|(name, _)| is_same(name))
            .any(|(_, owner)| owner.uses > 0)
    }
}

impl InputName {
    /// The name in one line; spaces are not part of a rule's name.
    fn write(&self) -> String {
        format!("{} {}", self.rule, self.at)
    }

    fn read(text: &str) -> Option<Self> {
        let (rule, at) = text.split_once(' ')?;
        Some(Self {
            rule: rule.to_owned(),
            at: at.to_owned(),
        })
    }
}

impl OutputName {
    /// The name in one line; spaces are not part of a rule's name.
    fn write(&self) -> String {
        format!("{} {} {}", self.rule, self.index, self.to)
    }

    fn read(text: &str) -> Option<Self> {
        let mut words = text.splitn(3, ' ');
        Some(Self {
            rule: words.next()?.to_owned(),
            index: words.next()?.parse().ok()?,
            to: words.next()?.to_owned(),
        })
    }
}

/// Reads counters, summed over the workers.
pub(super) trait Reading {
    /// A rule's.
    fn rule(&self, slot: RuleSlot) -> Counted;
    /// An input's.
    fn input(&self, slot: InputSlot) -> Counted;
    /// An output's.
    fn output(&self, slot: OutputSlot) -> Counted;
}

fn input_name(route: &Route) -> Option<InputName> {
    route.input.as_ref().map(|at| InputName {
        rule: route.rule.clone(),
        at: at.clone(),
    })
}

fn output_names(route: &Route) -> impl Iterator<Item = OutputName> + '_ {
    route.outputs.iter().map(|output| OutputName {
        rule: route.rule.clone(),
        index: output.index,
        to: output.to.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slots that count nothing.
    struct Nothing;

    impl Reading for Nothing {
        fn rule(&self, _: RuleSlot) -> Counted {
            Counted::default()
        }

        fn input(&self, _: InputSlot) -> Counted {
            Counted::default()
        }

        fn output(&self, _: OutputSlot) -> Counted {
            Counted::default()
        }
    }

    #[test]
    fn a_successor_finds_the_inputs_of_a_rule_by_their_text() {
        let route = |input: Option<&str>| Route {
            rule: "cam1".to_owned(),
            input: input.map(str::to_owned),
            path: Path::Userspace,
            local: model::table::LocalDelivery::Auto,
            limit: None,
            inspect: None,
            outputs: Vec::new(),
        };
        let inputs = ["239.1.1.1%eth0:5001", "10.0.0.5@232.1.1.1%eth0:5001"].map(Some);
        let (region, book) = Book::create().unwrap();
        let mut first = Slots::default();
        first.keep(book);
        let slots = inputs.map(|at| first.acquire(&route(at), &Nothing).unwrap().input);
        assert_eq!(slots, [Some(InputSlot(0)), Some(InputSlot(1))]);
        let alone = first.acquire(&route(None), &Nothing).unwrap();
        assert_eq!(alone.input, None);

        let mut second = Slots::default();
        second.keep(Book::map(std::os::fd::AsFd::as_fd(&region)).unwrap());
        let again = second.acquire(&route(inputs[1]), &Nothing).unwrap();
        assert_eq!(again.input, slots[1]);
        let read = second.read(&Nothing);
        let known: Vec<_> = read["cam1"].inputs.keys().map(|at| Some(&**at)).collect();
        assert_eq!(known, [inputs[1], inputs[0]]);
        // Unused ones go with the rule.
        second.forget("cam1");
        assert_eq!(second.inputs.owners.len(), 1);
    }
}
