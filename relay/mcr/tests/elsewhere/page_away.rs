//! The page while the daemon does not answer, or not in time: the input stays, and nothing is done twice.

use std::fs;
use std::time::{Duration, Instant};

use lab::wait;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::page::{ESCAPE, Hand, Operator};
use super::{Bed, TOKENS};

const GREY: &str = "return document.body.classList.contains('stale')";
const NO_DIALOG: &str = "return document.querySelector('dialog') === null";

/// Drops packets of the page that match `loses` in the relay's network.
fn cut(bed: &Bed, hook: &str, loses: &str) {
    let chain = format!("chain one {{ type filter hook {hook} priority 0; {loses} drop; }}");
    nft(bed, &format!("table inet away {{ {chain}; }}"));
}

fn heal(bed: &Bed) {
    nft(bed, "delete table inet away");
}

fn nft(bed: &Bed, line: &str) {
    let mut command = bed.chain.relay.command("nft");
    command.arg(line);
    let ended = lab::process::run(command, Duration::from_secs(10)).unwrap();
    ended.success().unwrap();
}

/// The number of changes in the log of changes.
fn changes(bed: &Bed) -> usize {
    let json = bed.daemon.mcr(&["log", "changes", "--json"]).unwrap();
    let changes: Value = serde_json::from_str(&json).unwrap();
    changes.as_array().unwrap().len()
}

fn has(bed: &Bed, rule: &str) -> bool {
    bed.daemon.mcr(&["export"]).unwrap().contains(rule)
}

/// Opens the review of a new rule.
fn write(operator: &Operator, name: &str, number: u8) {
    operator.press("Add rule …");
    operator.fill("name", name);
    operator.fill("inputs", &format!("239.1.1.{number}%veth1:5001"));
    operator.fill("to", &format!("239.10.1.{number}%veth2:6001"));
    operator.press("Review …");
    operator.sees(&format!("+ rule {name}"));
}

/// Presses a button that changes something; the relay does it, and the answer is lost with the connection.
fn press_unanswered(bed: &Bed, operator: &Operator, button: &str, is_done: &dyn Fn() -> bool) {
    // Enough connections that one is free whatever else is requested.
    operator.browser.run("return Promise.all(Array(6).fill('/v1/status').map((path) => fetch(path).then((one) => one.text())))");
    cut(bed, "output", "tcp sport 9471 tcp flags & rst == 0");
    operator.press(button);
    wait::until("it is done", is_done).unwrap();
    let killed = "-K -H state established sport = :9471";
    bed.chain.relay.tool("ss", killed).unwrap();
    heal(bed);
    operator.waits_for(
        "the page is answered again",
        "return !document.body.classList.contains('stale')",
    );
    operator.waits_for(
        "nothing is asked any more",
        "return document.querySelector('#pending [aria-disabled=true], .review [aria-disabled=true]') === null",
    );
}

#[test]
fn without_a_network_all_is_grey_and_what_was_sent_is_done_once() {
    let Some(bed) = Bed::new("") else { return };
    let Some(operator) = Operator::at(&bed, Hand::Mouse) else {
        return;
    };
    operator.sign_in("change");
    write(&operator, "cam1", 1);
    operator.tick("Take back unless confirmed");
    let before = changes(&bed);
    cut(&bed, "input", "tcp dport 9471");
    operator.press("Apply");
    operator.waits_for("all is grey", GREY);
    assert!(!has(&bed, "cam1"));
    heal(&bed);
    operator.waits_for("it is done", NO_DIALOG);
    operator.waits_for(
        "the page is answered again",
        "return !document.body.classList.contains('stale')",
    );
    assert!(has(&bed, "cam1"));
    assert_eq!(changes(&bed), before + 1);
}

