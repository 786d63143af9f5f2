//! The runs of a report. Those of one machine and one build share their conditions, which get a letter;
//! with several conditions the report shows which figure was measured under which.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::bench::results::machine::Machine;
use crate::bench::results::number::number;
use crate::bench::results::{CaseResult, Results};

/// Letters of conditions.
pub(super) type Letters = BTreeSet<char>;

/// A case that the report shows, and the letter of its conditions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown<'a> {
    /// The case.
    pub(super) case: &'a CaseResult,
    /// The letter.
    pub(super) under: char,
}

/// The runs of one machine and one build.
pub(super) struct Conditions<'a> {
    letter: char,
    runs: Vec<&'a Results>,
}

impl<'a> Conditions<'a> {
    /// Groups runs by conditions, in the order of the first of each.
    pub(super) fn of(runs: &'a [Results]) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for run in runs {
            let same = all
                .iter_mut()
                .find(|conditions| conditions.machine().differences(&run.machine).is_empty());
            match same {
                Some(conditions) => conditions.runs.push(run),
                None => all.push(Self {
                    letter: letter(all.len()),
                    runs: vec![run],
                }),
            }
        }
        all
    }

    /// The letter of these conditions.
    pub(super) const fn letter(&self) -> char {
        self.letter
    }

    /// Names build, day and machine in a line.
    pub(super) fn in_short(&self) -> String {
        let machine = self.machine();
        let revision = machine.revision.as_deref().unwrap_or("unknown revision");
        format!(
            "{} ({revision}) on {}: Linux {}, {}, {} cores.",
            machine.version, machine.date, machine.kernel, machine.cpu, machine.cores
        )
    }

    fn machine(&self) -> &'a Machine {
        &self.runs[0].machine
    }

    fn has(&self, run: &Results) -> bool {
        self.runs.iter().any(|own| std::ptr::eq(*own, run))
    }

    /// A warning of the differences from the conditions of the first run.
    pub(super) fn warning(&self, first: &Self) -> String {
        let runs = self.runs.iter();
        let commands: Vec<String> = runs.map(|run| format!("`{}`", run.command)).collect();
        let differences = first.machine().differences(self.machine());
        format!(
            "{} ran under other conditions ({}) than the first run ({}), which had another: {}. \
             Figures of the two cannot be compared",
            commands.join(", "),
            self.letter,
            first.letter,
            differences.join(", ")
        )
    }

    /// Describes machine and build, and lists the runs, Markdown.
    pub(super) fn describe(&self, is_one_of_several: bool) -> String {
        let mut text = String::new();
        if is_one_of_several {
            let _ = write!(text, "**{}.** ", self.letter);
        }
        let _ = writeln!(text, "{}\n", self.machine());
        for run in &self.runs {
            let count: usize = run.cases.iter().map(|case| case.trials.len()).sum();
            let (command, date) = (&run.command, &run.machine.date);
            let trials = number(count as f64);
            let _ = writeln!(text, "- `{command}` on {date}: {trials} trials");
        }
        text.push('\n');
        text
    }
}

fn letter(number: usize) -> char {
    ('A'..='Z').nth(number).unwrap_or('?')
}

/// The cases of all runs; a later run replaces a case of an earlier one.
pub(super) fn latest<'a>(runs: &'a [Results], conditions: &[Conditions<'_>]) -> Vec<Shown<'a>> {
    let mut cases: Vec<Shown<'_>> = Vec::new();
    for run in runs {
        let own = conditions.iter().find(|conditions| conditions.has(run));
        let under = own.map_or('?', |conditions| conditions.letter);
        for case in &run.cases {
            let shown = Shown { case, under };
            match cases.iter_mut().find(|other| other.case.is_same(case)) {
                Some(earlier) => *earlier = shown,
                None => cases.push(shown),
            }
        }
    }
    cases
}

/// Names the conditions under which the cases of a scenario were measured.
pub(super) fn measured_under(cases: &[Shown<'_>]) -> String {
    let letters: Letters = cases.iter().map(|shown| shown.under).collect();
    if letters.len() == 1 {
        return format!("Measured under {}.\n\n", joined(&letters));
    }
    let describe = |letter: &char| {
        let own = cases.iter().filter(|shown| shown.under == *letter);
        let mut rows: Vec<String> = own.map(|shown| shown.case.parameters_text()).collect();
        rows.dedup();
        format!("under {letter}: {}", rows.join("; "))
    };
    let each: Vec<String> = letters.iter().map(describe).collect();
    format!("Measured {}.\n\n", each.join(". Measured "))
}

/// Letters as a comma-separated list.
pub(super) fn joined(letters: &Letters) -> String {
    let letters: Vec<String> = letters.iter().map(char::to_string).collect();
    letters.join(", ")
}
