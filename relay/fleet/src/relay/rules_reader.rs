//! Reads the rules that etcd names, and uses them if they are valid.

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

/// Samples until etcd is asked again after it did not answer.
const RETRY_SAMPLES: u32 = 5;
/// Samples until invalid rules are read again: somebody may repair them.
const REREAD_SAMPLES: u32 = 50;

impl Engine {
    /// Starts to read the rules that a key names, unless they are in use.
    pub(super) fn read_rules(&mut self, kv: &KeyValue) {
        let Ok(current) = Current::read(&kv.key, &kv.value) else {
            return;
        };
        if self.reading.as_ref() == Some(&current) {
            return;
        }
        self.unread = None;
        self.reading = None;
        self.tally.unused_rules = None;
        // A generation alone does not identify rules: after a backup of etcd was restored, numbers repeat.
        let is_same =
            |it: &Current| (it.generation, &it.hash) == (current.generation, &current.hash);
        if self.current.as_ref().is_some_and(is_same) {
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
                    // On another thread, so that beats do not wait for ten thousand rules.
                    beside(move || Ok((parse(&current, &text, policy)?, text))).await
                }
                Err(error) => Err(error),
            };
            let _ = received.send(Received::Rules(RulesRead { current, rules }));
        });
    }

    /// Reads rules again that could not be read.
    pub(super) fn read_rules_again(&mut self) {
        if let Some((current, _)) = self.unread.take_if(|(_, due)| self.samples >= *due) {
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
                self.retained.save_rules(&current, &text);
                self.use_rules(current, rules);
            }
            Err(Error::Unavailable(_)) => {
                self.unread = Some((current, self.samples + RETRY_SAMPLES));
            }
            Err(error) => {
                let what = format!("generation {}", current.generation);
                let why = error.to_string();
                let unused = format!("rules of {what}: not used: {why}");
                if self.tally.unused_rules.replace(unused.clone()) != Some(unused) {
                    self.host.tell(Event::RulesRefused { what, why });
                }
                self.unread = Some((current, self.samples + REREAD_SAMPLES));
            }
        }
    }

    /// Uses the rules that were saved last, for a start without etcd.
    pub(super) fn use_saved_rules(&mut self) {
        let Some((current, text)) = self.retained.rules() else {
            return;
        };
        match parse(&current, &text, self.config.permitted) {
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

fn parse(current: &Current, text: &[u8], policy: Policy) -> Result<Rules, Error> {
    let documents =
        Text::read(text, &current.hash).map_err(|error| Error::invalid(error.to_string()))?;
    let mut rules = Rules::new(current.generation, documents, policy)
        .map_err(|problems| Error::invalid(problems.to_string()))?;
    rules.by.clone_from(&current.by);
    Ok(rules)
}
