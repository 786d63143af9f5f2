//! Where a rule stands among the others.

/// Where a rule stands in the order of its set. Rules that stay keep their places when others go or
/// come, so places are no positions: those have no gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub(super) u64);

impl Place {
    pub(super) const FIRST: Self = Self(0);
    pub(super) const LAST: Self = Self(u64::MAX);

    /// The places from the first on.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..).map(Self)
    }

    /// The one behind this.
    pub(super) const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}
