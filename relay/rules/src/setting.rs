//! Settings as rows: a key is declared once, with its type, its bounds, its default and its help. Reading
//! and writing TOML and JSON, differences, errors, options of the command line, the manual page, the
//! schema for editors and the table in the documents are all derived from the rows; none of these
//! contains a key of its own.

mod field;
mod form;
mod options;
mod pattern;
mod read;
mod scalar;
mod schema;
mod table;
mod value;
mod words;
mod written;

use std::borrow::Cow;

use utoipa::openapi::schema::Schema;

pub use field::FieldDocument;
pub use form::{ANY, Form, TextForm, Word};
pub use options::{Group, Inner, OptionProblem, Options, options, parse, split};
pub use read::{Key, Keyed};
pub use scalar::Scalar;
pub use schema::{schema, text_or_table};
pub use table::{Difference, Table, differences, settings};
pub use value::{Refusal, Schemas, Setting, nested};
pub use words::words;
pub use written::Written;

/// One key of a table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The key.
    pub key: &'static str,
    /// Its meaning, in lines; literals stand between backticks.
    pub help: &'static [&'static str],
    /// The values that it may have.
    pub form: Form,
    /// The value if none is given; empty if there is none.
    pub default: &'static str,
    /// The default in a few words, if it is no value.
    pub otherwise: &'static str,
    /// Whether it must be given.
    pub is_required: bool,
    /// Whether problems with it are reported later, together with all problems of its rule.
    pub is_late: bool,
    /// What to write instead of a value that cannot be parsed, where the form's own remedy is not clear
    /// enough: `give 1 or more`.
    pub remedy: &'static str,
}

/// Rows of one table are identified by their keys.
impl PartialEq for Row {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Row {}

impl Row {
    /// A key with nothing beyond its form.
    pub const fn new(key: &'static str, help: &'static [&'static str], form: Form) -> Self {
        Self {
            key,
            help,
            form,
            default: "",
            otherwise: "",
            is_required: false,
            is_late: false,
            remedy: "",
        }
    }

    /// Its meaning, without choices and default.
    pub fn help(&self) -> String {
        joined(self.help)
    }

    /// The default, as a value or in words.
    pub const fn unsaid(&self) -> &'static str {
        if self.default.is_empty() {
            self.otherwise
        } else {
            self.default
        }
    }

    /// Its meaning, choices and default.
    pub fn description(&self) -> String {
        let choices = self.form.choices();
        let default = match (self.default, self.otherwise) {
            ("", "") => String::new(),
            ("", words) => format!("default: {words}"),
            (value, _) => format!("default: `{value}`"),
        };
        let facts: Vec<String> = [choices, default]
            .into_iter()
            .filter(|fact| !fact.is_empty())
            .collect();
        match facts.as_slice() {
            [] => self.help(),
            facts => format!("{} ({})", self.help(), facts.join("; ")),
        }
    }

    /// Parses a value.
    ///
    /// # Errors
    ///
    /// A text that is not a value.
    pub fn parse<T: Setting>(&self, text: &str) -> Result<T, Refusal> {
        if self.is_late || self.form.accepts(text) {
            T::parse(text, &self.form)
        } else {
            Err(Refusal::Form)
        }
    }

    /// Why a value is refused and what to write.
    pub fn why(&self, refusal: Refusal) -> Cow<'static, str> {
        match (refusal, self.remedy) {
            (Refusal::Because(why), _) => why.into(),
            (Refusal::Form, "") => format!("give {}", self.form.remedy()).into(),
            (Refusal::Form, remedy) => remedy.into(),
        }
    }

    /// The message that a value is refused, in TOML's notation.
    pub fn refused(&self, text: &str, refusal: Refusal) -> String {
        let (key, why) = (self.key, self.why(refusal));
        if self.form.is_quoted() {
            format!("{key} = {text:?}: {why}")
        } else {
            format!("{key} = {text}: {why}")
        }
    }

    /// Its schema; a key that may be omitted may also be null.
    pub fn schema(&self) -> Schema {
        let default = Some(self.default).filter(|default| !default.is_empty());
        self.form
            .schema(&self.description(), default, !self.is_required)
    }
}

/// Joins the lines of a comment.
fn joined(lines: &[&str]) -> String {
    let lines: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
    lines.join(" ")
}
