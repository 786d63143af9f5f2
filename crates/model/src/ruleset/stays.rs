//! Which rules of a set are the very ones of the set before, as runs of neighbours: of ten thousand
//! rules of which one is replaced two runs stay.

use std::iter::once;
use std::ops::Range;
use std::sync::Arc;

use super::RuleSet;
use crate::rule::Rule;

/// The runs that stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stays {
    /// In the order of the new set.
    runs: Vec<Run>,
    old: usize,
    new: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    here: usize,
    there: usize,
    length: usize,
}

/// A part of the new set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// These of the old set.
    Stays(Range<usize>),
    /// These of the new set are not in the old one.
    Comes(Range<usize>),
}

impl Stays {
    pub(super) fn between(old: &RuleSet, new: &RuleSet) -> Self {
        let same = |(a, b): &(&Arc<Rule>, &Arc<Rule>)| Arc::ptr_eq(a, b);
        let mut runs = Vec::new();
        let mut here = 0;
        while let Some(rule) = new.rules.get(here) {
            let there = old.positions.get(rule.name.as_str()).copied();
            let length = there.map_or(0, |there| {
                let pairs = new.rules[here..].iter().zip(&old.rules[there..]);
                pairs.take_while(same).count()
            });
            if let Some(there) = there.filter(|_| length > 0) {
                runs.push(Run {
                    here,
                    there,
                    length,
                });
            }
            here += length.max(1);
        }
        Self {
            runs,
            old: old.len(),
            new: new.len(),
        }
    }

    /// The new set, piece by piece in its order.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> {
        let end = Run {
            here: self.new,
            there: self.old,
            length: 0,
        };
        let mut done = 0;
        let runs = self.runs.iter().copied().chain([end]);
        runs.flat_map(move |run| {
            let comes = Piece::Comes(done..run.here);
            done = run.here + run.length;
            let stays = Piece::Stays(run.there..run.there + run.length);
            let is_any = |piece: &Piece| match piece {
                Piece::Stays(places) | Piece::Comes(places) => !places.is_empty(),
            };
            [comes, stays].into_iter().filter(is_any)
        })
    }

    /// Places in the new set of rules that the old one does not have.
    pub fn come(&self) -> impl Iterator<Item = Range<usize>> {
        self.pieces().filter_map(|piece| match piece {
            Piece::Comes(here) => Some(here),
            Piece::Stays(_) => None,
        })
    }

    /// Places in the old set of rules that the new one does not have.
    pub fn gone(&self) -> impl Iterator<Item = Range<usize>> {
        let runs = self
            .runs
            .iter()
            .map(|run| run.there..run.there + run.length);
        let mut stays: Vec<Range<usize>> = runs.chain(once(self.old..self.old)).collect();
        // Rules that stay may stand in another order.
        stays.sort_by_key(|there| there.start);
        let mut done = 0;
        let gone = stays.into_iter().map(move |there| {
            let gone = done..there.start;
            done = there.end;
            gone
        });
        gone.filter(|gone| !gone.is_empty())
    }
}
