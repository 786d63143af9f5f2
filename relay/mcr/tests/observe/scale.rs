//! The page with few and with many rules, at the widths of a video wall, a desktop and a phone: rules in
//! trouble come first. With pictures in `target/pages`.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use lab::wait;

use super::browser::Browser;
use super::pictures::write;
use crate::bed::Bed;

const TOOLS: [&str; 3] = ["chromium", "chromedriver", "base64"];
const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:9190"];
const SIZES: [(u32, u32); 3] = [(1920, 1080), (1280, 800), (390, 844)];
const IN_TROUBLE: usize = 8;
/// For debug builds with a browser on the same machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// This many rules, of which the last, at most eight, are in trouble in one of four ways.
fn config(rules: usize) -> String {
    let mut config = "version = 1\n".to_owned();
    let troubled = rules - troubled(rules);
    for n in 0..rules {
        let (high, low) = (n / 250, n % 250 + 1);
        let (group, good) = (
            format!("239.1.{high}.{low}"),
            format!("239.10.{high}.{low}%veth2:6001"),
        );
        let (input, outputs, more) = match (n >= troubled, n % 4) {
            (false, _) => ("veth1", format!("\"{good}\""), ""),
            (true, 0) => ("veth1", format!("\"239.10.{high}.{low}%veth8:6001\""), ""),
            (true, 1) => (
                "veth1",
                format!("\"{good}\", \"239.11.{high}.{low}%veth8:6001\""),
                "",
            ),
            (true, 2) => (
                "veth1",
                format!("\"{good}\""),
                "health = { silence = \"1s\" }\n",
            ),
            (true, _) => ("veth9", format!("\"{good}\""), ""),
        };
        write!(
            config,
            "[[rule]]\nname = \"r{n:05}\"\ninput = \"{group}%{input}:5001\"\noutputs = [{outputs}]\n{more}"
        )
        .unwrap();
    }
    config
}

fn troubled(rules: usize) -> usize {
    IN_TROUBLE.min(rules - 2)
}

/// The names of rules whose rows can be seen without scrolling.
const IN_SIGHT: &str = "const list = document.getElementById('rules').getBoundingClientRect(); \
    const end = Math.min(innerHeight, list.bottom); \
    return [...document.querySelectorAll('#rows > tr[data-rule]')].filter((row) => { \
      const { top, bottom } = row.getBoundingClientRect(); return top >= list.top && bottom <= end; \
    }).map((row) => row.dataset.rule)";

const FIGURES: &str = "const of = (entry) => entry ? [entry.transferSize, Math.round(entry.responseEnd)] : null; \
    const loaded = performance.getEntriesByType('resource'); \
    const paint = performance.getEntriesByName('first-contentful-paint')[0]; \
    return JSON.stringify({ paint_ms: Math.round(paint?.startTime), \
      stats: of(loaded.find(({ name }) => name.includes('/v1/stats'))), \
      history: of(loaded.find(({ name }) => name.includes('/v1/history'))), \
      files: loaded.filter(({ name }) => name.includes('/web/')).reduce((all, { transferSize }) => all + transferSize, 0) })";

#[test]
fn the_page_opens_with_what_is_in_trouble() {
    show_rules(&[300], &SIZES[2..], false);
}

#[test]
#[ignore = "long: writes target/pages, for three widths and three numbers of rules"]
fn the_page_has_its_picture_taken_at_scale() {
    show_rules(&[3, 300, 10_000], &SIZES, true);
}

fn show_rules(numbers: &[usize], sizes: &[(u32, u32)], has_pictures: bool) {
    for rules in numbers {
        let Some(bed) = Bed::with_tools(&TOOLS, &LISTEN) else {
            return;
        };
        bed.daemon.apply(&config(*rules)).unwrap();
        let _stream = bed.stream(1000);
        let browser = Browser::start(&bed.chain.relay);
        for (width, height) in sizes {
            browser.resize(*width, *height);
            browser.open("about:blank");
            browser.open("http://127.0.0.1:9190/");
            let expected = troubled(*rules);
            wait::until_within(PATIENCE, "those in trouble come first", || {
                let visible = browser.run(IN_SIGHT);
                let names: Vec<&str> = visible
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(|name| name.as_str())
                    .collect();
                let is_troubled =
                    |name: &&str| name[1..].parse::<usize>().unwrap() >= rules - expected;
                names.len() >= expected && names[..expected].iter().all(is_troubled)
            })
            .unwrap_or_else(|error| {
                panic!(
                    "{rules} rules at {width}: {error:#}; {}",
                    browser.run(IN_SIGHT)
                )
            });
            let since = "return document.getElementById('plots').dataset.since > 0";
            wait::until_within(PATIENCE, "the charts have their past", || {
                browser.run(since) == true
            })
            .unwrap();
            let overflow = "return document.documentElement.scrollWidth - innerWidth";
            assert!(
                browser.run(overflow).as_i64() <= Some(0),
                "{rules} rules at {width}"
            );
            if !has_pictures {
                continue;
            }
            eprintln!("{rules} rules at {width}: {}", browser.run(FIGURES));
            for scheme in ["light", "dark"] {
                browser.prefer(scheme);
                let drawn = "return document.querySelectorAll('.uplot canvas').length";
                wait::until("the plots are drawn anew", || browser.run(drawn) == 2).unwrap();
                let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/pages");
                write(
                    &directory,
                    &format!("{rules}-{width}-{scheme}.png"),
                    &browser.picture(),
                );
            }
        }
        assert_eq!(browser.complaints(), Vec::<serde_json::Value>::new());
    }
}
