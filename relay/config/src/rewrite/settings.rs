//! Writes settings beyond rules back in their present positions.

use std::collections::BTreeSet;

use toml::{Table as Keys, Value as Wanted};
use toml_edit::{DocumentMut, Item, Table, TableLike};

use super::super::Settings;
use super::{edited, put_all};

/// Changes the files' settings from `before` to `wanted`; those that no file has are added to the first.
pub(super) fn update(documents: &mut [DocumentMut], before: &Settings, wanted: &Settings) {
    let [then, now] = [before, wanted].map(|settings| {
        Keys::try_from(settings).expect("texts, numbers and tables are always valid TOML")
    });
    set_all(documents, None, &then, &now);
}

/// Sets the keys that differ, of the root or of a table below it. Each interface has a table, which may be
/// in any of the files; the targets in `[notify]` stay.
fn set_all(documents: &mut [DocumentMut], below: Option<&str>, then: &Keys, now: &Keys) {
    let keys: BTreeSet<&String> = then.keys().chain(now.keys()).collect();
    for key in keys {
        let (before, wanted) = (then.get(key), now.get(key));
        if before == wanted {
            continue;
        }
        if below.is_none() && ["interface", "notify"].contains(&key.as_str()) {
            let keys = |value: Option<&Wanted>| value.and_then(Wanted::as_table).cloned();
            let [before, wanted] = [before, wanted].map(|value| keys(value).unwrap_or_default());
            set_all(documents, Some(key), &before, &wanted);
            continue;
        }
        let Some(wanted) = wanted else {
            let tables = documents
                .iter_mut()
                .filter_map(|document| table(document, below));
            tables.for_each(|table| drop(table.remove(key)));
            continue;
        };
        let mut tables = documents
            .iter_mut()
            .filter_map(|document| table(document, below));
        match tables.find(|table| table.contains_key(key)) {
            Some(table) => {
                // The table may have existed with nothing but defaults.
                let none = || Wanted::Table(Keys::new());
                let before = before.cloned().or_else(|| wanted.is_table().then(none));
                let then = before
                    .map(|before| (key.clone(), before))
                    .into_iter()
                    .collect();
                put_all(
                    table,
                    &then,
                    &[(key.clone(), wanted.clone())].into_iter().collect(),
                );
            }
            None => insert(documents, below, key, wanted),
        }
    }
}

/// The root of a file, or a table below it.
fn table<'a>(document: &'a mut DocumentMut, below: Option<&str>) -> Option<&'a mut dyn TableLike> {
    match below {
        None => Some(document.as_table_mut()),
        Some(key) => document.get_mut(key)?.as_table_like_mut(),
    }
}

fn insert(documents: &mut [DocumentMut], below: Option<&str>, key: &str, wanted: &Wanted) {
    let has_table =
        |document: &DocumentMut| below.is_some_and(|below| document.contains_key(below));
    let index = documents.iter().position(has_table).unwrap_or_default();
    let Some(document) = documents.get_mut(index) else {
        return;
    };
    let item = match wanted {
        Wanted::Table(keys) => {
            let items = keys
                .iter()
                .map(|(key, value)| (key.as_str(), Item::Value(edited(value))));
            let mut table: Table = items.collect();
            table.decor_mut().set_prefix("\n");
            Item::Table(table)
        }
        value => Item::Value(edited(value)),
    };
    let table: &mut dyn TableLike = match below {
        None => document.as_table_mut(),
        Some(below) => {
            let mut parent = Table::new();
            parent.set_implicit(true);
            let entry = document.entry(below);
            entry
                .or_insert(Item::Table(parent))
                .as_table_like_mut()
                .expect("whatever else was there was refused when it was read")
        }
    };
    table.insert(key, item);
}
