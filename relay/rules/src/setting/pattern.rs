//! Regular expressions for numbers and times within bounds, for the schema of keys that are written as
//! text.

use std::time::Duration;

use crate::duration::UNITS;

/// A number between these bounds, or one of the words.
pub(super) fn number(least: u64, most: u64, or: &[&str]) -> String {
    alternatives(digits(least, most), or)
}

/// A time between these bounds, or one of the words.
pub(super) fn time(least: Duration, most: Duration, or: &[&str]) -> String {
    let [least, most] =
        [least, most].map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let units = UNITS.iter().filter_map(|(unit, scale)| {
        let (least, most) = (least.div_ceil(*scale), most / scale);
        (least <= most).then(|| format!("{}{unit}", digits(least, most)))
    });
    alternatives(units.collect::<Vec<String>>().join("|"), or)
}

fn alternatives(first: String, or: &[&str]) -> String {
    or.iter().fold(first, |all, word| format!("{all}|{word}"))
}

/// Digits of a number between these bounds.
pub(super) fn digits(least: u64, most: u64) -> String {
    let mut parts = Vec::new();
    let (mut first, end) = (least, most);
    loop {
        let length = first.to_string().len();
        let last = 10_u64
            .checked_pow(length as u32)
            .map_or(end, |next| (next - 1).min(end));
        of_one_length(&first.to_string(), &last.to_string(), "", &mut parts);
        if last == end {
            break;
        }
        first = last + 1;
    }
    format!("0*({})", parts.join("|"))
}

/// Digits from `least` to `most`, which have the same length, after the prefix `before`.
fn of_one_length(least: &str, most: &str, before: &str, parts: &mut Vec<String>) {
    let all = |digit: char, text: &str| text.chars().all(|each| each == digit);
    let [(first, low), (last, high)] = [least, most].map(|text| text.split_at(1.min(text.len())));
    if low.is_empty() || all('0', low) && all('9', high) {
        let one = if first == last {
            first.to_owned()
        } else {
            format!("[{first}-{last}]")
        };
        let rest = match low.len() {
            0 => String::new(),
            1 => "[0-9]".to_owned(),
            length => format!("[0-9]{{{length}}}"),
        };
        return parts.push(format!("{before}{one}{rest}"));
    }
    if first == last {
        return of_one_length(low, high, &format!("{before}{first}"), parts);
    }
    let (zeros, nines) = ("0".repeat(low.len()), "9".repeat(low.len()));
    let digit = |text: &str| text.bytes().next().unwrap_or(b'0');
    let (mut from, mut to) = (digit(first), digit(last));
    if !all('0', low) {
        of_one_length(low, &nines, &format!("{before}{first}"), parts);
        from += 1;
    }
    if !all('9', high) {
        to -= 1;
    }
    if from <= to {
        let (from, to) = (char::from(from), char::from(to));
        of_one_length(
            &format!("{from}{zeros}"),
            &format!("{to}{nines}"),
            before,
            parts,
        );
    }
    if !all('9', high) {
        of_one_length(&zeros, high, &format!("{before}{last}"), parts);
    }
}
