//! A stream that has stopped is reported as such everywhere, even to a client that connects only after
//! that.

use std::time::Duration;

use lab::process;
use lab::wait;
use serde_json::Value;

use super::browser::Browser;
use super::top::Screen;
use crate::bed::Bed;

lab::on_both_paths!(a_stream_that_stopped_is_silent_wherever_people_look);

fn a_stream_that_stopped_is_silent_wherever_people_look(path: &str) {
    let listen = ["--listen", "127.0.0.1:9190", "--path", path];
    let Some(bed) = Bed::with_tools(&["tmux"], &listen) else {
        return;
    };
    bed.add();
    let idle = ["239.1.1.9%veth1:5009", "239.10.1.9%veth2:6009"];
    bed.daemon.add("idle", idle[0], &idle[1..]).unwrap();
    let mut command = bed.chain.sender.command(lab::binary::mcr().unwrap());
    command.args(["send", "239.1.1.1%veth0:5001", "--count", "50"]);
    let sent = process::run(command, Duration::from_secs(20)).unwrap();
    sent.success().unwrap();
    wait::until("it has stopped", || {
        let stats: Value = bed
            .daemon
            .mcr(&["stats", "--json"])
            .unwrap()
            .parse()
            .unwrap();
        let silent = |rule: usize| stats["rules"][rule]["silent_seconds"].as_f64();
        // The relay itself works, and a stream that never arrived has not stopped.
        assert_eq!(
            (&stats["rules"][0]["state"], silent(1)),
            (&"up".into(), None)
        );
        silent(0).is_some()
    })
    .unwrap();
    let last = ["events", "--json", "--recent", "1", "-n", "1"];
    let last_event = || bed.daemon.mcr(&last).unwrap();
    wait::until("its stop is an event", || {
        last_event().contains("stream_silent")
    })
    .unwrap();
    let show = bed.daemon.mcr(&["show", "cam1"]).unwrap();
    assert!(show.contains("state     silent: no packet for "), "{show}");
    for arguments in [&["stats"][..], &["list", "-o", "wide"]] {
        let text = bed.daemon.mcr(arguments).unwrap();
        let row = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(row("cam1").contains(" silent "), "{arguments:?}: {text}");
        assert!(text.contains("no packet for "), "{arguments:?}: {text}");
        assert!(row("idle").contains(" waiting "), "{arguments:?}: {text}");
    }
    let status = bed.daemon.mcr(&["status"]).unwrap();
    for text in [
        "2: 0 up, 1 waiting, 0 degraded, 1 silent",
        "\nsilent           cam1: no packet for ",
    ] {
        assert!(status.contains(text), "{status}");
    }
    let json: Value = bed.json(&["status", "--json"]);
    assert_eq!(
        (&json["silent_rules"], &json["waiting_rules"]),
        (&1.into(), &1.into())
    );
    assert_eq!(json["rules_by_state"]["up"], 2, "MCR can relay");
    let mcr = lab::binary::mcr().unwrap().display().to_string();
    let socket = bed.daemon.socket().display().to_string();
    let screen = Screen::start(&[mcr, "--socket".to_owned(), socket, "top".to_owned()]);
    screen.until("top says so", |text| {
        let row = |name: &str| text.lines().find(|line| line.starts_with(name));
        row("cam1").is_some_and(|line| line.contains(" silent "))
            && row("idle").is_some_and(|line| line.contains(" waiting "))
            && text.contains("1 silent")
    });
    if crate::bed::can_run("chromedriver").is_err() {
        eprintln!("the page was not looked at: no chromedriver");
        return;
    }
    let browser = Browser::start(&bed.chain.relay);
    browser.open("http://127.0.0.1:9190/");
    let row = "const row = document.querySelector('tr[data-rule=cam1]'); \
               return row ? row.cells[1].textContent + row.className : ''";
    wait::until("a page that was just opened shows it in red", || {
        browser.run(row) == "silentred"
    })
    .unwrap();
}

#[test]
fn what_never_came_waits_and_what_reflects_is_never_silent() {
    let Some(bed) = Bed::with_tools(&[], &[]) else {
        return;
    };
    bed.add();
    let reflect = [
        "add",
        "239.9.9.9:5353",
        "--reflect",
        "veth1,veth2",
        "--name",
        "mdns",
    ];
    bed.daemon.mcr(&reflect).unwrap();
    let stands_by = [
        "add",
        "239.1.1.2%veth1:5001",
        "--input",
        "239.1.1.3%veth1:5001",
    ];
    let options = [
        "239.10.1.2%veth2:6001",
        "--name",
        "pair",
        "--failover",
        "200ms",
    ];
    bed.daemon
        .mcr(&[&stands_by[..], &options].concat())
        .unwrap();
    let demand = [
        "add",
        "239.1.1.4%veth1:5001",
        "239.1.1.4%veth2:5001,demand=igmp",
    ];
    bed.daemon
        .mcr(&[&demand[..], &["--name", "asked"]].concat())
        .unwrap();
    let words = || -> Vec<String> {
        let stats = bed.json(&["stats", "--json"]);
        let rules = stats["rules"].as_array().unwrap().iter();
        rules
            .map(|rule| {
                format!(
                    "{} {}",
                    rule["name"].as_str().unwrap(),
                    rule["condition"].as_str().unwrap()
                )
            })
            .collect()
    };
    // The next sample shows it.
    lab::wait::until("what never came waits", || {
        words() == ["cam1 waiting", "mdns up", "pair waiting", "asked idle"]
    })
    .unwrap();
    let stats = bed.json(&["stats", "--json"]);
    assert_eq!(stats["rules"][0]["state"], "up", "scripts wait for it");
    assert_eq!(stats["rules"][0]["inputs"][0]["condition"], "waiting");
    assert_eq!(
        stats["rules"][2]["inputs"][1]["condition"], "up",
        "it stands by"
    );
    // A stream that has arrived does not count as waiting any more, and a reflecting rule may be quiet.
    bed.send(50);
    let mut command = bed.chain.sender.command(lab::binary::mcr().unwrap());
    command.args(["send", "239.9.9.9%veth0:5353", "--count", "5"]);
    process::run(command, Duration::from_secs(20))
        .unwrap()
        .success()
        .unwrap();
    wait::until("the stream is silent", || words()[0] == "cam1 silent").unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(words()[1], "mdns up");
    let events = bed
        .daemon
        .mcr(&["events", "--json", "--recent", "200", "-n", "1"])
        .unwrap();
    assert!(!events.contains("\\\"mdns\\\": the stream"), "{events}");
    bed.send(50);
    wait::until("its return is told", || {
        let event = bed
            .daemon
            .mcr(&["events", "--recent", "1", "-n", "1"])
            .unwrap();
        event.contains("the stream is back after ")
    })
    .unwrap();
}
