//! Two relays that are controlled from a third host: a command for one reaches that one.

use std::fs;
use std::process::Command;

use lab::daemon::{Daemon, Options};
use lab::process::{self, Finished};
use lab::wait;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{Bed, PATIENCE, config};
use crate::bed::{INPUT, OUTPUT, can_run};
use crate::observe::Screen;

/// A relay with the rule `cam1` and a second one with `cam2`, named `first` and `second` in `hosts.toml`.
fn bed() -> Option<(Bed, Daemon)> {
    let bed = Bed::new("")?;
    let options = Options {
        config: Some(config(&bed.keys, "").replace(":9471", ":9472")),
        ..Options::default()
    };
    let second = Daemon::start(&bed.chain.relay, options).unwrap();
    let host = |name: &str, port: u16| {
        format!(
            "[{name}]\naddress = \"10.0.1.1:{port}\"\nca = \"../servers.pem\"\n\
             token_file = \"../change.token\"\n"
        )
    };
    let hosts = host("first", 9471) + &host("second", 9472);
    fs::write(bed.keys.path("mcr/hosts.toml"), hosts).unwrap();
    wait::until("the second listens", || {
        bed.run("second", &["status"]).status.success()
    })
    .unwrap();
    bed.mcr("first", &["add", INPUT, OUTPUT, "--name", "cam1"]);
    let [input, output] = ["239.1.1.2%veth1:5002", "239.10.1.2%veth2:6002"];
    bed.mcr("second", &["add", input, output, "--name", "cam2"]);
    Some((bed, second))
}

/// Runs `mcr` on the third host with this environment; returns its exit status and output.
fn mcr(bed: &Bed, environment: &[(&str, &str)], line: &str) -> (Option<i32>, String, String) {
    let mut command: Command = bed.chain.sink.command(lab::binary::mcr().unwrap());
    command.env("XDG_CONFIG_HOME", bed.keys.directory());
    command.env_remove("MCR_SOCKET").env_remove("MCR_HOST");
    command.envs(environment.iter().copied());
    command.args(line.split(' '));
    let Finished {
        status,
        stdout,
        stderr,
    } = process::run(command, PATIENCE).unwrap();
    (status.code(), stdout, stderr)
}

#[test]
fn a_change_at_several_hosts_counts_down_as_at_one() {
    if let Err(reason) = can_run("tmux") {
        eprintln!("skipped: {reason}");
        return;
    }
    let Some((bed, _second)) = bed() else {
        return;
    };
    let file = bed.keys.path("both.toml");
    let rule =
        format!("[[rule]]\nname = \"both\"\ninput = \"{INPUT}\"\noutputs = [\"{OUTPUT}\"]\n");
    fs::write(&file, format!("version = 1\n{rule}")).unwrap();
    let net = format!("--net=/run/netns/{}", bed.chain.sink.name());
    let home = format!("XDG_CONFIG_HOME={}", bed.keys.directory().display());
    let mcr = lab::binary::mcr().unwrap().display().to_string();
    let apply = format!(
        "{mcr} --host first,second apply {} --confirm 60s; echo status $?; sleep 600",
        file.display()
    );
    let words = ["nsenter", &net, "env", &home, "sh", "-c", &apply].map(str::to_owned);
    let begin = || {
        let screen = Screen::start(&words);
        // It asks before it removes rules that are in no file.
        screen.until("it asks, once", |text| {
            text.contains("No file has cam1 (first), cam2 (second)") && text.contains("[y/N]")
        });
        screen.press(&["y", "Enter"]);
        screen.until("both count down", |text| {
            text.contains(" s to confirm") && text.contains("mcr --host first,second confirm")
        });
        screen
    };
    let screen = begin();
    bed.mcr("first", &["confirm"]);
    screen.until("one counts on", |text| {
        text.lines().any(|line| line.starts_with("MCR: second: "))
    });
    bed.mcr("second", &["rollback", "--last", "--yes"]);
    screen.until("what is undone is told, and by the status", |text| {
        text.contains("mcr apply: second: the change is undone") && text.contains("status 1")
    });
    drop(screen);
    bed.mcr("first", &["rollback", "--last", "--yes"]);
    let screen = begin();
    for host in ["first", "second"] {
        bed.mcr(host, &["confirm"]);
    }
    screen.until("it is done", |text| text.contains("status 0"));
}

