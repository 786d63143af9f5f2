//! Options: the keys of one value, each at most once, as a table has them or as the command line
//! writes them, `KEY=VALUE,KEY=VALUE`. What is not said has a default.

use thiserror::Error;

use super::{Refusal, Row};
use crate::near;

/// What options of one kind have in common.
#[derive(Debug)]
pub struct Group {
    /// What they are options of; empty where that is said anyhow.
    pub name: &'static str,
    /// What it is as a table, in the API's document.
    pub document: &'static str,
    /// What the table means, in lines.
    pub about: &'static [&'static str],
    /// An option, as one is written.
    pub example: &'static str,
    /// The key that a text alone is the value of; empty where there is none.
    pub alone: &'static str,
    /// What is expected in the place of something else.
    pub expecting: &'static str,
    /// The key of a table that says what they are options of, if there is one.
    pub subject: &'static [Row],
    /// The keys, in the order that they are written in.
    pub rows: &'static [Row],
}

impl Group {
    /// What its keys are called; those of an output are options, of which it has no more than one kind.
    const fn kind(&self) -> &'static str {
        if self.name.is_empty() {
            "option"
        } else {
            "key"
        }
    }

    /// An option as it is written, as a regular expression.
    pub fn pattern(&self) -> String {
        let options = self.rows.iter();
        let options = options.map(|row| format!("{}=({})", row.key, row.form.pattern()));
        options.collect::<Vec<String>>().join("|")
    }
}

/// The keys of a table within options, and what each is there.
pub type Inner = &'static [(&'static str, &'static str)];

/// A value that is read of options.
pub trait Options: Clone + Default + PartialEq {
    /// What they have in common.
    const GROUP: &'static Group;

    /// What can be wrong with them.
    type Problem: From<OptionProblem>;

    /// Takes the text of a row's key.
    ///
    /// # Errors
    ///
    /// A text that is no value.
    fn set(&mut self, row: &Row, text: &str) -> Result<(), Refusal>;

    /// The keys that are not the default, in their order.
    fn texts(&self) -> Vec<(&'static str, String)>;

    /// What is wrong with all of it together.
    ///
    /// # Errors
    ///
    /// The first of it.
    fn check(self) -> Result<Self, Self::Problem> {
        Ok(self)
    }

    /// The key that a text alone, without one, is the value of.
    fn alone(_text: &str) -> Option<&'static str> {
        None
    }

    /// The keys of a table in the place of a key's value, each with the option that it is.
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
    /// Says that options cannot be so with that value of a key.
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

/// Reads keys and values.
///
/// # Errors
///
/// Names the first key that cannot be read and what to write.
pub fn parse<'a, T: Options>(
    pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<T, T::Problem> {
    let group = T::GROUP;
    let mut value = T::default();
    let mut seen: Vec<&str> = Vec::new();
    for (key, text) in pairs {
        let row = group.rows.iter().find(|row| row.key == key);
        let row = row.ok_or_else(|| OptionProblem::unknown(group, key))?;
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

/// Declares how a value is read of options: each with its key, its type, the field that it is, and what
/// its row says besides its form.
#[macro_export]
macro_rules! options {
    (
        $(#[doc = $about:literal])+
        $name:ident, $problem:ty, {
            $($option:ident: $value:expr,)+
        }
        $($(#[doc = $help:literal])+ $need:ident $key:ident: $type:ty = $first:ident $(. $field:ident)*
            $(, $say:ident: $what:expr)*;)+
        $(impl { $($item:item)+ })?
    ) => {
        impl $crate::setting::Options for $name {
            const GROUP: &'static $crate::setting::Group = &$crate::setting::Group {
                $($option: $value,)+
                about: &[$($about),+],
                rows: &[$($crate::setting::Row {
                    is_required: $crate::setting::settings!(@is_required $need),
                    $($say: $what,)*
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
