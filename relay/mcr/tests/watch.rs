//! The file is the truth: `[daemon] watch = true`.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use lab::process::Process;
use lab::wait;
use serde_json::Value;

use crate::bed::Bed;
use crate::changes::{CAM2, FILE};

fn bed() -> Option<Bed> {
    Bed::new(Some(FILE), &["--watch"])
}

/// The file with its rule under another name.
fn named(name: &str) -> String {
    FILE.replace("cam1", name)
}

/// Replaces a file as editors do: a new one is written beside it and renamed.
fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(&new, file).unwrap();
}

/// Follows the daemon's events.
fn follow(bed: &Bed) -> Process {
    let mut command = bed.chain.relay.command(env!("CARGO_BIN_EXE_mcr"));
    command.arg("--socket").arg(bed.daemon.socket());
    command.args(["events", "--json", "--recent", "200"]);
    Process::start(command).unwrap()
}

/// Messages of the events of this kind.
fn reports(events: &Process, kind: &str) -> Vec<String> {
    let text = events.stdout();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let all = whole
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of_kind = all.filter(|event| event["kind"] == kind);
    of_kind
        .map(|event| event["message"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn files_with_other_contents_are_read_again_however_they_are_replaced() {
    let Some(bed) = bed() else { return };
    let file = bed.daemon.config_file();
    bed.daemon.mcr(&CAM2).unwrap();
    replace(&file, &named("replaced"));
    // Rules that only the socket added are removed, as by a reload.
    bed.wait_for_list("replaced\n");
    let change = bed.changes().pop().unwrap();
    assert_eq!(change["by"]["via"], "reload", "{change}");
    assert_eq!(change["by"]["name"], "watch", "{change}");
    assert!(
        change["what"].as_str().unwrap().contains("- cam2"),
        "{change}"
    );
    // As Kubernetes mounts a ConfigMap: a link through a link that is swapped.
    let at = file.parent().unwrap();
    for name in ["one", "two"] {
        fs::create_dir(at.join(name)).unwrap();
        fs::write(at.join(name).join("it.toml"), named(name)).unwrap();
    }
    let swap = |to: &str| {
        symlink(to, at.join("..tmp")).unwrap();
        fs::rename(at.join("..tmp"), at.join("..data")).unwrap();
    };
    swap("one");
    symlink("..data/it.toml", at.join("link")).unwrap();
    fs::rename(at.join("link"), &file).unwrap();
    bed.wait_for_list("one\n");
    swap("two");
    bed.wait_for_list("two\n");
    let parts = if file.ends_with("mcr.toml") {
        at.join("conf.d")
    } else {
        at.join(format!("{}.conf.d", file.file_stem().unwrap().display()))
    };
    fs::create_dir(&parts).unwrap();
    let part = named("part")
        .replace("239.1.1.1", "239.1.1.9")
        .replace("239.10.1.1", "239.10.1.9");
    fs::write(parts.join("a.toml"), part).unwrap();
    bed.wait_for_list("two\npart\n");
}

#[test]
fn files_that_cannot_be_used_change_nothing_and_are_told_once() {
    let Some(bed) = bed() else { return };
    let file = bed.daemon.config_file();
    let events = follow(&bed);
    replace(&file, &named("bad/name"));
    wait::until("it is told", || {
        !reports(&events, "reload_failed").is_empty()
    })
    .unwrap();
    assert_eq!(bed.listed(), "cam1\n");
    // The next event shows that the first was not reported again.
    replace(&file, &named("other/bad"));
    wait::until("the next is told", || {
        reports(&events, "reload_failed").len() > 1
    })
    .unwrap();
    let failed = reports(&events, "reload_failed");
    assert_eq!(failed.len(), 2, "{failed:?}");
    assert!(
        failed[0].contains("bad/name") && failed[1].contains("other/bad"),
        "{failed:?}"
    );
    replace(&file, &named("good"));
    bed.wait_for_list("good\n");
}

#[test]
fn files_that_cannot_be_read_change_nothing_until_they_can() {
    let Some(bed) = bed() else { return };
    let file = bed.daemon.config_file();
    let events = follow(&bed);
    // A link replaces the file at once, wherever it leads.
    let lead = |to: &str| {
        let link = file.with_extension("link");
        symlink(to, &link).unwrap();
        fs::rename(&link, &file).unwrap();
    };
    let ways: [(&str, &dyn Fn()); 4] = [
        ("UTF-8", &|| fs::write(&file, [0xff, 0xfe, 0xff]).unwrap()),
        ("TOML", &|| replace(&file, "version = = 1\n")),
        ("Is a directory", &|| lead("/")),
        ("No such file", &|| lead("nowhere")),
    ];
    for (number, (what, spoil)) in ways.into_iter().enumerate() {
        spoil();
        wait::until(what, || reports(&events, "reload_failed").len() > number).unwrap();
        assert_eq!(bed.listed(), "cam1\n", "{what}");
    }
    let failed = reports(&events, "reload_failed");
    assert_eq!(failed.len(), 4, "{failed:?}");
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(failed.iter().all(|why| why.contains(name)), "{failed:?}");
    // The earlier file is read again, which is reported although nothing differs.
    replace(&file, FILE);
    wait::until("it recovers", || !reports(&events, "reloaded").is_empty()).unwrap();
    let again = reports(&events, "reloaded");
    assert!(again[0].contains("1 unchanged"), "{again:?}");
    replace(&file, &named("next"));
    bed.wait_for_list("next\n");
}

#[test]
fn what_was_edited_meanwhile_is_read_when_a_change_is_undone() {
    let Some(bed) = bed() else { return };
    let file = bed.daemon.config_file();
    let events = follow(&bed);
    bed.try_out(&named("tried"), "60s");
    // A file that cannot be used is not reported either as long as the change waits.
    replace(&file, &named("bad/name"));
    let uptime = || bed.status()["uptime_seconds"].as_f64().unwrap();
    let start = uptime();
    wait::until("it would have been read", || uptime() > start + 4.0).unwrap();
    assert_eq!(bed.listed(), "tried\n");
    assert_eq!(reports(&events, "reload_failed"), Vec::<String>::new());
    bed.daemon.mcr(&["rollback", "--last", "--yes"]).unwrap();
    wait::until("it is told", || {
        !reports(&events, "reload_failed").is_empty()
    })
    .unwrap();
    assert_eq!(bed.listed(), "cam1\n");
    replace(&file, &named("edited"));
    bed.wait_for_list("edited\n");
}

#[test]
fn nothing_is_read_while_a_change_waits_to_be_confirmed() {
    let Some(bed) = bed() else { return };
    let file = bed.daemon.config_file();
    bed.try_out(&named("tried"), "60s");
    replace(&file, &named("edited"));
    let uptime = || bed.status()["uptime_seconds"].as_f64().unwrap();
    let start = uptime();
    wait::until("it would have been read", || uptime() > start + 4.0).unwrap();
    assert_eq!(bed.listed(), "tried\n");
    bed.daemon.mcr(&["confirm"]).unwrap();
    bed.wait_for_list("edited\n");
}

#[test]
fn what_is_saved_stays_and_what_only_the_socket_added_goes_with_it() {
    let Some(bed) = bed() else { return };
    bed.daemon.mcr(&CAM2).unwrap();
    let rule = [
        "add",
        "239.1.1.3%veth1:5003",
        "239.10.1.3%veth2:6003",
        "--name",
        "cam3",
        "--save",
    ];
    bed.daemon.mcr(&rule).unwrap();
    bed.wait_for_list("cam1\ncam3\n");
}
