use std::fmt::Write;
use std::time::{Duration, Instant};

use lab::wait;

use super::browser::Browser;
use crate::bed::{Bed, INPUT, OUTPUT, can_run};

const TOOLS: [&str; 2] = ["chromium", "chromedriver"];
const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:9190"];
const PAGE: &str = "http://127.0.0.1:9190/";

/// The names in the table, in its order.
const NAMES: &str = "return [...document.querySelectorAll('#rows > tr[data-rule]')]\
                     .map((row) => row.dataset.rule)";

/// How many rules are in each state.
const COUNTS: &str = "return [...document.querySelectorAll('#counts button:not([hidden])')]\
                      .map((one) => one.textContent).join(', ').replaceAll('\u{202f}', '')";

/// This many rules, of which number `down` has no interface to send by.
pub(super) fn config(rules: usize, down: usize) -> String {
    let mut config = "version = 1\n".to_owned();
    for n in 0..rules {
        let (high, low) = (n / 250, n % 250 + 1);
        let link = if n == down { "veth9" } else { "veth2" };
        write!(
            config,
            "[[rule]]\nname = \"r{n:04}\"\ninput = \"239.1.{high}.{low}%veth1:5001\"\n\
             outputs = [\"239.10.{high}.{low}%{link}:6001\"]\n"
        )
        .unwrap();
    }
    config
}

fn shown(browser: &Browser) -> Vec<String> {
    let names = browser.run(NAMES);
    let rows = names.as_array().into_iter().flatten();
    rows.map(|name| name.as_str().unwrap().to_owned()).collect()
}

fn filter(browser: &Browser, text: &str) {
    browser.run(&format!(
        "const f = document.getElementById('filter'); f.value = '{text}'; \
         f.dispatchEvent(new Event('input'))"
    ));
}

fn cell(column: usize) -> String {
    format!(
        "return document.querySelector('tr[data-rule=cam1]')?.cells[{column}].textContent \
         .replaceAll('\u{202f}', '') ?? ''"
    )
}

/// Two seconds of silence, half a second until the counters are read, one until the page asks, and the
/// browser's time.
const RED_WITHIN: Duration = Duration::from_secs(4);

#[test]
fn the_page_shows_the_daemons_numbers_and_a_stopped_stream_in_red() {
    let Some(bed) = Bed::with_tools(&TOOLS, &LISTEN) else {
        return;
    };
    bed.add();
    let browser = Browser::start(&bed.chain.relay);
    browser.open(PAGE);
    let stream = bed.stream(1000);
    wait::until("the stream's rate is shown", || {
        let text = browser.run(&cell(3));
        let rate: f64 = text.as_str().unwrap().parse().unwrap_or(0.0);
        (900.0..1100.0).contains(&rate)
    })
    .unwrap();
    assert_eq!(browser.run(&cell(1)), "up");
    // Without a mouse: a press while the rule's name has the focus.
    let press = "const a = document.querySelector('tr[data-rule=cam1] a'); a.focus(); \
                 if (document.activeElement !== a) return 'no focus'; a.click(); \
                 return document.getElementById('selected').textContent + a.ariaExpanded + location.hash";
    assert_eq!(browser.run(press), "cam1true#rule=cam1");
    let sorted = "document.querySelector('th[data-sort=rate] button').click(); \
                  return document.querySelector('th[data-sort=rate]').ariaSort";
    assert_eq!(browser.run(sorted), "descending");
    let events = "return document.getElementById('events').textContent";
    let shown = browser.run(events);
    assert!(
        shown.as_str().unwrap().contains("rule \"cam1\" added"),
        "{shown}"
    );
    let link = "return document.querySelectorAll('#picture path.up').length";
    assert_eq!(browser.run(link), 2);

    drop(stream);
    let stopped = Instant::now();
    let red = "return document.querySelector('tr[data-rule=cam1]').className.includes('red') \
               && document.querySelectorAll('#picture path.silent').length === 2";
    wait::until("the stopped stream is red", || browser.run(red) == true).unwrap();
    let took = stopped.elapsed();
    assert!(wait::is_within(took, RED_WITHIN), "{took:?}");

    let counted = bed.daemon.rule("cam1").unwrap();
    assert_eq!(browser.run(&cell(6)), counted.received.packets.to_string());
    let sent = counted.outputs[0].sent.packets;
    assert_eq!(browser.run(&cell(7)), sent.to_string());
    assert_eq!(browser.complaints(), Vec::<serde_json::Value>::new());
}