#[test]
fn what_was_done_and_not_answered_is_not_done_again() {
    let Some(bed) = Bed::new("") else { return };
    let Some(operator) = Operator::at(&bed, Hand::Mouse) else {
        return;
    };
    operator.sign_in("change");
    write(&operator, "cam1", 1);
    operator.tick("Take back unless confirmed");
    let before = changes(&bed);
    press_unanswered(&bed, &operator, "Apply", &|| has(&bed, "cam1"));
    // Browsers repeat a request by themselves on another connection.
    operator.sees("What you wrote is kept");
    assert_eq!(changes(&bed), before + 1);
    for _ in 0..2 {
        operator.press("Cancel");
    }
    operator.browser.keys(ESCAPE);
    operator.waits_for("all is closed", NO_DIALOG);
    // A rule that would come back if the change were undone twice.
    write(&operator, "cam2", 2);
    operator.apply(&["+ rule cam2"]);
    operator.sees("is taken back in");
    let before = changes(&bed);
    press_unanswered(&bed, &operator, "Take it back now", &|| !has(&bed, "cam2"));
    assert!(!has(&bed, "cam2") && has(&bed, "cam1"));
    assert_eq!(changes(&bed), before + 1);
    operator.waits_for(
        "nothing waits",
        "return document.getElementById('pending').hidden",
    );
}

#[test]
fn what_was_typed_outlives_a_revoked_token_another_who_was_faster_and_the_daemon() {
    let Some(mut bed) = Bed::new("") else { return };
    let Some(operator) = Operator::at(&bed, Hand::Mouse) else {
        return;
    };
    operator.sign_in("change");
    operator.press("Add rule …");
    operator.fill("name", "cam1");
    operator.fill("inputs", "239.1.1.1%veth1:5001");
    operator.fill("to", "239.10.1.1%veth2:6001");
    let typed = "return document.querySelector('[data-key=name] input').value";
    // The token is revoked, and restored.
    let path = bed.daemon.config_file();
    let text = fs::read_to_string(&path).unwrap();
    let hash = tls::token::hash(TOKENS[2].1);
    fs::write(&path, text.replace(&hash, &tls::token::hash("other"))).unwrap();
    bed.daemon.mcr(&["reload"]).unwrap();
    let revoked = Instant::now();
    operator.sees("You are signed out");
    assert!(wait::is_within(revoked.elapsed(), Duration::from_secs(2)));
    assert_eq!(operator.browser.run(typed), "cam1");
    fs::write(&path, &text).unwrap();
    bed.daemon.mcr(&["reload"]).unwrap();
    operator.fill("Token", TOKENS[2].1);
    operator.press("Sign in");
    operator.sees("(change)");
    // Somebody else is faster.
    bed.mcr(
        "ci",
        &[
            "add",
            "239.1.1.9%veth1:1",
            "239.1.1.9%veth2:1",
            "--name",
            "faster",
        ],
    );
    operator.press("Review …");
    operator.sees("Somebody was faster");
    operator.sees("ci");
    operator.press("Look again at what runs now");
    operator.sees("+ rule cam1");
    operator.press("Cancel");
    // The daemon restarts while the form is open, and forgets all sessions.
    bed.daemon.stop(Signal::SIGTERM).unwrap();
    operator.press("Review …");
    operator.sees("the daemon did not answer");
    bed.daemon.start_again().unwrap();
    operator.sees("You are signed out");
    operator.fill("Token", TOKENS[2].1);
    operator.press("Sign in");
    operator.sees("(change)");
    assert_eq!(operator.browser.run(typed), "cam1");
    assert!(
        !bed.daemon.mcr(&["export"]).unwrap().contains("cam1"),
        "nothing is sent twice"
    );
    operator.press("Review …");
    operator.sees("Somebody was faster");
    operator.press("Look again at what runs now");
    operator.apply(&["+ rule cam1"]);
    assert!(bed.daemon.mcr(&["export"]).unwrap().contains("cam1"));
    // Escape does not discard the input at once.
    operator.press("Add rule …");
    operator.fill("name", "half");
    operator.browser.keys(ESCAPE);
    operator.sees("Escape again");
    operator.browser.keys(ESCAPE);
    operator.waits_for("it is closed", NO_DIALOG);
}
