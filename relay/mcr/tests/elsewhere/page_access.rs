//! Accessibility of the page at three widths, light and dark: what axe finds, and what it does not check.

use std::collections::BTreeSet;

use super::Bed;
use super::page::{ESCAPE, Hand, Operator};
use super::page_tasks::cam1_moved;

const WIDTHS: [(u32, u32); 3] = [(390, 844), (1280, 900), (1920, 1080)];

/// Lists what is too faint (WCAG 2.2, 1.4.3: 4.5 to 1, large letters 3 to 1) or wider than the screen,
/// duplicate ids, and references to missing ones.
const AUDIT: &str = "
const wrong = [];
const top = [...document.querySelectorAll('dialog[open]')].at(-1) ?? document.body;
const colour = (text) => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
const over = (front, back) => front.slice(0, 3).map((one, at) => one * front[3] + back[at] * (1 - front[3])).concat(1);
const behind = (one) => {
  const layers = [];
  for (let at = one; at; at = at.parentElement) {
    const back = colour(getComputedStyle(at).backgroundColor);
    if (back[3] > 0) layers.push(back);
    if (back[3] === 1) break;
  }
  return layers.reverse().reduce((back, front) => over(front, back), [255, 255, 255, 1]);
};
const light = (of) => {
  const [r, g, b] = of.map((one) => one / 255).map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const texts = document.createTreeWalker(top, NodeFilter.SHOW_TEXT);
for (let node = texts.nextNode(); node; node = texts.nextNode()) {
  const one = node.parentElement;
  if (node.textContent.trim() === '' || one.closest('[hidden], script, style, #spoken, svg, .plot') || one.getClientRects().length === 0) continue;
  if (one.closest(':disabled, [aria-disabled=true]')) continue;
  const style = getComputedStyle(one);
  const back = behind(one);
  const [a, b] = [light(over(colour(style.color), back)), light(back)];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const size = parseFloat(style.fontSize);
  const least = size >= 24 || size >= 18.66 && Number(style.fontWeight) >= 700 ? 3 : 4.5;
  if (ratio < least) wrong.push(`too faint, ${ratio.toFixed(2)}: ${one.tagName} ${node.textContent.trim().slice(0, 40)}`);
}
const root = document.documentElement;
if (root.scrollWidth > innerWidth) wrong.push(`the page is ${root.scrollWidth} wide`);
if (top.tagName === 'DIALOG' && top.scrollWidth > top.clientWidth) wrong.push(`the dialog is ${top.scrollWidth} wide`);
const ids = [...document.querySelectorAll('[id]')].map((one) => one.id);
ids.filter((id, at) => ids.indexOf(id) !== at).forEach((id) => wrong.push(`twice: #${id}`));
for (const name of ['aria-labelledby', 'aria-describedby', 'aria-controls', 'aria-activedescendant', 'for']) {
  for (const one of top.querySelectorAll(`[${name}]`)) {
    for (const id of one.getAttribute(name).split(' ')) if (!ids.includes(id)) wrong.push(`${name}: no #${id}`);
  }
}
for (const one of top.querySelectorAll('[tabindex]')) if (one.tabIndex > 0) wrong.push(`an order of its own: ${one.tagName}`);
for (const one of top.querySelectorAll('button, select, input:not([type=checkbox])')) {
  const { width, height } = one.getBoundingClientRect();
  const isText = one.closest('th, #more, td') !== null;
  if (width > 0 && !isText && Math.min(width, height) < 24) wrong.push(`too small: ${one.tagName} ${one.textContent} ${width} ${height}`);
}
if (root.lang === '' || document.title === '') wrong.push('no language, or no title');
return wrong;";

/// Roles that users act on, or that only their name distinguishes.
const NAMED: [&str; 15] = [
    "button",
    "link",
    "textbox",
    "searchbox",
    "spinbutton",
    "checkbox",
    "combobox",
    "listbox",
    "option",
    "dialog",
    "image",
    "toolbar",
    "region",
    "heading",
    "columnheader",
];

#[track_caller]
pub(super) fn audit(operator: &Operator, view: &str) {
    let mut wrong = BTreeSet::new();
    for scheme in ["light", "dark"] {
        operator.browser.prefer(scheme);
        for (width, height) in WIDTHS {
            operator.browser.resize(width, height);
            let result = operator.browser.run(AUDIT);
            let mut problems: Vec<String> = serde_json::from_value(result).unwrap();
            problems.extend(operator.browser.axe("html"));
            for one in problems {
                wrong.insert(format!("{scheme}, {width}: {one}"));
            }
        }
    }
    for node in operator.browser.accessibility_tree() {
        let (role, name) = (&node["role"]["value"], &node["name"]["value"]);
        let is_empty = name.as_str().unwrap_or_default().trim().is_empty();
        if node["ignored"] == false && NAMED.iter().any(|named| role == *named) && is_empty {
            wrong.insert(format!("no name: {node}"));
        }
    }
    assert!(wrong.is_empty(), "{view}: {wrong:#?}");
}

#[test]
fn every_view_is_read_by_everybody() {
    let Some(bed) = Bed::new("") else { return };
    cam1_moved(&bed, "239.10.1.7%veth9:6001", "moved");
    let Some(operator) = Operator::at(&bed, Hand::Keyboard) else {
        return;
    };
    operator.sees("Sign in");
    audit(&operator, "sign in");
    operator.sign_in("change");
    operator.sees("cam1");
    audit(&operator, "rules");
    operator.press("cam1");
    operator.tick("pick cam1");
    audit(&operator, "rules, and one of them");
    let close = || {
        // Closes the offers, then discards the input, then closes the dialog.
        for _ in 0..3 {
            operator.browser.keys(ESCAPE);
        }
        operator.waits_for(
            "it is closed",
            "return document.querySelector('dialog') === null",
        );
    };
    for (button, seen) in [
        ("Add rule …", "All settings"),
        ("Change …", "All settings"),
        ("Copy …", "All settings"),
        ("Disable …", "rule cam1"),
        ("Acknowledge …", "others are told"),
        ("Save …", "+ rule cam1"),
        ("Import …", "paste or drop"),
        ("Remove …", "− rule cam1"),
        ("Capture …", "60 at most"),
        ("As it was …", "+ output 239.10.1.7%veth9:6001"),
        ("Log …", "moved"),
        ("Undo …", "+ output"),
    ] {
        operator.press(button);
        operator.sees(seen);
        if seen == "All settings" {
            operator.browser.run(
                "for (const one of document.querySelectorAll('dialog details')) one.open = true",
            );
        }
        audit(&operator, button);
        close();
    }
    operator.press("Discover …");
    operator.fill("Seconds", "1");
    operator.press("Listen");
    operator.sees("no multicast arrived");
    audit(&operator, "Discover …");
    close();
    operator.press("Add rule …");
    operator.press("As text");
    operator.fill("Rules as TOML", "[[rule]]\nna");
    operator.waits_for(
        "keys are offered",
        "return document.querySelectorAll('#offers li').length > 0",
    );
    audit(&operator, "as text");
    close();
    let legs = "add 239.1.1.2%veth1:5001 239.10.1.2%veth2:6001 --name legs --input 239.1.1.3%veth1:5001 --failover 500ms";
    bed.mcr("change", &legs.split(' ').collect::<Vec<&str>>());
    operator.press("legs");
    operator.tick("pick cam1");
    operator.press("Switch leg …");
    audit(&operator, "Switch leg …");
    close();
    // A pending change.
    let waits = ["disable", "cam1", "--confirm", "600s", "--yes"];
    bed.mcr("change", &waits);
    operator.sees("is taken back in");
    audit(&operator, "a change that waits");
}
