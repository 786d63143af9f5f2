//! The page shows what others on the network do: who takes one of the relay's addresses, and that nobody
//! receives an output. It writes numbers as the tables do.

use std::net::IpAddr;

use lab::link;
use lab::socket::{Receiver, Sender};
use lab::wait;
use serde_json::Value;

use super::browser::Browser;
use super::page::config;
use crate::bed::{Bed, INPUT};

const TOOLS: [&str; 2] = ["chromium", "chromedriver"];
const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:9190"];
const PAGE: &str = "http://127.0.0.1:9190/";

fn open(bed: &Bed, hash: &str) -> Browser {
    let browser = Browser::start(&bed.chain.relay);
    browser.open(&format!("{PAGE}{hash}"));
    browser
}

/// Waits until a script returns `true`.
#[track_caller]
fn waits_for(browser: &Browser, what: &str, script: &str) {
    let seen = wait::until(what, || browser.run(script) == true);
    let text = || browser.run("return document.body.innerText");
    seen.unwrap_or_else(|error| panic!("{error}: {}", text()));
}

#[test]
fn an_address_that_another_host_has_is_shown_as_long_as_it_has() {
    let Some(bed) = Bed::with_tools(&TOOLS, &LISTEN) else {
        return;
    };
    bed.add();
    let browser = open(&bed, "");
    let sender = &bed.chain.sender;
    sender.ip("address add 10.0.0.2/24 dev veth0").unwrap();
    let shown = "return document.querySelector('#conflicts .down')?.textContent \
                 .includes(\"10.0.0.2 is somebody else's too\") === true \
                 && !document.getElementById('notice').textContent.includes('10.0.0.2')";
    waits_for(&browser, "the conflict is shown, once", shown);
    assert_eq!(browser.axe("html"), Vec::<String>::new());
    sender.ip("address del 10.0.0.2/24 dev veth0").unwrap();
    let gone = "return document.getElementById('conflicts').getClientRects().length === 0 \
                || document.getElementById('conflicts').textContent === ''";
    waits_for(&browser, "it is over", gone);
    assert_eq!(browser.complaints(), Vec::<Value>::new());
}

#[test]
fn an_output_that_nobody_hears_is_shown_where_its_rule_stands() {
    let Some(bed) = Bed::with_tools(&TOOLS, &LISTEN) else {
        return;
    };
    let relay = &bed.chain.relay;
    link::snooping_bridge((relay, "br0")).unwrap();
    relay.ip("address add 10.9.0.1/24 dev br0").unwrap();
    link::bridge_port((relay, "veth2"), "br0").unwrap();
    let on_demand = "239.10.1.2%br0:6001,demand=igmp";
    bed.daemon
        .add("cam1", INPUT, &["239.10.1.1%br0:6001", on_demand])
        .unwrap();
    let source: IpAddr = "10.0.0.1".parse().unwrap();
    let sender = Sender::open((&bed.chain.sender, "veth0"), source).unwrap();
    let group = "239.1.1.1".parse().unwrap();
    let browser = open(&bed, "#rule=cam1");
    let seen = |what: &str, script: &str| {
        let seen = wait::until(what, || {
            sender.send_numbered(group, 5001, 1, 100).unwrap();
            browser.run(script) == true
        });
        seen.unwrap_or_else(|error| {
            panic!("{error}: {}", browser.run("return document.body.innerText"))
        });
    };
    // An output on demand may have no receivers.
    let row = "const row = document.querySelector('tr[data-rule=cam1]'); \
               if (row === null) return false; \
               const why = row.querySelector('.why').textContent; ";
    let shown = format!(
        "{row} return why.startsWith('output 239.10.1.1%br0:6001 reaches nobody: nobody behind the bridge') \
         && row.className.includes('amber')"
    );
    seen("the rule says so", &shown);
    let detail = "const why = [...document.querySelectorAll('tr.detail .why')].map((one) => one.textContent); \
                  return why.some((one) => one.startsWith('nobody behind the bridge')) \
                  && why.some((one) => one.startsWith('nobody on br0 listens'))";
    seen("both outputs do", detail);
    let picture = "const of = (kind) => document.querySelectorAll(`#picture path.${kind}`).length; \
                   return of('degraded') === 1 && of('idle') === 1";
    seen("their links show it", picture);
    let to: IpAddr = "239.10.1.1".parse().unwrap();
    let _receiver = Receiver::join((&bed.chain.sink, "veth3"), to, 6001).unwrap();
    let gone =
        format!("{row} return !why.includes('reaches nobody') && !row.className.includes('amber')");
    seen("somebody hears it", &gone);
    assert_eq!(browser.complaints(), Vec::<Value>::new());
}

/// Ungrouped numbers of four digits or more before a word, as counts are; not addresses, ports, generations.
fn bare(text: &str) -> Vec<&str> {
    text.lines().flat_map(bare_in).collect()
}

fn bare_in(line: &str) -> Vec<&str> {
    let is_long = |word: &str| word.len() > 3 && word.bytes().all(|byte| byte.is_ascii_digit());
    let two = line.split_whitespace().zip(line.split_whitespace().skip(1));
    let counted = two.filter(|(number, thing)| {
        is_long(number) && thing.starts_with(|letter: char| letter.is_ascii_lowercase())
    });
    counted.map(|(number, _)| number).collect()
}

#[test]
fn thousands_are_set_apart_wherever_they_are_counted() {
    let Some(bed) = Bed::with_tools(&TOOLS, &LISTEN) else {
        return;
    };
    bed.daemon.apply(&config(1234, 77)).unwrap();
    let names: Vec<String> = (0..1234).map(|n| format!("r{n:04}")).collect();
    let disable: Vec<&str> = ["disable"]
        .into_iter()
        .chain(names.iter().map(String::as_str))
        .collect();
    bed.daemon.mcr(&disable).unwrap();
    let browser = open(&bed, "");
    let text = || {
        let text = browser.run("return document.body.innerText");
        text.as_str().unwrap().replace('\u{202f}', "_")
    };
    let shown = wait::until("what is not saved is counted", || {
        let text = text();
        text.contains("1_234 changes are not saved") && text.contains("1_234 disabled")
    });
    shown.unwrap_or_else(|error| panic!("{error}: {}", text()));
    assert_eq!(bare(&text()), Vec::<&str>::new(), "{}", text());
    let commands = [
        "status",
        "stats",
        "list",
        "doctor",
        "events -n 2 --recent 100",
    ];
    for line in commands {
        let words: Vec<&str> = line.split(' ').collect();
        let finished = bed.daemon.client(&words).unwrap();
        for text in [finished.stdout, finished.stderr] {
            assert_eq!(bare(&text), Vec::<&str>::new(), "{line}: {text}");
        }
    }
}
