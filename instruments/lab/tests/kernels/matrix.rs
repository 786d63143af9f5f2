//! The steps that run inside each kernel, and the table of their results.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

use lab::vm::{Kernel, Step, StepResult};

/// Per step: the longest takes a fifth of it on an idle machine.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(1_200);

/// Which steps run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Loading, the packet cases.
    Short,
    /// Everything but devices.
    Full,
    /// Devices: those of the ordinary tests.
    FewDevices,
    /// Of all kinds.
    Devices,
    /// Emulated cards.
    Cards,
}

/// One path on one kernel.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) path: &'static str,
    /// Packet cases: passed, failed, skipped.
    pub(crate) cases: (u32, u32, u32),
    /// Other tests that passed.
    pub(crate) passed: Vec<String>,
    /// What failed, with the end of its output.
    pub(crate) failures: Vec<String>,
    /// The reasons of what was skipped.
    pub(crate) skipped: BTreeSet<String>,
    /// How many of 20,000 packets arrived.
    pub(crate) burst: Option<String>,
}

/// Tests of `paths` by path; those of the first list run in the short form as well.
const KERNEL: ([&str; 3], [&str; 5]) = (
    [
        "the_kernel_path_gives_what_the_cases_say",
        "the_kernel_path_gives_answers_to_whoever_asked",
        "the_kernel_path_merges_lines",
    ],
    [
        "the_kernel_path_gives_what_the_cases_say_through_clsact",
        "the_kernel_program_gives_what_the_cases_say_in_a_test_run",
        "the_kernel_path_relays_datagrams_in_fragments",
        "the_kernel_path_finds_what_the_reference_finds_in_streams",
        "the_kernel_path_agrees_with_the_reference_on_generated_packets",
    ],
);
const USERSPACE: ([&str; 2], [&str; 4]) = (
    [
        "the_userspace_path_gives_what_the_cases_say",
        "the_userspace_path_gives_answers_to_whoever_asked",
    ],
    [
        "the_userspace_path_gives_what_the_cases_say_on_a_kernel_that_has_nothing_optional",
        "the_userspace_path_relays_datagrams_in_fragments",
        "the_userspace_path_finds_what_the_reference_finds_in_streams",
        "the_userspace_path_agrees_with_the_reference_on_generated_packets",
    ],
);

/// What runs, in this order; the name of a step begins with its path.
pub(crate) fn steps(form: Form) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut add = |path: &str, name: &str, command: String| {
        steps.push(Step {
            name: format!("{path}:{name}"),
            patience: STEP_TIMEOUT,
            command,
        });
    };
    let paths = |test: &str| {
        format!("env MCR_CASES=500 /t/debug/deps/paths --exact {test} --nocapture --test-threads 1")
    };
    let inside = |path: &str, test: &str| {
        let test = format!("inside::{path}::{test}");
        format!("/t/debug/deps/kernels --exact {test} --ignored --nocapture")
    };
    if form == Form::Cards {
        let test = "/t/debug/deps/kernels --exact cards::all --ignored --nocapture";
        add("kernel", "cards", test.to_owned());
        return steps;
    }
    if let Form::FewDevices | Form::Devices = form {
        let all = ["short", "long"];
        let count = if form == Form::Devices { 2 } else { 1 };
        for which in &all[..count] {
            let test =
                format!("/t/debug/deps/kernels --exact devices::{which} --ignored --nocapture");
            add("kernel", &format!("devices-{which}"), test);
        }
        return steps;
    }
    add(
        "kernel",
        "verifier",
        "/t/debug/deps/verifier --nocapture".to_owned(),
    );
    for (path, (short, long)) in [
        ("kernel", (&KERNEL.0[..], &KERNEL.1[..])),
        ("userspace", (&USERSPACE.0[..], &USERSPACE.1[..])),
    ] {
        for test in short {
            add(path, test, paths(test));
        }
        if form == Form::Full {
            for test in long {
                add(path, test, paths(test));
            }
            add(path, "burst", inside(path, "burst"));
            add(path, "adoption", inside(path, "adoption"));
            add(path, "leaving", inside(path, "leaving"));
            add(path, "refused", inside(path, "refused"));
        }
    }
    if form == Form::Full {
        add(
            "userspace",
            "demo",
            "/t/debug/mcr demo --duration 2 --rate 200".to_owned(),
        );
        add("userspace", "doctor", "/t/debug/mcr doctor".to_owned());
    }
    steps
}

