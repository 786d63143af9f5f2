//! Command-line options that are generated from rows: keys of a configuration table, and words.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser, ValueParser};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command};
use rules::setting::{Form, Refusal, Row, Setting, Table, Word};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Every key of a table as an option of the same name: `worker_user` is `--worker-user`, and a list's
/// `listen_names` is `--listen-name`, given once for each item.
#[derive(Clone, Debug)]
pub(crate) struct Keys<T>(pub(crate) T);

impl<T: Table + DeserializeOwned> clap::Args for Keys<T> {
    fn augment_args(command: Command) -> Command {
        command.args(T::ROWS.iter().map(option))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: Table + DeserializeOwned> clap::FromArgMatches for Keys<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let entries = T::ROWS.iter().filter_map(|row| {
            let text = |text: &String| Value::from(text.as_str());
            let value = match row.form {
                Form::Flag => matches.get_one::<bool>(row.key).map(|flag| (*flag).into()),
                Form::List(_) => {
                    let texts = matches.get_many::<String>(row.key);
                    texts.map(|texts| texts.map(text).collect())
                }
                _ => matches.get_one::<String>(row.key).map(text),
            };
            Some((row.key.to_owned(), value?))
        });
        let given: Map<String, Value> = entries.collect();
        let table = serde_json::from_value(given.into());
        let wrong = |error: serde_json::Error| clap::Error::raw(ErrorKind::ValueValidation, error);
        table.map(Self).map_err(wrong)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A parser of the words of a type, which completions and help list.
pub(crate) fn word<T: Setting + Clone + Send + Sync + 'static>() -> impl TypedValueParser<Value = T>
{
    let words = match T::FORM {
        Form::Words(words) => words,
        _ => &[],
    };
    let parser = PossibleValuesParser::new(words.iter().map(possible));
    parser.map(|text| {
        let word = T::parse(&text, &T::FORM);
        word.expect("the parser lets nothing else through")
    })
}

/// Words, each with what it stands for and what it means.
pub(crate) type Choice<T> = &'static [(&'static str, T, &'static str)];

/// A parser of those words, which completions and help list.
pub(crate) fn choice<T: Copy + Send + Sync>(words: Choice<T>) -> impl TypedValueParser<Value = T> {
    let possible =
        |(word, _, help): &(&'static str, T, &'static str)| PossibleValue::new(*word).help(*help);
    PossibleValuesParser::new(words.iter().map(possible)).map(move |text| {
        let chosen = words.iter().find(|(word, ..)| *word == text);
        chosen.expect("the parser lets nothing else through").1
    })
}

fn option(row: &'static Row) -> Arg {
    let name = row.key.replace('_', "-");
    let text = row.help().replace('`', "");
    let help = match row.unsaid() {
        "" => text,
        default => format!("{} [default: {default}]", text.trim_end_matches('.')),
    };
    let option = Arg::new(row.key).help(help).value_name(row.form.name());
    let check = move |text: &str| {
        if row.form.accepts(text) {
            Ok(text.to_owned())
        } else {
            Err(row.why(Refusal::Form))
        }
    };
    match row.form {
        Form::Flag => option
            .long(name)
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_parser(clap::value_parser!(bool)),
        Form::List(_) => option
            .long(name.trim_end_matches('s').to_owned())
            .action(ArgAction::Append)
            .value_parser(ValueParser::new(check)),
        Form::Words(words) => option
            .long(name)
            .value_parser(PossibleValuesParser::new(words.iter().map(possible))),
        _ => option.long(name).value_parser(ValueParser::new(check)),
    }
}

fn possible(word: &Word) -> PossibleValue {
    PossibleValue::new(word.word).help(word.help())
}
