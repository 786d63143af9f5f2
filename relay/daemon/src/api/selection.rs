//! Queries for some of the rules, as URL parameters. Each is bounded, because replies are cached by query.

use api::query::{FILTER_MAX, LABELS_MAX, Label, Order, RulesQuery, StatsQuery};
use api::reply::Condition;
use api::request::{HISTORY_RULES_MAX, RULES_MAX};

use super::api_error::{ApiError, Code, Reply};

/// Parameters as written in the URL; labels may be repeated.
pub(super) type Pairs = Vec<(String, String)>;

/// Parses a query for statistics; `None` for all.
pub(super) fn of_stats(parameters: Pairs) -> Reply<Option<StatsQuery>> {
    let mut query = StatsQuery::default();
    let has_any = read(parameters, |name, value| {
        match name {
            "filter" => query.filter = text(name, value)?,
            "label" => add_label(&mut query.labels, value)?,
            "state" => {
                let states = Condition::ALL.map(|how| (how.as_str(), how));
                query.state = Some(one_of(name, &value, states)?);
            }
            "order" => {
                let orders = Order::ALL.map(|order| (order.as_str(), order));
                query.order = one_of(name, &value, orders)?;
            }
            "around" => query.around = Some(text(name, value)?),
            "offset" => query.offset = number(name, &value)?,
            "limit" => query.limit = Some(number(name, &value)?),
            "rules" => query.rules = names(&value)?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(has_any.then_some(query))
}

/// Parses a query for rules; `None` for all.
pub(super) fn of_rules(parameters: Pairs) -> Reply<Option<RulesQuery>> {
    let mut query = RulesQuery::default();
    let has_any = read(parameters, |name, value| {
        match name {
            "label" => add_label(&mut query.labels, value)?,
            "offset" => query.offset = number(name, &value)?,
            "limit" => query.limit = Some(number(name, &value)?),
            _ => {}
        }
        Ok(())
    })?;
    Ok(has_any.then_some(query))
}

/// Parses comma-separated names of rules, at most as many as one reply may cover.
pub(super) fn names(text: &str) -> Reply<Vec<String>> {
    let parts = text.split(',').filter(|name| !name.is_empty());
    let names: Vec<String> = parts.map(str::to_owned).collect();
    if names.len() > HISTORY_RULES_MAX {
        let message = format!("{} rules: at most {HISTORY_RULES_MAX} at once", names.len());
        return Err(ApiError::new(Code::Usage, message));
    }
    Ok(names)
}

/// Passes all parameters to `take`; returns whether there are any.
fn read(parameters: Pairs, mut take: impl FnMut(&str, String) -> Reply<()>) -> Reply<bool> {
    let has_any = !parameters.is_empty();
    for (name, value) in parameters {
        take(&name, value)?;
    }
    Ok(has_any)
}

fn add_label(labels: &mut Vec<Label>, value: String) -> Reply<()> {
    let wrong = |what: String| ApiError::new(Code::Usage, format!("label={value}: {what}"));
    if labels.len() == LABELS_MAX {
        return Err(wrong(format!("at most {LABELS_MAX} labels at once")));
    }
    let label = text("label", value.clone())?;
    labels.push(label.parse().map_err(|error| wrong(format!("{error}")))?);
    Ok(())
}

fn text(name: &str, value: String) -> Reply<String> {
    if value.len() > FILTER_MAX {
        let message = format!("{name}: {} bytes, at most {FILTER_MAX}", value.len());
        return Err(ApiError::new(Code::Usage, message));
    }
    Ok(value)
}

fn number(name: &str, value: &str) -> Reply<u64> {
    let number = value.parse().ok();
    let in_range = number.filter(|number| *number <= RULES_MAX as u64);
    in_range.ok_or_else(|| {
        let message = format!("{name}={value}: a whole number, 0 to {RULES_MAX}");
        ApiError::new(Code::Usage, message)
    })
}

fn one_of<T: Copy, const N: usize>(name: &str, value: &str, choices: [(&str, T); N]) -> Reply<T> {
    let choice = choices.iter().find(|(word, _)| *word == value);
    choice.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let words = choices.map(|(word, _)| word).join(", ");
        ApiError::new(Code::Usage, format!("{name}={value}: one of {words}"))
    })
}
