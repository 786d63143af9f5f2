//! Rule names, derived from the stream names of a file.

use std::collections::HashMap;

use rules::endpoint::Endpoint;
use rules::printable::is_misleading;
use rules::rule::{NAME_MAX, TEXT_MAX, is_name, name_for};

/// Names that no two rules share.
#[derive(Default)]
pub(crate) struct Names {
    /// Each name, with the number that was last appended to it.
    taken: HashMap<String, usize>,
}

impl Names {
    /// A unique name like `title`, or like the input if the title gives none.
    pub(crate) fn unique(&mut self, title: Option<&str>, input: &Endpoint) -> String {
        let name = title.and_then(like).unwrap_or_else(|| name_for(input));
        let mut free = name.clone();
        while self.taken.contains_key(&free) {
            let number = self.taken.entry(name.clone()).or_insert(1);
            *number += 1;
            let suffix = format!("-{number}");
            let end = NAME_MAX - suffix.len();
            // A valid name is ASCII.
            free = format!("{}{suffix}", &name[..name.len().min(end)]);
        }
        self.taken.insert(free.clone(), 1);
        free
    }
}

/// The name nearest to a title: what names cannot hold becomes `-`.
fn like(title: &str) -> Option<String> {
    let mut name = String::new();
    for c in title.chars() {
        if name.len() == NAME_MAX {
            break;
        }
        if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':') {
            name.push(c);
        } else if !name.ends_with('-') {
            name.push('-');
        }
    }
    // A colon within an address stays, one at the end of a word does not.
    let name = name.replace(":-", "-");
    let trimmed = name
        .trim_start_matches(|c: char| !c.is_ascii_alphanumeric())
        .trim_end_matches(['-', ':', '.', '_']);
    is_name(trimmed).then(|| trimmed.to_owned())
}

/// The title as a comment if the name differs from it: one line, cut to the length limit of comments.
pub(crate) fn comment(title: Option<&str>, name: &str) -> Option<String> {
    let printable: String = title?.chars().filter(|c| !is_misleading(*c)).collect();
    let title = printable.trim();
    let end = title.floor_char_boundary(TEXT_MAX);
    (!title.is_empty() && title != name).then(|| title[..end].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_becomes_the_nearest_name() {
        for (title, name) in [
            ("Das Erste HD", Some("Das-Erste-HD")),
            ("cam1", Some("cam1")),
            ("  (1) News / Sport ", Some("1-News-Sport")),
            ("España", Some("Espa-a")),
            ("Studio 3: Cam", Some("Studio-3-Cam")),
            ("eth0-ff2e::42", Some("eth0-ff2e::42")),
            ("eth0-225.0.0.0/24", Some("eth0-225.0.0.0-24")),
            ("日本", None),
            ("\x1b[2J", Some("2J")),
            ("---", None),
            ("", None),
        ] {
            assert_eq!(like(title).as_deref(), name, "{title:?}");
        }
        assert_eq!(like(&"ab ".repeat(40)).unwrap().len(), 62);
    }

    #[test]
    fn no_two_names_are_the_same() {
        let input: Endpoint = "239.1.1.1%eth0:5001".parse().unwrap();
        let mut names = Names::default();
        let long = "x".repeat(70);
        let given = ["a", "a", "a-2", "a", &long, &long].map(Some);
        let titles = given.into_iter().chain([None, None]);
        let made: Vec<String> = titles.map(|title| names.unique(title, &input)).collect();
        assert_eq!(made[..4], ["a", "a-2", "a-2-2", "a-3"]);
        assert_eq!(made[4..6], ["x".repeat(63), "x".repeat(61) + "-2"]);
        assert_eq!(made[6..], ["eth0-239.1.1.1-5001", "eth0-239.1.1.1-5001-2"]);
        assert!(made.iter().all(|name| is_name(name)));
    }

    #[test]
    fn a_comment_says_what_the_name_cannot() {
        assert_eq!(
            comment(Some("España\u{7}\u{202e}"), "Espa-a").as_deref(),
            Some("España")
        );
        assert_eq!(comment(Some("cam1"), "cam1"), None);
        assert_eq!(comment(None, "cam1"), None);
        let long = comment(Some(&"é".repeat(200)), "x").unwrap();
        assert_eq!(long, "é".repeat(127));
    }
}
