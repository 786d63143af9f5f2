//! Screens as people see them.

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::super::history::tests::stats;
use super::*;

fn drawn(screen: &Screen) -> String {
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| draw(frame, screen)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn eighty_columns_hold_name_state_rates_and_drops() {
    let mut screen = Screen::default();
    screen.history.add(stats(1.0, &[("camera-1", 0)]));
    screen.history.add(stats(2.0, &[("camera-1", 12_345)]));
    let text = drawn(&screen);
    let line = text.lines().find(|line| line.contains("camera-1")).unwrap();
    for part in ["up", "kernel", "12 345", "98.8 Mbit/s", " 3 ", "█"] {
        assert!(line.contains(part), "no {part:?} in {line}");
    }
}

#[test]
fn long_names_and_narrow_terminals_cost_columns_and_no_digits() {
    let mut screen = Screen::default();
    let name = "eth0-239.100.100.101-50001";
    screen.history.add(stats(1.0, &[(name, 0)]));
    screen.history.add(stats(2.0, &[(name, 1_234_567)]));
    for (width, parts) in [
        (80, [name, "up", "1 234 567", "9.9 Gbit/s"].as_slice()),
        (50, ["eth0-239", "-50001", "up", "1 234 567"].as_slice()),
        (30, ["01", "up", "1 234 567"].as_slice()),
    ] {
        let mut terminal = Terminal::new(TestBackend::new(width, 24)).unwrap();
        terminal.draw(|frame| draw(frame, &screen)).unwrap();
        let text = terminal.backend().to_string();
        let line = text.lines().find(|line| line.contains("1 234 567"));
        let line = line.unwrap_or_else(|| panic!("{text}"));
        for part in parts {
            assert!(line.contains(part), "{width}: no {part:?} in {line}");
        }
    }
}

#[test]
fn the_head_counts_what_the_rows_show() {
    let mut screen = Screen::default();
    let mut both = stats(1.0, &[("a", 5), ("b", 5)]);
    both.rules[1].health = serde_json::from_str(
        r#"{"state":"down","gap_seconds_1s":0,"gap_seconds_10s":0,"unrecognised":0}"#,
    )
    .unwrap();
    screen.history.add(both);
    let text = drawn(&screen);
    assert!(text.contains("2 rules: 1 up, 0 degraded, 1 down"), "{text}");
}

#[test]
fn a_detail_longer_than_the_screen_scrolls_to_its_end() {
    let mut screen = Screen::default();
    let mut stats = stats(1.0, &[("a", 5)]);
    let output = stats.rules[0].outputs[0].clone();
    for n in 0..50 {
        let mut another = output.clone();
        another.to = format!("239.10.2.{n}%eth1:6001");
        stats.rules[0].outputs.push(another);
    }
    screen.history.add(stats);
    screen.view = View::Detail;
    assert!(!drawn(&screen).contains("239.10.2.49%"));
    screen.scroll.set(9_999);
    assert!(drawn(&screen).contains("239.10.2.49%"));
    let end = screen.scroll.get();
    assert!(end < 9_999);
    screen.press(ratatui::crossterm::event::KeyCode::PageUp.into());
    assert_eq!(screen.scroll.get(), end - 10);
    screen.press(ratatui::crossterm::event::KeyCode::Esc.into());
    assert_eq!(screen.scroll.get(), 0);
}

#[test]
fn a_thousand_rules_leave_the_selected_one_in_sight() {
    let names: Vec<String> = (0..1000).map(|n| format!("r{n:04}")).collect();
    let rules: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let mut screen = Screen::default();
    screen.history.add(stats(1.0, &rules));
    screen.selected = Some("r0777".to_owned());
    assert!(drawn(&screen).contains("r0777"));
}

#[test]
fn the_detail_names_inputs_outputs_and_reasons() {
    let mut screen = Screen::default();
    screen.history.add(stats(1.0, &[("a", 5)]));
    screen.view = View::Detail;
    let text = drawn(&screen);
    for part in [
        "239.1.1.1%eth0:5001",
        "239.10.1.1%eth1:6001",
        "too_big 3",
        "fits",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

#[test]
fn the_detail_counts_each_of_several_inputs() {
    let mut screen = Screen::default();
    for (at, packets) in [(1.0, 100), (2.0, 1_100)] {
        let mut stats = stats(at, &[("a", 5)]);
        let inputs = &mut stats.rules[0].inputs;
        inputs.push(inputs[0].clone());
        inputs[1].at = "239.1.1.2%eth0:5001".to_owned();
        inputs[1].received.packets = packets;
        screen.history.add(stats);
    }
    screen.view = View::Detail;
    let text = drawn(&screen);
    let mut lines = text.lines().skip_while(|line| !line.contains("239.1.1.2%"));
    for part in ["joined", "1 100 packets", "1 s: 1 000 packets/s"] {
        let line = lines.next().unwrap_or_default();
        assert!(line.contains(part), "no {part:?} in {line} of {text}");
    }
}
