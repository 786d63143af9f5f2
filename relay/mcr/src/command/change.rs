//! `mcr change`: changes inputs, outputs and options of a rule; what stays loses no packet.

pub(crate) mod key;

use rules::document::{OutputDocument, RuleDocument};
use rules::endpoint::{Endpoint, REJOIN};
use rules::near;
use rules::rule::OutputSpec;

use crate::completion;
use crate::failure::{Failure, Status, usage};
use crate::global::Global;
use crate::render;
use crate::terms::Terms;
use key::Setting;

/// Change a running rule: its inputs, outputs and options.
///
/// What is not named stays as it is and loses no packet. An output that takes the place of one that
/// is removed by the same command stands where that one stood. Exits with status 3 if there is no
/// such rule, input or output, or if what is added is there already.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:
  mcr change cam1 --add-output 239.10.1.3%eth2:6001,ttl=16
  mcr change cam1 --remove-output 10.9.9.9:7000 --add-output 10.9.9.8:7000
  mcr change cam1 --set limit=20Mbit --set path=userspace
  mcr change cam1 --set limit=                        back to the default",
    group = clap::ArgGroup::new("what").required(true).multiple(true)
)]
pub(crate) struct Args {
    /// Name of the rule
    #[arg(add = completion::rule())]
    name: String,
    /// One more input
    #[arg(long, value_name = "INPUT", group = "what", value_parser = Endpoint::input,
        add = completion::endpoint())]
    add_input: Vec<Endpoint>,
    /// An input to take out
    #[arg(long, value_name = "INPUT", group = "what", value_parser = Endpoint::input,
        add = completion::part_of(completion::inputs))]
    remove_input: Vec<Endpoint>,
    /// One more output, with its options
    #[arg(long, value_name = "OUTPUT", group = "what", add = completion::endpoint())]
    add_output: Vec<OutputSpec>,
    /// An output to take out; its options may be left out
    #[arg(long, value_name = "OUTPUT", group = "what",
        add = completion::part_of(completion::outputs))]
    remove_output: Vec<OutputSpec>,
    /// A key of the rule as in the configuration, path=userspace or health.silence=2s; without a
    /// value its default
    #[arg(long, value_name = "KEY=VALUE", group = "what", add = completion::setting())]
    set: Vec<Setting>,
    #[command(flatten)]
    terms: Terms,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let (control, saving) = args.terms.open(global)?;
    let names = std::slice::from_ref(&args.name);
    let change = control.edit(names, |rule| apply(rule, args))?;
    super::print_change("change", &change, global)?;
    args.terms.finish_rules((control, saving), &change, names)
}

fn apply(rule: &mut RuleDocument, args: &Args) -> Result<(), Failure> {
    if rule.reflects() {
        refuse_ends(rule, args)?;
    } else {
        inputs(rule, args)?;
        outputs(rule, args)?;
    }
    for setting in &args.set {
        setting.apply(rule)?;
    }
    super::add::check(rule)
}

/// Refuses inputs and outputs for a rule that reflects: it has interfaces and a group instead.
fn refuse_ends(rule: &RuleDocument, args: &Args) -> Result<(), Failure> {
    let has_inputs = !args.add_input.is_empty() || !args.remove_input.is_empty();
    let has_outputs = !args.add_output.is_empty() || !args.remove_output.is_empty();
    if !has_inputs && !has_outputs {
        return Ok(());
    }
    let message = format!(
        "rule {:?}: reflects, so its interfaces are its inputs and its outputs; \
         --set interfaces={}",
        rule.name,
        rule.interfaces.join(",")
    );
    Err(usage(message))
}

fn inputs(rule: &mut RuleDocument, args: &Args) -> Result<(), Failure> {
    let mut inputs = render::rule::inputs(rule);
    let texts = |endpoints: &[Endpoint]| endpoints.iter().map(Endpoint::written).collect();
    let (remove, add): (Vec<String>, Vec<String>) =
        (texts(&args.remove_input), texts(&args.add_input));
    exchange(&mut inputs, &remove, add, |present, requested| {
        // Options do not count.
        present.split(REJOIN).next() == requested.split(REJOIN).next()
    })
    .map_err(|error| error.into_failure(&rule.name, "input"))?;
    (rule.input, rule.inputs) = (None, inputs);
    Ok(())
}

fn outputs(rule: &mut RuleDocument, args: &Args) -> Result<(), Failure> {
    let mut outputs = Vec::new();
    for output in &rule.outputs {
        let output = output.to_output();
        outputs.push(output.map_err(|error| usage(error.problem))?);
    }
    let is_match = |present: &OutputSpec, requested: &OutputSpec| {
        let is_bare = *requested == OutputSpec::new(requested.to.clone());
        present == requested || is_bare && present.to == requested.to
    };
    exchange(
        &mut outputs,
        &args.remove_output,
        args.add_output.clone(),
        is_match,
    )
    .map_err(|error| error.into_failure(&rule.name, "output"))?;
    let texts = outputs.iter().map(ToString::to_string);
    rule.outputs = texts.map(OutputDocument::Text).collect();
    Ok(())
}

