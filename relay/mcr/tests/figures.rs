//! `dist/figures`, which measures the code itself, has the known figures of its examples, and no
//! production file of the repository is beyond it.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

/// The output of the script; `None`, with a note, where there is no Python to run it.
fn figures(arguments: &[&str]) -> Option<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/figures");
    let mut command = Command::new("python3");
    command.arg("-B").arg(script).args(arguments);
    let output = match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("skipped: python3 is not installed");
            return None;
        }
        output => output.unwrap(),
    };
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn examples_have_their_known_figures() {
    figures(&["--self-test"]);
}

#[test]
fn every_crate_is_counted() {
    let Some(text) = figures(&[]) else { return };
    let counted = |name: &str| {
        text.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.len() == 2 && words[0] == name && words[1].parse::<u32>().is_ok_and(|n| n > 100)
        })
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for wing in ["relay", "instruments"] {
        for entry in root.join(wing).read_dir().unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(counted(&name), "{name}: {text}");
        }
    }
}
