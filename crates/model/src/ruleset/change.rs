//! Why a change of a set was refused.

use thiserror::Error;

use crate::problem::Problems;

/// Why a change was refused. The set stays as it was.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ChangeError {
    /// Rules to remove that do not exist.
    #[error("{}", no_such_rules(.missing, .known))]
    NotFound {
        /// The names asked for.
        missing: Vec<String>,
        /// The names there are.
        known: Vec<String>,
    },
    /// Rules to add whose names are taken.
    #[error("{}", already_there(.0))]
    AlreadyThere(Vec<String>),
    /// The rules do not make sense.
    #[error(transparent)]
    Invalid(#[from] Problems),
}

/// Names shown of those there are, before it is said how many more.
const NAMES_SHOWN: usize = 8;

fn no_such_rules(missing: &[String], known: &[String]) -> String {
    let line = |name: &String| {
        let close = known.iter().find(|known| similar(known, name));
        match close {
            Some(close) => format!("no rule {name:?}; did you mean {close:?}?"),
            None if known.is_empty() => format!("no rule {name:?} (there are none)"),
            None => format!("no rule {name:?} (have: {})", listed(known)),
        }
    };
    missing.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn already_there(names: &[String]) -> String {
    let line = |name: &String| {
        format!("rule {name:?}: is there already; remove it first or choose another name")
    };
    names.iter().map(line).collect::<Vec<_>>().join("\n")
}

pub(crate) fn listed(names: &[String]) -> String {
    let shown = names.iter().take(NAMES_SHOWN).cloned().collect::<Vec<_>>();
    let more = names.len().saturating_sub(NAMES_SHOWN);
    match more {
        0 => shown.join(", "),
        _ => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Says whether one letter was mistyped, left out or put in, or only the case differs.
fn similar(known: &str, asked: &str) -> bool {
    let (a, b) = (known.to_ascii_lowercase(), asked.to_ascii_lowercase());
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let start = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[start..], &b[start..]);
    let end = a.iter().rev().zip(b.iter().rev());
    let end = end.take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[..a.len() - end], &b[..b.len() - end]);
    // cam1 and cam2 are neighbours, not a slip of the finger.
    let numbers = a.iter().chain(b).any(u8::is_ascii_digit);
    a.len() <= 1 && b.len() <= 1 && !numbers
}
