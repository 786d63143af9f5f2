//! Suggestions for mistyped names: the existing name that is one typing slip away.

/// The first of `names` that `name` may have been meant for, perhaps with two letters swapped.
pub fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let is_near = |other: &&str| is_similar(other, name) || is_swapped(other, name);
    names.into_iter().find(is_near)
}

/// `; did you mean NAME?` where there is one, as the end of a text.
pub fn hint<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, names).map_or_else(String::new, |near| format!("; did you mean {near}?"))
}

/// Returns whether one letter was mistyped, omitted or added, or only the case differs.
fn is_similar(name: &str, typed: &str) -> bool {
    let (a, b) = (name.to_ascii_lowercase(), typed.to_ascii_lowercase());
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let start = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[start..], &b[start..]);
    let reversed = a.iter().rev().zip(b.iter().rev());
    let end = reversed.take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[..a.len() - end], &b[..b.len() - end]);
    // cam1 and cam2 are two names, not a slip of the finger.
    let has_digit = a.iter().chain(b).any(u8::is_ascii_digit);
    a.len() <= 1 && b.len() <= 1 && !has_digit
}

fn is_swapped(name: &str, typed: &str) -> bool {
    let (a, b) = (name.as_bytes(), typed.as_bytes());
    let start = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    match (&a[start..], &b[start..]) {
        ([one, two, rest @ ..], [three, four, others @ ..]) => {
            (one, two, rest) == (four, three, others)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_is_one_slip_away() {
        for name in ["eht1", "et1", "eeth1", "etn1", "th1", "Eth1"] {
            assert_eq!(nearest(name, ["lo", "eth1"]), Some("eth1"), "{name}");
        }
        for name in ["eth2", "eth11", "eth", "ens1", "e1", "the11", ""] {
            assert_eq!(nearest(name, ["eth1"]), None, "{name}");
        }
        assert_eq!(
            hint("ouputs", ["name", "outputs"]),
            "; did you mean outputs?"
        );
    }
}
