//! Writes rules back into the files that they were read from. What does not change stays as it was
//! written: comments, order, and the notation of values.

mod array;
mod settings;
mod tables;

use std::collections::{BTreeSet, HashSet};

use rules::document::RuleDocument;
use rules::rule::{OutputSpec, Rule};
use rules::ruleset::Policy;
use toml::{Table as Keys, Value as Wanted};
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, TableLike, Value};

use super::{Config, ConfigError, ConfigErrors, ConfigFile, Settings, StaticJoin, VERSION};

/// Length of a line above which a list has a line for each element.
const LINE: usize = 80;

/// What some editors of Windows begin a file with.
const MARK: &str = "\u{feff}";

/// Writes rules into the files of a configuration: each name with its new rule, or without one to remove
/// it. A rule that no file has is added to the first, the main file. Returns the files whose text
/// changes.
///
/// # Errors
///
/// What is wrong with the files as they are, or would be afterwards; then nothing is written.
pub fn rewrite(
    files: &[ConfigFile],
    changes: &[(String, Option<RuleDocument>)],
) -> Result<Vec<ConfigFile>, ConfigErrors> {
    let (texts, before) = read(files)?;
    written(files, texts, &before, changes, &before.settings)
}

/// Rewrites the files of a configuration to exactly these rules and settings, each in its present
/// position. A rule or a setting that no file has is added to the first, the main file. Returns the files
/// whose text changes.
///
/// # Errors
///
/// What is wrong with the files as they are, or would be afterwards; then nothing is written.
pub fn rewrite_all(
    files: &[ConfigFile],
    rules: &[RuleDocument],
    settings: &Settings,
) -> Result<Vec<ConfigFile>, ConfigErrors> {
    let (texts, before) = read(files)?;
    let wanted: BTreeSet<&str> = rules.iter().map(|rule| rule.name.as_str()).collect();
    let removed = before.rules.names().filter(|name| !wanted.contains(name));
    let removals = removed.map(|name| (name.to_owned(), None));
    // Unchanged rules are omitted, because each change searches all files.
    let differs = |rule: &&RuleDocument| {
        let before = before.rules.get(&rule.name).map(RuleDocument::from);
        before.as_ref() != Some(*rule)
    };
    let changed = rules.iter().filter(differs);
    let replacements = changed.map(|rule| (rule.name.clone(), Some(rule.clone())));
    let changes: Vec<(String, Option<RuleDocument>)> = removals.chain(replacements).collect();
    written(files, texts, &before, &changes, settings)
}

/// Rewrites the files of a configuration to exactly these static joins. Returns the files whose text
/// changes.
///
/// # Errors
///
/// What is wrong with the files as they are; then nothing is written.
pub fn rewrite_joins(
    files: &[ConfigFile],
    join: Vec<StaticJoin>,
) -> Result<Vec<ConfigFile>, ConfigErrors> {
    let (texts, before) = read(files)?;
    let settings = Settings {
        join,
        ..before.settings.clone()
    };
    written(files, texts, &before, &[], &settings)
}

/// The files, completed if the main file is empty, and their configuration.
fn read(files: &[ConfigFile]) -> Result<(Vec<ConfigFile>, Config), ConfigErrors> {
    let mut texts = files.to_vec();
    for file in &mut texts {
        file.text = file.text.replace("\r\n", "\n");
    }
    if let Some(main) = texts.first_mut().filter(|main| main.text.is_empty()) {
        main.text = format!("version = {VERSION}\n");
    }
    let before = Config::load(&texts, Policy::PERMISSIVE)?;
    Ok((texts, before))
}

