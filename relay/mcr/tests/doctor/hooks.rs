//! Other programs at the hooks of the kernel path, and its own.

use std::fs;
use std::process::Command;

use lab::daemon::{Daemon, Options};
use lab::link;
use lab::process::Process;
use lab::wait;

use super::bed::{RULE, bed, diagnose};

#[test]
fn notes_filters_that_come_after_mcr() {
    let Some(bed) = bed(RULE) else { return };
    bed.relay()
        .tool("tc", "qdisc add dev veth1 clsact")
        .unwrap();
    bed.doctor(&[])
        .has("hook", "note", &["veth1", "clsact", "either path", "local"]);
}

#[test]
fn asks_the_daemon_what_it_relays_and_knows_its_own_program() {
    let Some(bed) = bed(RULE) else { return };
    let daemon = Daemon::start(bed.relay(), Options::path("kernel")).unwrap();
    let input = "239.1.1.1%veth1:5001";
    daemon
        .add("cam1", input, &["239.10.1.1%veth2:6001"])
        .unwrap();
    let healthy = diagnose(&daemon);
    healthy.has_no("hook");
    healthy.has_no("daemon");
    assert_eq!(healthy.status, 0);
    // Nobody has that address.
    daemon
        .add("cam2", "239.1.1.2%veth1:5001", &["10.0.1.77:7000"])
        .unwrap();
    let broken = diagnose(&daemon);
    broken.has("daemon", "stops", &["cam2", "10.0.1.77"]);
    assert_eq!(broken.status, 5);
}

/// The source of an XDP program that passes everything.
const PASSES: &str = "__attribute__((section(\"xdp\"), used)) int passes(void *ctx) { return 2; }";

#[test]
fn finds_an_xdp_program_in_front_of_the_kernel_path() {
    let Some(bed) = bed(RULE) else { return };
    let source = bed.directory.path().join("passes.c");
    let object = bed.directory.path().join("passes.o");
    fs::write(&source, PASSES).unwrap();
    let mut clang = Command::new("clang");
    clang.args(["-O2", "-target", "bpf", "-c"]).arg(&source);
    let compiled = clang.arg("-o").arg(&object).output();
    if !compiled.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no clang that compiles for bpf");
        return;
    }
    let object = object.to_str().unwrap();
    let attach = format!("link set veth1 xdpgeneric obj {object} sec xdp");
    if let Err(error) = bed.relay().ip(&attach) {
        eprintln!("skipped: this ip attaches no program: {error:#}");
        return;
    }
    let diagnosis = bed.doctor(&[]);
    diagnosis.has("hook", "harms", &["veth1", "XDP", "before MCR"]);
    assert_eq!(diagnosis.status, 0, "harms, does not stop");
    link::features((bed.relay(), "veth1"), "rxvlan off").unwrap();
    let options = Options {
        arguments: ["--xdp", "on"].map(str::to_owned).to_vec(),
        ..Options::path("kernel")
    };
    let daemon = Daemon::start(bed.relay(), options).unwrap();
    let input = "239.1.1.1%veth1:5001";
    daemon
        .add("cam1", input, &["239.10.1.1%veth2:6001"])
        .unwrap();
    let rule = daemon.rule("cam1").unwrap();
    let reason = rule.inputs[0].hook_reason.as_deref().unwrap_or_default();
    assert!(reason.contains("another XDP program is there"), "{reason}");
    drop(daemon);
    bed.relay().ip("link set veth1 xdpgeneric off").unwrap();
    bed.doctor(&[]).has_no("hook");
}

/// `mcr receive --method bpf` is such a program: it counts packets of its group and drops them.
#[test]
fn finds_another_tcx_program_in_front_of_the_kernel_path_or_behind_it() {
    let Some(bed) = bed(RULE) else { return };
    let receive = || {
        let mut command = bed.relay().command(env!("CARGO_BIN_EXE_mcr"));
        command.args(["receive", "239.1.1.1%veth1:5001", "--method", "bpf"]);
        Process::start(command).unwrap()
    };
    let is_found = |words: &[&str]| {
        let findings = bed.doctor(&[]).findings;
        let mut texts = findings.iter().map(ToString::to_string);
        texts.any(|text| words.iter().all(|word| text.contains(word)))
    };
    let before = receive();
    wait::until("a program in front is found", || {
        is_found(&["\"hook\"", "\"harms\"", "veth1", "sees packets before MCR"])
    })
    .unwrap();
    drop(before);
    wait::until("it is gone", || !is_found(&["\"hook\""])).unwrap();

    let daemon = Daemon::start(bed.relay(), Options::path("kernel")).unwrap();
    let input = "239.1.1.1%veth1:5001";
    daemon
        .add("cam1", input, &["239.10.1.1%veth2:6001"])
        .unwrap();
    let _behind = receive();
    wait::until("a program behind is found", || {
        is_found(&["\"hook\"", "\"harms\"", "veth1", "comes after MCR's"])
    })
    .unwrap();
}
