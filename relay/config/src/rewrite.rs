//! Rules written back into the files that they were read from. What does not change stays as it was
//! written: comments, order, and how values look.

mod array;
mod settings;

use std::collections::{BTreeSet, HashSet};

use rules::document::RuleDocument;
use rules::rule::Rule;
use rules::ruleset::Policy;
use toml::{Table as Keys, Value as Wanted};
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, TableLike, Value};

use super::{Config, ConfigError, ConfigErrors, ConfigFile, Settings, StaticJoin, VERSION};

/// Length of a line from which on a list of outputs takes a line for each.
const LINE: usize = 80;

/// Writes rules into the files of a configuration: each name with the rule that it is to have, or
/// with none where it is to have none. A rule that no file has comes into the first, the main file.
/// Hands back the files whose text is another one then.
///
/// # Errors
///
/// What is wrong with the files as they are, or would be afterwards; nothing is written then.
pub fn rewrite(
    files: &[ConfigFile],
    changes: &[(String, Option<RuleDocument>)],
) -> Result<Vec<ConfigFile>, ConfigErrors> {
    let (texts, before) = read(files)?;
    written(files, texts, &before, changes, &before.settings)
}

/// Has the files of a configuration say just these rules and settings, each where it stands. A rule
/// or a setting that no file has comes into the first, the main file. Hands back the files whose text
/// is another one then.
///
/// # Errors
///
/// What is wrong with the files as they are, or would be afterwards; nothing is written then.
pub fn rewrite_all(
    files: &[ConfigFile],
    rules: &[RuleDocument],
    settings: &Settings,
) -> Result<Vec<ConfigFile>, ConfigErrors> {
    let (texts, before) = read(files)?;
    let wanted: BTreeSet<&str> = rules.iter().map(|rule| rule.name.as_str()).collect();
    let gone = before.rules.names().filter(|name| !wanted.contains(name));
    let gone = gone.map(|name| (name.to_owned(), None));
    // Each is looked for in all files: not those that are to stay as they are.
    let differs = |rule: &&RuleDocument| {
        let before = before.rules.get(&rule.name).map(RuleDocument::from);
        before.as_ref() != Some(*rule)
    };
    let stay = rules.iter().filter(differs);
    let stay = stay.map(|rule| (rule.name.clone(), Some(rule.clone())));
    let changes: Vec<(String, Option<RuleDocument>)> = gone.chain(stay).collect();
    written(files, texts, &before, &changes, settings)
}

/// Has the files of a configuration say that just these groups are joined whatever the rules say. Hands
/// back the files whose text is another one then.
///
/// # Errors
///
/// What is wrong with the files as they are; nothing is written then.
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

/// The files with what an empty one needs, and what they say.
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
        let place = documents.iter_mut().find_map(|document| {
            let place = place(document, name)?;
            Some((document, place))
        });
        match (place, before.rules.get(name), wanted) {
            (Some((document, place)), Some(before), Some(wanted)) => {
                edit(document, place, |table| update(table, before, &wanted));
            }
            (Some((document, place)), _, None) => take_out(document, place),
            (None, _, Some(wanted)) => {
                if let Some(main) = documents.first_mut() {
                    add(main, made(&wanted));
                }
            }
            _ => {}
        }
    }
    for ((file, document), before) in texts.iter_mut().zip(&documents).zip(files) {
        file.text = with_ends_of(&before.text, document.to_string());
    }
    check(&texts, changes, settings)?;
    let written = texts.into_iter().zip(files);
    let written = written.filter(|(now, before)| now.text != before.text);
    Ok(written.map(|(now, _)| now).collect())
}

