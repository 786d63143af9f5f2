//! A fleet on the page of one of its relays: rules, moving, draining and fencing.

use std::time::Duration;

use lab::daemon::{Daemon, Options};
use lab::process::Process;
use lab::wait;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::Bed;
use super::page::{Hand, Operator};
use super::page_access::audit;
use crate::bed::can_run;

const FLEET: &str = "[fleet]\nname = \"plant\"\nrelay = \"relay-a\"\nendpoints = [\"http://127.0.0.1:2379\"]\n\
                     peer = \"127.0.0.1:9470\"\ninterfaces = { red = \"veth1\", blue = \"veth2\" }";

#[test]
fn a_fleet_is_operated_at_the_page_of_a_relay() {
    if let Err(reason) = can_run("etcd") {
        eprintln!("skipped: {reason}");
        return;
    }
    let Some(bed) = Bed::new(FLEET) else { return };
    lab::link::up((&bed.chain.relay, "lo")).unwrap();
    let mut command = bed.chain.relay.command("etcd");
    let data = bed.keys.path("etcd");
    command
        .arg("--data-dir")
        .arg(&data)
        .args(["--log-level", "error"]);
    let _etcd = Process::start(command).unwrap();
    let Some(operator) = Operator::at(&bed, Hand::Keyboard) else {
        return;
    };
    operator.sign_in("change");
    wait::until_within(Duration::from_secs(60), "it is in the fleet", || {
        operator.text().contains("etcd answers")
    })
    .unwrap();
    operator.press("Fleet rules …");
    operator.fill(
        "Rules as TOML",
        "[[rule]]\nname = \"cam1\"\ninput = \"239.1.1.1%red:5001\"\n\
         outputs = [\"239.10.1.1%blue:6001\"]\nshare = \"s1\"\n",
    );
    operator.press("Review …");
    operator.apply(&["+ rule cam1"]);
    operator.sees("this relay forwards it");
    // A second relay, which the share is moved to.
    let second = FLEET.replace("relay-a", "relay-b").replace("9470", "9472");
    let options = Options {
        config: Some(format!("version = 1\n{second}\n")),
        ..Options::default()
    };
    let mut second = Daemon::start(&bed.chain.relay, options).unwrap();
    operator.sees("relay-b");
    // A relay leads to its own page.
    let link = "return [...document.querySelectorAll('#fleet a')].map((one) => `${one.textContent} ${one.href}`).join()";
    assert_eq!(
        operator.browser.run(link),
        "relay-b https://127.0.0.1:9471/"
    );
    // The focus stays while the page is updated.
    operator
        .browser
        .run("window.before = document.querySelector('#fleet a'); before.focus()");
    operator.waits_for("the fleet is shown anew", "return !before.isConnected");
    let focus = operator
        .browser
        .run("return document.activeElement.textContent");
    assert_eq!(focus, "relay-b");
    audit(&operator, "a fleet");
    operator.press("Relays …");
    audit(&operator, "relays");
    operator.fill("Relay", "relay-b");
    operator.press("Move …");
    operator.sees("s1 goes to relay-b.");
    audit(&operator, "a share that moves");
    operator.press("Move");
    let holder =
        "return document.querySelector('#fleet table:last-of-type td:nth-child(2)').textContent";
    operator.waits_for("it is moved", &format!("{holder} === 'relay-b'"));
    operator.waits_for(
        "the dialogs are gone",
        "return document.querySelector('dialog') === null",
    );
    operator.press("Relays …");
    operator.press("Drain …");
    operator.sees("gives away what it forwards");
    operator.press("Drain");
    let state = "return document.querySelector('#fleet table td:nth-child(2)').textContent";
    operator.waits_for("it is drained", &format!("{state} === 'drained'"));
    operator.press("Relays …");
    operator.press("Undrain …");
    operator.press("Undrain");
    operator.waits_for("it is up", &format!("{state} === 'up'"));
    operator.press("Relays …");
    // A relay that beats is not fenced; a dead one is, and loses its share.
    operator.fill("Relay", "relay-b");
    operator.press("Fence …");
    operator.sees("known to be dead");
    operator.press("Fence");
    operator.sees("lives, it beat");
    second.stop(Signal::SIGKILL).unwrap();
    let dead = "return ['silent', 'fenced'].includes([...document.querySelectorAll('#fleet tr')]\
                .find((line) => line.cells[0].textContent === 'relay-b').cells[1].textContent)";
    operator.waits_for("it is silent", dead);
    operator.press("Fence");
    operator.waits_for(
        "it is fenced",
        "return document.querySelector('dialog') === null",
    );
    operator.waits_for("its share is here", &format!("{holder} === 'relay-a'"));
    // From the refusal to fence a living relay.
    let complaints = operator.browser.complaints();
    let is_other = |line: &&Value| !line["message"].as_str().unwrap().contains("409 (Conflict)");
    assert_eq!(complaints.iter().find(is_other), None);
}