fn written(
    files: &[ConfigFile],
    mut texts: Vec<ConfigFile>,
    before: &Config,
    changes: &[(String, Option<RuleDocument>)],
    settings: &Settings,
) -> Result<Vec<ConfigFile>, ConfigErrors> {
    let mut documents = Vec::new();
    for file in &texts {
        documents.push(parse(file)?);
    }
    settings::update(&mut documents, &before.settings, settings);
    for (name, wanted) in changes {
        let wanted = wanted.as_ref().map(|rule| rule.clone().with_short_input());
        let found = documents.iter_mut().find_map(|document| {
            let index = index_of(document, name)?;
            Some((document, index))
        });
        match (found, before.rules.get(name), wanted) {
            (Some((document, index)), Some(before), Some(wanted)) => {
                edit(document, index, |table| update(table, before, &wanted));
            }
            (Some((document, index)), _, None) => remove(document, index),
            (None, _, Some(wanted)) => {
                if let Some(main) = documents.first_mut() {
                    add(main, to_table(&wanted));
                }
            }
            _ => {}
        }
    }
    for ((file, document), before) in texts.iter_mut().zip(&documents).zip(files) {
        let mark = if before.text.starts_with(MARK) {
            MARK
        } else {
            ""
        };
        file.text = mark.to_owned() + &with_line_ends_of(&before.text, document.to_string());
    }
    check(&texts, changes, settings)?;
    let pairs = texts.into_iter().zip(files);
    let changed = pairs.filter(|(now, before)| now.text != before.text);
    Ok(changed.map(|(now, _)| now).collect())
}

/// Checks that the rewritten files have the wanted rules and settings.
fn check(
    files: &[ConfigFile],
    changes: &[(String, Option<RuleDocument>)],
    settings: &Settings,
) -> Result<(), ConfigErrors> {
    let now = Config::load(files, Policy::PERMISSIVE)?;
    let refuse = |what: &str| {
        let main = files.first().map(|file| file.name.clone());
        let message = format!("{what}: cannot be written back; write it by hand");
        let at = (main.unwrap_or_default(), 1);
        Err(ConfigErrors(vec![ConfigError::at(at, message)]))
    };
    if now.settings != *settings {
        return refuse("settings");
    }
    for (position, (name, wanted)) in changes.iter().enumerate() {
        let wanted = wanted.as_ref().map(|rule| rule.to_rule(position));
        let is_written = match (now.rules.get(name), &wanted) {
            (Some(now), Some(Ok(wanted))) => now == wanted,
            (None, None) => true,
            _ => false,
        };
        if !is_written {
            return refuse(&format!("rule {name:?}"));
        }
    }
    Ok(())
}

fn parse(file: &ConfigFile) -> Result<DocumentMut, ConfigErrors> {
    file.text.parse().map_err(|error: toml_edit::TomlError| {
        let unread = ConfigError::unread(file, error.span(), error.message());
        ConfigErrors(vec![unread])
    })
}

/// A text whose lines end as in `before`; new ones end as its first line does.
fn with_line_ends_of(before: &str, text: String) -> String {
    let is_crlf = |line: &str| line.ends_with("\r\n");
    let (crlf, lf): (HashSet<&str>, HashSet<&str>) =
        before.split_inclusive('\n').partition(|line| is_crlf(line));
    if crlf.is_empty() {
        return text;
    }
    let is_first_crlf = before.split_inclusive('\n').next().is_some_and(is_crlf);
    let mut written = String::new();
    for line in text.split_inclusive('\n') {
        let content = line.trim_end_matches('\n');
        let with_crlf = format!("{content}\r\n");
        let ends_in_crlf = match (crlf.contains(with_crlf.as_str()), lf.contains(line)) {
            (true, false) => true,
            (false, true) => false,
            _ => is_first_crlf,
        };
        written += if ends_in_crlf && line != content {
            &with_crlf
        } else {
            line
        };
    }
    written
}

/// The rules of a file that has them in one list, as in `rule = [{ name = "cam1" }]`.
fn inline(document: &mut DocumentMut) -> Option<&mut Array> {
    document.get_mut("rule")?.as_array_mut()
}

/// The rules of a file, each a table of its own.
fn rules(document: &mut DocumentMut) -> &mut ArrayOfTables {
    document
        .entry("rule")
        .or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()))
        .as_array_of_tables_mut()
        .expect("whatever else was there was refused when it was read")
}

/// Edits the rule at an index; its keys stay in their order.
fn edit(document: &mut DocumentMut, index: usize, edit: impl FnOnce(&mut dyn TableLike)) {
    let order = |table: &dyn TableLike| {
        let order: Vec<String> = table.iter().map(|(key, _)| key.to_owned()).collect();
        move |key: &str| {
            // `inputs` takes the position of `input`.
            let is_it = |old: &String| old == key || old == "input" && key == "inputs";
            order.iter().position(is_it).unwrap_or(usize::MAX)
        }
    };
    if let Some(list) = inline(document) {
        if let Some(rule) = list.get_mut(index).and_then(Value::as_inline_table_mut) {
            let rank = order(rule);
            edit(rule);
            rule.sort_values_by(|a, _, b, _| rank(a.get()).cmp(&rank(b.get())));
        }
    } else if let Some(rule) = rules(document).get_mut(index) {
        let rank = order(rule);
        edit(rule);
        rule.sort_values_by(|a, _, b, _| rank(a.get()).cmp(&rank(b.get())));
    }
}

