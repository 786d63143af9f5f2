//! The cost of faults: packets lost while something is killed, restarted or replaced. The figures come
//! from a separate run and are shown, not measured, here.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::number::number;

/// Results of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reliability {
    /// Every fault with every relay it was tested on.
    pub reliability: Vec<Row>,
}

/// One fault on one relay, all rounds together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What was done to the relay.
    pub fault: String,
    /// Name of the relay.
    pub relay: String,
    /// How many times.
    pub rounds: u64,
    /// Packets sent meanwhile, in all rounds.
    pub offered: u64,
    /// Of these, those that did not arrive.
    pub lost: u64,
    /// Further remarks.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Revision of the source tree that it was measured in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}

impl Row {
    /// The measured build, as far as it was recorded.
    pub fn build(&self) -> &str {
        self.revision.as_deref().unwrap_or("not recorded")
    }
}

impl Reliability {
    /// Reads the results of a run.
    ///
    /// # Errors
    /// When the file does not exist or has another format.
    pub fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        serde_json::from_str(&text).with_context(|| file.display().to_string())
    }

    /// Writes the table, Markdown; nothing where there are no rows.
    pub fn table(&self) -> String {
        if self.reliability.is_empty() {
            return String::new();
        }
        // Older rows lack this field.
        let are_dated = self.reliability.iter().any(|row| row.revision.is_some());
        let (head, rule) = if are_dated {
            (" build |", "---|")
        } else {
            ("", "")
        };
        let mut text = format!(
            "## Reliability\n\nA stream runs, the fault is done to the relay, the stream runs on \
             (`make reliability`, `make soak`). A round is one fault, or one change of a rule; \
             packets are sums over all rounds.\n\n\
             | fault | relay | rounds | packets offered | packets lost | lost per round | how |{head}\n\
             |---|---|--:|--:|--:|--:|---|{rule}\n",
        );
        for row in &self.reliability {
            let _ = write!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} |",
                cell(&row.fault),
                cell(&row.relay),
                row.rounds,
                number(row.offered as f64),
                number(row.lost as f64),
                number(row.lost as f64 / row.rounds.max(1) as f64),
                cell(&row.note),
            );
            if are_dated {
                let _ = write!(text, " {} |", cell(row.build()));
            }
            text.push('\n');
        }
        text.push('\n');
        text
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_reads_as_it_is_written_and_shows_its_figures() {
        let json = r#"{"reliability":[{"fault":"daemon killed","relay":"mcr-kernel","rounds":3,
            "offered":60000,"lost":0,"note":""},
            {"fault":"process killed","relay":"socat","rounds":2,"offered":40000,"lost":31,
            "revision":"abc"}]}"#;
        let read: Reliability = serde_json::from_str(json).unwrap();
        let table = read.table();
        assert!(
            table.contains("| daemon killed | mcr-kernel | 3 | 60,000 | 0 | 0 |  | not recorded |"),
            "{table}"
        );
        assert!(table.contains("| 31 | 15.5 |  | abc |"), "{table}");
        assert_eq!(Reliability::default().table(), "");
    }
}
