//! Tasks on the page beyond writing rules: discovering streams, capturing, importing files, viewing earlier
//! versions of a rule, completing input; and the effort of a newcomer for five tasks.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use lab::process::Process;
use lab::wait;
use serde_json::Value;

use super::Bed;
use super::page::{CONTROL, DOWN, ENTER, ESCAPE, Hand, Operator};
use crate::bed::{INPUT, OUTPUT};
use crate::observe::pictures;

const STREAM: &str = "239.1.1.9%veth1:5009";
const RULE: &str = "239.1.1.9-5009";

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

/// Discovers a stream, and makes a rule of it.
fn relay_a_discovered_stream(bed: &Bed, operator: &Operator) {
    operator.press("Discover …");
    operator.fill("Seconds", "2");
    operator.press("Listen");
    operator.sees("239.1.1.9");
    operator.press(&format!("Relay this … {STREAM}"));
    operator.sees("All settings");
    let written = "return ['name', 'inputs'].map((key) => \
                   document.querySelector(`[data-key=${key}] input, [data-key=${key}] textarea`).value)";
    assert_eq!(
        operator.browser.run(written),
        serde_json::json!([RULE, STREAM])
    );
    operator.fill("to", "239.10.1.9%veth2:6009");
    operator.press("Review …");
    operator.apply(&[&format!("+ rule {RULE}")]);
    operator.keep();
    assert!(exported(bed).contains(STREAM));
}

fn capture(operator: &Operator, directory: &Path) -> PathBuf {
    let file = directory.join(format!("{RULE}.pcapng"));
    operator.tick(&format!("pick {RULE}"));
    operator.press("Capture …");
    operator.fill("Seconds", "1");
    operator.press("Capture");
    wait::until("the file is there", || file.exists()).unwrap();
    operator.sees("bytes: ");
    file
}

fn find_and_capture(hand: Hand) {
    let Some(bed) = Bed::new("") else { return };
    let Some(operator) = Operator::at(&bed, hand) else {
        return;
    };
    let downloads = tempfile::tempdir().unwrap();
    operator.browser.download_to(downloads.path());
    let _streams = streams(&bed);
    operator.sign_in("change");
    relay_a_discovered_stream(&bed, &operator);
    let file = capture(&operator, downloads.path());
    // A wrong filter is reported, as are errors on the relay.
    operator.fill("Filter", "tcp");
    operator.press("Capture");
    operator.sees("\"tcp\": no such filter");
    operator.press("Close");
    let captured = fs::read(&file).unwrap();
    let has = |address: [u8; 4]| captured.windows(4).any(|bytes| bytes == address);
    assert!(captured.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]));
    assert!(has([239, 1, 1, 9]) && has([239, 10, 1, 9]));
    // Closing the dialog ends its request.
    let captures = || {
        let table = bed.chain.relay.read_proc_net("packet").unwrap();
        let of_all = |line: &&str| line.split_whitespace().nth(3) == Some("0003");
        table.lines().filter(of_all).count()
    };
    let before = captures();
    operator.press("Discover …");
    operator.fill("Seconds", "60");
    operator.press("Listen");
    wait::until("it is listened", || captures() > before).unwrap();
    operator.press("Close");
    wait::until("nobody listens", || captures() == before).unwrap();
}

#[test]
fn a_discovered_stream_is_relayed_and_captured_by_mouse() {
    find_and_capture(Hand::Mouse);
}

#[test]
fn a_discovered_stream_is_relayed_and_captured_by_keyboard() {
    find_and_capture(Hand::Keyboard);
}

/// Adds `cam1`, and moves its output by another client.
pub(super) fn cam1_moved(bed: &Bed, to: &str, message: &str) {
    bed.mcr("change", &["add", INPUT, OUTPUT, "--name", "cam1"]);
    let outputs = ["--remove-output", OUTPUT, "--add-output", to];
    let change = [&["change", "cam1"], &outputs[..], &["--message", message]];
    bed.mcr("ci", &change.concat());
}

fn view_earlier_version(hand: Hand) {
    let Some(bed) = Bed::new("") else { return };
    cam1_moved(&bed, "239.10.1.7%veth2:6001", "the studio moved");
    let Some(operator) = Operator::at(&bed, hand) else {
        return;
    };
    // The role view includes earlier versions.
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
    view_earlier_version(Hand::Mouse);
}

#[test]
fn how_a_rule_was_is_seen_and_made_so_again_by_keyboard() {
    view_earlier_version(Hand::Keyboard);
}

/// Imports files of other formats, dropped or chosen.
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
        (
            "sender.json",
            r#"{"sender_id": null, "master_enable": true, "transport_params": [
                {"multicast_ip": "239.1.1.5", "source_ip": "10.0.0.1", "destination_port": 5000,
                 "interface_ip": "10.0.0.2", "rtp_enabled": true}]}"#,
            "10.0.0.1@239.1.1.5",
        ),
    ];
    for (name, text, expected) in files {
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
                      && one.value.includes('{expected}'))"),
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

