//! What somebody may have meant: of names that exist the one that a slip away is another.

/// The first of `known` that is one letter more, less, other or swapped away from `name`.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known.into_iter().find(|known| is_near(name, known))
}

/// `; did you mean NAME?` where there is one, as the end of a text.
pub fn hint<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map_or_else(String::new, |near| format!("; did you mean {near}?"))
}

fn is_near(one: &str, other: &str) -> bool {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let same = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
    let (one, other) = (&one[same..], &other[same..]);
    match (one, other) {
        ([], []) => false,
        ([a, b, rest @ ..], [c, d, others @ ..]) if (a, b) == (d, c) && rest == others => true,
        _ => {
            let behind = |of: &[char]| of.get(1..).unwrap_or_default().to_vec();
            let (rest, others) = (behind(one), behind(other));
            rest == others || rest == other || others == one
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_is_one_slip_away() {
        for name in [
            "eht1", "et1", "eth", "eeth1", "eth11", "etn1", "eth2", "th1",
        ] {
            assert_eq!(nearest(name, ["lo", "eth1"]), Some("eth1"), "{name}");
        }
        for name in ["eth1", "ens1", "e1", "the1", "", "eth123"] {
            assert_eq!(nearest(name, ["eth1"]), None, "{name}");
        }
        assert_eq!(
            hint("ouputs", ["name", "outputs"]),
            "; did you mean outputs?"
        );
    }
}