/// Appends a rule.
fn add(document: &mut DocumentMut, rule: Table) {
    match inline(document) {
        Some(list) => array::add(list, rule.into_inline_table().into()),
        None => rules(document).push(rule),
    }
}

fn index_of(document: &DocumentMut, name: &str) -> Option<usize> {
    let is_it = |item: Option<&Item>| item.and_then(Item::as_str) == Some(name);
    match document.get("rule")? {
        Item::ArrayOfTables(rules) => rules.iter().position(|rule| is_it(rule.get("name"))),
        rules => {
            let mut rules = rules.as_array()?.iter().map(Value::as_inline_table);
            let is_named =
                |rule: &InlineTable| rule.get("name").and_then(Value::as_str) == Some(name);
            rules.position(|rule| rule.is_some_and(is_named))
        }
    }
}

/// Removes a rule with the comment directly above it; a comment above an empty line stays.
fn remove(document: &mut DocumentMut, index: usize) {
    if let Some(list) = inline(document) {
        array::remove(list, index);
        return;
    }
    let list = rules(document);
    let prefix = list
        .get(index)
        .and_then(|rule| rule.decor().prefix()?.as_str());
    let above = prefix
        .and_then(|prefix| Some(&prefix[..prefix.rfind("\n\n")? + 1]))
        .filter(|above| above.contains('#'))
        .map(str::to_owned);
    list.remove(index);
    let is_empty = list.is_empty();
    if let Some(above) = above {
        match list.get_mut(index) {
            Some(next) => {
                let own = next.decor().prefix().and_then(|own| own.as_str());
                let both = above + own.unwrap_or_default();
                next.decor_mut().set_prefix(both);
            }
            None => {
                let both = above + document.trailing().as_str().unwrap_or_default();
                document.set_trailing(both);
            }
        }
    }
    if is_empty {
        document.remove("rule");
    }
}

/// The keys of a rule's inputs and outputs.
const ENDS: [&str; 3] = ["input", "inputs", "outputs"];

/// A rule as a table.
fn to_table(rule: &RuleDocument) -> Table {
    let mut table = Table::new();
    table.decor_mut().set_prefix("\n");
    let mut keys = keys(rule);
    // In the order that people write, not alphabetically.
    for key in [
        "name",
        "input",
        "inputs",
        "outputs",
        "mode",
        "interfaces",
        "isolated",
    ] {
        match keys.remove(key) {
            Some(Wanted::Array(texts)) => table.insert(key, toml_edit::value(list(key, &texts))),
            Some(text) => table.insert(key, Item::Value(edited(&text))),
            None => None,
        };
    }
    for (key, value) in keys {
        table.insert(&key, Item::Value(edited(&value)));
    }
    table
}

fn list(key: &str, texts: &[Wanted]) -> Array {
    let mut array: Array = texts.iter().filter_map(Wanted::as_str).collect();
    if key.len() + array.to_string().len() + 3 > LINE {
        for text in array.iter_mut() {
            text.decor_mut().set_prefix("\n    ");
        }
        array.set_trailing_comma(true);
        array.set_trailing("\n");
    }
    array
}

fn keys(rule: &RuleDocument) -> Keys {
    Keys::try_from(rule).expect("texts, numbers and tables are always valid TOML")
}

/// Updates a rule's table from one rule to another.
fn update(table: &mut dyn TableLike, before: &Rule, wanted: &RuleDocument) {
    let before = RuleDocument::from(before).with_short_input();
    // A rule that reflects has neither inputs nor outputs.
    let is_another = before.reflects() != wanted.reflects();
    if is_another {
        for key in ENDS {
            table.remove(key);
        }
    } else {
        ends(table, &before, wanted);
    }
    let [then, now] = [&before, wanted].map(|rule| {
        let mut keys = keys(rule);
        let is_end = |key: &str| ENDS.contains(&key);
        keys.retain(|key, _| key != "name" && (is_another || !is_end(key)));
        keys
    });
    put_all(table, &then, &now);
}

