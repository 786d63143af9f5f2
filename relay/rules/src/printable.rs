//! Makes foreign text safe for a terminal or a log: names of interfaces, programs and packet filters
//! may hold anything, including what clears a screen or reverses a line.

use std::borrow::Cow;

/// Returns whether a character affects the text around it instead of being visible: a control
/// character, or one of Unicode's that are invisible or set the direction of writing.
pub fn is_misleading(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

/// The text with such characters written as in Rust, `\u{202e}`; ends of lines stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_escaped = |c| is_misleading(c) && c != '\n';
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_escaped(c) {
            out.extend(c.escape_unicode())
        } else {
            out.push(c)
        }
    }
    Cow::Owned(out)
}

/// The ending of a noun that counts `n` things: `1 packet`, `2 packets`.
pub const fn plural(n: u64) -> &'static str {
    if n == 1 { "" } else { "s" }
}

/// Writes a count with a gap between groups of three digits: `1 234 567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// A count with its noun: `1 packet`, `12 000 packets`.
pub fn things(n: u64, thing: &str) -> String {
    format!("{} {thing}{}", count(n), plural(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped_by_three_and_one_is_not_many() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1 234 567");
        assert_eq!(things(1, "packet"), "1 packet");
        assert_eq!(things(0, "packet"), "0 packets");
        assert_eq!(things(12_000, "packet"), "12 000 packets");
    }

    #[test]
    fn shows_what_would_mislead_and_leaves_the_rest() {
        for text in ["", "eth0", "Größe 5 µs\nzweite Zeile", "日本", "“x” …"] {
            assert!(matches!(printable(text), Cow::Borrowed(same) if same == text));
        }
        for (text, shown) in [
            ("a\x1b[2Jb", "a\\u{1b}[2Jb"),
            ("\u{202e}gnp", "\\u{202e}gnp"),
            ("a\rb\u{85}", "a\\u{d}b\\u{85}"),
            ("é\u{200b}", "é\\u{200b}"),
        ] {
            assert_eq!(printable(text), shown);
        }
    }
}
