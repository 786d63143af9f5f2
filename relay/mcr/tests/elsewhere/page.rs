//! The page as an operator uses it, in a browser on another host: each task by mouse and by keyboard.

use std::cell::Cell;
use std::fs;
use std::path::Path;

use lab::wait;
use serde_json::Value;

use super::{Bed, TOKENS};
use crate::bed::{INPUT, OUTPUT, can_run};
use crate::observe::browser::Browser;
use crate::observe::pictures;

pub(super) const PAGE: &str = "https://10.0.1.1:9471/";
const TAB: &str = "\u{e004}";
pub(super) const DOWN: &str = "\u{e015}";
pub(super) const ENTER: &str = "\u{e007}";
pub(super) const ESCAPE: &str = "\u{e00c}";
pub(super) const CONTROL: char = '\u{e009}';

/// Finds elements by name where a user can act: in the topmost dialog.
const FIND: &str = "const top = [...document.querySelectorAll('dialog[open]')].at(-1) ?? document; \
    const shown = (one) => one.getClientRects().length > 0; \
    const named = (one) => one.ariaLabel ?? (one.labels?.[0]?.textContent ?? one.textContent); \
    const all = [...top.querySelectorAll('button, input, select, textarea, a, summary')].filter(shown);";

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Hand {
    Mouse,
    Keyboard,
}

/// A user of the page.
pub(super) struct Operator {
    pub(super) browser: Browser,
    hand: Hand,
    /// How often it went to an element.
    pub(super) clicks: Cell<u32>,
}

impl Operator {
    /// Opens the page on another host; `None` if there is no browser.
    pub(super) fn at(bed: &Bed, hand: Hand) -> Option<Self> {
        for tool in ["chromium", "chromedriver"] {
            if let Err(reason) = can_run(tool) {
                eprintln!("skipped: {reason}");
                return None;
            }
        }
        lab::link::up((&bed.chain.sink, "lo")).unwrap();
        let browser = Browser::start(&bed.chain.sink);
        browser.open(PAGE);
        Some(Self {
            browser,
            hand,
            clicks: Cell::default(),
        })
    }

    pub(super) fn sign_in(&self, role: &str) {
        let (_, token) = TOKENS.iter().find(|(name, _)| *name == role).unwrap();
        self.fill("Token", token);
        self.press("Sign in");
        self.sees(&format!("({role})"));
        self.waits_for(
            "the dialog is gone",
            "return document.querySelector('dialog') === null",
        );
    }

    pub(super) fn waits_for(&self, what: &str, script: &str) {
        wait::until(what, || self.browser.run(script) == true)
            .unwrap_or_else(|error| panic!("{error}: {}", self.text()));
    }

    /// The visible text, that of the topmost dialog first.
    pub(super) fn text(&self) -> String {
        let text = "return [...document.querySelectorAll('dialog[open]')].reverse().map((one) => one.innerText) \
                    .join('\\n') + document.body.innerText";
        self.browser.run(text).as_str().unwrap().to_owned()
    }

    #[track_caller]
    pub(super) fn sees(&self, what: &str) {
        let seen = wait::until(what, || self.text().contains(what));
        assert!(seen.is_ok(), "no {what:?} in: {}", self.text());
    }

    /// Goes to the element of that name.
    #[track_caller]
    fn go(&self, name: &str) {
        self.clicks.set(self.clicks.get() + 1);
        let name = Value::from(name).to_string();
        let find = format!(
            "{FIND} const one = all.find((one) => named(one).trim() === {name} && !one.disabled);"
        );
        let exists = format!("{find} return one !== undefined");
        let shown = wait::until(&name, || self.browser.run(&exists) == true);
        assert!(shown.is_ok(), "no {name} to go to in: {}", self.text());
        match self.hand {
            Hand::Mouse => self.browser.click(&find),
            Hand::Keyboard => {
                let has_focus = format!("{find} return document.activeElement === one");
                for _ in 0..300 {
                    if self.browser.run(&has_focus) == true {
                        return;
                    }
                    self.browser.keys(TAB);
                }
                panic!("the tabulator does not lead to {name}: {}", self.text());
            }
        }
    }

    #[track_caller]
    pub(super) fn press(&self, name: &str) {
        self.go(name);
        if self.hand == Hand::Keyboard {
            self.browser.keys(ENTER);
        }
    }

    /// Ticks or unticks a box.
    #[track_caller]
    pub(super) fn tick(&self, name: &str) {
        self.go(name);
        if self.hand == Hand::Keyboard {
            self.browser.keys(" ");
        }
    }

    #[track_caller]
    pub(super) fn fill(&self, name: &str, text: &str) {
        self.go(name);
        self.browser.chord(CONTROL, 'a');
        self.browser.keys(text);
    }

    /// Checks the review, and applies the change.
    #[track_caller]
    pub(super) fn apply(&self, review: &[&str]) {
        for text in review {
            self.sees(text);
        }
        self.press("Apply");
        self.waits_for(
            "the dialogs are gone",
            "return document.querySelector('dialog') === null",
        );
    }

