//! Reads what BTF says of an object's structs, for the tests that hold the mirrors in Rust against it.
//! Expects what clang writes and panics at anything else.

use std::collections::BTreeMap;

/// What BTF says of the object's structs.
#[derive(Debug, Default)]
pub struct Btf {
    /// Size, and each member's byte offset.
    pub structs: BTreeMap<String, (usize, Vec<(String, usize)>)>,
}

impl Btf {
    /// Reads the BTF of an ELF file.
    pub fn of(object: &[u8]) -> Self {
        let object = aya_obj::Object::parse(object).expect("an ELF file");
        Self::parse(&object.btf.expect("compiled with -g").to_bytes())
    }

    /// Walks the type section (Documentation/bpf/btf.rst).
    fn parse(bytes: &[u8]) -> Self {
        let word = |at: usize| u32::from_ne_bytes(*bytes[at..].first_chunk().expect("four bytes"));
        let header = word(4) as usize;
        let (types, end) = (header + word(8) as usize, word(12) as usize);
        let strings = header + word(16) as usize;
        let string = |offset: u32| {
            let start = strings + offset as usize;
            let length = bytes[start..].iter().position(|b| *b == 0).expect("a NUL");
            String::from_utf8_lossy(&bytes[start..start + length]).into_owned()
        };
        let mut btf = Self::default();
        let mut at = types;
        while at < types + end {
            let (name, info, size) = (string(word(at)), word(at + 4), word(at + 8) as usize);
            let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
            at += 12;
            let entry = |i: usize, stride: usize, field: usize| word(at + i * stride + field * 4);
            match kind {
                4 | 5 => {
                    let member = |i| {
                        let bits = entry(i, 12, 2) & 0x00ff_ffff;
                        (string(entry(i, 12, 0)), bits as usize / 8)
                    };
                    let members = (0..count).map(member).collect();
                    btf.structs.insert(name, (size, members));
                    at += count * 12;
                }
                6 => at += count * 8,
                1 | 14 | 17 => at += 4,
                3 => at += 12,
                13 => at += count * 8,
                15 => at += count * 12,
                19 => at += count * 12,
                _ => {}
            }
        }
        btf
    }
}

/// Demands that a struct of the object and its mirror in Rust have the same size, and members of the
/// same names and offsets.
#[macro_export]
macro_rules! assert_same {
    ($btf:expr, $c:literal, $rust:ty { $($field:ident),* $(,)? }) => {
        let (size, members) = &$btf.structs[$c];
        assert_eq!(*size, size_of::<$rust>(), "size of struct {}", $c);
        let mirror = vec![$((stringify!($field).to_owned(), std::mem::offset_of!($rust, $field))),*];
        assert_eq!(*members, mirror, "members of struct {}", $c);
    };
}
