//! Who changed what, and back again.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use lab::wait;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::bed::{Bed, INPUT, OUTPUT, can_run};

pub(crate) const FILE: &str = r#"version = 1
# on the roof
[[rule]]
name = "cam1"
input = "239.1.1.1%veth1:5001"
outputs = ["239.10.1.1%veth2:6001"]
"#;
pub(crate) const CAM2: [&str; 5] = [
    "add",
    "239.1.1.2%veth1:5002",
    "239.10.1.2%veth2:6002",
    "--name",
    "cam2",
];

pub(crate) fn bed() -> Option<Bed> {
    Bed::new(Some(FILE), &[])
}

impl Bed {
    pub(crate) fn changes(&self) -> Vec<Value> {
        let changes = self.json(&["log", "changes", "--json"]);
        changes.as_array().unwrap().clone()
    }

    /// Where the daemon keeps what outlives it.
    pub(crate) fn state(&self) -> PathBuf {
        Path::new("/var/lib/mcr").join(self.daemon.instance())
    }
}

#[test]
fn a_change_says_who_made_it_and_why_and_a_restart_forgets_nothing() {
    let Some(mut bed) = bed() else { return };
    let why = "new camera, ticket 7";
    bed.daemon
        .mcr(&[&CAM2[..], &["--message", why]].concat())
        .unwrap();
    let change = bed.changes().pop().unwrap();
    assert_eq!(change["by"]["via"], "client", "{change}");
    assert_eq!(change["by"]["user"], "root", "{change}");
    assert_eq!(change["by"]["uid"], 0, "{change}");
    assert!(change["by"]["pid"].as_u64().unwrap() > 1, "{change}");
    assert_eq!(change["by"]["process"], "mcr", "{change}");
    assert_eq!(change["message"], why);
    assert_eq!(change["what"], "+ cam2\n");
    assert_eq!(change["rules"], 2);
    let (before, after) = (&change["before"], &change["generation"]);
    assert_eq!(before.as_u64().unwrap() + 1, after.as_u64().unwrap());
    assert!(change["at_ms"].as_u64().unwrap() > 1_700_000_000_000);

    let text = bed.daemon.mcr(&["log", "changes", "--last", "1"]).unwrap();
    assert!(text.contains("root (uid 0, mcr, pid "), "{text}");
    assert!(
        text.contains("\n    \"new camera, ticket 7\"\n    + cam2\n"),
        "{text}"
    );
    let events = bed
        .daemon
        .mcr(&["events", "--recent", "200", "--count", "1", "cam2"])
        .unwrap();
    assert!(
        events.contains("rule \"cam2\" added by root (uid 0"),
        "{events}"
    );
    assert!(events.contains(why), "{events}");
    let log = bed.daemon.log();
    let line = log
        .lines()
        .find(|line| line.contains("rule \"cam2\" added"));
    let line = line.unwrap();
    assert!(
        line.contains("by=\"root (uid 0") && line.contains("ticket 7"),
        "{line}"
    );

    let generation = after.as_u64().unwrap();
    let recorded = bed.changes();
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        bed.daemon.stop(signal).unwrap();
        bed.daemon.start_again().unwrap();
        let now = bed.changes();
        assert_eq!(now[..recorded.len()], recorded[..], "{signal}");
        let status = bed.json(&["status", "--json"]);
        assert!(
            status["generation"].as_u64().unwrap() > generation,
            "{status}"
        );
    }
}