/// Why an input or an output cannot be exchanged.
#[derive(Debug, PartialEq, Eq)]
enum ExchangeError {
    Missing { text: String, present: Vec<String> },
    Ambiguous { text: String, matches: Vec<String> },
    Duplicate { text: String },
}

impl ExchangeError {
    fn into_failure(self, rule: &str, kind: &str) -> Failure {
        let message = match self {
            Self::Missing { text, present } => {
                let hint = near::hint(&text, present.iter().map(String::as_str));
                format!("no {kind} {text} (have: {}{hint})", present.join(", "))
            }
            Self::Ambiguous { text, matches } => {
                let matches = matches.join(" and ");
                format!("{kind} {text} may be {matches}; give its options, too")
            }
            Self::Duplicate { text } => format!("{kind} {text}: is there already"),
        };
        Failure::new(Status::Rule, format!("rule {rule:?}: {message}"))
    }
}

/// Removes what each of `remove` matches, and puts `add` into the positions that become free, the
/// rest at the end.
fn exchange<T: PartialEq + ToString>(
    list: &mut Vec<T>,
    remove: &[T],
    add: Vec<T>,
    is_match: impl Fn(&T, &T) -> bool,
) -> Result<(), ExchangeError> {
    let mut freed = Vec::new();
    for requested in remove {
        let is_requested = |(_, present): &(usize, &T)| is_match(present, requested);
        let matches: Vec<(usize, &T)> = list.iter().enumerate().filter(is_requested).collect();
        let exact = matches.iter().find(|(_, present)| *present == requested);
        match (exact, matches.as_slice()) {
            (Some((index, _)), _) | (None, [(index, _)]) => freed.push(*index),
            (None, []) => {
                return Err(ExchangeError::Missing {
                    text: requested.to_string(),
                    present: list.iter().map(ToString::to_string).collect(),
                });
            }
            (None, several) => {
                return Err(ExchangeError::Ambiguous {
                    text: requested.to_string(),
                    matches: several.iter().map(|(_, one)| one.to_string()).collect(),
                });
            }
        }
    }
    let mut slots: Vec<Option<T>> = list.drain(..).map(Some).collect();
    for index in &freed {
        slots[*index] = None;
    }
    let mut free_slots = freed.into_iter();
    for one in add {
        if slots.iter().flatten().any(|present| *present == one) {
            let text = one.to_string();
            return Err(ExchangeError::Duplicate { text });
        }
        match free_slots.next() {
            Some(index) => slots[index] = Some(one),
            None => slots.push(Some(one)),
        }
    }
    list.extend(slots.into_iter().flatten());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outputs(texts: &[&str]) -> Vec<OutputSpec> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn added_entries_take_the_positions_of_removed_ones() {
        let mut list = ["a", "b", "c"].map(str::to_owned).to_vec();
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        let same = |a: &String, b: &String| a == b;
        exchange(&mut list, &texts(&["b"]), texts(&["x", "y"]), same).unwrap();
        assert_eq!(list, ["a", "x", "c", "y"]);
        exchange(&mut list, &texts(&["a", "c"]), texts(&["z"]), same).unwrap();
        assert_eq!(list, ["z", "x", "y"]);
        let missing = exchange(&mut list.clone(), &texts(&["q"]), Vec::new(), same);
        let present = texts(&["z", "x", "y"]);
        let text = "q".to_owned();
        assert_eq!(missing, Err(ExchangeError::Missing { text, present }));
        let duplicate = exchange(&mut list, &[], texts(&["x"]), same);
        let text = "x".to_owned();
        assert_eq!(duplicate, Err(ExchangeError::Duplicate { text }));
    }

    #[test]
    fn an_output_may_be_named_without_its_options() {
        let is_match = |present: &OutputSpec, requested: &OutputSpec| present.to == requested.to;
        let both = [
            "10.9.9.9:7000,sport=1",
            "10.9.9.9:7000,sport=2",
            "10.9.9.8:7000,ttl=9",
        ];
        let mut list = outputs(&both);
        let ambiguous = exchange(
            &mut list.clone(),
            &outputs(&["10.9.9.9:7000"]),
            vec![],
            is_match,
        );
        let Err(ExchangeError::Ambiguous { matches, .. }) = ambiguous else {
            panic!("{ambiguous:?}");
        };
        assert_eq!(matches, both[..2]);
        let remove = outputs(&["10.9.9.9:7000,sport=2", "10.9.9.8:7000"]);
        exchange(&mut list, &remove, vec![], is_match).unwrap();
        assert_eq!(list, outputs(&both[..1]));
    }
}
