//! Options: the keys of one value, each at most once, in a table or as the command line writes them,
//! `KEY=VALUE,KEY=VALUE`. Keys that are omitted have defaults.

use thiserror::Error;

use super::{Refusal, Row};
use crate::near;

/// What options of one kind have in common.
#[derive(Debug)]
pub struct Group {
    /// What they are options of; empty where that is clear anyway.
    pub name: &'static str,
    /// The name of its table in the API's document.
    pub document: &'static str,
    /// The table's meaning, in lines.
    pub about: &'static [&'static str],
    /// An option, as one is written.
    pub example: &'static str,
    /// The key whose value a text alone is; empty if there is none.
    pub alone: &'static str,
    /// What is expected, for the error about a value of another type.
    pub expecting: &'static str,
    /// The key of a table that names what they are options of, if there is one.
    pub subject: &'static [Row],
    /// The keys, in the order that they are written in.
    pub rows: &'static [Row],
}

impl Group {
    /// What its keys are called: those of an output, which has only one kind of them, are options.
    const fn kind(&self) -> &'static str {
        if self.name.is_empty() {
            "option"
        } else {
            "key"
        }
    }

    /// An option as it is written, as a regular expression.
    pub fn pattern(&self) -> String {
        let option = |row: &Row| format!("{}=({})", row.key, row.form.pattern());
        let options: Vec<String> = self.rows.iter().map(option).collect();
        options.join("|")
    }
}

/// The keys of a table within options, each with the option that it stands for.
pub type Inner = &'static [(&'static str, &'static str)];

/// A value that is parsed from options.
pub trait Options: Clone + Default + PartialEq {
    /// What they have in common.
    const GROUP: &'static Group;

    /// What can be wrong with them.
    type Problem: From<OptionProblem>;

    /// Sets the key of a row from its text.
    ///
    /// # Errors
    ///
    /// A text that is not a value.
    fn set(&mut self, row: &Row, text: &str) -> Result<(), Refusal>;

    /// The keys that are not the default, in their order.
    fn texts(&self) -> Vec<(&'static str, String)>;

    /// Checks the keys together.
    ///
    /// # Errors
    ///
    /// The first problem.
    fn check(self) -> Result<Self, Self::Problem> {
        Ok(self)
    }

    /// The key whose value a text without a key is.
    fn alone(_text: &str) -> Option<&'static str> {
        None
    }

    /// The keys of a table that may replace a key's value, each with the option that it stands for.
    fn nested(_row: &Row) -> Option<Inner> {
        None
    }
}

/// What is wrong with an option.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct OptionProblem {
    /// The key, or a part of the text that has none.
    pub key: String,
    message: String,
}

impl OptionProblem {
    /// The problem that a key cannot have that value.
    pub fn value(group: &Group, key: &str, text: &str, why: &str) -> Self {
        Self::new(group, key, format!("{key}={text}: {why}"))
    }

    fn form(group: &Group, part: &str) -> Self {
        let what = match group.name {
            "" => "an option; options are written KEY=VALUE",
            _ => "KEY=VALUE",
        };
        Self::new(
            group,
            part,
            format!("{part:?} is not {what}, as in {}", group.example),
        )
    }

    fn unknown(group: &Group, key: &str) -> Self {
        let keys: Vec<&str> = group.rows.iter().map(|row| row.key).collect();
        let hint = near::hint(key, keys.iter().copied());
        let (kind, keys) = (group.kind(), keys.join(", "));
        Self::new(
            group,
            key,
            format!("there is no {kind} {key:?}; there are {keys}{hint}"),
        )
    }

    fn twice(group: &Group, key: &str) -> Self {
        let option = if group.name.is_empty() { "option " } else { "" };
        Self::new(
            group,
            key,
            format!("{option}{key} is given twice; leave one out"),
        )
    }

    fn new(group: &Group, key: &str, what: String) -> Self {
        let key = key.to_owned();
        let message = match group.name {
            "" => what,
            name => format!("{name}: {what}"),
        };
        Self { key, message }
    }
}

/// Parses keys and values.
///
/// # Errors
///
/// Names the first key that cannot be parsed and what to write.
pub fn parse<'a, T: Options>(
    pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<T, T::Problem> {
    let group = T::GROUP;
    let mut value = T::default();
    let mut seen: Vec<&str> = Vec::new();
    for (key, text) in pairs {
        let Some(row) = group.rows.iter().find(|row| row.key == key) else {
            return Err(OptionProblem::unknown(group, key).into());
        };
        if seen.contains(&key) {
            return Err(OptionProblem::twice(group, key).into());
        }
        seen.push(key);
        let set = value.set(row, text);
        set.map_err(|refusal| OptionProblem::value(group, key, text, &row.why(refusal)))?;
    }
    value.check()
}

/// Divides `silence=2s,content=rtp` into keys and values.
///
/// # Errors
///
/// Names the part that is not `KEY=VALUE`.
pub fn split<T: Options>(text: &str) -> Result<Vec<(&str, &str)>, OptionProblem> {
    if let Some(key) = T::alone(text) {
        return Ok(vec![(key, text)]);
    }
    let pair = |part| match str::split_once(part, '=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key, value)),
        _ => Err(OptionProblem::form(T::GROUP, part)),
    };
    text.split(',').map(pair).collect()
}

/// Declares how a value is parsed from options: each with its key, its type, its field, and what its row
/// has besides its form.
#[macro_export]
macro_rules! options {
    (
        $(#[doc = $about:literal])+
        $name:ident, $problem:ty, {
            $($option:ident: $value:expr,)+
        }
        $($(#[doc = $help:literal])+ $need:ident $key:ident: $type:ty = $first:ident $(. $field:ident)*
            $(, $column:ident: $what:expr)*;)+
        $(impl { $($item:item)+ })?
    ) => {
        impl $crate::setting::Options for $name {
            const GROUP: &'static $crate::setting::Group = &$crate::setting::Group {
                $($option: $value,)+
                about: &[$($about),+],
                rows: &[$($crate::setting::Row {
                    is_required: $crate::setting::settings!(@is_required $need),
                    $($column: $what,)*
                    ..$crate::setting::Row::new(
                        stringify!($key),
                        &[$($help),+],
                        <$type as $crate::setting::Setting>::FORM,
                    )
                }),+],
            };

            type Problem = $problem;

            fn set(
                &mut self,
                row: &$crate::setting::Row,
                text: &str,
            ) -> Result<(), $crate::setting::Refusal> {
                match row.key {
                    $(stringify!($key) => self.$first $(.$field)* = row.parse::<$type>(text)?,)+
                    _ => {}
                }
                Ok(())
            }

            fn texts(&self) -> Vec<(&'static str, String)> {
                let default = Self::default();
                let mut rows = Self::GROUP.rows.iter();
                let mut texts = Vec::new();
                $(if let Some(row) = rows.next()
                    && self.$first $(.$field)* != default.$first $(.$field)*
                {
                    let text = $crate::setting::Setting::text(&self.$first $(.$field)*, &row.form);
                    texts.push((row.key, text));
                })+
                texts
            }

            $($($item)+)?
        }
    };
}
pub use options;
