//! `mcr change`: a rule with other inputs, outputs or options, that loses no packet of what stays.

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
    let change = control.edit(names, |rule| changed(rule, args))?;
    super::tell("change", &change, global)?;
    args.terms.finish_rules((control, saving), &change, names)
}

fn changed(rule: &mut RuleDocument, args: &Args) -> Result<(), Failure> {
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

/// A rule that reflects has interfaces and a group in their place.
fn refuse_ends(rule: &RuleDocument, args: &Args) -> Result<(), Failure> {
    let ends = [
        args.add_input.is_empty() && args.remove_input.is_empty(),
        args.add_output.is_empty() && args.remove_output.is_empty(),
    ];
    if ends == [true, true] {
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
    exchange(&mut inputs, &remove, add, |known, asked| {
        // Whatever its options are.
        known.split(REJOIN).next() == asked.split(REJOIN).next()
    })
    .map_err(|refused| refused.of(&rule.name, "input"))?;
    (rule.input, rule.inputs) = (None, inputs);
    Ok(())
}

fn outputs(rule: &mut RuleDocument, args: &Args) -> Result<(), Failure> {
    let mut outputs = Vec::new();
    for output in &rule.outputs {
        let output = output.to_output();
        outputs.push(output.map_err(|error| usage(error.problem))?);
    }
    let is_meant = |known: &OutputSpec, asked: &OutputSpec| {
        let bare = *asked == OutputSpec::new(asked.to.clone());
        known == asked || bare && known.to == asked.to
    };
    exchange(
        &mut outputs,
        &args.remove_output,
        args.add_output.clone(),
        is_meant,
    )
    .map_err(|refused| refused.of(&rule.name, "output"))?;
    let texts = outputs.iter().map(ToString::to_string);
    rule.outputs = texts.map(OutputDocument::Text).collect();
    Ok(())
}

/// Why an input or an output cannot be exchanged.
#[derive(Debug, PartialEq, Eq)]
enum Refused {
    Missing { asked: String, have: Vec<String> },
    Several { asked: String, meant: Vec<String> },
    Present { asked: String },
}

impl Refused {
    fn of(self, rule: &str, kind: &str) -> Failure {
        let message = match self {
            Self::Missing { asked, have } => {
                let hint = near::hint(&asked, have.iter().map(String::as_str));
                format!("no {kind} {asked} (have: {}{hint})", have.join(", "))
            }
            Self::Several { asked, meant } => {
                let meant = meant.join(" and ");
                format!("{kind} {asked} may be {meant}; give its options, too")
            }
            Self::Present { asked } => format!("{kind} {asked}: is there already"),
        };
        Failure::new(Status::Rule, format!("rule {rule:?}: {message}"))
    }
}

/// Takes out what is meant by each of `remove` and puts `add` in the places that become free, the
/// rest behind.
fn exchange<T: PartialEq + ToString>(
    list: &mut Vec<T>,
    remove: &[T],
    add: Vec<T>,
    is_meant: impl Fn(&T, &T) -> bool,
) -> Result<(), Refused> {
    let mut free = Vec::new();
    for asked in remove {
        let meant = |(_, known): &(usize, &T)| is_meant(known, asked);
        let meant: Vec<(usize, &T)> = list.iter().enumerate().filter(meant).collect();
        let exact = meant.iter().find(|(_, known)| *known == asked);
        match (exact, meant.as_slice()) {
            (Some((place, _)), _) | (None, [(place, _)]) => free.push(*place),
            (None, []) => {
                return Err(Refused::Missing {
                    asked: asked.to_string(),
                    have: list.iter().map(ToString::to_string).collect(),
                });
            }
            (None, several) => {
                return Err(Refused::Several {
                    asked: asked.to_string(),
                    meant: several.iter().map(|(_, known)| known.to_string()).collect(),
                });
            }
        }
    }
    let mut slots: Vec<Option<T>> = list.drain(..).map(Some).collect();
    for place in &free {
        slots[*place] = None;
    }
    let mut free = free.into_iter();
    for one in add {
        if slots.iter().flatten().any(|known| *known == one) {
            let asked = one.to_string();
            return Err(Refused::Present { asked });
        }
        match free.next() {
            Some(place) => slots[place] = Some(one),
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
    fn what_comes_takes_the_place_of_what_goes() {
        let mut list = ["a", "b", "c"].map(str::to_owned).to_vec();
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        let same = |a: &String, b: &String| a == b;
        exchange(&mut list, &texts(&["b"]), texts(&["x", "y"]), same).unwrap();
        assert_eq!(list, ["a", "x", "c", "y"]);
        exchange(&mut list, &texts(&["a", "c"]), texts(&["z"]), same).unwrap();
        assert_eq!(list, ["z", "x", "y"]);
        let missing = exchange(&mut list.clone(), &texts(&["q"]), Vec::new(), same);
        let have = texts(&["z", "x", "y"]);
        let asked = "q".to_owned();
        assert_eq!(missing, Err(Refused::Missing { asked, have }));
        let there = exchange(&mut list, &[], texts(&["x"]), same);
        let asked = "x".to_owned();
        assert_eq!(there, Err(Refused::Present { asked }));
    }

    #[test]
    fn an_output_may_be_meant_without_its_options() {
        let is_meant = |known: &OutputSpec, asked: &OutputSpec| known.to == asked.to;
        let both = [
            "10.9.9.9:7000,sport=1",
            "10.9.9.9:7000,sport=2",
            "10.9.9.8:7000,ttl=9",
        ];
        let mut list = outputs(&both);
        let several = exchange(
            &mut list.clone(),
            &outputs(&["10.9.9.9:7000"]),
            vec![],
            is_meant,
        );
        let Err(Refused::Several { meant, .. }) = several else {
            panic!("{several:?}");
        };
        assert_eq!(meant, both[..2]);
        let remove = outputs(&["10.9.9.9:7000,sport=2", "10.9.9.8:7000"]);
        exchange(&mut list, &remove, vec![], is_meant).unwrap();
        assert_eq!(list, outputs(&both[..1]));
    }
}
