//! Outputs that are tables of their own, `[[rule.outputs]]`: each keeps its comments and those of its keys.

use rules::document::OutputTable;
use rules::rule::{OutputOptions, OutputSpec};
use toml_edit::{ArrayOfTables, Item, Table, Value};

use super::{array, put};

/// Changes the outputs `then` to `now`.
pub(super) fn exchange(list: &mut ArrayOfTables, then: &[OutputSpec], now: &[OutputSpec]) {
    let tables = std::mem::take(list);
    list.extend(array::exchanged(tables, then, now, |previous, wanted| {
        let (then, written) = previous.unzip();
        let mut table: Table = written.unwrap_or_default();
        update(&mut table, then, wanted);
        table
    }));
    // They stand in the order of the list, not where each was read.
    list.iter_mut().for_each(unplace);
}

/// Writes an output into the table of another one, if there is one; keys with the same value stay as they
/// are written.
fn update(table: &mut Table, then: Option<&OutputSpec>, now: &OutputSpec) {
    let before = then.map(keys).unwrap_or_default();
    let wanted = keys(now);
    table.retain(|key, _| wanted.iter().any(|(wanted, _)| *wanted == key));
    for (key, text) in wanted {
        let stays = match table.get(key).and_then(Item::as_value) {
            // It may have had options behind it.
            Some(to) if key == "to" => to.as_str() == Some(&text),
            None | Some(Value::InlineTable(_)) => false,
            Some(_) => before.contains(&(key, text.clone())),
        };
        if !stays {
            let number = text.parse::<i64>().map(Value::from);
            put(table, key, number.unwrap_or_else(|_| text.into()));
        }
    }
}

/// Destination and options, each a key of its own.
fn keys(output: &OutputSpec) -> Vec<(&'static str, String)> {
    let options = OutputTable::from(&OutputOptions::from(output)).texts();
    [("to", output.target())]
        .into_iter()
        .chain(options)
        .collect()
}

/// Forgets where tables stood.
fn unplace(table: &mut Table) {
    table.set_position(None);
    let inner = table.iter_mut().filter_map(|(_, item)| item.as_table_mut());
    inner.for_each(unplace);
}
