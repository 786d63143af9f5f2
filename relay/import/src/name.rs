//! Names of rules, from what files call their streams.

use std::collections::HashMap;

use rules::endpoint::Endpoint;
use rules::printable::is_misleading;
use rules::rule::{NAME_MAX, TEXT_MAX, is_name, name_for};

/// Names that no two rules share.
#[derive(Default)]
pub(crate) struct Names {
    /// Each name, with the number that was last put behind it.
    taken: HashMap<String, usize>,
}

impl Names {
    /// A name like `title`, or like the input where that says nothing, which no other rule has.
    pub(crate) fn unique(&mut self, title: Option<&str>, input: &Endpoint) -> String {
        let name = title.and_then(like);
        let name = name.unwrap_or_else(|| name_for(input));
        let mut free = name.clone();
        while self.taken.contains_key(&free) {
            let number = self.taken.entry(name.clone()).or_insert(1);
            *number += 1;
            let behind = format!("-{number}");
            let end = NAME_MAX - behind.len();
            // A valid name is ASCII.
            free = format!("{}{behind}", &name[..name.len().min(end)]);
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
        let is_good = c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':');
        match is_good {
            true => name.push(c),
            false if name.ends_with('-') => {}
            false => name.push('-'),
        }
    }
    // A colon within an address stays, one at the end of a word does not.
    let name = name.replace(":-", "-");
    let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    let name = name.trim_end_matches(['-', ':', '.', '_']);
    is_name(name).then(|| name.to_owned())
}

/// The title as a comment, where the name does not say it all: a line, as long as comments may be.
pub(crate) fn comment(title: Option<&str>, name: &str) -> Option<String> {
    let title: String = title?.chars().filter(|c| !is_misleading(*c)).collect();
    let title = title.trim();
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
        let titles = ["a", "a", "a-2", "a", &long, &long];
        let titles = titles.map(Some).into_iter().chain([None, None]);
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
