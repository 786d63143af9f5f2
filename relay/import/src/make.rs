//! From streams to rules: adds what files do not specify, and makes a valid set.

use std::collections::{BTreeSet, HashMap};

use rules::document::{MergeDocument, OutputDocument, RuleDocument};
use rules::endpoint::Endpoint;
use rules::merge::{DEFAULT_WINDOW, LINES_MAX, Merge};
use rules::net::{Ports, Prefix};
use rules::owner::Owner;
use rules::problem::{Part, Problem, What};
use rules::ruleset::{Policy, RuleSet};
use thiserror::Error;

use crate::name::{Names, comment};
use crate::parsed::{Leg, Parsed, Stream};
use crate::remark::{Position, Remark, Why};
use crate::to::To;

/// Defaults for what the file does not specify.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The relay's interfaces: that of a stream's first leg, of its second, and so on, from the
    /// beginning again where there are more legs.
    pub interfaces: Vec<String>,
    /// Where streams go.
    pub to: Vec<To>,
    /// Their ports; all if neither file nor options specify any.
    pub ports: Option<Ports>,
}

/// What was made of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The rules.
    pub rules: RuleSet,
    /// What was not taken over, and notes, in the order of the file.
    pub remarks: Vec<Remark>,
}

/// Options that are required because the file does not specify the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Missing {
    /// Where streams arrive.
    #[error(
        "{0} of the file's streams do not say on which interface they arrive; give \
         --input-interface, as in --input-interface eth0"
    )]
    Interface(usize),
    /// Where streams go.
    #[error(
        "{0} of the file's streams do not say where they are to go; give --to, as in --to %eth1, \
         which keeps group and port, or --to 10.9.9.9"
    )]
    Outputs(usize),
    /// Both.
    #[error("{}\n{}", Self::Interface(*.0), Self::Outputs(*.1))]
    Both(usize, usize),
}

/// All ports: the kernel's multicast routing does not look at them.
const ALL_PORTS: Ports = Ports {
    first: 1,
    last: u16::MAX,
};

/// Makes rules from the streams. A stream that cannot be a rule, alone or beside earlier ones, is
/// reported and left out.
///
/// # Errors
///
/// Options that have to be given.
pub fn make(parsed: Parsed, options: &Options) -> Result<Imported, Missing> {
    require(&parsed.streams, options)?;
    let mut remarks = parsed.remarks;
    let is_used = parsed.streams.iter().any(|stream| stream.to.is_empty());
    if !is_used && !parsed.streams.is_empty() && !options.to.is_empty() {
        remarks.push(Remark::note(Position::whole(), "", Why::ToUnused));
    }
    let mut names = Names::default();
    let mut taken = HashMap::new();
    let mut rules = Vec::new();
    for stream in parsed.streams {
        let position = stream.position.clone();
        let rule = rule(stream, options, &mut names, &mut remarks);
        match rule.and_then(|rule| claim(rule, &mut taken)) {
            Ok(rule) => rules.push((position, rule)),
            Err(why) => remarks.push(Remark::rejected(position, "", why)),
        }
    }
    let rules = valid(rules, &mut remarks);
    let is_mixed_by_option = is_used && options.to.iter().any(|to| !to.keeps_both());
    note_mixed(&rules, is_mixed_by_option, &mut remarks);
    note_both_ways(&rules, &mut remarks);
    remarks.sort_by(|a, b| a.position.sort_key().cmp(&b.position.sort_key()));
    Ok(Imported { rules, remarks })
}

fn require(streams: &[Stream], options: &Options) -> Result<(), Missing> {
    let lacks_interface = |stream: &&Stream| {
        let mut legs = stream.legs.iter();
        options.interfaces.is_empty() && legs.any(|leg| leg.interface.is_none())
    };
    let lacks_output = |stream: &&Stream| options.to.is_empty() && stream.to.is_empty();
    let interfaces = streams.iter().filter(lacks_interface).count();
    let outputs = streams.iter().filter(lacks_output).count();
    match (interfaces, outputs) {
        (0, 0) => Ok(()),
        (interfaces, 0) => Err(Missing::Interface(interfaces)),
        (0, outputs) => Err(Missing::Outputs(outputs)),
        (interfaces, outputs) => Err(Missing::Both(interfaces, outputs)),
    }
}

fn rule(
    stream: Stream,
    options: &Options,
    names: &mut Names,
    remarks: &mut Vec<Remark>,
) -> Result<RuleDocument, Why> {
    let mut inputs: Vec<Endpoint> = Vec::new();
    // One more than can be merged, so that the excess is reported.
    for leg in stream.legs.into_iter().take(LINES_MAX + 1) {
        let given = options.interfaces.len();
        if leg.interface.is_none() && given > 1 && leg.number >= given {
            let interface = options.interfaces[leg.number % given].clone();
            let why = Why::InterfaceAgain(leg.number + 1, interface);
            remarks.push(Remark::note(stream.position.clone(), "", why));
        }
        let input = input(leg, options);
        if inputs.contains(&input) {
            remarks.push(Remark::rejected(stream.position.clone(), "", Why::SameLegs))
        } else {
            inputs.push(input)
        }
    }
    let first = inputs.first().ok_or(Why::NoGroup)?;
    let to = if stream.to.is_empty() {
        &options.to
    } else {
        &stream.to
    };
    let specs = to.iter().filter_map(|to| to.output(first));
    let outputs: Vec<OutputDocument> = specs
        .map(|output| OutputDocument::Text(output.to_string()))
        .collect();
    if outputs.is_empty() {
        return Err(Why::NoOutput);
    }
    let merge = Merge {
        window: DEFAULT_WINDOW + stream.delay,
        ..Merge::default()
    };
    let title = stream.name.as_deref();
    let name = names.unique(title, first);
    Ok(RuleDocument {
        comment: comment(title, &name),
        name,
        inputs: inputs.iter().map(ToString::to_string).collect(),
        outputs,
        merge: (inputs.len() > 1).then(|| MergeDocument::from(&merge)),
        enabled: Some(false).filter(|_| !stream.enabled),
        ..RuleDocument::default()
    })
}

