//! Every input of the corpora, replayed; and a second of new ones for each target.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use fuzz::TARGETS;
use fuzz::mutate::Mutator;

/// How long new inputs are tried for each target.
const BUDGET: Duration = Duration::from_secs(1);

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    let mut files: Vec<_> = fs::read_dir(&directory)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    let read = |path: &std::path::PathBuf| (path.display().to_string(), fs::read(path).unwrap());
    files.iter().map(read).collect()
}

#[test]
fn every_kept_input_is_survived() {
    for (target, run) in TARGETS {
        let corpus = corpus(target);
        assert!(corpus.len() >= 10, "{target}: {} inputs", corpus.len());
        for (file, input) in corpus {
            println!("{file}");
            run(&input);
        }
    }
}

#[test]
fn changed_inputs_are_survived() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let seed = now.unwrap().as_nanos() as u64;
    println!("seed {seed}");
    for (target, run) in TARGETS {
        let corpus: Vec<Vec<u8>> = corpus(target).into_iter().map(|(_, input)| input).collect();
        let mut mutator = Mutator::new(seed);
        let (end, mut count) = (Instant::now() + BUDGET, 0);
        while Instant::now() < end {
            let input = mutator.input(&corpus);
            let survived = catch_unwind(AssertUnwindSafe(|| run(&input)));
            let shown = input.escape_ascii();
            assert!(
                survived.is_ok(),
                "{target}, seed {seed}, input {count}: b\"{shown}\""
            );
            count += 1;
        }
        println!("{target}: {count} inputs");
    }
}

#[test]
fn every_target_has_a_program_and_a_name() {
    for (target, _) in TARGETS {
        let file = format!("fuzz_targets/{target}.rs");
        let program = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file));
        assert!(program.unwrap().contains(&format!("fuzz::{target}(data)")));
    }
}
