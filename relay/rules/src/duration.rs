//! Times as rules write them: `200ms`, `2s`, `5m`, `24h`.

use std::time::Duration;

/// Units and their milliseconds; `ms` before `s`, because `s` is a suffix of it.
pub(crate) const UNITS: [(&str, u64); 4] =
    [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];

/// Parses a time; `None` unless it is a whole number with a unit.
pub fn parse(text: &str) -> Option<Duration> {
    let mut units = UNITS.into_iter();
    let (number, scale) =
        units.find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)))?;
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = is_number.then(|| number.parse().ok()).flatten()?;
    number.checked_mul(scale).map(Duration::from_millis)
}

/// Writes a time in the largest unit that names it exactly.
pub fn text(time: Duration) -> String {
    let milliseconds = time.as_millis();
    for (unit, scale) in UNITS.into_iter().skip(1) {
        let scale = scale.into();
        if milliseconds >= scale && milliseconds.is_multiple_of(scale) {
            return format!("{}{unit}", milliseconds / scale);
        }
    }
    format!("{milliseconds}ms")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_written() {
        for text in ["1ms", "1500ms", "2s", "5m", "24h"] {
            assert_eq!(parse(text).map(super::text).as_deref(), Some(text));
        }
        for text in ["", "s", "2", "-2s", "+2s", "1.5s", "99999999999999999h"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