#[test]
fn what_is_meant_for_one_host_reaches_that_one() {
    let Some((bed, mut second)) = bed() else {
        return;
    };
    let add = "add 239.1.1.9%veth1:5009 239.10.1.9%veth2:6009 --name tried --confirm 60s --yes";
    let tried = bed.run("first", &add.split(' ').collect::<Vec<&str>>());
    assert!(
        tried.stderr.contains(": mcr --host first confirm\n"),
        "{}",
        tried.stderr
    );
    bed.mcr("first", &["confirm"]);
    bed.mcr("first", &["remove", "tried"]);
    let names = |environment: &[(&str, &str)], options: &str| {
        let (status, stdout, stderr) = mcr(&bed, environment, &format!("{options}list -o name"));
        assert_eq!(status, Some(0), "{environment:?} {options}: {stderr}");
        stdout
    };
    let named = |host| [("MCR_HOST", host)];
    assert_eq!(names(&named("first"), ""), "cam1\n");
    assert_eq!(names(&named("second"), ""), "cam2\n");
    // MCR_SOCKET does not affect another host, and the command line overrides the environment.
    let socket = [("MCR_HOST", "second"), ("MCR_SOCKET", "/nowhere")];
    assert_eq!(names(&socket, ""), "cam2\n");
    assert_eq!(names(&named("first"), "--host second "), "cam2\n");
    for line in ["first: cam1\n", "second: cam2\n"] {
        for environment in [
            &named("all")[..],
            &named("first,second"),
            &named("second,first"),
        ] {
            let list = names(environment, "");
            assert!(list.contains(line) && list.lines().count() == 2, "{list}");
        }
        let list = names(&named("first"), "--host=all ");
        assert!(list.contains(line) && list.lines().count() == 2, "{list}");
    }
    let all = named("all");
    for (line, environment) in [("--host all list --json", &[][..]), ("list --json", &all)] {
        let (_, json, _) = mcr(&bed, environment, line);
        let answer: Value = serde_json::from_str(&json).unwrap();
        let name = |host: &str| answer["hosts"][host].to_string();
        assert_eq!(answer["hosts"].as_object().unwrap().len(), 2, "{answer}");
        assert!(
            name("first").contains("cam1") && !name("first").contains("cam2"),
            "{answer}"
        );
        assert!(
            name("second").contains("cam2") && !name("second").contains("cam1"),
            "{answer}"
        );
    }
    // A local daemon on the command line overrides MCR_HOST, but not --host.
    for written in ["--socket /nowhere list", "list --instance nobody"] {
        let (status, _, stderr) = mcr(&bed, &named("first"), written);
        assert!(status == Some(4) && !stderr.contains("first"), "{stderr}");
    }
    let (status, _, stderr) = mcr(&bed, &[], "list --socket /nowhere --host first");
    assert!(status == Some(2) && stderr.contains("--host"), "{stderr}");
    // A change for one host is made only there.
    let (status, _, stderr) = mcr(&bed, &named("second"), "disable cam2");
    assert_eq!(status, Some(0), "{stderr}");
    let (status, _, stderr) = mcr(&bed, &named("second"), "disable cam1");
    assert!(status == Some(3) && stderr.contains("second: "), "{stderr}");
    let disabled = |host: &str| bed.mcr(host, &["export"]).contains("enabled = false");
    assert_eq!((disabled("first"), disabled("second")), (false, true));
    // Of a change for all hosts, one may refuse its own.
    let (status, _, stderr) = mcr(&bed, &named("all"), "enable cam2");
    assert_eq!(status, Some(3), "{stderr}");
    assert!(
        stderr.contains("first: ") && !stderr.contains("second: "),
        "{stderr}"
    );
    assert_eq!((disabled("first"), disabled("second")), (false, false));
    // A host that does not answer is named, and the others answer.
    second.stop(Signal::SIGTERM).unwrap();
    let (status, stdout, stderr) = mcr(&bed, &named("all"), "list -o name");
    assert_eq!((status, stdout.as_str()), (Some(4), "first: cam1\n"));
    assert!(stderr.contains("second (10.0.1.1:9472)"), "{stderr}");
    let (status, _, stderr) = mcr(&bed, &named("third"), "list");
    assert!(
        status == Some(2) && stderr.contains("have: first, second"),
        "{stderr}"
    );
    let (status, _, stderr) = mcr(&bed, &named("first"), "doctor");
    assert!(status == Some(2) && stderr.contains("MCR_HOST"), "{stderr}");
}
