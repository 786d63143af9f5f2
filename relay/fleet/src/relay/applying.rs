//! Applies an operator's rules, and deletes what the previous ones left behind in etcd.

use std::collections::BTreeMap;

use api::reply::FleetChange;
use etcd::{Compare, Is, KeyRange, Op, RangeOptions, Txn};
use rules::document::RuleDocument;
use rules::ruleset::Policy;
use sys::clock::realtime_ms;

use super::operator::{Operator, PATIENCE};
use super::status::listed;
use super::tasks::beside;
use crate::error::Error;
use crate::keys::{Current, Key, ShareEntry, Value};
use crate::rules::{Rules, Text};
use crate::store::Read;

/// Rules that are ready to be stored.
struct Prepared {
    new: Rules,
    text: Text,
    applied: FleetChange,
    is_same: bool,
}

impl Operator {
    pub(super) async fn apply(
        &self,
        by: Option<String>,
        rules: Vec<RuleDocument>,
        expected: Option<u64>,
        dry_run: bool,
    ) -> Result<FleetChange, Error> {
        let before = self.store().current().await?;
        // If the key is invalid or was deleted, numbers continue from the rules in force here.
        let generation = before
            .current
            .as_ref()
            .map_or(self.rules.generation, |it| it.generation);
        if let Some(expected) = expected.filter(|expected| *expected != generation) {
            return Err(Error::conflict(format!(
                "the fleet runs generation {generation}, not {expected}; look at it with \
                 `mcr fleet export`, then apply again"
            )));
        }
        let old = self.replaced(&before).await?;
        let policy = self.config.permitted;
        let Prepared {
            new,
            text,
            mut applied,
            is_same,
        } = beside(move || prepare(&old, rules, generation + 1, policy)).await?;
        applied.generation = generation;
        applied.warnings = self.warnings(&new);
        if dry_run {
            return Ok(applied);
        }
        let stored = before.current.as_ref();
        if is_same && stored.is_some_and(|stored| stored.hash == text.hash) {
            self.store().put_chunks(&text).await?;
            return Ok(applied);
        }
        let current = Current {
            generation: new.generation,
            hash: text.hash.clone(),
            chunks: text.chunks().count() as u16,
            rules: new.documents.len() as u32,
            at: realtime_ms(),
            by: Current::author(by.as_deref(), &self.config.relay),
        };
        let revision = self.store().replace(&before, &text, &current).await?;
        self.delete_removed(&new, revision).await;
        applied.generation = new.generation;
        Ok(applied)
    }

    /// The rules that are to be replaced; if they cannot be read, they are replaced all the same.
    async fn replaced(&self, before: &Read) -> Result<Vec<RuleDocument>, Error> {
        let Some(current) = &before.current else {
            return Ok(Vec::new());
        };
        match self.documents(current).await {
            Err(Error::Invalid(why)) => {
                tracing::warn!("rules that cannot be read are replaced: {why}");
                Ok(Vec::new())
            }
            documents => documents,
        }
    }

    /// Deletes from etcd the shares that neither these rules have nor the previous ones, while these rules
    /// are current. A relay that sees no holder opens at once, so the last holder must have read that the
    /// share was removed, or its session must have ended.
    async fn delete_removed(&self, new: &Rules, since: i64) {
        if self.rules.generation + 1 != new.generation {
            // It is not known here which rules the others have read meanwhile.
            return;
        }
        let (old, new) = (self.rules.shares(), new.shares());
        let is_unused = |share: &str| !old.contains_key(share) && !new.contains_key(share);
        for kind in ["shares/", "moves/"] {
            let range = KeyRange::prefix(format!("{}{kind}", self.keys.prefix()));
            let listed = self.client.list(range, RangeOptions::default(), PATIENCE);
            let Ok(listed) = listed.await else {
                return;
            };
            for entry in listed.keys {
                let key = String::from_utf8_lossy(&entry.key).into_owned();
                let guard = match self.keys.parse(&key) {
                    Ok(Key::Share(share)) if is_unused(&share) => self.released(&key, &entry.value),
                    Ok(Key::Move(share)) if is_unused(&share) => Some(Txn::new()),
                    _ => None,
                };
                let Some(guard) = guard else {
                    continue;
                };
                let rules = self.keys.text(&Key::Rules);
                let txn = guard
                    .when(Compare::mod_revision(rules, Is::Equal, since))
                    .when(Compare::mod_revision(
                        key.as_str(),
                        Is::Equal,
                        entry.mod_revision,
                    ))
                    .then(Op::delete(KeyRange::key(key)));
                if let Err(error) = self.client.txn(txn, PATIENCE).await {
                    tracing::debug!(%error, "shares of before are left in etcd");
                    return;
                }
            }
        }
    }

