//! Formats the bench's numbers for people.

/// Formats a number for people: thousands separated, few digits after the point.
pub fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    if value.abs() < 0.001 {
        return format!("{value:.1e}");
    }
    if value.abs() < 10.0 {
        return format!("{value:.3}")
            .trim_end_matches('0')
            .trim_end_matches('.')
            .to_owned();
    }
    if value.abs() < 100.0 {
        return format!("{value:.1}").trim_end_matches(".0").to_owned();
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 {
        format!("-{text}")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        let cases = [
            (0.0, "0"),
            (0.123_456, "0.123"),
            (7.0, "7"),
            (42.25, "42.2"),
            (31.0, "31"),
            (1234.4, "1,234"),
            (1_234_567.0, "1,234,567"),
            (-1500.0, "-1,500"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }
}
