//! Times in one or two bytes, small ones exact and large ones like a floating-point number
//! (RFC 3376 section 4.1.1, RFC 3810 section 5.1.3).

/// The value of a byte.
pub(super) const fn of_byte(code: u8) -> u32 {
    if code < 128 {
        return code as u32;
    }
    let (exponent, mantissa) = ((code >> 4) & 7, code & 15);
    (mantissa as u32 | 16) << (exponent + 3)
}

/// The byte for a value, or for the largest representable value below it.
pub(super) const fn byte(value: u32) -> u8 {
    if value < 128 {
        return value as u8;
    }
    let mut exponent = 0;
    while exponent < 7 && value >> (exponent + 3) > 31 {
        exponent += 1;
    }
    let shifted = value >> (exponent + 3);
    let mantissa = if shifted > 31 { 31 } else { shifted };
    0x80 | exponent << 4 | (mantissa as u8 & 15)
}

/// The value of two bytes.
pub(super) const fn of_word(code: u16) -> u32 {
    if code < 32_768 {
        return code as u32;
    }
    let (exponent, mantissa) = ((code >> 12) & 7, code & 0xfff);
    (mantissa as u32 | 0x1000) << (exponent + 3)
}

/// The two bytes for a value, or for the largest representable value below it.
pub(super) const fn word(value: u32) -> u16 {
    if value < 32_768 {
        return value as u16;
    }
    let mut exponent = 0;
    while exponent < 7 && value >> (exponent + 3) > 0x1fff {
        exponent += 1;
    }
    let shifted = value >> (exponent + 3);
    let mantissa = if shifted > 0x1fff { 0x1fff } else { shifted };
    0x8000 | exponent << 12 | (mantissa as u16 & 0xfff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_a_round_trip() {
        for code in 0..=u8::MAX {
            assert_eq!(byte(of_byte(code)), code);
        }
        for code in 0..=u16::MAX {
            assert_eq!(word(of_word(code)), code);
        }
    }

    #[test]
    fn a_value_between_codes_becomes_a_little_less() {
        assert_eq!(of_byte(byte(130)), 128);
        assert_eq!(of_byte(byte(u32::MAX)), 31_744);
        assert_eq!(of_word(word(40_001)), 40_000);
        assert_eq!(of_word(word(u32::MAX)), 8_387_584);
    }
}
