//! What an operator does at the page beyond writing rules: finds what comes, captures, imports files, looks
//! at how a rule was, completes what is written; and what a newcomer takes for five tasks.

use std::fs;
use std::path::Path;

use lab::process::Process;
use serde_json::Value;

use super::Bed;
use super::page::{ESCAPE, Hand, Operator};
use crate::bed::{INPUT, OUTPUT};
use crate::observe::pictures;

fn streams(bed: &Bed) -> [Process; 2] {
    ["239.1.1.1%veth0:5001", "239.1.1.9%veth0:5009"].map(|to| {
        let mut command = bed.chain.sender.command(lab::binary::mcr().unwrap());
        command.args([
            "send",
            to,
            "--duration",
            "600",
            "--rate",
            "100",
            "--framing",
            "rtp",
        ]);
        Process::start(command).unwrap()
    })
}

fn exported(bed: &Bed) -> String {
    bed.daemon.mcr(&["export"]).unwrap()
}

fn look_back(hand: Hand) {
    let Some(bed) = Bed::new("") else { return };
    bed.mcr("change", &["add", INPUT, OUTPUT, "--name", "cam1"]);
    bed.mcr(
        "ci",
        &[
            "change",
            "cam1",
            "--remove-output",
            OUTPUT,
            "--add-output",
            "239.10.1.7%veth2:6001",
            "--message",
            "the studio moved",
        ],
    );
    let Some(operator) = Operator::at(&bed, hand) else {
        return;
    };
    // Whoever may look may look back.
    operator.sign_in("view");
    operator.press("cam1");
    operator.press("As it was …");
    operator.sees("+ output 239.10.1.7%veth2:6001");
    operator.sees("− output 239.10.1.1%veth2:6001");
    operator.press("Close");
    operator.press("Sign out");
    operator.sees("Sign in");
    operator.sign_in("change");
    operator.tick("pick cam1");
    operator.press("As it was …");
    operator.press("Back to this …");
    operator.apply(&[
        "+ output 239.10.1.1%veth2:6001",
        "− output 239.10.1.7%veth2:6001",
    ]);
    operator.keep();
    assert!(!exported(&bed).contains("239.10.1.7"));
    operator.tick("pick cam1");
    operator.press("As it was …");
    operator.sees("the studio moved");
    operator.press("Close");
    assert_eq!(
        bed.curl("https://10.0.1.1:9471/v1/rules/cam1/earlier?generation=1")
            .0,
        401
    );
}

#[test]
fn how_a_rule_was_is_seen_and_made_so_again_by_mouse() {
    look_back(Hand::Mouse);
}

#[test]
fn how_a_rule_was_is_seen_and_made_so_again_by_keyboard() {
    look_back(Hand::Keyboard);
}

/// A file from somewhere else, dropped or chosen.
fn import_a_file(hand: Hand) {
    let Some(bed) = Bed::new("") else { return };
    let Some(operator) = Operator::at(&bed, hand) else {
        return;
    };
    operator.sign_in("change");
    let files = [
        (
            "news.sdp",
            "v=0\no=- 1 1 IN IP4 10.0.0.1\ns=News\nt=0 0\nm=video 5000 RTP/AVP 33\nc=IN IP4 239.1.1.7/32\n",
            "News",
        ),
        (
            "list.m3u",
            "#EXTM3U\n#EXTINF:-1,Sport\nudp://@239.1.1.8:5000\n",
            "Sport",
        ),
        (
            "smcroute.conf",
            "mgroup from veth1 group 239.1.1.6\nmroute from veth1 group 239.1.1.6 to veth2\n",
            "239.1.1.6",
        ),
    ];
    for (name, text, seen) in files {
        operator.press("Import …");
        match hand {
            Hand::Mouse => {
                let (name, text) = (Value::from(name), Value::from(text));
                operator.browser.run(&format!(
                    "const dropped = new DataTransfer(); dropped.items.add(new File([{text}], {name})); \
                     const on = document.querySelector('dialog h2'); \
                     for (const kind of ['dragover', 'drop']) on.dispatchEvent( \
                       new DragEvent(kind, {{ dataTransfer: dropped, bubbles: true, cancelable: true }}))"
                ));
            }
            Hand::Keyboard => {
                let file = bed.keys.path(name);
                fs::write(&file, text).unwrap();
                operator
                    .browser
                    .attach("document.querySelector('input[type=file]')", &file);
            }
        }
        operator.waits_for(
            "the text is there",
            "return document.querySelector('textarea.toml').value !== ''",
        );
        if !name.ends_with(".conf") {
            operator.fill("Interfaces", "veth1");
            operator.fill("To", "%veth2");
        }
        operator.press("Make rules …");
        operator.waits_for(
            "rules are made",
            &format!("return [...document.querySelectorAll('textarea')].some((one) => one.value.includes('[[rule]]') \
                      && one.value.includes('{seen}'))"),
        );
        operator.press("Cancel");
        operator.waits_for(
            "one dialog is left",
            "return document.querySelectorAll('dialog').length === 1",
        );
        for _ in 0..2 {
            operator.browser.keys(ESCAPE);
        }
        operator.waits_for(
            "all are closed",
            "return document.querySelector('dialog') === null",
        );
    }
}

#[test]
fn a_file_is_imported_by_mouse() {
    import_a_file(Hand::Mouse);
}

#[test]
fn a_file_is_imported_by_keyboard() {
    import_a_file(Hand::Keyboard);
}

#[test]
#[ignore = "writes docs/images; make pictures runs it"]
fn what_comes_has_its_picture_taken() {
    let Some(bed) = Bed::new("") else { return };
    bed.mcr("change", &["add", INPUT, OUTPUT, "--name", "cam1"]);
    let Some(operator) = Operator::at(&bed, Hand::Mouse) else {
        return;
    };
    let _streams = streams(&bed);
    operator.sign_in("change");
    operator.press("Discover …");
    operator.press("Listen");
    operator.sees("239.1.1.9");
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images");
    pictures::write(&directory, "page-discover.png", &operator.browser.picture());
}