fn complete(hand: Hand) {
    let Some(bed) = Bed::new("") else { return };
    let Some(operator) = Operator::at(&bed, hand) else {
        return;
    };
    operator.sign_in("change");
    operator.press("Add rule …");
    operator.press("As text");
    let offered =
        "return [...document.querySelectorAll('#offers li')].map((one) => one.textContent).join()";
    let value = || {
        operator
            .browser
            .run("return document.querySelector('textarea.toml').value")
    };
    let take = |word: &str| {
        match hand {
        Hand::Mouse => operator.browser.click(&format!(
            "const one = [...document.querySelectorAll('#offers li')].find((one) => one.textContent === '{word}');"
        )),
        Hand::Keyboard => {
            let chosen = "return document.querySelector('#offers [aria-selected=true]')?.textContent";
            for _ in 0..20 {
                operator.browser.keys(DOWN);
                if operator.browser.run(chosen) == word {
                    break;
                }
            }
            operator.browser.keys(ENTER);
        }
    }
    };
    operator.fill("Rules as TOML", "[[rule]]\nname = \"a\"\nfail");
    operator.waits_for("a key is offered", &format!("{offered} === 'failover'"));
    take("failover");
    assert_eq!(value(), "[[rule]]\nname = \"a\"\nfailover = ");
    // Words of a key that has some, keys of a table, and no key that is already set.
    operator.browser.keys("\"500ms\"\npath = \"us");
    operator.waits_for("a word is offered", &format!("{offered} === 'userspace'"));
    take("userspace");
    assert!(value().as_str().unwrap().ends_with("path = \"userspace"));
    operator.browser.keys("\"\npat");
    assert_eq!(operator.browser.run(offered), "");
    operator.fill(
        "Rules as TOML",
        "[[rule]]\nname = \"a\"\n[rule.health]\nsil",
    );
    operator.waits_for(
        "a key of the table is offered",
        &format!("{offered}.includes('silence')"),
    );
    // Escape closes the offer, not the dialog.
    operator.browser.keys(ESCAPE);
    assert_eq!(operator.browser.run(offered), "");
    operator.browser.chord(CONTROL, ' ');
    operator.waits_for(
        "it is offered again",
        &format!("{offered}.includes('silence')"),
    );
    take("silence");
    assert!(value().as_str().unwrap().ends_with("silence = "));
    assert!(!operator.text().contains("Escape again"));
}

#[test]
fn what_may_be_written_is_offered_by_mouse() {
    complete(Hand::Mouse);
}

#[test]
fn what_may_be_written_is_offered_by_keyboard() {
    complete(Hand::Keyboard);
}

/// Five tasks of a first-time user, as short as the page allows them.
#[test]
fn a_newcomer_does_five_tasks() {
    let Some(bed) = Bed::new("") else { return };
    let Some(operator) = Operator::at(&bed, Hand::Mouse) else {
        return;
    };
    let downloads = tempfile::tempdir().unwrap();
    operator.browser.download_to(downloads.path());
    let _streams = streams(&bed);
    operator.sign_in("change");
    let walk = |task: &str, steps: &dyn Fn()| {
        let (clicks, began) = (operator.clicks.get(), Instant::now());
        steps();
        let clicks = operator.clicks.get() - clicks;
        println!(
            "{task}: {clicks} clicks, {:.1} s of the machine's",
            began.elapsed().as_secs_f64()
        );
        assert!(clicks <= 12, "{task}: {clicks}");
    };
    walk("relay a stream that comes", &|| {
        relay_a_discovered_stream(&bed, &operator)
    });
    walk("see whether its packets come and leave", &|| {
        capture(&operator, downloads.path());
        operator.press("Close");
    });
    walk("send it somewhere else", &|| {
        operator.press("Change …");
        operator.fill("to", "239.10.1.8%veth2:6008");
        operator.press("Review …");
        operator.apply(&["+ output 239.10.1.8%veth2:6008"]);
        operator.keep();
    });
    walk("stop it for a while", &|| {
        operator.tick(&format!("pick {RULE}"));
        operator.press("Disable …");
        operator.apply(&[]);
        operator.keep();
    });
    walk("take the last change back", &|| {
        operator.press("Undo …");
        operator.apply(&[]);
        operator.keep();
    });
    let exported = exported(&bed);
    assert!(
        !exported.contains("enabled = false") && exported.contains("239.10.1.8"),
        "{exported}"
    );
}

#[test]
#[ignore = "writes docs/images; make pictures runs it"]
fn the_discovered_streams_have_their_picture_taken() {
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
