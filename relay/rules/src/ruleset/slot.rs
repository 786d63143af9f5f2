//! A rule's slot in the order of its set.

/// A rule's slot in the order of its set. It does not change when other rules are added or removed,
/// so there are gaps between slots, unlike positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub(super) u64);

impl Slot {
    pub(super) const FIRST: Self = Self(0);
    pub(super) const LAST: Self = Self(u64::MAX);

    /// The slots from the first on.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..).map(Self)
    }

    /// The one after this.
    pub(super) const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}
