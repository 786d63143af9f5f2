//! Queries for some of the rules, as a URL writes them. Each is bounded, because replies are cached by
//! query.

use api::query::{FILTER_MAX, LABELS_MAX, Label, Order, RulesQuery, StatsQuery};
use api::reply::Condition;
use api::request::{HISTORY_RULES_MAX, RULES_MAX};

use super::api_error::{Answer, ApiError, Code};

/// Parameters as they were written; labels may come several times.
pub(super) type Pairs = Vec<(String, String)>;

/// Reads what is asked of statistics; `None` where it is all.
pub(super) fn of_stats(parameters: Pairs) -> Answer<Option<StatsQuery>> {
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
            _ => {
                let known = "filter, label, state, order, around, offset, limit, rules";
                return Err(unknown(name, known));
            }
        }
        Ok(())
    })?;
    Ok(has_any.then_some(query))
}

/// Reads which rules are asked for; `None` where it is all.
pub(super) fn of_rules(parameters: Pairs) -> Answer<Option<RulesQuery>> {
    let mut query = RulesQuery::default();
    let has_any = read(parameters, |name, value| {
        match name {
            "label" => add_label(&mut query.labels, value)?,
            "offset" => query.offset = number(name, &value)?,
            "limit" => query.limit = Some(number(name, &value)?),
            _ => return Err(unknown(name, "label, offset, limit")),
        }
        Ok(())
    })?;
    Ok(has_any.then_some(query))
}

/// Names of rules with commas between them, as many as one answer may be about.
pub(super) fn names(text: &str) -> Answer<Vec<String>> {
    let names = text.split(',').filter(|name| !name.is_empty());
    let names: Vec<String> = names.map(str::to_owned).collect();
    if names.len() > HISTORY_RULES_MAX {
        let message = format!("{} rules: at most {HISTORY_RULES_MAX} at once", names.len());
        return Err(ApiError::new(Code::Usage, message));
    }
    Ok(names)
}

/// Takes in all parameters; says whether there is any.
fn read(parameters: Pairs, mut take: impl FnMut(&str, String) -> Answer<()>) -> Answer<bool> {
    let has_any = !parameters.is_empty();
    for (name, value) in parameters {
        take(&name, value)?;
    }
    Ok(has_any)
}

fn add_label(labels: &mut Vec<Label>, value: String) -> Answer<()> {
    let wrong = |what: String| ApiError::new(Code::Usage, format!("label={value}: {what}"));
    if labels.len() == LABELS_MAX {
        return Err(wrong(format!("at most {LABELS_MAX} labels at once")));
    }
    let label = text("label", value.clone())?;
    labels.push(label.parse().map_err(|error| wrong(format!("{error}")))?);
    Ok(())
}

fn text(name: &str, value: String) -> Answer<String> {
    if value.len() > FILTER_MAX {
        let message = format!("{name}: {} bytes, at most {FILTER_MAX}", value.len());
        return Err(ApiError::new(Code::Usage, message));
    }
    Ok(value)
}

fn number(name: &str, value: &str) -> Answer<u64> {
    let number = value.parse().ok();
    let number = number.filter(|number| *number <= RULES_MAX as u64);
    number.ok_or_else(|| {
        let message = format!("{name}={value}: a whole number, 0 to {RULES_MAX}");
        ApiError::new(Code::Usage, message)
    })
}

fn one_of<T: Copy, const N: usize>(name: &str, value: &str, known: [(&str, T); N]) -> Answer<T> {
    let found = known.iter().find(|(word, _)| *word == value);
    found.map(|(_, meant)| *meant).ok_or_else(|| {
        let words = known.map(|(word, _)| word).join(", ");
        ApiError::new(Code::Usage, format!("{name}={value}: one of {words}"))
    })
}

fn unknown(name: &str, known: &str) -> ApiError {
    let message = format!("no parameter {name:?}; there are {known}");
    ApiError::new(Code::Usage, message)
}
