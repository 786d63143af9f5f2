//! A run of segments in a super-packet.

/// Segments of a super-packet that follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Segments {
    /// Segments before them.
    pub(super) first: u32,
    /// How many there are.
    pub(super) count: u32,
    /// Payload bytes before them.
    pub(super) offset: usize,
    /// Their own.
    pub(super) bytes: usize,
}

impl Segments {
    /// Parts the first so many from the others; `size` bytes are in each of the first.
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

    /// None yet, of what comes after these.
    pub(super) const fn following(self) -> Self {
        Self {
            first: self.first + self.count,
            count: 0,
            offset: self.offset + self.bytes,
            bytes: 0,
        }
    }
}