/// A row for each path.
pub(crate) fn rows(steps: &[StepResult]) -> Vec<Row> {
    ["kernel", "userspace"].map(|path| row(path, steps)).into()
}

fn row(path: &'static str, steps: &[StepResult]) -> Row {
    let mut row = Row {
        path,
        cases: (0, 0, 0),
        passed: Vec::new(),
        failures: Vec::new(),
        skipped: BTreeSet::new(),
        burst: None,
    };
    for step in steps {
        let Some(name) = step
            .name
            .strip_prefix(path)
            .and_then(|rest| rest.strip_prefix(':'))
        else {
            continue;
        };
        for line in step.output.lines() {
            // The harness writes the test's name in front of its first line.
            if let Some((_, counts)) = line.split_once("packet cases: ") {
                let numbers: Vec<u32> = counts
                    .split(|c: char| !c.is_ascii_digit())
                    .filter_map(|word| word.parse().ok())
                    .collect();
                if let [passed, failed, skipped] = numbers[..] {
                    row.cases.0 += passed;
                    row.cases.1 += failed;
                    row.cases.2 += skipped;
                }
            } else if let Some((_, reason)) = line.split_once("skipped: ") {
                row.skipped.insert(short(reason).to_owned());
            } else if let Some((_, reason)) = line.split_once("refused: ") {
                row.skipped.insert(short(reason).to_owned());
            } else if let Some((_, burst)) = line.split_once("burst: ") {
                row.burst = Some(burst.split(" sent").next().unwrap_or(burst).to_owned());
            }
        }
        // No daemon answers the doctor there.
        let success = if name == "doctor" { 4 } else { 0 };
        match step.status {
            Some(0) if step.output.contains("skipped: no ") => {}
            Some(status) if status == success => row.passed.push(name.to_owned()),
            status => {
                let lines: Vec<_> = step.output.lines().collect();
                let end = lines[lines.len().saturating_sub(30)..].join("\n");
                row.failures.push(format!("{name}: {status:?}: {end}"));
            }
        }
    }
    row
}

/// The document, with the rows of the kernels booted now and the other kernels' rows from `before`.
pub(crate) fn document(before: &str, all: &[&str], booted: &[Booted]) -> String {
    let mut text = format!(
        "# Kernels\n\nWhat `make kernels` saw: Debian's kernels, booted under qemu's emulation with two \
         processors, release build. Rows may be of several runs: each says of which day and commit. \
         Cases are those of the packet tables; of the burst, 20,000 packets at 4,000 a second, those that arrived; other \
         tests are loading, fragments, streams, generated packets, the daemon's death and return, what \
         the host itself sends, what a device's queue refuses, the demo and the doctor. Where there is \
         no kernel path, they are that the daemon says so and why.\n\n{HEAD}"
    );
    for version in all {
        match booted.iter().find(|(kernel, _)| kernel.version == *version) {
            Some(booted) => lines(&mut text, booted),
            None => {
                let begin = format!("| {version} |");
                let rows = before.lines().filter(|line| line.starts_with(&begin));
                rows.for_each(|line| text.extend([line, "\n"]));
            }
        }
    }
    text
}

/// A kernel, and a row for each path or why there is none.
pub(crate) type Booted = (Kernel, Result<Vec<Row>, String>);

const HEAD: &str = "| kernel | release | path | cases passed | failed | skipped | burst | other tests | \
                    skipped because | seen |\n|---|---|---|---|---|---|---|---|---|---|\n";

