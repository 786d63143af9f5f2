//! Interface names with wildcards: `*` stands for any text, `?` for one character.

/// Returns whether `name` matches `pattern`. A pattern without wildcards matches itself.
pub fn matches(pattern: &str, name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    // reached[n]: the pattern so far matches the first n characters of the name.
    let mut reached = vec![false; name.len() + 1];
    reached[0] = true;
    for c in pattern.chars() {
        if c == '*' {
            let first = reached.iter().position(|reached| *reached);
            let end = reached.len();
            reached[first.unwrap_or(end)..].fill(true);
            continue;
        }
        for end in (1..reached.len()).rev() {
            reached[end] = reached[end - 1] && (c == '?' || c == name[end - 1]);
        }
        reached[0] = false;
    }
    reached[name.len()]
}

/// Returns whether some name matches both patterns.
pub fn overlap(a: &str, b: &str) -> bool {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    // meets[i][j]: the rest of a from i and the rest of b from j have a name in common.
    let mut meets = vec![vec![false; b.len() + 1]; a.len() + 1];
    for i in (0..=a.len()).rev() {
        for j in (0..=b.len()).rev() {
            let (x, y) = (a.get(i), b.get(j));
            meets[i][j] = match (x, y) {
                (None, None) => true,
                (Some('*'), _) if meets[i + 1][j] => true,
                (_, Some('*')) if meets[i][j + 1] => true,
                (Some('*'), Some(_)) => meets[i][j + 1],
                (Some(_), Some('*')) => meets[i + 1][j],
                (Some(x), Some(y)) => (x == y || *x == '?' || *y == '?') && meets[i + 1][j + 1],
                _ => false,
            };
        }
    }
    meets[0][0]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lets_a_star_stand_for_any_text_and_a_question_mark_for_one_character() {
        for (pattern, name) in [
            ("eth0", "eth0"),
            ("eth*", "eth0"),
            ("eth*", "eth"),
            ("*", "anything"),
            ("e*h?", "eth0"),
            ("*.100", "eth0.100"),
            ("*a*a", "aaa"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("eth0", "eth1"),
            ("eth?", "eth"),
            ("eth?", "eth10"),
            ("eth*", "veth0"),
            ("", "eth0"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn patterns_that_match_a_common_name_overlap() {
        for (a, b) in [
            ("eth*", "et*"),
            ("eth*", "*0"),
            ("e?h0", "eth*"),
            ("*", "*"),
            ("a*", "*b"),
        ] {
            assert!(overlap(a, b) && overlap(b, a), "{a} {b}");
        }
        for (a, b) in [("eth*", "en*"), ("eth?", "eth"), ("*0", "*1"), ("a", "b")] {
            assert!(!overlap(a, b) && !overlap(b, a), "{a} {b}");
        }
    }

    proptest! {
        #[test]
        fn patterns_that_match_one_name_overlap(
            a in "[ab*?]{0,6}", b in "[ab*?]{0,6}", name in "[ab]{0,6}",
        ) {
            if matches(&a, &name) && matches(&b, &name) {
                prop_assert!(overlap(&a, &b));
            }
            prop_assert_eq!(matches(&a, &name), overlap(&a, &name));
        }
    }
}
