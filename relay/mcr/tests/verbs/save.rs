//! `--save`.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::bed::{Bed, OUTPUT};

const FILE: &str = r#"# The head end.
version = 1

# The first camera.
[[rule]]
name = "cam1"   # on the roof
input = "239.1.1.1%veth1:5001"
outputs = ["239.10.1.1%veth2:6001"]
"#;

#[test]
fn what_is_changed_and_saved_is_what_a_reload_finds() {
    let Some(bed) = Bed::new(Some(FILE), &[]) else {
        return;
    };
    let file = bed.daemon.config_file();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let mcr = |arguments: &[&str]| bed.daemon.mcr(&[arguments, &["--save"]].concat()).unwrap();
    let unsaved = ["add", "239.1.1.9%veth1:5001", OUTPUT, "--name", "trial"];
    bed.daemon.mcr(&unsaved).unwrap();
    mcr(&[
        "add",
        "239.1.1.2%veth1:5001",
        "239.10.1.2%veth2:6002,ttl=9",
        "--name",
        "cam2",
    ]);
    mcr(&["change", "cam1", "--set", "limit=20Mbit"]);
    mcr(&["disable", "cam1"]);
    let written = fs::read_to_string(&file).unwrap();
    let cam1 = "outputs = [\"239.10.1.1%veth2:6001\"]\nenabled = false\nlimit = \"20Mbit\"\n";
    let cam1_too = "outputs = [\"239.10.1.1%veth2:6001\"]\nlimit = \"20Mbit\"\nenabled = false\n";
    assert!(
        written.starts_with(FILE.split("outputs").next().unwrap()),
        "{written}"
    );
    assert!(
        written.contains(cam1) || written.contains(cam1_too),
        "{written}"
    );
    assert!(
        written.contains("name = \"cam2\"") && !written.contains("trial"),
        "{written}"
    );
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o640
    );

    let diff = bed
        .daemon
        .client(&["diff", file.to_str().unwrap()])
        .unwrap();
    assert_eq!(diff.stdout, "- trial\n2 unchanged\n");
    mcr(&["enable", "cam1"]);
    mcr(&["change", "cam1", "--set", "limit="]);
    mcr(&["remove", "cam2"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), FILE);
    let entries: Vec<_> = fs::read_dir(file.parent().unwrap()).unwrap().collect();
    let hidden = entries
        .iter()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with('.'));
    assert_eq!(hidden.count(), 0, "{entries:?}");
}

#[test]
fn what_is_applied_and_saved_is_what_a_reload_finds() {
    let Some(bed) = Bed::new(Some(FILE), &[]) else {
        return;
    };
    let file = bed.daemon.config_file();
    let unsaved = ["add", "239.1.1.9%veth1:5001", OUTPUT, "--name", "trial"];
    bed.daemon.mcr(&unsaved).unwrap();
    let new = file.with_file_name("new.txt");
    let cam2 = "[[rule]]\nname = \"cam2\"\ninput = \"239.1.1.2%veth1:5001\"\n\
                outputs = [\"239.10.1.2%veth2:6001\"]\n[budget]\nunicast = \"1Gbit\"\n";
    fs::write(&new, format!("{FILE}limit = \"20Mbit\"\n{cam2}")).unwrap();
    let apply = ["apply", new.to_str().unwrap(), "--save"];
    bed.fails(&[&apply[..], &["--dry-run"]].concat(), 2, &["--save"]);
    let printed = bed.daemon.mcr(&apply).unwrap();
    assert!(
        printed.contains("- trial") && printed.contains("+ cam2"),
        "{printed}"
    );
    let written = fs::read_to_string(&file).unwrap();
    assert!(written.starts_with(FILE), "{written}");
    assert!(
        written.contains("1Gbit") && !written.contains("trial"),
        "{written}"
    );
    assert_eq!(bed.daemon.mcr(&["reload"]).unwrap(), "2 unchanged\n");

    fs::write(&new, FILE).unwrap();
    bed.daemon.mcr(&apply).unwrap();
    assert_eq!(
        fs::read_to_string(&file).unwrap().trim_end(),
        FILE.trim_end()
    );
    let own = bed.daemon.mcr(&["apply", file.to_str().unwrap(), "--save"]);
    assert_eq!(own.unwrap(), "1 unchanged\n");
}

#[test]
fn nothing_changes_where_it_cannot_be_saved() {
    let Some(bed) = Bed::new(Some(FILE), &[]) else {
        return;
    };
    let file = bed.daemon.config_file();
    fs::write(&file, FILE.replace("outputs", "outptus")).unwrap();
    let before = bed.json(&["list", "--json"]);
    bed.fails(
        &["disable", "cam1", "--save"],
        78,
        &["outptus", "cannot be used as it is"],
    );
    assert_eq!(bed.json(&["list", "--json"]), before);
    // A rule of the file, which nobody has reloaded, already takes the input.
    let other = "[[rule]]\nname = \"new\"\ninput = \"239.1.1.7%veth1:5001\"\n\
                 outputs = [\"239.10.1.7%veth2:6001\"]\n";
    fs::write(&file, format!("{FILE}{other}")).unwrap();
    let add = [
        "add",
        "239.1.1.7%veth1:5001",
        OUTPUT,
        "--name",
        "mine",
        "--save",
    ];
    bed.fails(
        &add,
        78,
        &["the change runs, but", "stays as it was", "\"new\""],
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), format!("{FILE}{other}"));
    assert_eq!(
        bed.json(&["list", "--json"])["rules"][1]["name"],
        json!("mine")
    );
}
