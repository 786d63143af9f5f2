//! What values a key may have: asked of texts, said to people, and written as a schema.

use std::time::Duration;

use utoipa::openapi::schema::{
    AdditionalProperties, ArrayBuilder, Object, ObjectBuilder, OneOfBuilder, Schema, SchemaType,
    Type,
};
use utoipa::openapi::{Ref, RefOr};

use super::{joined, pattern};
use crate::duration;

/// What a key may be.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// `true` or `false`.
    Flag,
    /// A whole number, or one of these words.
    Number {
        /// The least.
        least: u64,
        /// The most.
        most: u64,
        /// What may stand in its place.
        or: &'static [&'static str],
    },
    /// A time, or one of these words.
    Time {
        /// The shortest.
        least: Duration,
        /// The longest.
        most: Duration,
        /// What may stand in its place.
        or: &'static [&'static str],
    },
    /// One of a few words.
    Words(&'static [Word]),
    /// Another text.
    Text(&'static TextForm),
    /// A list of texts.
    List(&'static TextForm),
    /// Keys that are names, each with a text.
    Map(&'static TextForm),
    /// A table of that name, which has rows of its own.
    Table(&'static str),
}

/// A word and what it means.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// The word.
    pub word: &'static str,
    /// Others that say the same.
    pub same: &'static [&'static str],
    /// What it means, in lines.
    pub help: &'static [&'static str],
}

impl Word {
    /// What it means.
    #[must_use]
    pub fn help(&self) -> String {
        joined(self.help).trim_end_matches('.').to_owned()
    }
}

/// A kind of text.
#[derive(Clone, Copy, Debug)]
pub struct TextForm {
    /// What stands for it where the command line and documents show a form: `ADDRESS:PORT`.
    pub name: &'static str,
    /// Says whether a text is one.
    pub fits: fn(&str) -> bool,
    /// The same as a regular expression, as far as one can say it.
    pub pattern: &'static str,
    /// What to write instead of what is none.
    pub give: &'static str,
    /// Whether what is refused is shown in quotes.
    pub is_quoted: bool,
}

/// Any text.
pub(super) const ANY: TextForm = TextForm {
    name: "TEXT",
    fits: |_| true,
    pattern: "",
    give: "a text",
    is_quoted: true,
};

impl Form {
    /// A number between these bounds.
    #[must_use]
    pub const fn number(least: u64, most: u64) -> Self {
        Self::Number {
            least,
            most,
            or: &[],
        }
    }

    /// A time between these bounds.
    #[must_use]
    pub const fn time(least: Duration, most: Duration) -> Self {
        Self::Time {
            least,
            most,
            or: &[],
        }
    }

    /// Says whether a value may be written so.
    #[must_use]
    pub fn accepts(&self, text: &str) -> bool {
        match self {
            Self::Flag => matches!(text, "true" | "false"),
            Self::Number { least, most, or } => {
                let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                let number: Option<u64> = is_number.then(|| text.parse().ok()).flatten();
                number.is_some_and(|number| (*least..=*most).contains(&number))
                    || or.contains(&text)
            }
            Self::Time { least, most, or } => {
                let time = duration::parse(text);
                time.is_some_and(|time| (*least..=*most).contains(&time)) || or.contains(&text)
            }
            Self::Words(words) => words
                .iter()
                .any(|word| word.word == text || word.same.contains(&text)),
            Self::Text(form) | Self::List(form) => (form.fits)(text),
            Self::Map(_) | Self::Table(_) => false,
        }
    }

    /// Whether what is refused is shown in quotes: texts are, numbers and addresses are not.
    pub(super) const fn is_quoted(&self) -> bool {
        match self {
            Self::Words(_) | Self::Time { .. } => true,
            Self::Text(form) => form.is_quoted,
            _ => false,
        }
    }

    /// What stands for a value where a form is shown.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Flag => "BOOL",
            Self::Number { .. } => "N",
            Self::Time { .. } => "TIME",
            Self::Words(_) => "WORD",
            Self::Text(form) | Self::List(form) | Self::Map(form) => form.name,
            Self::Table(_) => "TABLE",
        }
    }

    /// What there is to choose from, for people; nothing of a text, which its help explains.
    #[must_use]
    pub fn choices(&self) -> String {
        let or = |bounds: String, or: &[&str]| {
            let words = or.iter().map(|word| format!("`{word}`"));
            listed([bounds].into_iter().chain(words).collect())
        };
        match self {
            Self::Number { least, most, .. } if *most >= u32::MAX.into() => {
                format!("{least} or more")
            }
            Self::Number {
                least,
                most,
                or: words,
            } => or(format!("{least} to {most}"), words),
            Self::Time {
                least,
                most,
                or: words,
            } => {
                let [least, most] = [least, most].map(|time| duration::text(*time));
                or(format!("`{least}` to `{most}`"), words)
            }
            Self::Words(words) => listed(
                words
                    .iter()
                    .map(|word| format!("`{}`", word.word))
                    .collect(),
            ),
            _ => String::new(),
        }
    }

    /// What to write, in the words of an error.
    pub(super) fn remedy(&self) -> String {
        let choices = self.choices().replace('`', "\"");
        match self {
            Self::Time { .. } => format!("a time from {choices}"),
            Self::Text(form) => form.give.to_owned(),
            _ => choices,
        }
    }

    /// Its schema, with what it means; `is_optional`: null says the same as nothing.
    pub(crate) fn schema(
        &self,
        description: &str,
        default: Option<&str>,
        is_optional: bool,
    ) -> Schema {
        let null = is_optional.then_some(Type::Null);
        let typed = |types: &[Type]| {
            let types: Vec<Type> = types.iter().cloned().chain(null.clone()).collect();
            let object = ObjectBuilder::new().description(Some(description));
            object.schema_type(match types.as_slice() {
                [only] => SchemaType::Type(only.clone()),
                _ => SchemaType::Array(types),
            })
        };
        let object = match self {
            Self::Flag => {
                typed(&[Type::Boolean]).default(default.map(|flag| (flag == "true").into()))
            }
            Self::Number { least, most, or } => typed(&[Type::Integer, Type::String])
                .minimum(Some(*least as f64))
                .maximum(Some(*most as f64))
                .pattern(Some(pattern::number(*least, *most, or)))
                .default(default.map(|number| match number.parse::<u64>() {
                    Ok(number) => number.into(),
                    Err(_) => number.into(),
                })),
            Self::Time { least, most, or } => typed(&[Type::String])
                .pattern(Some(pattern::time(*least, *most, or)))
                .default(default.map(Into::into)),
            Self::Words(words) => {
                let words = words
                    .iter()
                    .flat_map(|word| [word.word].into_iter().chain(word.same.iter().copied()));
                let mut values: Vec<serde_json::Value> = words.clone().map(Into::into).collect();
                // What reads `true` for yes and `false` for no takes these, too.
                let flags = [("yes", true), ("no", false)];
                let flags = flags
                    .into_iter()
                    .filter(|(word, _)| words.clone().any(|known| known == *word));
                let flags: Vec<serde_json::Value> = flags.map(|(_, flag)| flag.into()).collect();
                let types: &[Type] = match flags.is_empty() {
                    true => &[Type::String],
                    false => &[Type::String, Type::Boolean],
                };
                values.extend(flags);
                values.extend(is_optional.then_some(serde_json::Value::Null));
                typed(types)
                    .enum_values(Some(values))
                    .default(default.map(Into::into))
            }
            Self::Text(form) => typed(&[Type::String]).pattern(written(form)),
            Self::List(form) => {
                let array = ArrayBuilder::new()
                    .items(of(form))
                    .description(Some(description));
                return Schema::Array(match null {
                    None => array.build(),
                    Some(null) => array
                        .schema_type(SchemaType::Array(vec![Type::Array, null]))
                        .build(),
                });
            }
            Self::Map(form) => typed(&[Type::Object]).additional_properties(Some(
                AdditionalProperties::RefOr(RefOr::T(of(form).into())),
            )),
            Self::Table(name) => {
                let mut table = Ref::from_schema_name(*name);
                table.description = description.to_owned();
                let one = OneOfBuilder::new();
                let one = match null {
                    None => one,
                    Some(null) => {
                        one.item(ObjectBuilder::new().schema_type(SchemaType::Type(null)))
                    }
                };
                return Schema::OneOf(one.item(table).build());
            }
        };
        Schema::Object(object.build())
    }
}

fn of(form: &TextForm) -> Object {
    ObjectBuilder::new()
        .schema_type(SchemaType::Type(Type::String))
        .pattern(written(form))
        .build()
}

fn written(form: &TextForm) -> Option<&'static str> {
    Some(form.pattern).filter(|pattern| !pattern.is_empty())
}

/// `a`, `b` or `c`.
fn listed(words: Vec<String>) -> String {
    match words.as_slice() {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        words => words.concat(),
    }
}
