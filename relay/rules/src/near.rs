//! What somebody may have meant: the existing name that is one typing slip away.

/// The first of `known` that `name` may have been meant for, two letters of it swapped perhaps.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let is_near = |known: &&str| similar(known, name) || swapped(known, name);
    known.into_iter().find(is_near)
}

/// `; did you mean NAME?` where there is one, as the end of a text.
pub fn hint<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map_or_else(String::new, |near| format!("; did you mean {near}?"))
}

/// Says whether one letter was mistyped, left out or put in, or only the case differs.
fn similar(known: &str, asked: &str) -> bool {
    let (a, b) = (known.to_ascii_lowercase(), asked.to_ascii_lowercase());
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let start = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[start..], &b[start..]);
    let end = a.iter().rev().zip(b.iter().rev());
    let end = end.take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[..a.len() - end], &b[..b.len() - end]);
    // cam1 and cam2 are neighbours, not a slip of the finger.
    let numbers = a.iter().chain(b).any(u8::is_ascii_digit);
    a.len() <= 1 && b.len() <= 1 && !numbers
}

fn swapped(known: &str, asked: &str) -> bool {
    let (a, b) = (known.as_bytes(), asked.as_bytes());
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