#[test]
fn each_way_to_change_rules_is_recorded_with_its_author() {
    let Some(mut bed) = bed() else { return };
    let file = bed.daemon.config_file();
    fs::write(&file, FILE.replace("6001", "6009")).unwrap();
    bed.daemon.signal(Signal::SIGHUP).unwrap();
    let last_if = |bed: &Bed, via: &str, what: &str| {
        let last = bed.changes().pop().unwrap();
        (last["by"]["via"] == via && last["what"].as_str().unwrap().contains(what)).then_some(last)
    };
    let hung_up = wait::some_within(wait::PATIENCE, "the signal's reload is told", || {
        last_if(
            &bed,
            "reload",
            "~ cam1\n    - output 239.10.1.1%veth2:6001\n",
        )
    });
    let hung_up = hung_up.unwrap();
    assert_eq!(hung_up["by"]["pid"], std::process::id(), "{hung_up}");
    fs::write(&file, FILE).unwrap();
    bed.daemon
        .mcr(&["reload", "--message", "as it was"])
        .unwrap();
    let reloaded = last_if(&bed, "reload", "+ output 239.10.1.1%veth2:6001\n").unwrap();
    assert_eq!(reloaded["by"]["process"], "mcr");
    assert_eq!(reloaded["message"], "as it was");
    for (words, what) in [
        (
            &["change", "cam1", "--set", "limit=20Mbit"][..],
            "+ limit 20Mbit",
        ),
        (&["disable", "cam1"], "cam1"),
        (&["enable", "cam1"], "cam1"),
        (&["join", "239.7.7.7%veth1"], "239.7.7.7"),
        (&["leave", "239.7.7.7%veth1"], "239.7.7.7"),
        (&["remove", "cam1"], "- cam1\n"),
        (&["apply", file.to_str().unwrap()], "+ cam1\n"),
    ] {
        bed.daemon.mcr(words).unwrap();
        assert!(
            last_if(&bed, "client", what).is_some(),
            "{words:?}: {:?}",
            bed.changes().last()
        );
    }
    bed.chain.relay.tool("ip", "link set veth2 down").unwrap();
    wait::until("the lost link is told", || {
        last_if(&bed, "link", "veth2").is_some()
    })
    .unwrap();
    let pending = bed.changes().len();
    bed.refuses(&["remove", "cam9"], 3, &["cam9"]);
    assert_eq!(
        bed.changes().len(),
        pending,
        "what is refused changes nothing"
    );
}

