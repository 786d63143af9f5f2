use std::path::PathBuf;
use std::process::Command;

use lab::wait;

use crate::bed::Bed;

/// A terminal of 80 columns and 24 lines, on a tmux server of its own.
pub(crate) struct Screen {
    directory: tempfile::TempDir,
}

impl Screen {
    pub(crate) fn start(program: &[String]) -> Self {
        let screen = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        let mut arguments = vec!["new-session", "-d", "-x", "80", "-y", "24", "--"];
        arguments.extend(program.iter().map(String::as_str));
        screen.tmux(&arguments);
        screen
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("tmux")
    }

    pub(crate) fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command
            .args(["-f", "/dev/null", "-u", "-S"])
            .arg(self.socket());
        command.env("LC_ALL", "C.UTF-8").env_remove("TMUX");
        let output = command.args(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub(crate) fn press(&self, keys: &[&str]) {
        let mut arguments = vec!["send-keys"];
        arguments.extend(keys);
        self.tmux(&arguments);
    }

    /// Waits until the screen satisfies `condition`.
    pub(crate) fn until(&self, what: &str, condition: impl Fn(&str) -> bool) -> String {
        let mut text = String::new();
        let shown = wait::until(what, || {
            text = self.tmux(&["capture-pane", "-p"]);
            condition(&text)
        });
        shown.unwrap_or_else(|error| panic!("{error:#}; the screen:\n{text}"));
        text
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[test]
fn top_shows_rates_sorts_filters_and_goes_into_detail() {
    let Some(bed) = Bed::with_tools(&["tmux"], &[]) else {
        return;
    };
    bed.add();
    bed.daemon
        .add("idle", "239.1.1.9%veth1:5009", &["239.10.1.9%veth2:6009"])
        .unwrap();
    let _stream = bed.stream(1000);
    let mcr = lab::binary::mcr().unwrap().display().to_string();
    let socket = bed.daemon.socket().display().to_string();
    let screen = Screen::start(&[mcr, "--socket".to_owned(), socket, "top".to_owned()]);

    let shown = screen.until("the stream has a rate near 1000", |text| {
        rate_of(text, "cam1").is_some_and(|rate| (900..=1100).contains(&rate))
            // The last line: a screen may be read while it is being drawn.
            && text.contains("? help")
    });
    assert!(
        shown.contains("2 rules: 1 up, 0 degraded, 0 down, 1 waiting"),
        "{shown}"
    );
    assert_eq!(rate_of(&shown, "idle"), Some(0), "{shown}");
    assert!(shown.contains("Mbit/s") && shown.contains('█'), "{shown}");

    screen.tmux(&["resize-window", "-x", "50", "-y", "16"]);
    screen.until("a narrow terminal has whole names, fewer columns", |text| {
        let rule = text.lines().find(|line| line.starts_with("cam1 "));
        rule.is_some_and(|line| line.contains(" up ")) && !text.contains("PATH")
    });
    screen.tmux(&["resize-window", "-x", "80", "-y", "24"]);
    screen.until("a wide one has them all", |text| text.contains("PATH"));

    screen.press(&["s", "s", "s", "G"]);
    screen.until("by rate, the idle rule is last", |text| {
        text.contains("sort: rate") && text.find("cam1") < text.find("idle")
    });
    screen.press(&["/", "i", "d", "l", "e", "Enter"]);
    screen.until("only the idle rule is left", |text| {
        text.contains("filter: idle") && !text.contains("cam1 ")
    });
    screen.press(&["Escape"]);
    screen.until("both are there", |text| text.contains("cam1 "));
    screen.press(&["g", "Enter"]);
    screen.until("the detail has the input and the output", |text| {
        let parts = ["239.1.1.1%veth1:5001  joined", "239.10.1.1%veth2:6001  up"];
        text.contains("rule cam1") && parts.iter().all(|part| text.contains(part))
    });
    screen.press(&["q"]);
    bed.daemon.mcr(&["remove", "idle"]).unwrap();
    screen.until("the event is told", |text| {
        text.contains("\"idle\" removed")
    });
    screen.press(&["q"]);
    wait::until("top has left", || {
        !screen.tmux(&["list-panes"]).contains("active")
    })
    .unwrap();
}

#[test]
fn top_goes_through_more_rules_than_it_is_sent() {
    let Some(bed) = Bed::with_tools(&["tmux"], &[]) else {
        return;
    };
    bed.daemon.apply(&super::page::config(1200, 700)).unwrap();
    let mcr = lab::binary::mcr().unwrap().display().to_string();
    let socket = bed.daemon.socket().display().to_string();
    let screen = Screen::start(&[
        mcr,
        "--socket".to_owned(),
        socket,
        "top".to_owned(),
        "--sort".to_owned(),
        "configured".to_owned(),
    ]);
    let begins = |text: &str, name: &str| text.lines().any(|line| line.starts_with(name));
    screen.until("the first rules are shown", |text| begins(text, "r0000 "));
    screen.until("all but one wait for their streams", |text| {
        text.contains("1 200 rules: 0 up, 0 degraded, 1 down, 1 199 waiting")
    });
    screen.press(&["End"]);
    screen.until("the last is there", |text| begins(text, "r1199 "));
    screen.press(&["PageUp", "PageUp"]);
    screen.until("twenty before it", |text| {
        begins(text, "r1179 ") && !begins(text, "r1180 ")
    });
    screen.press(&["s", "s", "s", "s", "Home"]);
    let worst = screen.until("the worst comes first", |text| {
        text.lines()
            .nth(3)
            .is_some_and(|line| line.starts_with("r0700 "))
    });
    assert!(worst.contains("sort: state"), "{worst}");
    screen.press(&["/", "r", "0", "9", "9", "9", "Enter"]);
    screen.until("what is filtered is asked for", |text| {
        begins(text, "r0999 ") && !begins(text, "r0700 ")
    });
    screen.press(&["Enter"]);
    screen.until("and has its detail", |text| {
        text.contains("239.1.3.250%veth1:5001  joined")
    });
}

/// Packets per second over 1 s, in the column after the path.
fn rate_of(screen: &str, rule: &str) -> Option<u64> {
    let line = screen.lines().find(|line| line.starts_with(rule))?;
    let (_, after) = line.split_once(" kernel").or(line.split_once(" user"))?;
    let column = after.chars().take(11);
    let digits: String = column.filter(char::is_ascii_digit).collect();
    digits.parse().ok()
}