    #[track_caller]
    pub(super) fn keep(&self) {
        self.sees("is taken back in");
        self.press("Keep it");
        self.waits_for(
            "it is kept",
            "return document.getElementById('pending').hidden",
        );
    }
}

/// An operator's day.
fn day(hand: Hand) {
    let Some(bed) = Bed::new("") else { return };
    let Some(operator) = Operator::at(&bed, hand) else {
        return;
    };
    operator.fill("Token", "mcr_wrong");
    operator.press("Sign in");
    operator.sees("the token is nobody's");
    operator.sign_in("change");

    // An error is shown beside its field, in the words of mcr check.
    operator.press("Add rule …");
    operator.fill("name", "cam1");
    operator.fill("inputs", "239.1.1.1%veth1");
    let wrong =
        "return document.querySelector('[data-key=inputs] .wrong')?.textContent.includes('port')";
    operator.waits_for("the input is told to be wrong", wrong);
    operator.fill("inputs", "239.1.1.1%veth1:5001");
    operator.waits_for(
        "it is right",
        "return document.querySelector('[data-key=inputs] .wrong')?.textContent === ''",
    );
    operator.fill("to", "239.10.1.1%veth2:6001");
    operator.press("Review …");
    operator.apply(&["+ rule cam1", "cam1 runs on"]);
    operator.sees("The change to generation");
    assert!(exported(&bed).contains("cam1"));
    // The countdown and the session outlive the page.
    operator.browser.open(PAGE);
    operator.sees("is taken back in");
    operator.keep();

    copy_and_change(&bed, &operator);
    import_and_save(&bed, &operator);
    do_several_at_once(&bed, &operator);
    operator.press("Sign out");
    operator.sees("Sign in");
    let complaints = operator.browser.complaints();
    // From the wrong token, and from requests that were under way when signing out.
    let is_other = |line: &&Value| {
        !line["message"]
            .as_str()
            .unwrap()
            .contains("401 (Unauthorized)")
    };
    assert_eq!(complaints.iter().find(is_other), None);
}

fn exported(bed: &Bed) -> String {
    bed.daemon.mcr(&["export"]).unwrap()
}

fn copy_and_change(bed: &Bed, operator: &Operator) {
    operator.tick("pick cam1");
    operator.press("Copy …");
    operator.fill("name", "cam2");
    operator.fill("inputs", "239.1.1.2%veth1:5001");
    operator.press("Review …");
    operator.apply(&["+ rule cam2"]);
    operator.press("Take it back now");
    wait::until("it is taken back", || !exported(bed).contains("cam2")).unwrap();

    operator.tick("pick cam1");
    operator.press("Change …");
    operator.press("As text");
    operator.fill(
        "Rules as TOML",
        "[[rule]]\nname = \"cam1\"\ninput = \"239.1.1.1%veth1:5001\"\noutputs = [\"239.10.1.1%veth9:6001\"]\nlimti = 3\n",
    );
    operator.sees("line 5: ");
    operator.fill(
        "Rules as TOML",
        "[[rule]]\nname = \"cam1\"\ninput = \"239.1.1.1%veth1:5001\"\noutputs = [\"239.10.1.1%veth9:6001\"]\n",
    );
    operator.press("Review …");
    operator.sees("no interface veth9");
    operator.tick("Take back unless confirmed");
    operator.apply(&[
        "+ output 239.10.1.1%veth9:6001",
        "− output 239.10.1.1%veth2:6001",
    ]);
    assert!(exported(bed).contains("veth9"));
    operator.press("Undo …");
    operator.apply(&["+ output 239.10.1.1%veth2:6001"]);
    operator.keep();
    assert!(!exported(bed).contains("veth9"));
}

fn import_and_save(bed: &Bed, operator: &Operator) {
    operator.press("Import …");
    operator.fill("Text", "#EXTM3U\n#EXTINF:-1,News\nudp://@239.1.1.7:5000\n");
    operator.fill("Interfaces", "veth1");
    operator.fill("To", "%veth2");
    operator.press("Make rules …");
    operator.press("Review …");
    operator.apply(&["+ rule News"]);
    operator.keep();
    operator.sees("not saved");
    operator.press("Save …");
    operator.sees("+ rule News");
    operator.press("Save");
    let file = || fs::read_to_string(bed.daemon.config_file()).unwrap();
    wait::until("it is saved", || file().contains("News")).unwrap();
    operator.waits_for(
        "the dialogs are gone",
        "return document.querySelector('dialog') === null",
    );
}

