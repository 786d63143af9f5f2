//! The one module that indexes packet bytes: big-endian reads and writes that return `None` outside the slice.

/// Reads `N` bytes at `offset`.
#[inline]
pub(crate) fn read<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk::<N>().copied()
}

/// Reads the 16-bit number at `offset`.
#[inline]
pub(crate) fn read_u16(bytes: &[u8], offset: usize) -> Option<u16> {
    read(bytes, offset).map(u16::from_be_bytes)
}

/// Writes `value` at `offset`.
#[inline]
pub(crate) fn write<const N: usize>(bytes: &mut [u8], offset: usize, value: [u8; N]) -> Option<()> {
    *bytes.get_mut(offset..)?.first_chunk_mut::<N>()? = value;
    Some(())
}

/// Writes the 16-bit number `value` at `offset`.
#[inline]
pub(crate) fn write_u16(bytes: &mut [u8], offset: usize, value: u16) -> Option<()> {
    write(bytes, offset, value.to_be_bytes())
}
