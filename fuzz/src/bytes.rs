//! Choices read from a fuzzer's bytes: missing bytes at the end are zero.

/// The rest of an input.
pub(crate) struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) const fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    pub(crate) fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut taken = [0; N];
        let length = self.0.len().min(N);
        let (head, rest) = self.0.split_at(length);
        taken[..length].copy_from_slice(head);
        self.0 = rest;
        taken
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let [byte] = self.take();
        byte
    }

    pub(crate) fn word(&mut self) -> u16 {
        u16::from_be_bytes(self.take())
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) const fn rest(self) -> &'a [u8] {
        self.0
    }
}