#[test]
fn a_stream_that_stops_is_red_though_an_output_was_down_before() {
    let Some(bed) = Bed::with_tools(&TOOLS, &LISTEN) else {
        return;
    };
    let second = ["--input", "239.1.1.2%veth1:5001"];
    let outputs = [OUTPUT, "239.10.1.2%veth9:6001"];
    let rule = [["add", INPUT], outputs, ["--name", "cam1"], second].concat();
    bed.daemon.mcr(&rule).unwrap();
    let browser = Browser::start(&bed.chain.relay);
    browser.open(PAGE);
    let stream = bed.stream(500);
    wait::until("the row is degraded and names the interface", || {
        let why = browser.run(&cell(9));
        let received = browser.run(&cell(6));
        browser.run(&cell(1)) == "degraded"
            && why.as_str().unwrap().contains("no interface veth9")
            && received != "0"
    })
    .unwrap();
    // The stream arrives on the first input.
    browser.run("document.querySelector('tr[data-rule=cam1] a').click()");
    let rows = browser.run(
        "return [...document.querySelectorAll('tr.detail tbody tr')].map((row) => \
         [0, 1, 4].map((cell) => row.cells[cell].textContent).join(' ')).join('; ')",
    );
    let ends = rows.as_str().unwrap();
    let second = "; ← 239.1.1.2%veth1:5001 joined 0; →";
    assert!(
        ends.contains(second) && ends.contains("veth9:6001 down 0"),
        "{ends}"
    );
    let links = "return ['up', 'idle'].map((state) => \
                 document.querySelectorAll(`#picture path.${state}`).length).join()";
    wait::until("the second input is idle", || browser.run(links) == "2,1").unwrap();
    drop(stream);
    let stopped = Instant::now();
    wait::until("the row is red", || browser.run(&cell(1)) == "silent").unwrap();
    let took = stopped.elapsed();
    assert!(wait::is_within(took, RED_WITHIN), "{took:?}");
}

#[test]
fn of_a_thousand_rules_the_page_begins_with_those_in_trouble() {
    let Some(bed) = Bed::with_tools(&TOOLS, &LISTEN) else {
        return;
    };
    bed.daemon.apply(&config(1000, 777)).unwrap();
    let browser = Browser::start(&bed.chain.relay);
    browser.open(&format!("{PAGE}#rule=r0999"));
    let shown = || shown(&browser);
    wait::until("rules are shown", || shown().len() > 100).unwrap();
    // The rule that the address names, then the worst.
    assert_eq!(shown()[..3], ["r0999", "r0777", "r0000"]);
    assert!(
        shown().len() < 500,
        "no more than can be seen: {}",
        shown().len()
    );
    assert_eq!(
        browser.run("return document.querySelectorAll('tr.detail').length"),
        1
    );
    let counts = browser.run(COUNTS);
    assert_eq!(counts, "1000 rules, 1 down, 0 degraded, 999 waiting, 0 up");
    browser.run("document.querySelector('tr.chosen a').click()");
    browser.run("document.querySelector('#counts [data-state=down]').click()");
    assert_eq!(shown(), ["r0777"]);
    assert_eq!(browser.run("return location.hash"), "");
    browser.run("document.querySelector('#counts [data-state=all]').click()");
    filter(&browser, "r0776");
    assert_eq!(shown(), ["r0776"]);
    let queries = "return performance.getEntriesByType('resource').filter(\
                 (entry) => entry.name.includes('/v1/stats')).length";
    wait::until("it goes on asking", || {
        browser.run(queries).as_u64() >= Some(4)
    })
    .unwrap();
    assert_eq!(browser.complaints(), Vec::<serde_json::Value>::new());
}

