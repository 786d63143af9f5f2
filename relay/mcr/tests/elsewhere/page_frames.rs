//! The times between frames of the page with 10,000 rules while a user reads, filters and edits.

use std::fmt::Write;
use std::time::Duration;

use lab::wait;

use super::Bed;
use super::page::{Hand, Operator};

const RULES: usize = 10_000;

/// Records each frame, and each task that blocked the page for more than 50 ms, from now on.
const NOTE: &str = "window.frames = []; window.tasks = []; \
    if (window.noted) return; window.noted = true; let last = null; \
    const step = (now) => { if (last !== null) frames.push(now - last); last = now; requestAnimationFrame(step); }; \
    requestAnimationFrame(step); \
    new PerformanceObserver((list) => tasks.push(...list.getEntries().map((one) => one.duration))) \
      .observe({ entryTypes: ['longtask'] })";

/// Measures at least this many frames during an action.
fn measure(operator: &Operator, what: &str, frames: u64, act: &dyn Fn()) {
    operator.browser.run(NOTE);
    act();
    let recorded = || operator.browser.run("return frames.length").as_u64();
    let patience = Duration::from_secs(120);
    wait::until_within(patience, "frames are noted", || recorded() >= Some(frames)).unwrap();
    let read = |name: &str| -> Vec<f64> {
        let list = operator.browser.run(&format!("return {name}"));
        let mut times: Vec<f64> = serde_json::from_value(list).unwrap();
        times.sort_by(f64::total_cmp);
        times
    };
    let (frames, tasks) = (read("frames"), read("tasks"));
    let at = |part: usize| frames[(frames.len() - 1) * part / 100];
    println!(
        "{what}: {} frames, p50 {:.0} ms, p99 {:.0} ms, longest {:.0} ms; {} tasks above 50 ms, longest {:.0} ms",
        frames.len(),
        at(50),
        at(99),
        at(100),
        tasks.len(),
        tasks.last().unwrap_or(&0.0)
    );
}

#[test]
#[ignore = "measures: make long-page"]
fn ten_thousand_rules_do_not_hold_up_who_edits() {
    let Some(bed) = Bed::new("") else { return };
    let mut rules = String::from("version = 1\n");
    for number in 0..RULES {
        let (high, low) = (number / 250, number % 250 + 1);
        write!(
            rules,
            "[[rule]]\nname = \"cam{number}\"\ninput = \"239.1.{high}.{low}%veth1:5001\"\n\
             outputs = [\"239.10.{high}.{low}%veth2:6001\"]\n"
        )
        .unwrap();
    }
    let file = bed.keys.path("many.toml");
    std::fs::write(&file, rules).unwrap();
    bed.mcr("change", &["apply", file.to_str().unwrap(), "--yes"]);
    let Some(operator) = Operator::at(&bed, Hand::Mouse) else {
        return;
    };
    operator.sign_in("change");
    operator.sees("cam1\t");
    measure(&operator, "looking", 600, &|| {});
    measure(&operator, "choosing", 120, &|| {
        operator
            .browser
            .run("document.getElementById('filter').focus()");
        operator.browser.keys("cam7777");
        operator.sees("cam7777");
    });
    operator.tick("pick cam7777");
    measure(&operator, "editing the form", 600, &|| {
        operator.press("Change …");
        operator.fill("to", "239.10.31.28%veth2:6001,ttl=16");
        operator.fill("comment", "a longer way to the studio on the other side");
    });
    operator.press("As text");
    measure(&operator, "editing the text", 600, &|| {
        operator.browser.run(
            "const text = document.querySelector('textarea.toml'); text.focus(); \
                              text.setSelectionRange(text.value.length, text.value.length)",
        );
        operator.browser.keys("\nlimit = \"20Mbit\"\n");
    });
    measure(&operator, "reviewing", 120, &|| operator.press("Review …"));
    operator.apply(&["+ limit 20Mbit"]);
    operator.keep();
    assert!(bed.mcr("view", &["export"]).contains("limit = \"20Mbit\""));
}