/// Registers the inputs of a rule, unless an earlier rule has one of them. Checking all rules together
/// finds that too, but too slowly in a list that names one stream thousands of times.
fn claim(rule: RuleDocument, taken: &mut HashMap<String, String>) -> Result<RuleDocument, Why> {
    let owner = |input: &String| Some((input.clone(), taken.get(input)?.clone()));
    let mut inputs = rule.inputs.iter().enumerate();
    let conflict = inputs.find_map(|(index, input)| Some((index, owner(input)?)));
    if let Some((index, (text, owner))) = conflict {
        return Err(Why::Refused(Box::new(Problem {
            position: 0,
            rule: rule.name,
            part: Part::Input(index),
            text,
            what: What::InputTaken(Owner::Rule(owner)),
        })));
    }
    for input in &rule.inputs {
        taken.insert(input.clone(), rule.name.clone());
    }
    Ok(rule)
}

fn input(leg: Leg, options: &Options) -> Endpoint {
    let given = &options.interfaces;
    let default = given.get(leg.number % given.len().max(1));
    Endpoint {
        sources: leg.senders(),
        destination: leg.group,
        interface: leg.interface.or_else(|| default.cloned()),
        ports: leg.ports.or(options.ports).unwrap_or(ALL_PORTS),
        rejoin: None,
    }
}

/// The rules without invalid ones; of a rule with several outputs only the invalid output is removed.
/// Each round removes at least one of them and checks the rest again.
fn valid(mut rules: Vec<(Position, RuleDocument)>, remarks: &mut Vec<Remark>) -> RuleSet {
    loop {
        let documents: Vec<RuleDocument> = rules.iter().map(|(_, rule)| rule.clone()).collect();
        let problems = match RuleSet::from_documents(&documents, Policy::default()) {
            Ok(rules) => return rules,
            Err(problems) => problems,
        };
        let mut wrong: HashMap<usize, Problem> = HashMap::new();
        for problem in problems.0 {
            wrong.entry(problem.position).or_insert(problem);
        }
        let mut index = 0;
        rules.retain_mut(|(position, rule)| {
            let problem = wrong.remove(&index);
            index += 1;
            let Some(problem) = problem else {
                return true;
            };
            let output = match problem.part {
                Part::Output(output) if rule.outputs.len() > 1 => Some(output),
                _ => None,
            };
            let why = match problem.what {
                What::LinkLocal(group) => Why::LinkLocal(group),
                _ => Why::Refused(Box::new(problem)),
            };
            remarks.push(Remark::rejected(position.clone(), "", why));
            output.map(|output| rule.outputs.remove(output)).is_some()
        });
    }
}

/// Notes where the packets of several streams would mix.
fn note_mixed(rules: &RuleSet, is_mixed_by_option: bool, remarks: &mut Vec<Remark>) {
    let mut streams: HashMap<String, usize> = HashMap::new();
    for rule in rules.iter().filter(|rule| rule.enabled) {
        for output in &rule.outputs {
            *streams.entry(output.to.to_string()).or_default() += 1;
        }
    }
    let mut mixed: Vec<_> = streams
        .into_iter()
        .filter(|(_, streams)| *streams > 1)
        .collect();
    mixed.sort();
    let remedy = if is_mixed_by_option {
        "; --to without a group or port keeps theirs"
    } else {
        ""
    };
    for (to, streams) in mixed {
        let why = Why::Mixed { streams, remedy };
        remarks.push(Remark::note(Position::whole(), &to, why));
    }
}

/// Notes which groups are carried both ways between two interfaces.
fn note_both_ways(rules: &RuleSet, remarks: &mut Vec<Remark>) {
    let mut ways: BTreeSet<(&str, &str, Prefix)> = BTreeSet::new();
    for rule in rules.iter() {
        for to in rule.outputs.iter().map(|output| &output.to) {
            for input in &rule.inputs {
                let interfaces = (input.interface.as_deref(), to.interface.as_deref());
                if let (Some(from), Some(by)) = interfaces
                    && input.destination == to.destination
                {
                    ways.insert((from, by, input.destination));
                }
            }
        }
    }
    for (from, to, group) in ways.iter().filter(|(from, to, _)| from < to) {
        if ways.contains(&(to, from, *group)) {
            let why = Why::BothWays(format!("{from} and {to}"));
            remarks.push(Remark::note(Position::whole(), &group.to_string(), why));
        }
    }
}

#[cfg(test)]
mod tests;