fn do_several_at_once(bed: &Bed, operator: &Operator) {
    // Several at once.
    operator.press("Pick shown");
    operator.press("Disable 2 …");
    operator.apply(&["rule cam1", "rule News"]);
    operator.keep();
    assert_eq!(exported(bed).matches("enabled = false").count(), 2);
    operator.tick("pick cam1");
    operator.press("Enable …");
    operator.apply(&["rule cam1"]);
    operator.keep();
    assert_eq!(exported(bed).matches("enabled = false").count(), 1);
    operator.tick("pick News");
    operator.press("Remove …");
    operator.fill("Why", "it ended – für immer");
    operator.apply(&["− rule News"]);
    operator.keep();
    operator.press("Log …");
    operator.sees("Changes");
    operator.fill("Filter", "immer");
    operator.sees("it ended – für immer");
    operator.sees("changer");
    let listed = "return [...document.querySelectorAll('.changes li')].filter((line) => !line.hidden).length";
    assert_eq!(operator.browser.run(listed), 1);
    operator.press("Close");
}

#[test]
fn each_task_is_done_by_mouse() {
    day(Hand::Mouse);
}

#[test]
fn each_task_is_done_by_keyboard() {
    day(Hand::Keyboard);
}

#[test]
fn what_a_role_may_not_do_is_not_offered() {
    let Some(bed) = Bed::new("") else { return };
    let second = ["--input", "239.1.1.2%veth1:5001", "--failover", "500ms"];
    let rule = [
        ["add", "239.1.1.1%veth1:5001", "239.10.1.1%veth2:6001"].as_slice(),
        &["--name", "cam1"],
        &second,
    ];
    bed.mcr("change", &rule.concat());
    let Some(operator) = Operator::at(&bed, Hand::Keyboard) else {
        return;
    };
    let offered = "return [...document.querySelectorAll('#actions button')].filter((one) => !one.hidden) \
                   .map((one) => one.textContent).join()";
    operator.sign_in("view");
    assert_eq!(operator.browser.run(offered), "As it was …,Log …");
    operator.press("Sign out");
    operator.sees("Sign in");
    operator.sign_in("operate");
    assert_eq!(
        operator.browser.run(offered),
        "Discover …,Enable …,Disable …,Acknowledge …,Switch leg …,Capture …,As it was …,Pick shown,Log …"
    );
    operator.press("cam1");
    operator.press("Switch leg …");
    operator.press("Switch");
    wait::until("the other leg is relayed", || {
        bed.mcr("view", &["stats", "--json"])
            .contains("\"active\":\"239.1.1.2%veth1:5001\"")
    })
    .unwrap();
    operator.waits_for(
        "the dialog is gone",
        "return document.querySelector('dialog') === null",
    );
    operator.press("Disable …");
    operator.apply(&[]);
    operator.keep();
    assert!(bed.mcr("view", &["export"]).contains("enabled = false"));
}

#[test]
fn a_row_that_is_added_is_a_field_of_the_form() {
    let Some(bed) = Bed::new("") else { return };
    let Some(operator) = Operator::at(&bed, Hand::Mouse) else {
        return;
    };
    operator.sign_in("view");
    let made = operator.browser.run(
        "return Promise.all([import('/web/form.js'), fetch('/v1/schema').then((told) => told.json())]) \
         .then(([{ Form }, schema]) => { \
           const { properties } = schema.definitions.RuleDocument; \
           properties.colour = { type: ['string'], enum: ['red', 'blue'], default: 'red', description: 'Its colour.' }; \
           properties.depth = { type: ['integer', 'string'], description: 'Its depth.' }; \
           const form = new Form(schema, { name: 'a', depth: 7 }); \
           form.element.querySelector('[data-key=colour] select').value = 'blue'; \
           return [Object.keys(properties).filter((key) => !['input', 'share'].includes(key) \
               && !form.element.querySelector(`[data-key=${key}]`)), \
             form.element.querySelector('[data-key=colour]').textContent.includes('Its colour.'), form.value()]; })",
    );
    assert_eq!(
        made,
        serde_json::json!([[], true, { "name": "a", "colour": "blue", "depth": 7 }]),
        "every row has a field"
    );
}

#[test]
#[ignore = "writes docs/images; make pictures runs it"]
fn the_editor_and_the_review_have_their_picture_taken() {
    let Some(bed) = Bed::new("") else { return };
    bed.mcr("change", &["add", INPUT, OUTPUT, "--name", "cam1"]);
    let Some(operator) = Operator::at(&bed, Hand::Mouse) else {
        return;
    };
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images");
    let take = |name: &str| pictures::write(&directory, name, &operator.browser.picture());
    operator.sign_in("change");
    operator.tick("pick cam1");
    operator.press("Change …");
    operator.fill("inputs", "239.1.1.1%veth1");
    operator.sees("has no port");
    take("page-editor.png");
    operator.fill("inputs", "239.1.1.2%veth1:5001");
    operator.waits_for(
        "it is right",
        "return document.querySelector('[data-key=inputs] .wrong').textContent === ''",
    );
    operator.press("Review …");
    operator.sees("+ input 239.1.1.2%veth1:5001");
    take("page-review.png");
}
