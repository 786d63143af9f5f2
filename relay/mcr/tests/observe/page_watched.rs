//! The page as a control room has it open all day: in many tabs, over a bad network, with keyboard and
//! screen reader.

use std::fs;
use std::time::{Duration, Instant};

use lab::process;
use lab::wait;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::browser::Browser;
use super::page::config;
use crate::bed::{Bed, INPUT, OUTPUT};

const TOOLS: [&str; 2] = ["chromium", "chromedriver"];
const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:9190"];
const PAGE: &str = "http://127.0.0.1:9190/";
const SUMMARY: &str = "return document.getElementById('summary').textContent";
const STALE: &str = "return document.body.classList.contains('stale')";

fn text(browser: &Browser, id: &str) -> String {
    let text = browser.run(&format!(
        "return document.getElementById('{id}').textContent"
    ));
    text.as_str().unwrap().to_owned()
}

fn begin() -> Option<(Bed, Browser)> {
    let bed = Bed::with_tools(&TOOLS, &LISTEN)?;
    bed.add();
    let browser = Browser::start(&bed.chain.relay);
    browser.open(PAGE);
    wait::until("the rule is shown", || {
        browser.run("return document.querySelectorAll('#rows > tr').length") == 1
    })
    .unwrap();
    Some((bed, browser))
}

#[test]
fn any_number_of_tabs_goes_on() {
    let Some((bed, browser)) = begin() else {
        return;
    };
    let mut tabs = Vec::new();
    for _ in 0..12 {
        tabs.push(browser.tab());
        browser.open(PAGE);
    }
    let goes_on = |tab: &String| {
        browser.turn_to(tab);
        let before = browser.run(SUMMARY);
        wait::until_within(Duration::from_secs(10), "the tab goes on", || {
            let now = browser.run(SUMMARY);
            now != before && now.as_str().is_some_and(|now| now.starts_with("up "))
        })
        .unwrap();
    };
    tabs.iter().for_each(goes_on);
    // A tab in the background reports trouble by its title.
    bed.daemon
        .add("cam2", "239.1.1.2%veth1:5001", &["239.1.1.2%veth9:1"])
        .unwrap();
    for tab in &tabs {
        browser.turn_to(tab);
        wait::until("the title counts the rule that is down", || {
            let title = browser.run("return document.title");
            title
                .as_str()
                .is_some_and(|title| title.starts_with("(1) "))
        })
        .unwrap();
    }
}

/// Runs a command in the relay's namespace.
fn run(bed: &Bed, program: &str, arguments: &[&str]) {
    let mut command = bed.chain.relay.command(program);
    command.args(arguments);
    let ended = process::run(command, Duration::from_secs(10)).unwrap();
    ended.success().unwrap();
}

fn becomes_stale(browser: &Browser) {
    let began = Instant::now();
    wait::until("all is grey", || browser.run(STALE) == true).unwrap();
    let took = began.elapsed();
    assert!(wait::is_within(took, Duration::from_secs(6)), "{took:?}");
    let age = text(browser, "stale");
    assert!(
        age.starts_with("last answer ") && age.ends_with(" s ago"),
        "{age}"
    );
    let grey = "return getComputedStyle(document.querySelector('main')).filter";
    let filter = browser.run(grey);
    assert!(
        filter.as_str().unwrap().contains("grayscale(1)"),
        "{filter}"
    );
    let title = browser.run("return document.title");
    assert!(title.as_str().unwrap().starts_with("(?) "), "{title}");
    wait::until("the age grows", || text(browser, "stale") != age).unwrap();
    assert_eq!(text(browser, "spoken"), "the daemon does not answer");
}

fn recovers(browser: &Browser) {
    wait::until_within(Duration::from_secs(12), "it recovers by itself", || {
        browser.run(STALE) == false && text(browser, "summary").starts_with("up ")
    })
    .unwrap();
    assert_eq!(text(browser, "stale"), "");
    assert_eq!(text(browser, "spoken"), "the daemon answers again");
}

#[test]
fn what_is_old_is_grey_with_its_age_and_recovers() {
    let Some((mut bed, browser)) = begin() else {
        return;
    };
    // A network that drops everything.
    let rules = "table inet shut { chain in { type filter hook input priority 0; \
                 tcp dport 9190 drop; }; }";
    run(&bed, "nft", &[rules]);
    becomes_stale(&browser);
    std::thread::sleep(Duration::from_secs(10));
    run(&bed, "nft", &["delete table inet shut"]);
    recovers(&browser);
    bed.daemon.stop(Signal::SIGTERM).unwrap();
    becomes_stale(&browser);
    bed.daemon.start_again().unwrap();
    recovers(&browser);
}