#[test]
fn a_message_is_one_line_and_short() {
    let Some(bed) = bed() else { return };
    let long = "x".repeat(1025);
    bed.refuses(
        &["remove", "cam1", "--message", &long],
        2,
        &["at most 1024 bytes"],
    );
    bed.refuses(&["remove", "cam1", "--message", "a\nb"], 2, &["one line"]);
    let socket = bed.daemon.socket();
    let ask = format!(
        "-s --unix-socket {} -X DELETE -H X-MCR-Message:{long} http://mcr/v1/rules/cam1",
        socket.display()
    );
    let refused = bed.chain.relay.tool("curl", &ask).unwrap();
    assert!(refused.contains("1025 bytes, of at most 1024"), "{refused}");
    assert_eq!(
        bed.json(&["list", "--json"])["rules"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn a_torn_end_of_the_log_is_cut_off_and_reported() {
    let Some(mut bed) = bed() else { return };
    bed.daemon.mcr(&CAM2).unwrap();
    let recorded = bed.changes();
    bed.daemon.kill().unwrap();
    let log = bed.state().join("changes.log");
    let text = fs::read_to_string(&log).unwrap();
    fs::write(&log, format!("{text}{{\"at_ms\":17")).unwrap();
    bed.daemon.start_again().unwrap();
    assert_eq!(bed.changes()[..recorded.len()], recorded[..]);
    let words = "changes.log: the last change was not written to its end; cut off";
    assert!(bed.daemon.log().contains(words));
    bed.daemon
        .add("cam3", INPUT.replace("5001", "5003").as_str(), &[OUTPUT])
        .unwrap();
    assert_eq!(bed.changes().last().unwrap()["what"], "+ cam3\n");
}

#[test]
fn rules_of_before_are_kept_over_stops_and_somebody_can_go_back_to_them() {
    let Some(mut bed) = bed() else { return };
    let why = "new camera";
    bed.daemon
        .mcr(&[&CAM2[..], &["--message", why]].concat())
        .unwrap();
    let listed = bed.json(&["generations", "--json"]);
    let (first, made) = (&listed[0], listed.as_array().unwrap().last().unwrap());
    assert_eq!(
        (&first["by"]["via"], &first["rules"]),
        (&json!("start"), &json!(1))
    );
    assert_eq!((&made["message"], &made["rules"]), (&json!(why), &json!(2)));
    let number = made["generation"].to_string();
    bed.daemon.stop(Signal::SIGTERM).unwrap();
    let file = bed.state().join(format!("generations/{number}.toml.gz"));
    assert!(file.exists(), "written before the daemon ended");
    bed.daemon.start_again().unwrap();
    let checked = bed.daemon.mcr(&["check", file.to_str().unwrap()]).unwrap();
    assert!(checked.contains("2 rules"), "{checked}");
    assert_eq!(bed.daemon.mcr(&["list", "-o", "name"]).unwrap(), "cam1\n");
    let table = bed.daemon.mcr(&["generations"]).unwrap();
    assert!(table.contains(why) && table.contains("start"), "{table}");

    let shown = bed.fails(&["diff", "--generation", &number], 1, &[]);
    assert_eq!(shown, "+ cam2\n1 unchanged\n");
    let asked = bed.fails(&["rollback", &number], 2, &["mcr rollback --yes"]);
    assert_eq!(asked, shown);
    assert_eq!(bed.daemon.mcr(&["list", "-o", "name"]).unwrap(), "cam1\n");
    let done = bed.daemon.mcr(&["rollback", &number, "--yes"]).unwrap();
    assert_eq!(done, shown);
    assert_eq!(
        bed.daemon.mcr(&["list", "-o", "name"]).unwrap(),
        "cam1\ncam2\n"
    );
    bed.daemon.mcr(&["rollback", "--last", "--yes"]).unwrap();
    assert_eq!(bed.daemon.mcr(&["list", "-o", "name"]).unwrap(), "cam1\n");
    bed.fails(
        &["rollback", "4711", "--yes"],
        3,
        &["4711 are not kept (have: "],
    );
}

#[test]
fn what_no_longer_fits_comes_back_down_and_a_join_that_ended_stays_ended() {
    let Some(bed) = bed() else { return };
    bed.chain
        .relay
        .tool("ip", "link add old0 type veth peer name old1")
        .unwrap();
    for end in ["old0", "old1"] {
        let up = format!("link set {end} up");
        bed.chain.relay.tool("ip", &up).unwrap();
    }
    bed.daemon
        .add("old", "239.1.1.3%veth1:5003", &["239.10.1.3%old0:6003"])
        .unwrap();
    bed.daemon
        .mcr(&["join", "239.7.7.7%veth1", "--duration", "1"])
        .unwrap();
    let listed = bed.json(&["generations", "--json"]);
    let number = listed.as_array().unwrap().last().unwrap()["generation"].to_string();
    wait::until("the join is over", || {
        bed.json(&["status", "--json"])["joins"]
            .as_array()
            .unwrap()
            .is_empty()
    })
    .unwrap();
    bed.daemon.mcr(&["remove", "old"]).unwrap();
    bed.chain.relay.tool("ip", "link del old0").unwrap();
    let done = bed.daemon.client(&["rollback", &number, "--yes"]).unwrap();
    assert!(done.status.success(), "{}", done.stderr);
    assert!(done.stderr.contains("239.7.7.7%veth1"), "{}", done.stderr);
    assert!(done.stderr.contains("its time is over"), "{}", done.stderr);
    let old = bed.daemon.rule("old").unwrap();
    assert!(old.outputs[0].reason.as_deref().unwrap().contains("old0"));
    assert!(
        bed.json(&["status", "--json"])["joins"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    bed.send(10);
    bed.daemon.settled("cam1", 10).unwrap();
    // What differs by that join alone is nothing to go back to.
    bed.daemon.mcr(&["remove", "cam1"]).unwrap();
    bed.daemon
        .mcr(&["join", "239.7.7.8%veth1", "--duration", "1"])
        .unwrap();
    wait::until("that join is over, too", || {
        bed.json(&["status", "--json"])["joins"] == json!([])
    })
    .unwrap();
    bed.daemon.mcr(&["rollback", "--last", "--yes"]).unwrap();
    assert!(bed.daemon.rule("cam1").is_ok());
}

/// Interfaces are renamed meanwhile, and the file is that of an older version, which recorded less
/// of a change and wrote rules in another way.
#[test]
fn rules_of_an_older_version_come_back_beside_interfaces_with_new_names() {
    let Some(bed) = bed() else { return };
    let relay = &bed.chain.relay;
    relay.ip("link add old0 type veth peer name old1").unwrap();
    for end in ["old0", "old1"] {
        relay.ip(&format!("link set {end} up")).unwrap();
    }
    bed.daemon
        .add("old", "239.1.1.3%veth1:5003", &["239.10.1.3%old0:6003"])
        .unwrap();
    let number = bed.json(&["status", "--json"])["generation"].to_string();
    let file = bed.state().join(format!("generations/{number}.toml.gz"));
    wait::until("it is kept", || file.exists()).unwrap();
    bed.daemon.mcr(&["remove", "old"]).unwrap();
    relay.ip("link set old0 down").unwrap();
    relay.ip("link set old0 name new0").unwrap();
    relay.ip("link set new0 up").unwrap();
    let older = format!(
        "# {{\"generation\":{number},\"before\":1,\"at_ms\":1,\"rules\":2,\"by\":{{\"via\":\"client\"}}}}\n\
         version = 1\n\
         [[rule]]\nname = \"cam1\"\ninput = \"239.1.1.1%veth1:5001\"\n\
         outputs = [\"239.10.1.1%veth2:6001\"]\n\
         [[rule]]\nname = \"old\"\ninputs = [\"239.1.1.3%veth1:5003\"]\n\
         outputs = [{{ to = \"239.10.1.3%old0:6003\" }}]\n"
    );
    let plain = file.with_extension("");
    fs::write(&plain, older).unwrap();
    relay
        .tool("gzip", &format!("-f {}", plain.display()))
        .unwrap();
    let shown = bed.fails(&["diff", "--generation", &number], 1, &[]);
    assert_eq!(shown, "+ old\n1 unchanged\n");
    bed.daemon.mcr(&["rollback", &number, "--yes"]).unwrap();
    let reason = || bed.daemon.rule("old").unwrap().outputs[0].reason.clone();
    assert!(reason().is_some_and(|why| why.contains("old0")));
    bed.send(10);
    bed.daemon.settled("cam1", 10).unwrap();
    relay.ip("link set new0 down").unwrap();
    relay.ip("link set new0 name old0").unwrap();
    relay.ip("link set old0 up").unwrap();
    wait::until("it works again", || reason().is_none()).unwrap();
}

#[test]
fn a_change_that_comes_too_late_is_refused_with_the_author_of_the_other() {
    let Some(bed) = bed() else { return };
    let generation = bed.json(&["status", "--json"])["generation"].to_string();
    bed.daemon.mcr(&CAM2).unwrap();
    let file = bed.daemon.config_file();
    let apply = ["apply", file.to_str().unwrap(), "--generation", &generation];
    bed.refuses(
        &apply,
        1,
        &["root (uid 0, mcr, pid ", "+ cam2", "read them again"],
    );
    let generation = bed.json(&["status", "--json"])["generation"].to_string();
    let apply = ["apply", file.to_str().unwrap(), "--generation", &generation];
    assert_eq!(bed.daemon.mcr(&apply).unwrap(), "- cam2\n1 unchanged\n");
}

/// Runs `mcr apply` on a terminal where somebody types an answer.
fn apply_and_answer(bed: &Bed, options: &str, answer: &str) -> Output {
    let (binary, socket) = (lab::binary::mcr().unwrap(), bed.daemon.socket());
    let file = bed.daemon.config_file();
    let apply = format!(
        "{} --socket {} apply {} {options}",
        binary.display(),
        socket.display(),
        file.display()
    );
    let mut command = bed.chain.relay.command("script");
    command.args(["-qec", &apply, "/dev/null"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut typed = child.stdin.take().unwrap();
    typed.write_all(answer.as_bytes()).unwrap();
    // Open until now: its end would be the end of the terminal, not of the answer.
    let output = child.wait_with_output().unwrap();
    drop(typed);
    output
}

#[test]
fn apply_asks_on_a_terminal_before_rules_go_that_no_file_has() {
    let Some(bed) = bed() else { return };
    if let Err(reason) = can_run("script") {
        eprintln!("skipped: {reason}");
        return;
    }
    let names = || bed.daemon.mcr(&["list", "-o", "name"]).unwrap();
    bed.daemon.mcr(&CAM2).unwrap();
    let refused = apply_and_answer(&bed, "", "n\n");
    let text = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(
        text.contains("No file has cam2") && text.contains("nothing was changed"),
        "{text}"
    );
    assert_eq!(
        (refused.status.code(), names().as_str()),
        (Some(1), "cam1\ncam2\n")
    );
    let done = apply_and_answer(&bed, "", "y\n");
    assert_eq!((done.status.code(), names().as_str()), (Some(0), "cam1\n"));
    // It does not ask where nothing is at stake, or where the answer is given.
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let nothing = apply_and_answer(&bed, "", "");
    assert!(
        nothing.status.success() && !text(&nothing).contains("[y/N]"),
        "{}",
        text(&nothing)
    );
    bed.daemon.mcr(&CAM2).unwrap();
    let yes = apply_and_answer(&bed, "--yes", "");
    assert!(
        yes.status.success() && !text(&yes).contains("[y/N]"),
        "{}",
        text(&yes)
    );
    // In a script it does not ask.
    bed.daemon.mcr(&CAM2).unwrap();
    bed.daemon.apply(FILE).unwrap();
    assert_eq!(names(), "cam1\n");
}

#[test]
fn a_command_says_that_it_waits_for_a_daemon_that_hangs() {
    let Some(mut bed) = bed() else { return };
    bed.daemon.signal(Signal::SIGSTOP).unwrap();
    let mut command = bed.chain.relay.command(lab::binary::mcr().unwrap());
    command
        .arg("--socket")
        .arg(bed.daemon.socket())
        .args(["list", "-o", "name"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let read = BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line);
    bed.daemon.signal(Signal::SIGCONT).unwrap();
    read.unwrap();
    assert!(
        line.contains("the daemon has not answered for 2 s"),
        "{line}"
    );
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"cam1\n");
}
