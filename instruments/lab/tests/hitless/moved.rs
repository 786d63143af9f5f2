//! A rule that moves to the other path and back while its packets come.

use lab::link;
use lab::namespace::Namespace;
use lab::wait;

use super::{Form, Stage};

pub(super) fn moved_by_changes(form: Form) {
    let outputs = [
        ["--add-output", "239.10.9.9%veth2:9,fragment=yes"],
        ["--remove-output", "239.10.9.9%veth2:9"],
    ];
    moved_on("auto", form, outputs);
}

pub(super) fn moved_by_changes_at_xdp(form: Form) {
    let paths = [["--set", "path=userspace"], ["--set", "path="]];
    moved_on("xdp", form, paths);
}

/// Two changes by turns: to the userspace path, and back to the kernel path.
fn moved_on(path: &'static str, form: Form, changes: [[&str; 2]; 2]) {
    let form = form.for_userspace();
    let stage = Stage::new(path, &[], form);
    let sink = stage.bed.chain.sink.clone();
    stage.loses_nothing("rule moved to the other path and back", |daemon| {
        for _ in 0..form.rounds {
            for (change, path) in changes.iter().zip(["userspace", "kernel"]) {
                daemon
                    .mcr(&["change", "steady1", change[0], change[1]])
                    .unwrap();
                assert_eq!(daemon.rule("steady1").unwrap().path, path);
                wait_for_packets(&sink, form.rate / 20);
            }
        }
    });
}

pub(super) fn moved_by_restarts(form: Form) {
    let form = form.for_userspace();
    let stage = Stage::new("kernel", &[], form);
    let sink = stage.bed.chain.sink.clone();
    let fault = "daemon killed, started with the other path";
    stage.loses_nothing(fault, |daemon| {
        for _ in 0..form.rounds {
            for path in ["userspace", "kernel"] {
                daemon.kill().unwrap();
                daemon.choose_path(path);
                daemon.start_again().unwrap();
                wait::until("the rule is on that path", || {
                    daemon.rule("steady1").unwrap().path == path
                })
                .unwrap();
                wait_for_packets(&sink, form.rate / 20);
            }
        }
    });
}

/// Waits until so many more packets have arrived.
pub(super) fn wait_for_packets(sink: &Namespace, count: u32) {
    let arrived = || link::statistics((sink, "veth3")).unwrap().received;
    let before = arrived();
    wait::until("packets arrive", || arrived() - before > u64::from(count)).unwrap();
}