/// Makes sure that the files say what they are to say.
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
        let is_so = match (now.rules.get(name), &wanted) {
            (Some(now), Some(Ok(wanted))) => now == wanted,
            (None, None) => true,
            _ => false,
        };
        if !is_so {
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

/// A text whose lines end as they did in `before`, new ones as its first does.
fn with_ends_of(before: &str, text: String) -> String {
    let line = |line: &str| line.ends_with("\r\n");
    let (ends, ends_not): (HashSet<&str>, HashSet<&str>) =
        before.split_inclusive('\n').partition(|text| line(text));
    if ends.is_empty() {
        return text;
    }
    let is_first = before.split_inclusive('\n').next().is_some_and(line);
    let mut written = String::new();
    for line in text.split_inclusive('\n') {
        let content = line.trim_end_matches('\n');
        let ended = format!("{content}\r\n");
        let is_so = match (ends.contains(ended.as_str()), ends_not.contains(line)) {
            (true, false) => true,
            (false, true) => false,
            _ => is_first,
        };
        written += if is_so && line != content {
            &ended
        } else {
            line
        };
    }
    written
}

/// The rules of a file that stand in one list, as in `rule = [{ name = "cam1" }]`.
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

/// Edits the rule that stands there, whose keys stay in their order.
fn edit(document: &mut DocumentMut, place: usize, edit: impl FnOnce(&mut dyn TableLike)) {
    let order = |table: &dyn TableLike| {
        let order: Vec<String> = table.iter().map(|(key, _)| key.to_owned()).collect();
        move |key: &str| {
            // In the place of the only one.
            let is_it = |known: &String| known == key || known == "input" && key == "inputs";
            order.iter().position(is_it).unwrap_or(usize::MAX)
        }
    };
    if let Some(list) = inline(document) {
        if let Some(rule) = list.get_mut(place).and_then(Value::as_inline_table_mut) {
            let place = order(rule);
            edit(rule);
            rule.sort_values_by(|a, _, b, _| place(a.get()).cmp(&place(b.get())));
        }
    } else if let Some(rule) = rules(document).get_mut(place) {
        let place = order(rule);
        edit(rule);
        rule.sort_values_by(|a, _, b, _| place(a.get()).cmp(&place(b.get())));
    }
}

/// Adds a rule behind the others.
fn add(document: &mut DocumentMut, rule: Table) {
    match inline(document) {
        Some(list) => array::add(list, rule.into_inline_table().into()),
        None => rules(document).push(rule),
    }
}

fn place(document: &DocumentMut, name: &str) -> Option<usize> {
    let is_it = |item: Option<&Item>| item.and_then(Item::as_str) == Some(name);
    match document.get("rule")? {
        Item::ArrayOfTables(rules) => rules.iter().position(|rule| is_it(rule.get("name"))),
        rules => {
            let mut rules = rules.as_array()?.iter().map(Value::as_inline_table);
            let named = |rule: &InlineTable| rule.get("name").and_then(Value::as_str) == Some(name);
            rules.position(|rule| rule.is_some_and(named))
        }
    }
}

/// Takes a rule out with the comment right above it; what stands above an empty line stays.
fn take_out(document: &mut DocumentMut, place: usize) {
    if let Some(list) = inline(document) {
        array::take_out(list, place);
        return;
    }
    let list = rules(document);
    let prefix = list
        .get(place)
        .and_then(|rule| rule.decor().prefix()?.as_str());
    let above = prefix.and_then(|prefix| Some(&prefix[..prefix.rfind("\n\n")? + 1]));
    let above = above.filter(|above| above.contains('#')).map(str::to_owned);
    list.remove(place);
    let is_empty = list.is_empty();
    if let Some(above) = above {
        match list.get_mut(place) {
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

/// Where a rule's packets come from and go to.
const ENDS: [&str; 3] = ["input", "inputs", "outputs"];

/// A rule as a table.
fn made(rule: &RuleDocument) -> Table {
    let mut table = Table::new();
    table.decor_mut().set_prefix("\n");
    let mut keys = keys(rule);
    // As people write them, not by the alphabet.
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

/// Changes a rule's table from one rule to another.
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

/// Changes the inputs and the outputs.
fn ends(table: &mut dyn TableLike, before: &RuleDocument, wanted: &RuleDocument) {
    if (&before.input, &before.inputs) != (&wanted.input, &wanted.inputs) {
        inputs(table, before, wanted);
    }
    let outputs = |rule: &RuleDocument| rule.outputs.iter().map(ToString::to_string).collect();
    let (then, now): (Vec<String>, Vec<String>) = (outputs(before), outputs(wanted));
    if then != now
        && let Some(array) = table.get_mut("outputs").and_then(Item::as_array_mut)
    {
        array::exchange(array, &then, &now, |text| text.as_str().into());
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
            table.remove("input");
            table.insert("inputs", toml_edit::value(now.iter().collect::<Array>()));
        }
    }
}

/// Changes the keys that differ.
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

/// Sets a key; what stands around its value stays.
fn put(table: &mut dyn TableLike, key: &str, mut value: Value) {
    match table.get_mut(key).and_then(Item::as_value_mut) {
        Some(old) => {
            let decor = old.decor().clone();
            *old = value;
            *old.decor_mut() = decor;
        }
        None => {
            // The blank before the brace of an inline table.
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
