//! Finds a figure among the cases of a report, with the conditions it was measured under.

use super::figure::{Figure, figure_of};
use super::origin::{Letters, Shown};

/// The cases that a report shows.
#[derive(Clone, Copy)]
pub(super) struct Cases<'a>(pub(super) &'a [Shown<'a>]);

/// A figure and the conditions it was measured under.
#[derive(Clone)]
pub(super) struct Measured {
    /// The figure.
    pub(super) value: f64,
    /// The conditions.
    pub(super) under: Letters,
}

impl<'a> Cases<'a> {
    /// The first case of a relay that has these parameters, among others.
    pub(super) fn find(self, scenario: u8, parameters: &str, relay: &str) -> Option<Shown<'a>> {
        let fits = |shown: &&Shown<'_>| {
            shown.case.relay == relay && shown.case.is_of(scenario, parameters)
        };
        self.0.iter().find(fits).copied()
    }

    /// The median of a figure in one case.
    pub(super) fn figure(
        self,
        scenario: u8,
        parameters: &str,
        relay: &str,
        figure: Figure,
    ) -> Option<Measured> {
        let shown = self.find(scenario, parameters, relay)?;
        Some(Measured {
            value: figure_of(shown.case, figure)?.median,
            under: Letters::from([shown.under]),
        })
    }

    /// A relay's best: what it delivers under overload, or its zero-loss rate if that is higher, as
    /// it is for relays that collapse.
    pub(super) fn best_rate(self, parameters: &str, relay: &str) -> Option<Measured> {
        let overload = self.figure(7, parameters, relay, Figure::Delivered);
        let search = self.figure(7, "pps=zero loss", relay, Figure::ZeroLoss);
        let both = [overload, search].into_iter().flatten();
        both.max_by(|one, other| one.value.total_cmp(&other.value))
    }
}