/// Updates the inputs and the outputs.
fn ends(table: &mut dyn TableLike, before: &RuleDocument, wanted: &RuleDocument) {
    if (&before.input, &before.inputs) != (&wanted.input, &wanted.inputs) {
        inputs(table, before, wanted);
    }
    let [then, now] = [before, wanted].map(|rule| {
        let outputs = rule.outputs.iter();
        outputs
            .filter_map(|output| output.to_output().ok())
            .collect::<Vec<OutputSpec>>()
    });
    match table.get_mut("outputs") {
        _ if then == now => {}
        Some(Item::ArrayOfTables(list)) => tables::exchange(list, &then, &now),
        outputs => {
            if let Some(array) = outputs.and_then(Item::as_array_mut) {
                array::exchange(array, &then, &now, |output| output.to_string().into());
            }
        }
    }
}

fn inputs(table: &mut dyn TableLike, before: &RuleDocument, wanted: &RuleDocument) {
    let [then, now] = [before, wanted].map(|rule| {
        let inputs = rule.input.iter().chain(&rule.inputs);
        inputs.cloned().collect::<Vec<String>>()
    });
    if let Some(array) = table.get_mut("inputs").and_then(Item::as_array_mut) {
        return array::exchange(array, &then, &now, |text| text.as_str().into());
    }
    match wanted.input.as_deref() {
        Some(input) => put(table, "input", input.into()),
        None => {
            let mut list = Value::from(now.iter().collect::<Array>());
            let key = table.key("input").map(|key| key.leaf_decor().clone());
            if let Some(Item::Value(input)) = table.remove("input") {
                *list.decor_mut() = input.decor().clone();
            }
            table.insert("inputs", Item::Value(list));
            if let (Some(mut name), Some(decor)) = (table.key_mut("inputs"), key) {
                *name.leaf_decor_mut() = decor;
            }
        }
    }
}

/// Updates the keys that differ.
fn put_all(table: &mut dyn TableLike, then: &Keys, now: &Keys) {
    for key in then.keys().filter(|key| !now.contains_key(*key)) {
        table.remove(key);
    }
    for (key, value) in now {
        let before = then.get(key);
        if before == Some(value) {
            continue;
        }
        if let (Some(list), Wanted::Array(now)) =
            (table.get_mut(key).and_then(Item::as_array_mut), value)
        {
            let then: Vec<Wanted> = list
                .iter()
                .map(|value| value.as_str().map_or(Wanted::Boolean(false), Wanted::from))
                .collect();
            array::exchange(list, &then, now, edited);
            continue;
        }
        let inner = table.get_mut(key).and_then(Item::as_table_like_mut);
        match (inner, before, value) {
            (Some(inner), Some(Wanted::Table(then)), Wanted::Table(now)) => {
                put_all(inner, then, now)
            }
            _ => put(table, key, edited(value)),
        }
    }
}

/// Sets a key; whitespace and comments around its value stay.
fn put(table: &mut dyn TableLike, key: &str, mut value: Value) {
    match table.get_mut(key).and_then(Item::as_value_mut) {
        Some(old) => {
            let decor = old.decor().clone();
            *old = value;
            *old.decor_mut() = decor;
        }
        None => {
            // The space before the closing brace of an inline table.
            let last = table
                .iter_mut()
                .last()
                .and_then(|(_, item)| item.as_value_mut());
            if let Some(decor) = last.map(Value::decor_mut)
                && let Some(" ") = decor.suffix().and_then(toml_edit::RawString::as_str)
            {
                decor.set_suffix("");
                value.decor_mut().set_suffix(" ");
            }
            table.insert(key, Item::Value(value));
        }
    }
}

fn edited(value: &Wanted) -> Value {
    match value {
        Wanted::Boolean(yes) => (*yes).into(),
        Wanted::Integer(number) => (*number).into(),
        Wanted::Array(values) => values.iter().map(edited).collect(),
        Wanted::Table(keys) => {
            let keys = keys
                .iter()
                .map(|(key, value)| (key.as_str(), edited(value)));
            Value::InlineTable(keys.collect())
        }
        Wanted::String(text) => text.as_str().into(),
        Wanted::Float(_) | Wanted::Datetime(_) => value.to_string().into(),
    }
}

#[cfg(test)]
mod tests;
