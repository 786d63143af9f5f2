//! Reads the rules that etcd says there are, and takes them if they make sense.

use std::sync::Arc;

use rules::ruleset::Policy;

use super::engine::Engine;
use super::received::{Received, RulesRead};
use super::tasks::{beside, spawn};
use crate::error::Error;
use crate::host::Event;
use crate::keys::{Current, Value};
use crate::member::{Input, KeyValue};
use crate::rules::{Rules, Text};
use crate::store::Store;

/// Looks until etcd is asked again that did not answer.
const SOON: u32 = 5;
/// Looks until rules are read again that made no sense: somebody may mend them.
const LATER: u32 = 50;

impl Engine {
    /// Begins to read the rules that a key speaks of, unless they are the ones that are there.
    pub(super) fn read_rules(&mut self, found: &KeyValue) {
        let Ok(current) = Current::read(&found.key, &found.value) else {
            return;
        };
        if self.reading.as_ref() == Some(&current) {
            return;
        }
        self.unread = None;
        self.reading = None;
        self.tally.unused_rules = None;
        if self
            .current
            .as_ref()
            .is_some_and(|it| is_same(it, &current))
        {
            return;
        }
        self.reading = Some(current.clone());
        self.fetch(current);
    }

    fn fetch(&self, current: Current) {
        let store = Store::new(self.client.clone(), self.keys.clone());
        let (received, policy) = (self.received.clone(), self.config.permitted);
        spawn(async move {
            let rules = match store.text(&current).await {
                Ok(text) => {
                    let current = current.clone();
                    // Beats do not wait for ten thousand rules.
                    beside(move || Ok((make_sense(&current, &text, policy)?, text))).await
                }
                Err(error) => Err(error),
            };
            let _ = received.send(Received::Rules(RulesRead { current, rules }));
        });
    }

    /// Tries again what could not be read.
    pub(super) fn read_rules_again(&mut self) {
        if let Some((current, _)) = self.unread.take_if(|(_, due)| self.looks >= *due) {
            self.fetch(current);
        }
    }

    pub(super) fn take_rules(&mut self, RulesRead { current, rules }: RulesRead) {
        if self.reading.as_ref() != Some(&current) {
            return;
        }
        match rules {
            Ok((rules, text)) => {
                self.reading = None;
                self.tally.unused_rules = None;
                self.retained.keep_rules(&current, &text);
                self.use_rules(current, rules);
            }
            Err(Error::Unavailable(_)) => self.unread = Some((current, self.looks + SOON)),
            Err(error) => {
                let (what, why) = (
                    format!("generation {}", current.generation),
                    error.to_string(),
                );
                let unused = format!("rules of {what}: not used: {why}");
                if self.tally.unused_rules.replace(unused.clone()) != Some(unused) {
                    self.host.tell(Event::RulesRefused { what, why });
                }
                self.unread = Some((current, self.looks + LATER));
            }
        }
    }

    /// Takes the rules that were read last, for a start without etcd.
    pub(super) fn take_kept_rules(&mut self) {
        let Some((current, text)) = self.retained.rules() else {
            return;
        };
        match make_sense(&current, &text, self.config.permitted) {
            Ok(rules) => self.use_rules(current, rules),
            Err(why) => tracing::warn!("the rules of before are not used: {why}"),
        }
    }

    fn use_rules(&mut self, current: Current, rules: Rules) {
        let (generation, shares) = (rules.generation, rules.shares().clone());
        self.host.tell(Event::RulesApplied {
            generation,
            rules: rules.documents.len(),
        });
        self.current = Some(current);
        self.rules = Arc::new(rules);
        let rules = Arc::clone(&self.rules);
        self.wanted.send_if_modified(|wanted| {
            wanted.number += 1;
            wanted.rules = rules;
            false
        });
        self.has_new_rules = true;
        self.take(Input::Rules { generation, shares });
    }
}

/// Whether two of them speak of the same rules. A generation alone does not tell: after a backup of
/// etcd was restored, numbers come again.
fn is_same(one: &Current, other: &Current) -> bool {
    (one.generation, &one.hash) == (other.generation, &other.hash)
}

fn make_sense(current: &Current, text: &[u8], policy: Policy) -> Result<Rules, Error> {
    let documents = Text::read(text, &current.hash);
    let documents = documents.map_err(|error| Error::invalid(error.to_string()))?;
    let rules = Rules::new(current.generation, documents, policy);
    let mut rules = rules.map_err(|problems| Error::invalid(problems.to_string()))?;
    rules.by.clone_from(&current.by);
    Ok(rules)
}
