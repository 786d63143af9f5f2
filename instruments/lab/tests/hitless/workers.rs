//! Workers whose supervisor goes and comes again, and workers that are killed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lab::wait;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::moved::wait_for_packets;
use super::{Form, Stage};

pub(super) fn workers_without_supervisor(form: Form) {
    let form = form.for_userspace();
    let stage = Stage::new("userspace", &[], form);
    let sink = stage.bed.chain.sink.clone();
    stage.costs_less_than_300_ms("daemon killed", |daemon| {
        for _ in 0..form.rounds {
            daemon.kill().unwrap();
            wait_for_packets(&sink, form.rate / 4);
            daemon.start_again().unwrap();
        }
    });
}

pub(super) fn workers_handed_over(form: Form) {
    let form = form.for_userspace();
    let stage = Stage::new("userspace", &["--keep-forwarding"], form);
    let fault = "daemon stopped with --keep-forwarding and started";
    stage.costs_less_than_300_ms(fault, |daemon| {
        for _ in 0..form.rounds {
            daemon.stop(Signal::SIGTERM).unwrap();
            daemon.start_again().unwrap();
        }
    });
}

/// They notice late that they have to end.
pub(super) fn workers_handed_over_that_hardly_run(form: Form) {
    let form = form.for_userspace();
    let stage = Stage::new("userspace", &["--keep-forwarding"], form);
    let fault = "daemon stopped and started while the workers hardly run";
    stage.costs_less_than_300_ms(fault, |daemon| {
        for _ in 0..form.rounds {
            let workers = daemon.stats().unwrap().workers;
            let pids: Vec<Pid> = workers
                .iter()
                .map(|worker| Pid::from_raw(worker.pid.cast_signed()))
                .collect();
            daemon.stop(Signal::SIGTERM).unwrap();
            let has_started = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !has_started.load(Ordering::Relaxed) {
                        hold(&pids, Signal::SIGSTOP, Duration::from_millis(60));
                        hold(&pids, Signal::SIGCONT, Duration::from_millis(3));
                    }
                });
                let started = daemon.start_again();
                has_started.store(true, Ordering::Relaxed);
                started.unwrap();
            });
        }
    });
}

fn hold(pids: &[Pid], signal: Signal, time: Duration) {
    for pid in pids {
        // It may have ended meanwhile.
        let _ = kill(*pid, signal);
    }
    thread::sleep(time);
}

pub(super) fn a_worker_killed(form: Form) {
    let form = form.for_userspace();
    let stage = Stage::new("userspace", &[], form);
    stage.costs_less_than_300_ms("worker killed", |daemon| {
        for round in 0..form.rounds {
            let workers = daemon.stats().unwrap().workers;
            let victim = workers[round as usize % workers.len()].id;
            let killed = daemon.kill_worker(victim).unwrap();
            wait::until("the worker is replaced", || {
                let workers = daemon.stats().unwrap().workers;
                let now = workers.iter().find(|worker| worker.id == victim);
                now.is_some_and(|now| now.pid != 0 && now.pid != killed)
            })
            .unwrap();
        }
    });
}
