//! A run of segments in a super-packet.

/// Consecutive segments of a super-packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Segments {
    /// Segments before them.
    pub(super) first: u32,
    /// How many there are.
    pub(super) count: u32,
    /// Payload bytes before them.
    pub(super) offset: usize,
    /// Payload bytes in them.
    pub(super) bytes: usize,
}

impl Segments {
    /// Splits off the first `count` segments, which have `size` bytes each.
    pub(super) fn split(self, count: u32, size: usize) -> (Self, Self) {
        let bytes = size.saturating_mul(count as usize).min(self.bytes);
        let first = Self {
            count,
            bytes,
            ..self
        };
        let rest = Self {
            count: self.count.saturating_sub(count),
            bytes: self.bytes - bytes,
            ..first.following()
        };
        (first, rest)
    }

    /// An empty run that begins after this one.
    pub(super) const fn following(self) -> Self {
        Self {
            first: self.first + self.count,
            count: 0,
            offset: self.offset + self.bytes,
            bytes: 0,
        }
    }
}
