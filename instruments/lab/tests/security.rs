//! Every promise in SECURITY.md has a test.

use std::fs;
use std::path::Path;

#[test]
fn every_promise_names_a_test_that_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join("SECURITY.md")).unwrap();
    let (_, promises) = text.split_once("## Promises").unwrap();
    let rows = promises
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains(".rs`"));
    let mut promised = 0;
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [_, tests] = cells[..] else {
            panic!("a promise and its test: {row}");
        };
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        let (file, tests) = names.split_first().unwrap();
        let source =
            fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(source.contains("fn "), "{file} tests nothing");
        for test in tests {
            assert!(
                source.contains(&format!("fn {test}(")),
                "{file} has no {test}"
            );
        }
        promised += 1;
    }
    assert!(promised > 15, "{promised} promises");
}
