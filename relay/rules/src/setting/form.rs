//! The values that a key may have: checks texts, describes itself to people, and writes a schema.

use std::time::Duration;

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
        /// Words that may replace it.
        or: &'static [&'static str],
    },
    /// A time, or one of these words.
    Time {
        /// The shortest.
        least: Duration,
        /// The longest.
        most: Duration,
        /// Words that may replace it.
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
    /// Some bytes of the payload: a text, or a table of offset and bytes.
    Bytes(&'static TextForm),
    /// A value that has a schema of that name.
    Table(&'static str),
    /// A list of values that have a schema of that name.
    Tables(&'static str),
}

/// A word and what it means.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// The word.
    pub word: &'static str,
    /// Synonyms.
    pub same: &'static [&'static str],
    /// Its meaning, in lines.
    pub help: &'static [&'static str],
}

/// A kind of text.
#[derive(Clone, Copy, Debug)]
pub struct TextForm {
    /// Its placeholder in the command line's help and the documents: `ADDRESS:PORT`.
    pub name: &'static str,
    /// Returns whether a text is one.
    pub fits: fn(&str) -> bool,
    /// The same as a regular expression of the whole text, as far as one can express it.
    pub pattern: &'static str,
    /// What to write instead of a text that is not one.
    pub remedy: &'static str,
    /// Whether a refused text is shown in quotes.
    pub is_quoted: bool,
    /// The numbers that may stand for a text, if any.
    pub numbers: Option<(u64, u64)>,
}

/// Any text.
pub const ANY: TextForm = TextForm {
    name: "TEXT",
    fits: |_| true,
    pattern: ".*",
    remedy: "a text",
    is_quoted: true,
    numbers: None,
};

impl Word {
    /// A word that needs no explanation.
    pub const fn plain(word: &'static str) -> Self {
        Self {
            word,
            same: &[],
            help: &[],
        }
    }

    /// Its meaning.
    pub fn help(&self) -> String {
        joined(self.help).trim_end_matches('.').to_owned()
    }

    /// The word and its synonyms.
    pub fn all(&self) -> impl Iterator<Item = &'static str> {
        [self.word].into_iter().chain(self.same.iter().copied())
    }
}

impl Form {
    /// A number between these bounds.
    pub const fn number(least: u64, most: u64) -> Self {
        let or = &[];
        Self::Number { least, most, or }
    }

    /// A time between these bounds.
    pub const fn time(least: Duration, most: Duration) -> Self {
        let or = &[];
        Self::Time { least, most, or }
    }

    /// Returns whether a text is such a value.
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
            Self::Words(words) => words.iter().flat_map(Word::all).any(|word| word == text),
            Self::Text(form) | Self::List(form) | Self::Bytes(form) => (form.fits)(text),
            Self::Map(_) | Self::Table(_) | Self::Tables(_) => false,
        }
    }

    /// The words that may replace a value.
    pub const fn or(&self) -> &'static [&'static str] {
        match self {
            Self::Number { or, .. } | Self::Time { or, .. } => or,
            _ => &[],
        }
    }

    /// Whether a refused value is shown in quotes: texts are, numbers and addresses are not.
    pub const fn is_quoted(&self) -> bool {
        match self {
            Self::Words(_) | Self::Time { .. } => true,
            Self::Text(form) => form.is_quoted,
            _ => false,
        }
    }

    /// The placeholder for a value.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Flag => "BOOL",
            Self::Number { .. } => "N",
            Self::Time { .. } => "TIME",
            Self::Words(_) => "WORD",
            Self::Text(form) | Self::List(form) | Self::Map(form) | Self::Bytes(form) => form.name,
            Self::Table(_) | Self::Tables(_) => "TABLE",
        }
    }

    /// The choices, for people; empty for a text, which its help explains.
    pub fn choices(&self) -> String {
        let bounds = match self {
            Self::Number { least, most, .. } if *most >= u32::MAX.into() => {
                format!("{least} or more")
            }
            Self::Number { least, most, .. } if least < most => format!("{least} to {most}"),
            Self::Time { least, most, .. } => {
                let [least, most] = [least, most].map(|time| duration::text(*time));
                format!("`{least}` to `{most}`")
            }
            Self::Words(words) => {
                return listed(
                    words
                        .iter()
                        .map(|word| format!("`{}`", word.word))
                        .collect(),
                );
            }
            _ => return String::new(),
        };
        let words = self.or().iter().map(|word| format!("`{word}`"));
        listed([bounds].into_iter().chain(words).collect())
    }

    /// What to write, for an error message.
    pub fn remedy(&self) -> String {
        let choices = self.choices().replace('`', "\"");
        match self {
            Self::Time { .. } => format!("a time from {choices}"),
            Self::Text(form) | Self::Bytes(form) => form.remedy.to_owned(),
            _ => choices,
        }
    }

    /// The texts that it accepts, as a regular expression, as far as one can express them.
    pub fn pattern(&self) -> String {
        match self {
            Self::Number { least, most, or } => pattern::number(*least, *most, or),
            Self::Time { least, most, or } => pattern::time(*least, *most, or),
            Self::Words(words) => {
                let words: Vec<&str> = words.iter().flat_map(Word::all).collect();
                words.join("|")
            }
            Self::Text(form) | Self::List(form) | Self::Map(form) | Self::Bytes(form) => {
                form.pattern.to_owned()
            }
            Self::Flag | Self::Table(_) | Self::Tables(_) => ANY.pattern.to_owned(),
        }
    }
}

/// `a`, `b` or `c`.
fn listed(words: Vec<String>) -> String {
    match words.as_slice() {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        words => words.concat(),
    }
}