#[test]
fn of_more_rules_than_are_sent_the_page_queries_those_that_are_chosen() {
    let Some(bed) = Bed::with_tools(&TOOLS, &LISTEN) else {
        return;
    };
    bed.daemon.apply(&config(1200, 1100)).unwrap();
    let browser = Browser::start(&bed.chain.relay);
    browser.open(&format!("{PAGE}#rule=r1150"));
    wait::until("the worst are told, and what the address names", || {
        shown(&browser).starts_with(&["r1150", "r1100", "r0000"].map(str::to_owned))
    })
    .unwrap();
    let counts = "1200 rules, 1 down, 0 degraded, 1199 waiting, 0 up";
    assert_eq!(browser.run(COUNTS), counts);
    let more = "return document.getElementById('more').textContent.replaceAll('\u{202f}', '')";
    let more_rules = browser.run(more);
    assert!(
        more_rules.as_str().unwrap().ends_with(" more rules"),
        "{more_rules}"
    );
    browser.run("document.querySelector('tr.chosen a').click()");

    let is = |names: &[&str]| shown(&browser) == names;
    filter(&browser, "r0976");
    wait::until("the rule is asked for", || is(&["r0976"])).unwrap();
    assert_eq!(browser.run(COUNTS), counts);
    filter(&browser, "");
    browser.run("document.querySelector('#counts [data-state=down]').click()");
    wait::until("those that are down", || is(&["r1100"])).unwrap();
    browser.run("document.querySelector('#counts [data-state=all]').click()");
    browser.run("document.querySelector('th[data-sort=name] button').click()");
    wait::until("in the order of names", || {
        let shown = shown(&browser);
        let all = (0..shown.len()).map(|n| format!("r{n:04}"));
        shown.len() >= 100 && shown.len() < 1000 && shown.iter().eq(&all.collect::<Vec<_>>())
    })
    .unwrap();
    let last_query = "return performance.getEntriesByType('resource').filter(\
                 ({ name }) => name.includes('/v1/stats')).at(-1).name";
    let query = browser.run(last_query);
    assert!(query.as_str().unwrap().contains("order=name"), "{query}");
    assert_eq!(browser.complaints(), Vec::<serde_json::Value>::new());
}

#[test]
fn the_page_of_a_relay_shows_its_fleet_and_that_etcd_is_away() {
    for tool in TOOLS {
        if let Err(reason) = can_run(tool) {
            eprintln!("skipped: {reason}");
            return;
        }
    }
    let config = "version = 1\n[fleet]\nname = \"plant\"\nrelay = \"relay-a\"\n\
                  endpoints = [\"http://127.0.0.1:2379\"]\npeer = \"127.0.0.1:9470\"\n\
                  interfaces = { red = \"veth1\" }\n";
    let Some(bed) = Bed::new(Some(config), &LISTEN) else {
        return;
    };
    let browser = Browser::start(&bed.chain.relay);
    browser.open(PAGE);
    let shown = "const fleet = document.getElementById('fleet'); \
                 return fleet.hidden ? '' : fleet.textContent";
    wait::until("the fleet is shown", || {
        let content = browser.run(shown);
        let text = content.as_str().unwrap();
        text.contains("Fleet plant")
            && text.contains("this is relay-a")
            && text.contains("etcd cannot be used")
    })
    .unwrap();
    let red = "return document.querySelectorAll('#fleet .down').length > 0";
    assert_eq!(browser.run(red), true);
    assert_eq!(browser.complaints(), Vec::<serde_json::Value>::new());
}