    /// The condition on which the holder of a share that was removed from the rules no longer forwards it;
    /// `None`: it may still do so.
    fn released(&self, key: &str, value: &[u8]) -> Option<Txn> {
        let entry = ShareEntry::read(key, value).ok()?;
        if let Some(holder) = self.status.member.relays.get(&entry.relay)
            && holder.session >= entry.session
            && holder.reported.generation >= self.rules.generation
        {
            return Some(Txn::new());
        }
        let beat = self.keys.text(&Key::Beat(entry.relay));
        let session = i64::try_from(entry.session).ok()?;
        Some(Txn::new().when(Compare::create_revision(beat, Is::NotEqual, session)))
    }

    /// Warnings about shares that no relay, or only one, can serve.
    fn warnings(&self, rules: &Rules) -> Vec<String> {
        let (mut nobody, mut sole) = (BTreeMap::new(), BTreeMap::new());
        for (share, roles) in rules.shares() {
            let able: Vec<&str> = self.able(roles).take(2).collect();
            match able[..] {
                [] => drop(nobody.insert(share, roles)),
                [only] => drop(sole.insert(share, only.to_owned())),
                _ => {}
            }
        }
        let mut warnings = Vec::new();
        if let Some((share, roles)) = nobody.first_key_value() {
            warnings.push(format!(
                "no relay has all the interfaces of {}, {share:?} among them ({}): nobody forwards \
                 them",
                shares(nobody.len()),
                listed(roles.iter().cloned())
            ));
        }
        if let Some((share, only)) = sole.first_key_value() {
            warnings.push(format!(
                "only one relay can serve {}, {share:?} among them ({only}): nobody takes over",
                shares(sole.len())
            ));
        }
        warnings
    }
}

fn prepare(
    old: &[RuleDocument],
    rules: Vec<RuleDocument>,
    generation: u64,
    policy: Policy,
) -> Result<Prepared, Error> {
    let new = Rules::new(generation, rules, policy)
        .map_err(|problems| Error::invalid(problems.to_string()))?;
    let text = Text::of(&new.documents).map_err(|error| Error::invalid(error.to_string()))?;
    Ok(Prepared {
        applied: compare(old, &new.documents),
        is_same: old == new.documents,
        new,
        text,
    })
}

fn shares(count: usize) -> String {
    match count {
        1 => "a share".to_owned(),
        count => format!("{count} shares"),
    }
}

/// The changes, by the names of rules.
fn compare(old: &[RuleDocument], new: &[RuleDocument]) -> FleetChange {
    let by_name = |rules: &[RuleDocument]| -> BTreeMap<String, RuleDocument> {
        let pairs = rules.iter().map(|rule| (rule.name.clone(), rule.clone()));
        pairs.collect()
    };
    let (old, new) = (by_name(old), by_name(new));
    let mut applied = FleetChange::default();
    for (name, rule) in &new {
        match old.get(name) {
            None => applied.added.push(name.clone()),
            Some(before) if before != rule => applied.changed.push(name.clone()),
            Some(_) => applied.unchanged += 1,
        }
    }
    let removed = old.into_keys().filter(|name| !new.contains_key(name));
    applied.removed = removed.collect();
    applied
}
