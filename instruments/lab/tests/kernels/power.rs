//! A booted machine whose power fails after changes and while one awaits confirmation, and one whose clock
//! is set back and forth while a change awaits confirmation.

use std::path::Path;

use lab::vm::{Kernels, Step, StepResult};

use super::matrix::STEP_TIMEOUT;
use super::open;

#[test]
fn what_was_changed_is_told_and_what_nobody_confirmed_undone_when_the_power_comes_back() {
    let Some(kernels) = with_disk() else { return };
    let Some(changed) = run(&kernels, "changed") else {
        return;
    };
    assert_eq!(lines(&changed, "changed"), ["7"]);
    assert_eq!(changed.status, None, "the power failed");
    let Some(cut) = run(&kernels, "cut") else {
        return;
    };
    assert_eq!(lines(&cut, "listed"), ["cam1 cam3"]);
    assert_eq!(cut.status, None, "the power failed");
    let Some(boot) = run(&kernels, "boot") else {
        return;
    };
    assert_eq!(boot.status, Some(0));
    assert_eq!(lines(&boot, "listed"), ["cam1 cam2"]);
    let alarm = ["degraded", "nobody confirmed the change"];
    // The log, and the sets of each change but the last, whose name the disk may not have had.
    let changes = [
        "1 -> 2",
        "\"one\"",
        "\"two\"",
        "\"three\"",
        "6 -> 7",
        "7 -> 8",
    ];
    let backups = ["\n2  ", "\n3  ", "\n4  ", "\n5  ", "\n6  "];
    for part in alarm.iter().chain(&changes).chain(&backups) {
        assert!(boot.output.contains(part), "{part:?}: {}", boot.output);
    }
}

#[test]
#[ignore = "waits in an emulated guest until changes expire: make long-power"]
fn a_calendar_that_jumps_neither_confirms_nor_undoes() {
    let Some(kernels) = with_disk() else { return };
    let Some(result) = run(&kernels, "clock") else {
        return;
    };
    assert_eq!(result.status, Some(0));
    assert_eq!(lines(&result, "listed"), ["cam1 cam3"; 2]);
    let undone = lines(&result, "undone after");
    let seconds = undone
        .iter()
        .map(|line| line.trim_end_matches(" s").parse::<u64>().unwrap());
    assert!(
        seconds.clone().count() == 2 && seconds.min() >= Some(59),
        "{undone:?}"
    );
}

fn with_disk() -> Option<Kernels> {
    let mut kernels = open()?;
    match kernels.add_disk() {
        Ok(()) => Some(kernels),
        Err(why) => {
            eprintln!("skipped: {why:#}");
            None
        }
    }
}

/// Boots once and runs one step of the script.
fn run(kernels: &Kernels, step: &str) -> Option<StepResult> {
    let fetched = kernels.fetch(&["6.1"], false).unwrap();
    let release = match &fetched[0].release {
        Ok(release) => release,
        Err(why) => {
            eprintln!("skipped: kernel 6.1: {why}");
            return None;
        }
    };
    let mcr = lab::binary::mcr().unwrap().to_owned();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/power.sh");
    let programs = [(mcr, "/t/debug/mcr"), (script, "/t/power.sh")];
    let steps = [Step {
        name: step.to_owned(),
        patience: STEP_TIMEOUT,
        command: format!("/t/power.sh {step}"),
    }];
    let result = kernels.run(release, &programs, &steps).unwrap().remove(0);
    println!("{result:#?}");
    Some(result)
}

fn lines(result: &StepResult, word: &str) -> Vec<String> {
    let lines = result
        .output
        .lines()
        .filter_map(|line| Some(line.split_once(word)?.1));
    lines.map(|line| line.trim().to_owned()).collect()
}