#[test]
fn every_event_of_the_daemon_is_shown() {
    let Some((bed, browser)) = begin() else {
        return;
    };
    let output = [OUTPUT, "239.10.1.2%veth2:6001,demand=igmp"];
    bed.daemon
        .mcr(&[&["add", "239.1.1.3%veth1:5001"], &output[1..]].concat())
        .unwrap();
    bed.daemon.mcr(&["disable", "cam1"]).unwrap();
    bed.daemon.mcr(&["remove", "cam1"]).unwrap();
    wait::until("the page shows what the daemon tells", || {
        let events = bed
            .daemon
            .mcr(&["events", "--json", "--recent", "200", "-n", "4"])
            .unwrap();
        let shown = text(&browser, "events");
        let message = |line: &str| -> Value {
            serde_json::from_str::<Value>(line).unwrap()["message"].clone()
        };
        events
            .lines()
            .all(|line| shown.contains(message(line).as_str().unwrap()))
    })
    .unwrap();
    // Each event is shown once, however often the page queries.
    let removed =
        "return document.getElementById('events').textContent.split('\"cam1\" removed').length - 1";
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(browser.run(removed), 1);
}

#[test]
fn focus_survives_and_changes_of_state_are_spoken() {
    let Some((bed, browser)) = begin() else {
        return;
    };
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let title = browser.run("return document.title");
    assert!(title.as_str().unwrap().starts_with(host.trim()), "{title}");
    assert!(text(&browser, "instance").starts_with(host.trim()));
    let stream = bed.stream(500);
    wait::until("packets come", || text(&browser, "rows").contains("500")).unwrap();
    let spoken = "window.said = []; new MutationObserver(() => window.said.push(\
                  document.getElementById('spoken').textContent)).observe(\
                  document.getElementById('spoken'), { childList: true, characterData: true, subtree: true })";
    browser.run(spoken);
    browser.run("document.querySelector('tr[data-rule=cam1] a').focus()");
    browser.run("document.activeElement.click()");
    let focus = "return document.activeElement.closest('tr')?.dataset.rule ?? ''";
    assert_eq!(browser.run(focus), "cam1");
    // A rule in trouble moves to the top.
    bed.daemon
        .add("a2", "239.1.1.2%veth1:5001", &["239.1.1.2%veth9:1"])
        .unwrap();
    wait::until("the order changes", || {
        browser.run("return document.querySelector('#rows > tr').dataset.rule") == "a2"
    })
    .unwrap();
    assert_eq!(browser.run(focus), "cam1");
    drop(stream);
    wait::until("the silent rule is spoken of", || {
        text(&browser, "spoken") == "cam1 is silent"
    })
    .unwrap();
    assert_eq!(
        browser.run("return window.said"),
        serde_json::json!(["cam1 is silent"])
    );
    let facts = text(&browser, "facts");
    assert!(facts.starts_with("rulesilent · no packet for "), "{facts}");
    let coloured = "return document.querySelector('#counts .down') !== null \
                    && document.querySelector('#counts .silent') !== null";
    wait::until("both states are counted in colour", || {
        browser.run(coloured) == true
    })
    .unwrap();

    // The selection survives a reload.
    browser.run("document.querySelector('#counts [data-state=down]').click()");
    browser.run("document.getElementById('wall').click()");
    let search = browser.run("return location.search + location.hash");
    assert_eq!(search, "?state=down&wall=1#rule=cam1");
    browser.run("location.reload()");
    wait::until("the same is shown after a reload", || {
        let rows = "return [...document.querySelectorAll('#rows > tr[data-rule]')]\
                    .map((row) => row.dataset.rule).join()";
        browser.run(rows) == "cam1,a2"
            && browser.run("return document.body.classList.contains('wall')") == true
    })
    .unwrap();
    assert_eq!(browser.complaints(), Vec::<Value>::new());
}

#[test]
fn axe_finds_nothing_serious() {
    let Some(bed) = Bed::with_tools(&TOOLS, &LISTEN) else {
        return;
    };
    bed.daemon.apply(&config(100, 77)).unwrap();
    let rule = [
        "add",
        INPUT,
        OUTPUT,
        "--name",
        "cam1",
        "--health",
        "silence=1s",
    ];
    bed.daemon.mcr(&rule).unwrap();
    let browser = Browser::start(&bed.chain.relay);
    for (width, height) in [(1920, 1080), (1280, 800), (390, 800)] {
        for (scheme, query) in [("light", ""), ("dark", ""), ("light", "?wall=1")] {
            browser.resize(width, height);
            browser.prefer(scheme);
            browser.open("about:blank");
            browser.open(&format!("{PAGE}{query}#rule=cam1"));
            wait::until("rules are shown", || {
                browser.run("return document.querySelectorAll('#rows > tr').length > 50") == true
            })
            .unwrap();
            let violations = browser.axe("html");
            assert_eq!(violations, Vec::<String>::new(), "{width} {scheme} {query}");
        }
    }
}