/// The rows of the kernels that were booted.
pub(crate) fn table(booted: &[Booted]) -> String {
    let mut text = HEAD.to_owned();
    booted.iter().for_each(|booted| lines(&mut text, booted));
    text
}

/// A line for each path of a kernel.
fn lines(text: &mut String, (kernel, rows): &Booted) {
    let version = &kernel.version;
    let run = format!(
        "{}, {}",
        output_of("date +%Y-%m-%d"),
        output_of("git describe --always --dirty --exclude *"),
    );
    match (&kernel.release, rows) {
        (Ok(release), Ok(rows)) => {
            for row in rows {
                let cells = cells(row);
                let _ = writeln!(text, "| {version} | {release} | {cells} | {run} |");
            }
        }
        (_, Err(why)) => {
            let why = why.lines().next().unwrap_or_default();
            let _ = writeln!(text, "| {version} | | | | | | | | {why} | {run} |");
        }
        (Err(_), Ok(_)) => {}
    }
}

fn cells(row: &Row) -> String {
    let (passed, failed, skipped) = row.cases;
    let others = format!("{} passed, {} failed", row.passed.len(), row.failures.len());
    let burst = row.burst.as_deref().unwrap_or("");
    let reasons: Vec<_> = row.skipped.iter().map(String::as_str).collect();
    format!(
        "{} | {passed} | {failed} | {skipped} | {burst} | {others} | {}",
        row.path,
        reasons.join("; "),
    )
}

/// The reason without its subject and without what follows it.
fn short(reason: &str) -> &str {
    let subjects = ["case ", "stream ", "super-packets"];
    let why = match reason.rsplit_once(": ") {
        Some((_, why)) if subjects.iter().any(|subject| reason.starts_with(subject)) => why,
        _ => reason,
    };
    why.split(", ").next().unwrap_or(why)
}

fn output_of(command: &str) -> String {
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap_or_default())
        .args(words)
        .output();
    output.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_told_once_however_many_cases_have_it() {
        let output = "skipped: case \"a: b\": packet sockets know no UDP GSO here\n\
                      skipped: super-packets: packet sockets know no UDP GSO here\n\
                      test x ... packet cases: 3 passed, 0 failed, 1 skipped\n";
        let done = StepResult {
            name: "userspace:cases".to_owned(),
            status: Some(0),
            output: output.to_owned(),
        };
        let row = &rows(&[done])[1];
        assert_eq!(row.cases, (3, 0, 1));
        assert_eq!(row.passed, ["cases"]);
        let reasons: Vec<_> = row.skipped.iter().collect();
        assert_eq!(reasons, ["packet sockets know no UDP GSO here"]);
    }

    #[test]
    fn the_rows_of_kernels_that_were_not_booted_stay() {
        let booted = |version: &str, why: &str| {
            let kernel = Kernel {
                version: version.to_owned(),
                release: Err(why.to_owned()),
            };
            (kernel, Err(why.to_owned()))
        };
        let all = ["6.1", "6.12", "newest"];
        let whole = all.map(|version| booted(version, "first"));
        let before = document("", &all, &whole);
        let after = document(&before, &all, &[booted("6.12", "second")]);
        let rows = |text: &str, why: &str| text.matches(&format!("| {why} |")).count();
        assert_eq!((rows(&after, "first"), rows(&after, "second")), (2, 1));
        assert_eq!(document(&after, &all, &[]), after);
    }

    #[test]
    fn a_refusal_that_is_told_passes_and_what_it_leaves_out_does_not_count() {
        let step = |name: &str, output: &str| StepResult {
            name: format!("kernel:{name}"),
            status: Some(0),
            output: output.to_owned(),
        };
        let why = "no bpf_loop before Linux 5.17: no kernel path";
        let done = [
            step("cases", &format!("skipped: {why}, every rule goes\n")),
            step("burst", &format!("refused: {why}\n")),
        ];
        let row = &rows(&done)[0];
        assert_eq!(row.passed, ["burst"]);
        assert!(row.failures.is_empty());
        assert_eq!(row.skipped.iter().collect::<Vec<_>>(), [why]);
    }
}
