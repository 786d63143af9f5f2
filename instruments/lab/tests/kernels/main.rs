//! Runs on the kernels that people use: booted under qemu, with the packet cases of both paths, a
//! burst, a death and the demo inside.
//!
//! The short form belongs to the ordinary tests; `make kernels` runs the whole matrix and writes
//! docs/measurements/kernels.md. Kernels are cached in `target/kernels`. What is unavailable here is
//! reported and skipped.
//!
//! `MCR_TEST_KERNELS` selects the kernels that its words name (`6.1 newest`) or whose names contain one
//! of them (`rt`); the others' rows stay in the document as they are. `MCR_TEST_SCALE` multiplies all
//! time limits, for a machine that is busy.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod cards;
mod devices;
mod inside;
mod matrix;
mod power;

use std::path::{Path, PathBuf};
use std::thread;

use lab::vm::{Kernel, Kernels};

use matrix::{Booted, Form, document, rows, steps, table};

/// One kernel without UDP super-packets in packet sockets and without tcx, and the last.
const SHORT: [&str; 2] = ["6.1", "newest"];
/// Debian's kernels, and other releases' kernels that Debian does not have.
const ALL: [&str; 11] = [
    "5.10", "5.15", "6.1", "6.1-rt", "6.6", "6.8", "6.12", "6.12-rt", "6.16", "6.18", "newest",
];

#[test]
fn relays_on_an_old_and_on_the_newest_kernel() {
    let Some(kernels) = open() else { return };
    let booted = boot(&kernels, &SHORT, Form::Short);
    for (kernel, rows) in &booted {
        match rows {
            Ok(rows) => println!("{}", table(&[(kernel.clone(), Ok(rows.clone()))])),
            Err(why) => eprintln!("skipped: kernel {}: {why}", kernel.version),
        }
    }
    assert_no_failures(&booted);
}

/// Kernels that have all kinds of devices.
const DEVICES: [&str; 2] = ["newest-all", "6.1-all"];

#[test]
fn relays_over_ppp_gre_ipsec_and_vrfs() {
    let Some(kernels) = open() else { return };
    let booted = boot(&kernels, &DEVICES[..1], Form::FewDevices);
    for (kernel, rows) in &booted {
        match rows {
            Ok(rows) => rows
                .iter()
                .flat_map(|row| &row.skipped)
                .for_each(|why| eprintln!("skipped: {why}")),
            Err(why) => eprintln!("skipped: kernel {}: {why}", kernel.version),
        }
    }
    assert_no_failures(&booted);
}

#[test]
#[ignore = "boots a kernel with all kinds of devices, minutes of emulation; run by make kernels"]
fn relays_over_devices_of_all_kinds() {
    let Some(kernels) = open() else { return };
    assert_no_failures(&boot(&kernels, &DEVICES[..1], Form::Devices));
}

#[test]
#[ignore = "boots two kernels; run by make kernels"]
fn relays_over_devices_of_all_kinds_on_an_old_kernel_too() {
    let Some(kernels) = open() else {
        panic!("the matrix needs qemu");
    };
    assert_no_failures(&boot(&kernels, &DEVICES, Form::Devices));
}

#[test]
#[ignore = "boots two kernels; run by make kernels"]
fn relays_between_cards() {
    let Some(mut kernels) = open() else {
        panic!("the matrix needs qemu");
    };
    kernels.add_cards();
    assert_no_failures(&boot(&kernels, &DEVICES, Form::Cards));
}

#[test]
#[ignore = "boots a dozen kernels, a quarter of an hour; run by make kernels"]
fn all_that_can_be_had() {
    let Some(kernels) = open() else {
        panic!("the matrix needs qemu");
    };
    let booted = boot(&kernels, &picked(), Form::Full);
    println!("{}", table(&booted));
    let file = root().join("docs/measurements/kernels.md");
    let before = std::fs::read_to_string(&file).unwrap_or_default();
    std::fs::write(file, document(&before, &ALL, &booted)).unwrap();
    assert_no_failures(&booted);
}

fn picked() -> Vec<&'static str> {
    let variable = std::env::var("MCR_TEST_KERNELS").unwrap_or_default();
    let words: Vec<&str> = variable.split_whitespace().collect();
    let picks = |word: &str, name: &str| {
        if ALL.contains(&word) {
            name == word
        } else {
            name.contains(word)
        }
    };
    let is_picked = |name: &&str| words.is_empty() || words.iter().any(|word| picks(word, name));
    ALL.into_iter().filter(is_picked).collect()
}

fn assert_no_failures(booted: &[Booted]) {
    let available = booted.iter().filter(|(kernel, _)| kernel.release.is_ok());
    let down: Vec<_> = available
        .clone()
        .filter_map(|(kernel, rows)| Some((&kernel.version, rows.as_ref().err()?)))
        .collect();
    assert!(down.is_empty(), "did not come up: {down:#?}");
    let rows = available.filter_map(|(_, rows)| rows.as_ref().ok());
    let failed: Vec<_> = rows
        .flatten()
        .filter(|row| !row.failures.is_empty())
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

fn open() -> Option<Kernels> {
    match Kernels::open(&root().join("target/kernels")) {
        Ok(kernels) => Some(kernels),
        Err(why) => {
            eprintln!("skipped: {why:#}");
            None
        }
    }
}

/// Boots them in pairs, at once: each emulates two processors.
fn boot(kernels: &Kernels, versions: &[&str], form: Form) -> Vec<Booted> {
    let programs = programs(form);
    let all = kernels
        .fetch(versions, versions.len() == ALL.len())
        .unwrap();
    let run = |kernel: &Kernel| {
        let release = kernel.release.clone()?;
        let steps = steps(form);
        let results = kernels.run(&release, &programs, &steps);
        let rows = results
            .map(|steps| rows(&steps))
            .map_err(|why| format!("{why:#}"));
        // So that a long run shows its progress.
        println!("{release}: {rows:#?}");
        rows
    };
    let mut booted = Vec::new();
    for pair in all.chunks(2) {
        let results = thread::scope(|scope| {
            let threads: Vec<_> = pair.iter().map(|one| scope.spawn(|| run(one))).collect();
            let ended = threads.into_iter().map(|thread| thread.join().unwrap());
            ended.collect::<Vec<_>>()
        });
        booted.extend(pair.iter().cloned().zip(results));
    }
    booted
}

/// The binaries under test. Cargo built those of other crates before it ran this one: for the whole
/// workspace's tests, or because `make kernels` names them.
fn programs(form: Form) -> Vec<(PathBuf, &'static str)> {
    let this = std::env::current_exe().unwrap();
    let deps = this.parent().unwrap();
    let mcr = lab::binary::mcr().unwrap().to_owned();
    let mut programs = vec![
        (mcr, "/t/debug/mcr"),
        (this.clone(), "/t/debug/deps/kernels"),
    ];
    if let Form::Short | Form::Full = form {
        programs.push((newest(deps, "paths"), "/t/debug/deps/paths"));
        programs.push((newest(deps, "verifier"), "/t/debug/deps/verifier"));
    }
    programs
}

/// The latest build of the test binary of that name.
fn newest(deps: &Path, name: &str) -> PathBuf {
    let entries = deps.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let own = entries.filter(|path| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let hash = file
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix('-'));
        hash.is_some_and(|hash| !hash.contains(['.', '-']))
    });
    let newest = own.max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    newest.unwrap_or_else(|| panic!("no {name} in {}: cargo test --no-run", deps.display()))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
