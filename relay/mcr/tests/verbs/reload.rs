//! `mcr reload` and `mcr status`.

use std::fs;

use serde_json::json;

use crate::bed::{Bed, OUTPUT};

const FILE: &str = r#"version = 1
[[rule]]
name = "cam1"
input = "239.1.1.1%veth1:5001"
outputs = ["239.10.1.1%veth2:6001"]
"#;

#[test]
fn a_reload_says_what_it_changed_and_whether_it_was_taken() {
    let Some(bed) = Bed::new(Some(FILE), &[]) else {
        return;
    };
    let file = bed.daemon.config_file();
    let second = FILE
        .replace("cam1", "cam2")
        .replace("239.1.1.1", "239.1.1.2")
        .replace("version = 1", "")
        .replace("veth2", "veth9");
    fs::write(
        &file,
        format!("{}{second}", FILE.replace(OUTPUT, "239.10.1.1%veth2:6002")),
    )
    .unwrap();
    let printed = bed.daemon.mcr(&["reload"]).unwrap();
    let lines = [
        "+ cam2",
        "~ cam1",
        "    - output 239.10.1.1%veth2:6001",
        "    + output 239.10.1.1%veth2:6002",
        "0 unchanged",
    ];
    assert_eq!(printed.lines().collect::<Vec<_>>(), lines);
    bed.daemon
        .add("cam0", "239.1.1.3%veth9:5001", &[OUTPUT])
        .unwrap();
    let screen = bed.daemon.mcr(&["status"]).unwrap();
    let at = |text: &str| {
        screen
            .find(text)
            .unwrap_or_else(|| panic!("no {text:?}: {screen}"))
    };
    assert!(
        at("rules            3: 0 up, 1 waiting, 0 degraded, 0 silent, 2 down")
            < at("down             cam2: output")
    );
    assert!(
        screen.contains(file.to_str().unwrap()) && screen.contains(", read again "),
        "{screen}"
    );

    fs::write(&file, "version = 1\nrules = 1\n").unwrap();
    bed.fails(&["reload"], 1, &["rules", file.to_str().unwrap()]);
    let screen = bed.daemon.mcr(&["status"]).unwrap();
    assert!(screen.contains("cannot be used, tried "), "{screen}");
    assert_eq!(
        bed.json(&["list", "--json"])["rules"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
    bed.fails(
        &["show", "cam2x"],
        3,
        &["no rule \"cam2x\"; did you mean \"cam2\"?"],
    );
    assert_eq!(bed.json(&["status", "--json"])["config"], json!(file));
}
